// The hot loops and their arguments. Every pointer is to C-contiguous memory.
//
// Entries of an array are sorted by their row in one of its modes: row i has the entries starts[i]
// .. starts[i + 1]. Per-entry arrays are in this order. If the measurements are in another order,
// entry e is measurement position[e].
//
// At an entry the object is linear in its row x of the mode's matrix: it is x . v. The vector v
// is a row of the other matrix; for Tucker decompositions it is a combination of rows,
// sum_s c_s table[other, s, :], with the Kronecker products c of rows of the other factors.
#pragma once
#include <cstdint>

namespace scaledgd {

constexpr int MAX_MODES = 16;

// Throws for the loops, which must not instantiate anything of the standard library.
[[noreturn]] void out_of_memory();
[[noreturn]] void out_of_range();

struct Side {
    int64_t rows = 0;
    const int64_t* starts = nullptr;
    const uint32_t* position = nullptr;           // nullptr: entry e is measurement e
    const int32_t* other[MAX_MODES] = {};         // the coordinates in the other modes
};

template <class T> struct Design {
    int64_t q = 0, qp = 0;                        // columns of v; padded to whole vectors
    const T* table = nullptr;                     // (n, terms, qp), n the size of mode other[0]
    int64_t stride = 0;                           // from row to row, if nothing is combined
    int64_t terms = 1;
    int factors = 0;                              // the modes other[1], other[2], ...
    const T* factor[MAX_MODES] = {};              // (n, width), whose rows multiply to c
    int64_t width[MAX_MODES] = {};
};

// One pass: residuals x . v - y, their squares, and sums of w v over the entries of every row.
template <class T> struct Pass {
    Side side;
    Design<T> design;
    const T* x = nullptr;                         // (rows, qp); without it no residual
    const T* y = nullptr;                         // without it zeros
    const T* weights = nullptr;                   // w, if it is not the residual; or ones
    T* residual = nullptr;                        // out, in the order of the measurements
    T* sums = nullptr;                            // out (rows, q)
};

// Rows as least-squares problems: x (sum w v v' + ridge) = target for every row.
//
// The v of all entries are orthonormal in the coordinates used, and T transforms back. Or, with
// `sizes`, the original coordinates are used, which are close to orthogonal: then nothing is
// transformed, and the inverses cost as much as the factorisations.
//
// With `sizes`, v may be followed in its row of the table by qp variances of v, which are summed
// over the entries of a row and count as ridge, and by a further term of X: a number that is
// multiplied by that of the row, and its variance. The variances of v are float, in their own
// units: they are half of what an entry reads, and seven digits are enough.
template <class T> struct Solve {
    Side side;
    Design<T> design;
    const T* x = nullptr;                         // (rows, q) the current rows, or
    const T* target = nullptr;                    // (rows, q) the right-hand side itself
    const T* y = nullptr;                         // with x
    const T* root = nullptr;                      // square roots of weights
    const uint8_t* kept = nullptr;                // which entries count
    const T* turn = nullptr;                      // (q, q): T
    const T* ridge = nullptr;                     // diagonals (rows, q), or one for all rows
    bool same_ridge = false;
    const double* whole = nullptr;                // (q, q): entries are subtracted from this Gram
    const double* sizes = nullptr;                // (q): the diagonal of the Gram of all v
    const double* unsure = nullptr;               // (q): the table has variances, in these units
    const T* beside = nullptr;                    // (rows): multiplies numbers in the table
    double jitter = 0;
    int steps = 0;                                // of conjugate gradients; 0: solved exactly
    double tol = 0;
    double noise = 1;                             // with `sizes`: multiplies the inverses
    T* step = nullptr;                            // out (rows, q); with `sizes`, the new rows
    T* diagonals = nullptr;                       // out (rows, q): of T inverse T'
    double* total = nullptr;                      // out (q, q): summed over the rows
    double* moments = nullptr;                    // out (q), with `sizes`: squares and variances of rows
    double* numbers = nullptr;                    // out (NUMBERS), with `sizes` or only two; see below
    // Rows with very many entries, in order: the sums over their segments are already known.
    int64_t longs = 0;
    const int64_t* long_rows = nullptr;
    const int64_t* long_parts = nullptr;          // (longs + 1): the parts of each
    const double* parts = nullptr;                // (qp + 2) qp + SUMS numbers each
};
// Sums over the entries of a row: of squared residuals, of weights, and of weights times the
// variances of the further term.
enum { SQUARES, WEIGHT, BESIDE, SUMS };
// Sums over rows: squared residuals before and after the step; weights; the variance of X over the
// entries that is due to the rows (to be multiplied by the noise), and the rest of it.
enum { BEFORE, AFTER, SEEN, FROM_ROWS, FROM_OTHERS, NUMBERS };

// Rows of a matrix with some unknown columns, where the vectors v have full covariances: rows of
// the table are v, padded, and the upper triangle of its covariance, row by row and padded. The
// covariances of the solutions are computed, too.
template <class T> struct Whole {
    Side side;
    int64_t q = 0, qp = 0, tp = 0;                // columns; padded; of a triangle, padded
    const T* table = nullptr;                     // (n, qp + tp)
    const T* x = nullptr;                         // (rows, q)
    const T* y = nullptr;
    const T* root = nullptr;                      // of weights; multiplies X, and y already
    int64_t free = 0;
    const int64_t* columns = nullptr;             // (free), ascending
    const double* ridge = nullptr;                // (free)
    double noise = 1;                             // multiplies the inverses
    T* solved = nullptr;                          // out (rows, free)
    T* covariance = nullptr;                      // out (rows, free, free)
    double* total = nullptr;                      // out (free, free)
    double* numbers = nullptr;                    // out (NUMBERS), as above
};

// Sums over entries of w times the Kronecker product of all factors' rows: (rows, terms, q). The
// last factor has q columns, padded, and the others terms in all.
template <class T> struct Outer {
    Side side;
    Design<T> design;                             // only its factors, of the modes other[0], ...
    const T* weights = nullptr;
    T* sums = nullptr;
};

// Tucker entries in the order of the measurements: table[i0] . Kronecker product of rows; the
// last factor as above.
template <class T> struct Values {
    const int64_t* index[MAX_MODES] = {};
    int64_t extent[MAX_MODES] = {};               // every index is checked against it when read
    Design<T> design;                             // table (n, terms, qp); factors of index[1], ...
    const T* y = nullptr;
    T* out = nullptr;                             // x - y
};

// A dense matrix Y (n1, n2) and L R': residuals, and the gradients of the kept ones.
template <class T> struct Dense {
    int64_t n1 = 0, n2 = 0, q = 0;
    const T* L = nullptr;                         // (n1, q)
    const T* Rt = nullptr;                        // (q, n2), in rows of `stride` numbers
    int64_t stride = 0;
    const T* Y = nullptr;
    const uint8_t* kept = nullptr;                // (n1, n2), or nullptr
    T* residual = nullptr;                        // out (n1, n2)
    T* by_rows = nullptr;                         // out (n1, q): (kept residual) R
    T* by_columns = nullptr;                      // out (n2, q): (kept residual)' L
};

// Rows of a dense matrix Y, each fitted to its entries within a limit, which falls with the median
// of the residuals until it reaches a floor and the kept entries no longer change. The vectors v
// are in coordinates in which those of all entries have the Gram matrix `whole`.
template <class T> struct Cleaned {
    int64_t n2 = 0, q = 0, qp = 0;
    const T* Y = nullptr;                         // (n1, n2)
    const T* Rt = nullptr;                        // (q, n2), in rows of `stride` numbers
    int64_t stride = 0;
    const T* table = nullptr;                     // (n2, qp), the same by rows
    const T* turn = nullptr;                      // (q, q)
    const T* ridge = nullptr;                     // (n1, q) or nullptr; in the coordinates before the turn
    const double* whole = nullptr;                // (q, q)
    double floor = 0, multiple = 0, fall = 0, jitter = 0;
    int rounds = 0;
    T* solved = nullptr;                          // out (n1, q)
};

// Rows of a Gaussian of mean zero and unit variances, given their observed entries. Rows of the
// matrices are padded with zeros to dp numbers.
struct Conditionals {
    int64_t d = 0, dp = 0;
    const double* Z = nullptr;                    // (n, d), NaN where an entry is missing
    const int64_t* order = nullptr;               // (n): rows, those of like counts together
    const double* covariance = nullptr;           // (d, dp)
    const double* precision = nullptr;            // (d, dp)
    double* filled = nullptr;                     // out (n, d)
    double* total = nullptr;                      // out (d, d): of covariances, upper triangle; added to
    double* predicted = nullptr;                  // out (n, d), each from the other observed entries
    double* variances = nullptr;                  // out (n, d): of these, or else of missing entries

    // Multiplications for a row of k missing and p observed entries, by precisions of the missing
    // or by covariances of the observed ones.
    double by_missing(double k, double p) const {
        return k * k * k / 6 * (total ? 3 : variances ? 2 : 1) + (predicted ? k * k * p / 2 : 0);
    }
    double by_observed(double k, double p) const {
        const double others = total || variances ? p * p * k / 2 : 0;
        return p * p * p / 6 * (predicted ? 2 : 1) + others + (total ? p * k * k / 2 : 0);
    }
};

// M'C M for many small symmetric matrices C.
template <class T> struct Turn {
    int64_t q = 0, qp = 0;                        // columns; padded to whole vectors
    const T* C = nullptr;                         // (n, q, q)
    const T* M = nullptr;                         // (q, qp), padded with zeros
    const T* adjoint = nullptr;                   // (q, qp), padded: its transpose
    T* turned = nullptr;                          // out (n, q, q)
};

// Which magnitudes do not exceed a threshold, their number, their squares and the largest.
template <class T> struct Within {
    const T* x = nullptr;
    T threshold = 0;
    uint8_t* kept = nullptr;                      // out, like x
    int64_t count = 0;                            // out
    double squares = 0;
    T largest = 0;
};

// The numbers, or magnitudes, between two bounds, and how many are below.
template <class T> struct Between {
    bool sizes = false;
    T low = 0, high = 0;
    T* inside = nullptr;                          // out, as many as fit
    int64_t room = 0;                             // and some for whole vectors
    int64_t count = 0, below = 0;                 // out
};

// Each works on the rows (or measurements, or columns) first .. last; those that return a number
// return the sum of the squared residuals.
template <class T> struct Table {
    double (*pass)(const Pass<T>&, int64_t first, int64_t last);
    void (*solve)(const Solve<T>&, int64_t first, int64_t last);
    void (*part)(const Solve<T>&, int64_t row, int64_t first, int64_t last, double* sums);
    void (*whole)(const Whole<T>&, int64_t first, int64_t last);
    void (*outer)(const Outer<T>&, int64_t first, int64_t last);
    double (*values)(const Values<T>&, int64_t first, int64_t last);
    void (*cleaned)(const Cleaned<T>&, int64_t first, int64_t last);
    double (*dense_rows)(const Dense<T>&, int64_t first, int64_t last);
    void (*dense_columns)(const Dense<T>&, int64_t first, int64_t last);
    void (*within)(Within<T>&, int64_t first, int64_t last);
    void (*turn)(const Turn<T>&, int64_t first, int64_t last);
    void (*between)(Between<T>&, const T* x, int64_t n);
    // The k-th smallest of n numbers, with room for 2 n + 16; false if one of them is NaN.
    bool (*kth)(const T* x, int64_t n, int64_t k, T* room, T* found);
};
struct Kernels {
    Table<double> doubles;
    Table<float> floats;
    void (*conditionals)(const Conditionals&, int64_t first, int64_t last);  // in the given order
    int64_t bytes;                                // of a vector
    const char* instructions;                     // baseline, wide or widest
};
// Compiled once for every instruction set.
namespace baseline { Kernels kernels(); }
namespace wide { Kernels kernels(); }
namespace widest { Kernels kernels(); }

}  // namespace scaledgd
