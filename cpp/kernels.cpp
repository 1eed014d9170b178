// The hot loops, compiled once for every instruction set (see CMakeLists.txt).
//
// All names but one are local to this file and nothing of the standard library is instantiated
// here: the linker must never mix code for different instruction sets.
#include "kernels.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#ifdef __AVX512VL__
#include <immintrin.h>
#endif

namespace {

using namespace scaledgd;

#ifdef __AVX512VL__
constexpr int64_t BYTES = 64;  // of a vector
#else
constexpr int64_t BYTES = 32;
#endif
template <class T> struct Lanes {
    typedef T type __attribute__((vector_size(BYTES)));
    typedef T loose __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    static constexpr int64_t count = BYTES / sizeof(T);
};
template <class T> using vec = typename Lanes<T>::type;

template <class T> inline vec<T> load(const T* p) {
    return *reinterpret_cast<const typename Lanes<T>::loose*>(p);
}
template <class T> inline void store(T* p, vec<T> v) {
    *reinterpret_cast<typename Lanes<T>::loose*>(p) = v;
}
inline vec<double> load_floats(const float* p, double) {
    typedef float half __attribute__((vector_size(BYTES / 2), aligned(4), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const half*>(p), vec<double>);
}
inline vec<float> load_floats(const float* p, float) { return load(p); }
// The sum of all lanes: halves first if there are 64 bytes, then neighbours, pairs, and halves.
typedef double four __attribute__((vector_size(32)));
typedef float eight __attribute__((vector_size(32)));
#ifdef __clang__
#define TURNED(v, T, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
typedef int64_t places_of_double __attribute__((vector_size(32)));
typedef int32_t places_of_float __attribute__((vector_size(32)));
#define TURNED(v, T, ...) __builtin_shuffle(v, places_of_##T{__VA_ARGS__})
#endif
inline double add(four v) {
    v += TURNED(v, double, 1, 0, 3, 2);
    v += TURNED(v, double, 2, 3, 0, 1);
    return v[0];
}
inline float add(eight v) {
    v += TURNED(v, float, 1, 0, 3, 2, 5, 4, 7, 6);
    v += TURNED(v, float, 2, 3, 0, 1, 6, 7, 4, 5);
    v += TURNED(v, float, 4, 5, 6, 7, 0, 1, 2, 3);
    return v[0];
}
#ifdef __AVX512VL__
inline double add(vec<double> v) {
    return add((four)_mm512_castpd512_pd256((__m512d)v) + (four)_mm512_extractf64x4_pd((__m512d)v, 1));
}
inline float add(vec<float> v) {
    return add((eight)_mm512_castps512_ps256((__m512)v) + (eight)_mm512_extractf32x8_ps((__m512)v, 1));
}
#endif

// Numbers that are added up in double precision.
inline void add_to(double* sums, vec<double> v) { store(sums, load(sums) + v); }
inline void add_to(double* sums, vec<float> v) {
    float numbers[Lanes<float>::count];
    store(numbers, v);
    for (int64_t k = 0; k < Lanes<float>::count; k += Lanes<double>::count)
        add_to(sums + k, load_floats(numbers + k, double()));
}

// Scratch memory that only grows.
template <class T> struct Scratch {
    T* data = nullptr;
    int64_t size = 0;
    T* at_least(int64_t n) {
        if (n > size) {
            std::free(data);
            size = 0;
            const int64_t more = n + n / 2, bytes = (more * int64_t(sizeof(T)) + 127) / 64 * 64;
            data = static_cast<T*>(std::aligned_alloc(64, bytes));
            if (data == nullptr) out_of_memory();
            size = more;
        }
        return data;
    }
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(data); }
};

template <class T>
inline T dot(const T* a, const T* b, int64_t n) {  // n is a multiple of the lanes
    vec<T> sum = {};
    for (int64_t k = 0; k < n; k += Lanes<T>::count) sum += load(a + k) * load(b + k);
    return add(sum);
}

template <class T>
inline void axpy(T s, const T* a, T* b, int64_t n) {
    for (int64_t k = 0; k < n; k += Lanes<T>::count) store(b + k, load(b + k) + s * load(a + k));
}

// Call work with the number of vectors in qp as a compile-time constant, or 0 for any other.
template <int V> struct Width { static constexpr int value = V; };
template <class T, class F>
inline auto by_width(int64_t qp, F work) {
    switch (qp / Lanes<T>::count) {
        case 1: return work(Width<1>{});
        case 2: return work(Width<2>{});
        case 3: return work(Width<3>{});
        case 4: return work(Width<4>{});
        case 5: return work(Width<5>{});
        case 6: return work(Width<6>{});
        case 8: return work(Width<8>{});
        case 16: return work(Width<16>{});
        default: return work(Width<0>{});
    }
}

constexpr int64_t AHEAD = 12;  // entries whose row is prefetched

inline void prefetch(const void* p, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += 64) __builtin_prefetch(static_cast<const char*>(p) + k);
}

// c = scale times the Kronecker product of rows of some factors; the first runs slowest.
template <class T>
inline void kronecker(const Design<T>& d, int factors, const int64_t* at, T scale, T* c) {
    int64_t n = 1;
    c[0] = scale;
    for (int f = 0; f < factors; ++f) {
        const T* row = d.factor[f] + at[f] * d.width[f];
        const int64_t w = d.width[f];
        for (int64_t a = n - 1; a >= 0; --a) {
            const T s = c[a];
            for (int64_t b = 0; b < w; ++b) c[a * w + b] = s * row[b];
        }
        n *= w;
    }
}

// sum over s of c[s] rows[s, :], V vectors of lanes each, or as many as qp has
template <class T, int V>
inline void combine(const T* c, const T* rows, int64_t terms, int64_t qp, T* v) {
    constexpr int64_t W = Lanes<T>::count;
    if (V) {
        vec<T> sums[V ? V : 1];
        for (int k = 0; k < V; ++k) sums[k] = c[0] * load(rows + k * W);
        for (int64_t s = 1; s < terms; ++s) {
            rows += V * W;
            for (int k = 0; k < V; ++k) sums[k] += c[s] * load(rows + k * W);
        }
        for (int k = 0; k < V; ++k) store(v + k * W, sums[k]);
        return;
    }
    for (int64_t k = 0; k < qp; k += W) {
        vec<T> sum = {};
        for (int64_t s = 0; s < terms; ++s) sum += c[s] * load(rows + s * qp + k);
        store(v + k, sum);
    }
}

// The vector v of entry e: a row of the table, or a combination of rows.
template <class T, int V>
__attribute__((noinline)) const T* vector(const Design<T>& d, const Side& side, int64_t e, T* v, T* c) {
    const T* rows = d.table + int64_t(side.other[0][e]) * d.terms * d.qp;
    if (d.factors == 0) return rows;
    const T* combined = d.factor[0] + int64_t(side.other[1][e]) * d.width[0];
    if (d.factors > 1) {
        int64_t at[MAX_MODES];
        for (int f = 0; f < d.factors; ++f) at[f] = side.other[f + 1][e];
        kronecker(d, d.factors, at, T(1), c);
        combined = c;
    }
    combine<T, V>(combined, rows, d.terms, d.qp, v);
    return v;
}

// ---- residuals and gradients in one pass, with the rank as a compile-time constant

template <class T, int V>
double pass_of(const Pass<T>& p, int64_t first, int64_t last) {
    constexpr int64_t W = Lanes<T>::count;
    const int64_t q = p.design.q, qp = V ? V * W : p.design.qp, nv = qp / W;
    const T *table = p.design.table, *y = p.y, *weights = p.weights;
    const int32_t* other = p.side.other[0];
    const int64_t *starts = p.side.starts, end = starts[last];
    const uint32_t* position = p.side.position;
    T *residual = p.residual, *sums = p.sums;
    Scratch<T> memory;
    T* far = memory.at_least(qp);
    double squares = 0;
    for (int64_t i = first; i < last; ++i) {
        const T* x = p.x ? p.x + i * qp : nullptr;
        vec<T> near[V ? V : 1];
        for (int k = 0; k < V; ++k) near[k] = vec<T>{};
        if (!V) std::memset(far, 0, qp * sizeof(T));
        double row = 0;
        for (int64_t e = starts[i], stop = starts[i + 1]; e < stop; ++e) {
            if (e + AHEAD < end) prefetch(table + int64_t(other[e + AHEAD]) * qp, qp * sizeof(T));
            const T* v = table + int64_t(other[e]) * qp;
            T w;
            if (x) {
                vec<T> sum = load(x) * load(v);
                for (int64_t k = 1; k < nv; ++k) sum += load(x + k * W) * load(v + k * W);
                w = add(sum);
                if (y) w -= y[e];
                if (residual) residual[position ? position[e] : e] = w;
                row += double(w) * double(w);
            } else {
                w = weights ? weights[e] : T(1);
            }
            if (!sums) continue;
            for (int k = 0; k < V; ++k) near[k] += w * load(v + k * W);
            if (!V) axpy(w, v, far, qp);
        }
        squares += row;
        if (!sums) continue;
        for (int k = 0; k < V; ++k) store(far + k * W, near[k]);
        std::memcpy(sums + i * q, far, q * sizeof(T));
    }
    return squares;
}

template <class T>
double pass(const Pass<T>& p, int64_t first, int64_t last) {
    return by_width<T>(p.design.qp, [&](auto w) { return pass_of<T, decltype(w)::value>(p, first, last); });
}

// ---- rows as small least-squares problems

constexpr int64_t BLOCK = 256;  // most vectors v at a time
// As many of them as stay in the first cache.
template <class T> inline int64_t at_once(int64_t qp) {
    const int64_t fit = (24 << 10) / (qp * int64_t(sizeof(T))) / 8 * 8;
    return fit > BLOCK ? BLOCK : fit < 32 ? 32 : fit;
}
#ifdef __AVX512VL__
// Rows and vectors of a tile: 32 registers hold 4 x 4 of them and their operands, or 8 x 2. Fewer
// sums than that would wait for one another.
constexpr int TALLEST = 8, WIDEST = 4;
#else
constexpr int TALLEST = 4, WIDEST = 3;
#endif

// G[R rows from i][V vectors from j] += sum over entries of v v'
template <class T, int R, int V>
void tile(const T* v, int64_t m, int64_t qp, int64_t i, int64_t j, double* G) {
    constexpr int64_t W = Lanes<T>::count;
    vec<T> sum[R][V];
    for (int a = 0; a < R; ++a)
        for (int b = 0; b < V; ++b) sum[a][b] = vec<T>{};
    for (int64_t e = 0; e < m; ++e, v += qp) {
        vec<T> right[V];
        for (int b = 0; b < V; ++b) right[b] = load(v + j + b * W);
        for (int a = 0; a < R; ++a)
            for (int b = 0; b < V; ++b) sum[a][b] += v[i + a] * right[b];
    }
    for (int a = 0; a < R; ++a)
        for (int b = 0; b < V; ++b) add_to(G + (i + a) * qp + j + b * W, sum[a][b]);
}

// The upper triangle of the first q rows of G += sum of v v'.
template <class T>
void add_gram(const T* v, int64_t m, int64_t q, int64_t qp, double* G) {
    constexpr int64_t W = Lanes<T>::count;
    for (int64_t i = 0, rows; i < q; i += rows) {
        int64_t j = i / W * W;
        rows = j + 2 * W >= qp && i % TALLEST == 0 && i + 4 < q ? TALLEST : 4;
        for (; j + WIDEST * W <= qp; j += WIDEST * W) tile<T, 4, WIDEST>(v, m, qp, i, j, G);
        if (j + 3 * W <= qp) tile<T, 4, 3>(v, m, qp, i, j, G);
        else if (j + 2 * W <= qp) rows == 4 ? tile<T, 4, 2>(v, m, qp, i, j, G) : tile<T, TALLEST, 2>(v, m, qp, i, j, G);
        else if (j + W <= qp) rows == 4 ? tile<T, 4, 1>(v, m, qp, i, j, G) : tile<T, TALLEST, 1>(v, m, qp, i, j, G);
    }
}

// Several systems at a time, one in each lane: G[k][j] is entry (k, j) of all of them.
typedef vec<double> several;
constexpr int64_t SEVERAL = Lanes<double>::count;

// b[j] -= sum over k < n of s[k] rows[k, j], four k at a time; for j from `first`, or, if that is
// negative, for rows with nothing to the right of their diagonal
inline void take_off(const several* s, const several* rows, int64_t n, int64_t q, int64_t first, several* b) {
    int64_t k = 0;
    for (; k + 4 <= n; k += 4, rows += 4 * q) {
        const several s0 = s[k], s1 = s[k + 1], s2 = s[k + 2], s3 = s[k + 3];
        for (int64_t j = first < 0 ? 0 : first, last = first < 0 ? k + 4 : q; j < last; ++j)
            b[j] -= (s0 * rows[j] + s1 * rows[q + j]) + (s2 * rows[2 * q + j] + s3 * rows[3 * q + j]);
    }
    for (; k < n; ++k, rows += q)
        for (int64_t j = first < 0 ? 0 : first, last = first < 0 ? k + 1 : q; j < last; ++j) b[j] -= s[k] * rows[j];
}

// Eliminate the first q of w unknowns from the upper triangle of G, of which there are some rows. In
// the first q columns G = C'D C becomes D C, C with a unit diagonal; in the others the first q rows
// are multiplied by C'^-1, and further rows become the Schur complement.
void eliminate(several* G, int64_t q, int64_t rows, int64_t w, several* inverse, several* s) {
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t before = i < q ? i : q;
        for (int64_t k = 0; k < before; ++k) s[k] = G[k * w + i] * inverse[k];
        take_off(s, G, before, w, i, G + i * w);
        if (i >= q) continue;
        const several pivot = G[i * w + i];
        inverse[i] = pivot > 0 ? 1 / pivot : several{};  // what is not determined is left alone
    }
}
void factorise(several* G, int64_t q, several* inverse, several* s) { eliminate(G, q, q, q, inverse, s); }

// The lower triangle of Z becomes that of C'^-1. Rows of G have w numbers.
void invert(const several* G, const several* inverse, int64_t q, int64_t w, several* s, several* Z) {
    for (int64_t i = 0; i < q; ++i) {
        for (int64_t j = 0; j < q; ++j) Z[i * q + j] = several{} + double(j == i);
        for (int64_t k = 0; k < i; ++k) s[k] = G[k * w + i] * inverse[k];
        take_off(s, Z, i, q, -1, Z + i * q);
    }
}

// The upper triangle of total += Z'D^-1 Z of a lower triangle Z with zeros above it.
void add_inverse(const several* Z, const several* inverse, int64_t q, several* total) {
    int64_t k = 0;
    for (; k + 4 <= q; k += 4) {
        const several* z = Z + k * q;
        for (int64_t a = 0; a < k + 4; ++a) {
            const several s0 = z[a] * inverse[k], s1 = z[q + a] * inverse[k + 1];
            const several s2 = z[2 * q + a] * inverse[k + 2], s3 = z[3 * q + a] * inverse[k + 3];
            for (int64_t j = a; j < k + 4; ++j)
                total[a * q + j] += (s0 * z[j] + s1 * z[q + j]) + (s2 * z[2 * q + j] + s3 * z[3 * q + j]);
        }
    }
    for (; k < q; ++k)
        for (int64_t a = 0; a <= k; ++a) {
            const several s = Z[k * q + a] * inverse[k];
            for (int64_t j = a; j <= k; ++j) total[a * q + j] += s * Z[k * q + j];
        }
}

void forward(const several* G, const several* inverse, several* b, int64_t q, int64_t w) {
    for (int64_t k = 0; k < q; ++k) {
        const several s = b[k] * inverse[k];
        for (int64_t j = k + 1; j < q; ++j) b[j] -= s * G[k * w + j];
    }
}

void backward(const several* G, const several* inverse, several* b, int64_t q, int64_t w) {
    for (int64_t k = q - 1; k >= 0; --k) {
        several s = b[k];
        for (int64_t j = k + 1; j < q; ++j) s -= G[k * w + j] * b[j];
        b[k] = s * inverse[k];
    }
}

// The vectors of a row, one below the other, with their weights and, if measured, the right-hand
// sides. V vectors of lanes each, or as many as there are. Sums over the entries are added to
// `sums` (variances first, then SUMS numbers).
template <class T, int V>
int64_t fill_of(const Solve<T>& p, int64_t i, int64_t& from, int64_t end, int64_t most, T* v, T* y, T* c, double* sums) {
    constexpr int64_t W = Lanes<T>::count;
    const Design<T>& d = p.design;
    const Side& side = p.side;
    const int64_t qp = V ? V * W : d.qp, combined = d.factors > 0, stride = combined ? d.terms * qp : d.stride;
    const int64_t ahead = side.starts[side.rows] - AHEAD;
    const T *table = d.table, *measured = p.y, *roots = p.root;
    const uint8_t* kept = p.kept;
    const int32_t* other = side.other[0];
    int64_t m = 0, e = from;
    if (!combined && !kept && !roots && !p.unsure && !p.beside) {  // the usual case
        const int64_t count = end - e < most ? end - e : most;
        for (; m < count; ++m, ++e, v += qp) {
            if (e < ahead) prefetch(table + int64_t(other[e + AHEAD]) * stride, qp * sizeof(T));
            const T* row = table + int64_t(other[e]) * stride;
            for (int64_t k = 0; k < qp; k += W) store(v + k, load(row + k));
        }
        if (measured) std::memcpy(y, measured + from, m * sizeof(T));
        if (sums) sums[qp + WEIGHT] += double(m);
        from = e;
        return m;
    }
    vec<T> near[V ? V : 1];
    for (int k = 0; k < V; ++k) near[k] = vec<T>{};
    const int64_t after = p.unsure ? qp + qp * int64_t(sizeof(float)) / int64_t(sizeof(T)) : qp;
    auto doubt = [&](const T* row) { return reinterpret_cast<const float*>(row + qp); };
    if (V && p.unsure && !combined && !kept && !roots && !p.beside) {  // the same, with variances
        const int64_t count = end - e < most ? end - e : most;
        for (; m < count; ++m, ++e, v += qp) {
            if (e < ahead) prefetch(table + int64_t(other[e + AHEAD]) * stride, stride * sizeof(T));
            const T* row = table + int64_t(other[e]) * stride;
            for (int k = 0; k < V; ++k) {
                store(v + k * W, load(row + k * W));
                near[k] += load_floats(doubt(row) + k * W, T());
            }
        }
        std::memcpy(y, measured + from, m * sizeof(T));
        for (int k = 0; k < V; ++k) add_to(sums + k * W, near[k]);
        sums[qp + WEIGHT] += double(m);
        from = e;
        return m;
    }
    const T beside = p.beside ? p.beside[i] : T(0);
    double weight = 0, spill = 0;
    for (; e < end && m < most; ++e) {
        if (kept && !kept[e]) continue;
        if (e < ahead) prefetch(table + int64_t(other[e + AHEAD]) * stride, stride * sizeof(T));
        T* to = v + m * qp;
        const T* row = combined ? vector<T, V>(d, side, e, to, c) : table + int64_t(other[e]) * stride;
        const T root = roots ? roots[e] : T(1), square = root * root;
        if (roots || !combined)
            for (int64_t k = 0; k < qp; k += W) store(to + k, root * load(row + k));
        if (measured) y[m] = p.beside ? measured[e] - root * beside * row[after] : measured[e];
        ++m;
        weight += square;
        if (p.beside) spill += square * row[after + 1];
        if (!p.unsure) continue;
        for (int k = 0; k < V; ++k) near[k] += square * load_floats(doubt(row) + k * W, T());
        if (!V)
            for (int64_t k = 0; k < qp; ++k) sums[k] += square * doubt(row)[k];
    }
    if (sums) {
        for (int k = 0; p.unsure && k < V; ++k) add_to(sums + k * W, near[k]);
        sums[qp + WEIGHT] += weight;
        sums[qp + BESIDE] += spill;
    }
    from = e;
    return m;
}

template <class T>
int64_t fill(const Solve<T>& p, int64_t i, int64_t& from, int64_t end, int64_t most, T* v, T* y, T* c, double* sums) {
    return by_width<T>(p.design.qp, [&](auto w) {
        return fill_of<T, decltype(w)::value>(p, i, from, end, most, v, y, c, sums);
    });
}

// A ridge counts as q extra entries that measured zero.
template <class T>
int64_t fill_ridge(const Solve<T>& p, int64_t i, T* v, T* y) {
    const int64_t q = p.design.q, qp = p.design.qp;
    int64_t m = 0;
    for (int64_t j = 0; p.ridge && j < q; ++j) {
        const T value = p.ridge[(p.same_ridge ? 0 : i * q) + j];
        if (!(value > 0)) continue;
        const T root = std::sqrt(value);
        for (int64_t k = 0; k < qp; ++k) v[m * qp + k] = k < q ? root * p.turn[j * q + k] : 0;
        y[m++] = 0;
    }
    return m;
}

// g += sum of (x . v - y) v, with the number of vectors in v as a compile-time constant, or 0;
// returns the sum of the squares of x . v - y. Without y, y is zero. Four entries at a time, so
// that no sum waits for another, and x and g are read once for all of them.
template <class T, int V>
double add_gradient_of(const T* x, const T* v, const T* y, int64_t m, int64_t qp, T* g) {
    constexpr int64_t W = Lanes<T>::count;
    constexpr bool near = V > 0 && V <= 16;
    const int64_t width = V ? V * W : qp;
    vec<T> sums[near ? V : 1];
    for (int k = 0; near && k < V; ++k) sums[k] = vec<T>{};
    double squares = 0;
    int64_t e = 0;
    for (; e + 4 <= m; e += 4, v += 4 * width) {
        const T *v1 = v + width, *v2 = v1 + width, *v3 = v2 + width;
        vec<T> s0 = {}, s1 = {}, s2 = {}, s3 = {};
        for (int64_t k = 0; k < width; k += W) {
            const vec<T> at = load(x + k);
            s0 += at * load(v + k);
            s1 += at * load(v1 + k);
            s2 += at * load(v2 + k);
            s3 += at * load(v3 + k);
        }
        T w0 = add(s0), w1 = add(s1), w2 = add(s2), w3 = add(s3);
        if (y) w0 -= y[e], w1 -= y[e + 1], w2 -= y[e + 2], w3 -= y[e + 3];
        squares += double(w0) * double(w0) + double(w1) * double(w1) + double(w2) * double(w2) + double(w3) * double(w3);
        for (int64_t k = 0; k < width; k += W) {
            const vec<T> more = (w0 * load(v + k) + w1 * load(v1 + k)) + (w2 * load(v2 + k) + w3 * load(v3 + k));
            if (near) sums[near ? k / W : 0] += more;
            else store(g + k, load(g + k) + more);
        }
    }
    for (; e < m; ++e, v += width) {
        const T w = dot(x, v, width) - (y ? y[e] : T(0));
        squares += double(w) * double(w);
        for (int k = 0; near && k < V; ++k) sums[k] += w * load(v + k * W);
        if (!near) axpy(w, v, g, width);
    }
    for (int k = 0; near && k < V; ++k) store(g + k * W, load(g + k * W) + sums[k]);
    return squares;
}

template <class T>
double add_gradient(const T* x, const T* v, const T* y, int64_t m, int64_t qp, T* g) {
    return by_width<T>(qp, [&](auto w) { return add_gradient_of<T, decltype(w)::value>(x, v, y, m, qp, g); });
}

// ---- Gram matrix and gradient in one pass over the entries

// Whether v is a plain row of the table, and the gradient is wanted.
template <class T> inline bool direct(const Solve<T>& p) {
    return p.design.factors == 0 && !p.kept && !p.root && !p.beside && !p.target && p.y;
}

// The vectors of at most `most` entries, one below the other; g += the gradient at x, and sums over
// the entries are added to `sums`. Returns their number.
template <class T, int V>
int64_t gather_of(const Solve<T>& p, int64_t from, int64_t end, int64_t most, const T* x, T* v, T* g, double* sums) {
    constexpr int64_t W = Lanes<T>::count, N = V ? V : 1;
    const int64_t qp = N * W, stride = p.design.stride, bytes = stride * int64_t(sizeof(T));
    const int64_t ahead = p.side.starts[p.side.rows] - AHEAD, count = end - from < most ? end - from : most;
    const T *table = p.design.table, *y = p.y;
    const int32_t* other = p.side.other[0];
    vec<T> slope[N], near[N];
    for (int k = 0; k < N; ++k) slope[k] = near[k] = vec<T>{};
    double squares = 0;
    auto look = [&](int64_t e, auto unsure) {
        if (e < ahead) prefetch(table + int64_t(other[e + AHEAD]) * stride, bytes);
        const T* row = table + int64_t(other[e]) * stride;
        vec<T> part[N], sum = {};
        for (int k = 0; k < N; ++k) {
            part[k] = load(row + k * W);
            store(v + k * W, part[k]);
            sum += load(x + k * W) * part[k];
        }
        const T w = add(sum) - y[e];
        squares += double(w) * double(w);
        for (int k = 0; k < N; ++k) slope[k] += w * part[k];
        if (decltype(unsure)::value)
            for (int k = 0; k < N; ++k)
                near[k] += load_floats(reinterpret_cast<const float*>(row + qp) + k * W, T());
        v += qp;
    };
    if (p.unsure) {
        for (int64_t e = from; e < from + count; ++e) look(e, Width<1>{});
        for (int k = 0; k < N; ++k) add_to(sums + k * W, near[k]);
    } else {
        for (int64_t e = from; e < from + count; ++e) look(e, Width<0>{});
    }
    for (int k = 0; k < N; ++k) store(g + k * W, load(g + k * W) + slope[k]);
    sums[qp + SQUARES] += squares;
    sums[qp + WEIGHT] += double(count);
    return count;
}

#ifdef __AVX512VL__
// Small ranks: all of the triangle stays in registers, and no vector is written. Q rows of V vectors.
template <class T, int V, int Q>
void triangle_of(const Solve<T>& p, int64_t from, int64_t end, const T* x, double* G, T* g, double* sums) {
    constexpr int64_t W = Lanes<T>::count, qp = V * W;
    const int64_t stride = p.design.stride, bytes = stride * int64_t(sizeof(T));
    const int64_t ahead = p.side.starts[p.side.rows] - AHEAD;
    const T *table = p.design.table, *y = p.y;
    const int32_t* other = p.side.other[0];
    vec<T> gram[Q][V], slope[V];
    for (int a = 0; a < Q; ++a)
        for (int b = 0; b < V; ++b) gram[a][b] = vec<T>{};
    for (int b = 0; b < V; ++b) slope[b] = vec<T>{};
    double squares = 0;
    for (int64_t e = from; e < end; ++e) {
        if (e < ahead) prefetch(table + int64_t(other[e + AHEAD]) * stride, bytes);
        const T* row = table + int64_t(other[e]) * stride;
        vec<T> part[V];
        for (int b = 0; b < V; ++b) part[b] = load(row + b * W);
        vec<T> sum = load(x) * part[0];
        for (int b = 1; b < V; ++b) sum += load(x + b * W) * part[b];
        for (int a = 0; a < Q; ++a)
            for (int b = 0; b <= a / W; ++b) gram[a][b] += row[a] * part[b];
        const T w = add(sum) - y[e];
        squares += double(w) * double(w);
        for (int b = 0; b < V; ++b) slope[b] += w * part[b];
    }
    for (int a = 0; a < Q; ++a) {  // the lower triangle has fewer whole vectors
        add_to(G + a * qp + a / W * W, gram[a][a / W]);
        for (int64_t k = 0; k < a / W * W; ++k) G[k * qp + a] += gram[a][k / W][k % W];
    }
    for (int b = 0; b < V; ++b) store(g + b * W, load(g + b * W) + slope[b]);
    sums[qp + SQUARES] += squares;
    sums[qp + WEIGHT] += double(end - from);
    if (!p.unsure) return;
    for (int b = 0; b < V; ++b) slope[b] = vec<T>{};
    for (int64_t e = from; e < end; ++e) {
        const T* row = table + int64_t(other[e]) * stride + qp;
        for (int b = 0; b < V; ++b) slope[b] += load_floats(reinterpret_cast<const float*>(row) + b * W, T());
    }
    for (int b = 0; b < V; ++b) add_to(sums + b * W, slope[b]);
}

// The same if registers suffice; returns whether they do.
inline bool triangle(const Solve<double>& p, int64_t from, int64_t end, const double* x, double* G, double* g, double* sums) {
    const int64_t q = p.design.q;
    if (q <= 4) triangle_of<double, 1, 4>(p, from, end, x, G, g, sums);
    else if (q <= 8) triangle_of<double, 1, 8>(p, from, end, x, G, g, sums);
    else if (q <= 10) triangle_of<double, 2, 10>(p, from, end, x, G, g, sums);
    else if (q <= 12) triangle_of<double, 2, 12>(p, from, end, x, G, g, sums);
    else return false;
    return true;
}
inline bool triangle(const Solve<float>& p, int64_t from, int64_t end, const float* x, double* G, float* g, double* sums) {
    const int64_t q = p.design.q;
    if (q <= 4) triangle_of<float, 1, 4>(p, from, end, x, G, g, sums);
    else if (q <= 8) triangle_of<float, 1, 8>(p, from, end, x, G, g, sums);
    else if (q <= 12) triangle_of<float, 1, 12>(p, from, end, x, G, g, sums);
    else if (q <= 16) triangle_of<float, 1, 16>(p, from, end, x, G, g, sums);
    else return false;
    return true;
}
#else
template <class T> bool triangle(const Solve<T>&, int64_t, int64_t, const T*, double*, T*, double*) { return false; }
#endif

// The memory in which the systems of rows are formed.
template <class T> struct Formed {
    const int64_t q, qp, block, most;
    Scratch<T> vectors;
    Scratch<double> numbers;
    T *v, *y, *x, *g, *c;
    double *G, *b, *sums;                         // (qp, qp), (qp), (qp + SUMS): one after the other

    explicit Formed(const Design<T>& d) : q(d.q), qp(d.qp), block(at_once<T>(d.qp)), most(block > d.q ? block : d.q) {
        v = vectors.at_least(most * qp + most + 2 * qp + d.terms);
        y = v + most * qp, x = y + most, g = x + qp, c = g + qp;
        G = numbers.at_least(size());
        b = G + qp * qp, sums = b + qp;
    }
    int64_t size() const { return qp * qp + 2 * qp + SUMS; }

    void account(const Solve<T>& p, int64_t m) {
        add_gram(v, m, q, qp, G);
        if (p.target) return;
        for (int64_t k = 0; k < qp; ++k) g[k] = 0;
        sums[qp + SQUARES] += add_gradient(x, v, y, m, qp, g);
        for (int64_t k = 0; k < q; ++k) b[k] += g[k];
    }
    // The upper triangle of G, the gradient b and other sums over some entries of row i.
    void begin(const Solve<T>& p, int64_t i) {
        std::memset(G, 0, size() * sizeof(double));
        for (int64_t k = 0; k < qp; ++k) x[k] = p.x && k < q ? p.x[i * q + k] : T(0);
    }
    void add(const Solve<T>& p, int64_t i, int64_t from, int64_t end) {
        if (direct(p) && by_width<T>(qp, [&](auto w) { return add_directly<decltype(w)::value>(p, from, end); })) return;
        for (int64_t m; (m = fill(p, i, from, end, block, v, y, c, p.sizes ? sums : nullptr)) > 0;) account(p, m);
    }
    template <int V> bool add_directly(const Solve<T>& p, int64_t from, int64_t end) {
        if (V == 0 || V > 8) return false;
        for (int64_t m; from < end; from += m) {
            m = end - from < block ? end - from : block;  // length of sums in single precision
            for (int64_t k = 0; k < qp; ++k) g[k] = 0;
            if (!triangle(p, from, from + m, x, G, g, sums)) {
                gather_of<T, V>(p, from, end, m, x, v, g, sums);
                add_gram(v, m, q, qp, G);
            }
            for (int64_t k = 0; k < q; ++k) b[k] += g[k];
        }
        return true;
    }
    void add(const double* part) {
        for (int64_t k = 0; k < size(); ++k) G[k] += part[k];
    }
};

// The whole row in orthonormal coordinates, with ridge and jitter.
template <class T>
void finish_turned(const Solve<T>& p, int64_t i, Formed<T>& f) {
    const int64_t q = f.q, qp = f.qp;
    double *G = f.G, *b = f.b;
    for (int64_t k = 0; p.target && k < q; ++k) b[k] = p.target[i * q + k];
    if (p.whole)
        for (int64_t k = 0; k < q; ++k)
            for (int64_t j = k; j < q; ++j) G[k * qp + j] = p.whole[k * q + j] - G[k * qp + j];
    // relative to the data: the ridge of a vanishing column is huge, and must not affect the others
    double size = 0;
    for (int64_t k = 0; k < q; ++k) size = G[k * qp + k] > size ? G[k * qp + k] : size;
    if (const int64_t m = fill_ridge(p, i, f.v, f.y)) f.account(p, m);
    for (int64_t k = 0; k < q; ++k) G[k * qp + k] += p.jitter * (size > 1e-12 ? size : 1);
}

// The same in the original coordinates. The diagonals of the data alone, and what is added to them,
// are kept: the variance of X and the residual after the step are computed from them.
template <class T>
void finish_plain(const Solve<T>& p, int64_t i, Formed<T>& f, double* seen, double* held) {
    const int64_t q = f.q, qp = f.qp;
    double size = 0;
    for (int64_t k = 0; k < q; ++k) {
        const double relative = p.sizes[k] > 0 ? f.G[k * qp + k] / p.sizes[k] : 0;
        size = relative > size ? relative : size;
    }
    size *= p.jitter;  // zero for a row without entries, which depends on the ridge alone
    for (int64_t k = 0; k < q; ++k) {
        f.sums[k] *= p.unsure ? p.unsure[k] : 0;
        const double ridge = (p.ridge ? double(p.ridge[(p.same_ridge ? 0 : i * q) + k]) : 0.0) + f.sums[k];
        seen[k] = f.G[k * qp + k];
        held[k] = ridge + size * p.sizes[k];
        f.G[k * qp + k] += held[k];
        f.b[k] += ridge * double(f.x[k]);
    }
}

template <class T>
void solve_exactly(const Solve<T>& p, int64_t first, int64_t last) {
    const int64_t q = p.design.q, qp = p.design.qp;
    Formed<T> formed(p.design);
    Scratch<double> of_rows;
    double* seen = of_rows.at_least(SEVERAL * (3 * q + SUMS) + q);
    double *held = seen + SEVERAL * q, *unsure = held + SEVERAL * q, *sums = unsure + SEVERAL * q;
    double* moments = sums + SEVERAL * SUMS;
    for (int64_t k = 0; k < q; ++k) moments[k] = 0;
    Scratch<several> lanes;
    several* G4 = lanes.at_least(3 * q * q + 3 * q);
    several *Z = G4 + q * q, *total = Z + q * q, *b4 = total + q * q, *inverse = b4 + q, *s = inverse + q;
    for (int64_t k = 0; k < q * q; ++k) total[k] = several{};
    double numbers[NUMBERS] = {};
    int64_t at = 0;  // among the long rows
    while (at < p.longs && p.long_rows[at] < first) ++at;
    for (int64_t i = first; i < last; i += SEVERAL) {
        const int64_t rows = last - i < SEVERAL ? last - i : SEVERAL;
        for (int64_t lane = 0; lane < SEVERAL; ++lane) {
            if (lane < rows) {
                const int64_t row = i + lane;
                formed.begin(p, row);
                if (at < p.longs && p.long_rows[at] == row) {
                    for (int64_t k = p.long_parts[at]; k < p.long_parts[at + 1]; ++k)
                        formed.add(p.parts + k * formed.size());
                    ++at;
                } else {
                    formed.add(p, row, p.side.starts[row], p.side.starts[row + 1]);
                }
                std::memcpy(sums + lane * SUMS, formed.sums + qp, SUMS * sizeof(double));
                if (p.sizes) {
                    finish_plain(p, row, formed, seen + lane * q, held + lane * q);
                    std::memcpy(unsure + lane * q, formed.sums, q * sizeof(double));
                } else {
                    finish_turned(p, row, formed);
                }
            }
            for (int64_t k = 0; k < q; ++k) {
                b4[k][lane] = lane < rows ? formed.b[k] : 0;
                for (int64_t j = k; j < q; ++j) G4[k * q + j][lane] = lane < rows ? formed.G[k * qp + j] : 0;
            }
        }
        if (p.numbers)
            for (int64_t k = 0; k < q; ++k) s[k] = b4[k];
        factorise(G4, q, inverse, Z);
        forward(G4, inverse, b4, q, q);
        backward(G4, inverse, b4, q, q);
        for (int64_t lane = 0; !p.sizes && lane < rows; ++lane) {
            double taken = 0;
            for (int64_t k = 0; k < q; ++k) {
                p.step[(i + lane) * q + k] = T(b4[k][lane]);
                taken += p.numbers ? s[k][lane] * b4[k][lane] : 0;
            }
            numbers[BEFORE] += sums[lane * SUMS + SQUARES];
            numbers[AFTER] += sums[lane * SUMS + SQUARES] - taken;
        }
        if (p.numbers && p.sizes)
            for (int64_t lane = 0; lane < rows; ++lane) {
                // with (G + H) d = b + R x, where b and G are of the data alone, the step takes
                // d'(2 b - G d) = d'(b + H d - R x) off the squares
                double taken = 0, spill = 0;
                const T* x = p.x + (i + lane) * q;
                for (int64_t k = 0; k < q; ++k) {
                    const double d = b4[k][lane], u = unsure[lane * q + k];
                    const double ridge = (p.ridge ? double(p.ridge[(p.same_ridge ? 0 : (i + lane) * q) + k]) : 0.0) + u;
                    taken += d * (s[k][lane] + held[lane * q + k] * d - 2 * ridge * double(x[k]));
                    const double moved = double(x[k]) - d;
                    spill += u * moved * moved;
                    p.step[(i + lane) * q + k] = T(moved);
                    moments[k] += moved * moved;
                }
                const double* known = sums + lane * SUMS;
                const double own = p.beside ? double(p.beside[i + lane]) : 0.0;
                numbers[BEFORE] += known[SQUARES];
                numbers[AFTER] += known[SQUARES] - taken;
                numbers[SEEN] += known[WEIGHT];
                numbers[FROM_OTHERS] += spill + known[BESIDE] * own * own;
            }
        if (!p.diagonals) continue;
        if (p.sizes) {
            invert(G4, inverse, q, q, b4, Z);
            for (int64_t j = 0; j < q; ++j) s[j] = several{};
            for (int64_t k = 0; k < q; ++k)
                for (int64_t j = 0; j <= k; ++j) s[j] += Z[k * q + j] * Z[k * q + j] * inverse[k];
            for (int64_t lane = 0; lane < rows; ++lane)
                for (int64_t j = 0; j < q; ++j) {
                    p.diagonals[(i + lane) * q + j] = T(p.noise * s[j][lane]);
                    moments[j] += p.noise * s[j][lane];
                    numbers[FROM_ROWS] += (seen[lane * q + j] + unsure[lane * q + j]) * s[j][lane];
                }
            add_inverse(Z, inverse, q, total);  // a lane without a row has no D^-1
            continue;
        }
        // T inverse T' = Z'D^-1 Z with Z = C'^-1 T'; a lane without a row has no D^-1
        for (int64_t j = 0; j < q; ++j) {
            several square = {};
            for (int64_t k = 0; k < q; ++k) b4[k] = several{} + double(p.turn[j * q + k]);
            forward(G4, inverse, b4, q, q);
            for (int64_t k = 0; k < q; ++k) {
                Z[k * q + j] = b4[k];
                square += b4[k] * b4[k] * inverse[k];
            }
            for (int64_t lane = 0; lane < rows; ++lane) p.diagonals[(i + lane) * q + j] = T(square[lane]);
        }
        for (int64_t k = 0; k < q; ++k)
            for (int64_t a = 0; a < q; ++a) {
                const several s = Z[k * q + a] * inverse[k];
                for (int64_t j = a; j < q; ++j) total[a * q + j] += s * Z[k * q + j];
            }
    }
    for (int64_t a = 0; p.total && a < q; ++a)
        for (int64_t j = a; j < q; ++j) p.total[a * q + j] = p.total[j * q + a] = p.noise * add(total[a * q + j]);
    for (int64_t k = 0; p.numbers && k < NUMBERS; ++k) p.numbers[k] = numbers[k];
    for (int64_t k = 0; p.moments && k < q; ++k) p.moments[k] = moments[k];
}

// The contribution of some entries of one row to its system.
template <class T>
void part(const Solve<T>& p, int64_t row, int64_t first, int64_t last, double* sums) {
    Formed<T> formed(p.design);
    formed.begin(p, row);
    formed.add(p, row, first, last);
    std::memcpy(sums, formed.G, formed.size() * sizeof(double));
}

// sums += sum over entries of w rows[e][0 .. n), n a multiple of the lanes
template <class T>
void add_rows(const T* const* rows, const T* w, int64_t m, int64_t n, double* sums) {
    constexpr int64_t W = Lanes<T>::count, MANY = 8;
    for (int64_t j = 0; j < n; j += MANY * W) {
        const int64_t width = n - j < MANY * W ? (n - j) / W : MANY;
        vec<T> near[MANY];
        for (int64_t k = 0; k < MANY; ++k) near[k] = vec<T>{};
        if (width == MANY)
            for (int64_t e = 0; e < m; ++e)
                for (int64_t k = 0; k < MANY; ++k) near[k] += w[e] * load(rows[e] + j + k * W);
        else
            for (int64_t e = 0; e < m; ++e)
                for (int64_t k = 0; k < width; ++k) near[k] += w[e] * load(rows[e] + j + k * W);
        for (int64_t k = 0; k < width; ++k) add_to(sums + j + k * W, near[k]);
    }
}

template <class T>
void whole(const Whole<T>& p, int64_t first, int64_t last) {
    constexpr int64_t W = Lanes<T>::count;
    const int64_t q = p.q, qp = p.qp, tp = p.tp, f = p.free, stride = qp + tp, most = at_once<T>(qp);
    Scratch<T> vectors;
    T* v = vectors.at_least(BLOCK * qp + 2 * BLOCK + 2 * qp);
    T *y = v + BLOCK * qp, *w = y + BLOCK, *x = w + BLOCK, *g = x + qp;
    Scratch<double> of_row, of_rows;
    double* G = of_row.at_least(2 * qp * qp + tp + 2 * qp);
    double *U = G + qp * qp, *triangle = U + qp * qp, *b = triangle + tp, *held = b + qp;
    double* S = of_rows.at_least(SEVERAL * (2 * f * f + f + 2));  // G + U and U of the rows, and more
    double *R = S + SEVERAL * f * f, *rhs = R + SEVERAL * f * f, *known = rhs + SEVERAL * f;
    Scratch<several> lanes;
    several* G4 = lanes.at_least(3 * f * f + 4 * f);
    several *Z = G4 + f * f, *total = Z + f * f, *b4 = total + f * f, *inverse = b4 + f, *s = inverse + f, *t = s + f;
    for (int64_t k = 0; k < f * f; ++k) total[k] = several{};
    double numbers[NUMBERS] = {};
    const T* rows[BLOCK];
    for (int64_t i = first; i < last; i += SEVERAL) {
        const int64_t count = last - i < SEVERAL ? last - i : SEVERAL;
        for (int64_t k = 0; k < f * f; ++k) G4[k] = several{};
        for (int64_t k = 0; k < f; ++k) b4[k] = several{};
        for (int64_t lane = 0; lane < count; ++lane) {
            const int64_t row = i + lane;
            std::memset(G, 0, (2 * qp * qp + tp + 2 * qp) * sizeof(double));
            for (int64_t k = 0; k < qp; ++k) x[k] = k < q ? p.x[row * q + k] : T(0);
            double squares = 0, weight = 0;
            for (int64_t e = p.side.starts[row], end = p.side.starts[row + 1]; e < end;) {
                const int64_t m = end - e < most ? end - e : most;
                for (int64_t a = 0; a < m; ++a) {
                    rows[a] = p.table + int64_t(p.side.other[0][e + a]) * stride;
                    const T root = p.root ? p.root[e + a] : T(1);
                    for (int64_t k = 0; k < qp; k += W) store(v + a * qp + k, root * load(rows[a] + k));
                    y[a] = p.y[e + a];
                    w[a] = root * root;
                    weight += w[a];
                    rows[a] += qp;
                }
                add_gram(v, m, q, qp, G);
                for (int64_t k = 0; k < qp; ++k) g[k] = 0;
                squares += add_gradient(x, v, y, m, qp, g);
                for (int64_t k = 0; k < q; ++k) b[k] += g[k];
                add_rows(rows, w, m, tp, triangle);
                e += m;
            }
            for (int64_t a = 0, at = 0; a < q; ++a)
                for (int64_t c = a; c < q; ++c, ++at) U[a * qp + c] = U[c * qp + a] = triangle[at];
            // columns that are not free are given, with the uncertainty U
            double spill = 0;
            for (int64_t a = 0; a < q; ++a) {
                double sum = 0;
                for (int64_t c = 0; c < q; ++c) sum += U[a * qp + c] * double(x[c]);
                held[a] = sum;
                spill += sum * double(x[a]);
            }
            known[lane * 2] = spill;
            known[lane * 2 + 1] = squares;
            numbers[BEFORE] += squares;
            numbers[SEEN] += weight;
            for (int64_t a = 0; a < f; ++a) {
                const int64_t ca = p.columns[a];
                rhs[lane * f + a] = held[ca];
                b4[a][lane] = b[ca] + held[ca] + p.ridge[a] * double(x[ca]);
                for (int64_t c = a; c < f; ++c) {
                    const int64_t at = ca * qp + p.columns[c];
                    const double moment = G[at] + U[at];
                    S[(lane * f + a) * f + c] = moment;
                    R[(lane * f + a) * f + c] = U[at];
                    G4[a * f + c][lane] = a == c ? moment + p.ridge[a] : moment;
                }
            }
        }
        for (int64_t k = 0; k < f; ++k) s[k] = b4[k];
        factorise(G4, f, inverse, t);
        forward(G4, inverse, b4, f, f);
        backward(G4, inverse, b4, f, f);
        invert(G4, inverse, f, f, t, Z);
        for (int64_t k = 0; k < f * f; ++k) G4[k] = several{};
        add_inverse(Z, inverse, f, G4);  // a lane without a row has no D^-1
        for (int64_t a = 0; a < f; ++a)
            for (int64_t c = a; c < f; ++c) total[a * f + c] += G4[a * f + c];
        for (int64_t lane = 0; lane < count; ++lane) {
            const int64_t row = i + lane;
            double taken = 0, spill = known[lane * 2], own = 0;
            for (int64_t a = 0; a < f; ++a) {
                const double d = b4[a][lane], at = double(p.x[row * q + p.columns[a]]);
                p.solved[row * f + a] = T(at - d);
                const double* doubt = R + (lane * f + a) * f;
                double bend = doubt[a] * d;  // d'U d, half of it above the diagonal
                for (int64_t c = a + 1; c < f; ++c) bend += 2 * doubt[c] * b4[c][lane];
                bend *= d;
                const double tilt = 2 * d * rhs[lane * f + a];
                // with (G + U + ridge) d = s, the step takes 2 g'd - d'G d off the squares
                taken += d * s[a][lane] - tilt + p.ridge[a] * d * (d - 2 * at) + bend;
                spill += bend - tilt;
                for (int64_t c = a; c < f; ++c) {
                    const double found = G4[a * f + c][lane];
                    own += (a == c ? 1 : 2) * S[(lane * f + a) * f + c] * found;
                    T* to = p.covariance + row * f * f;
                    to[a * f + c] = to[c * f + a] = T(p.noise * found);
                }
            }
            numbers[AFTER] += known[lane * 2 + 1] - taken;
            numbers[FROM_ROWS] += own;
            numbers[FROM_OTHERS] += spill > 0 ? spill : 0;
        }
    }
    for (int64_t a = 0; a < f; ++a)
        for (int64_t c = a; c < f; ++c) p.total[a * f + c] = p.total[c * f + a] = p.noise * add(total[a * f + c]);
    for (int64_t k = 0; k < NUMBERS; ++k) p.numbers[k] = numbers[k];
}

// The same by conjugate gradients, whose cost grows with q and not with its square. The initial
// gradient is as precise as the data. The solution needs only a few digits, so the vectors are kept
// in single precision, which halves the memory to read at every step.
template <class T>
void solve_by_steps(const Solve<T>& p, int64_t first, int64_t last) {
    constexpr int64_t AT_A_TIME = 32;
    const Design<T>& d = p.design;
    const int64_t q = d.q, qp = d.qp, lanes = Lanes<float>::count;
    const int64_t wp = (qp + lanes - 1) / lanes * lanes;
    const int64_t most = AT_A_TIME > q ? AT_A_TIME : q;
    Scratch<T> block;
    Scratch<float> vectors, others;
    T* v = block.at_least(most * (qp + 1) + 2 * qp + d.terms);
    T *y = v + most * qp, *old = y + most, *g = old + qp, *c = g + qp;
    float* x = others.at_least(4 * wp);
    float *r = x + wp, *z = r + wp, *s = z + wp;
    for (int64_t i = first; i < last; ++i) {
        float* kept = vectors.at_least((p.side.starts[i + 1] - p.side.starts[i] + q) * wp);
        for (int64_t k = 0; k < qp; ++k) {
            old[k] = p.x && k < q ? p.x[i * q + k] : T(0);
            g[k] = p.target && k < q ? p.target[i * q + k] : T(0);
        }
        int64_t n = 0;
        auto account = [&](int64_t m) {
            if (!p.target) add_gradient(old, v, y, m, qp, g);
            for (int64_t e = 0; e < m; ++e, ++n) {
                float* to = kept + n * wp;
                for (int64_t k = 0; k < qp; ++k) to[k] = float(v[e * qp + k]);
                for (int64_t k = qp; k < wp; ++k) to[k] = 0;
            }
        };
        int64_t e = p.side.starts[i];
        const int64_t end = p.side.starts[i + 1];
        for (int64_t m; (m = fill(p, i, e, end, AT_A_TIME, v, y, c, static_cast<double*>(nullptr))) > 0;) account(m);
        account(fill_ridge(p, i, v, y));
        double size = 0;  // of the gradient: squares of small numbers would vanish
        for (int64_t k = 0; k < qp; ++k) size = std::abs(double(g[k])) > size ? std::abs(double(g[k])) : size;
        const double unit = size > 0 ? 1 / size : 0;
        for (int64_t k = 0; k < wp; ++k) {
            x[k] = 0;
            r[k] = s[k] = k < qp ? float(double(g[k]) * unit) : 0;
        }
        double rho = dot(r, r, wp), largest = 0;
        const double enough = p.tol * p.tol * rho;
        const double least = p.jitter > 1e-6 ? p.jitter : 1e-6;
        for (int t = 0; t < p.steps && rho > enough; ++t) {
            for (int64_t k = 0; k < wp; ++k) z[k] = 0;
            add_gradient<float>(s, kept, nullptr, n, wp, z);
            const double length = dot(s, s, wp), curvature = dot(s, z, wp);
            largest = curvature > largest * length ? curvature / length : largest;
            if (!(curvature > least * largest * length)) break;  // nothing was observed along s
            axpy(float(rho / curvature), s, x, wp);
            axpy(float(-rho / curvature), z, r, wp);
            const double before = rho;
            rho = dot(r, r, wp);
            for (int64_t k = 0; k < wp; ++k) s[k] = r[k] + float(rho / before) * s[k];
        }
        for (int64_t k = 0; k < q; ++k) p.step[i * q + k] = T(size * double(x[k]));
    }
}

template <class T>
void solve(const Solve<T>& p, int64_t first, int64_t last) {
    if (p.steps) solve_by_steps(p, first, last);
    else solve_exactly(p, first, last);
}

// ---- Tucker contractions

// The last factor is padded from `q` columns to `qp`, a whole number of vectors.
template <class T, int V>
void outer_of(const Outer<T>& p, int64_t first, int64_t last) {
    constexpr int64_t W = Lanes<T>::count;
    const Design<T>& d = p.design;
    const int before = d.factors - 1;
    const int64_t n = d.terms, q = d.q, qp = V ? V * W : d.qp;
    const T *rows = d.factor[before], *weights = p.weights;
    const int32_t* other = p.side.other[before];
    Scratch<T> memory;
    T* c = memory.at_least(n + n * qp);
    T* sums = c + n;
    int64_t at[MAX_MODES];
    for (int64_t i = first; i < last; ++i) {
        std::memset(sums, 0, n * qp * sizeof(T));
        for (int64_t e = p.side.starts[i], end = p.side.starts[i + 1]; e < end; ++e) {
            for (int f = 0; f < before; ++f) at[f] = p.side.other[f][e];
            kronecker(d, before, at, weights[e], c);
            const T* row = rows + int64_t(other[e]) * qp;
            if (V) {
                vec<T> part[V ? V : 1];
                for (int k = 0; k < V; ++k) part[k] = load(row + k * W);
                for (int64_t a = 0; a < n; ++a)
                    for (int k = 0; k < V; ++k) {
                        T* to = sums + a * qp + k * W;
                        store(to, load(to) + c[a] * part[k]);
                    }
            } else {
                for (int64_t a = 0; a < n; ++a) axpy(c[a], row, sums + a * qp, qp);
            }
        }
        for (int64_t a = 0; a < n; ++a)
            std::memcpy(p.sums + (i * n + a) * q, sums + a * qp, q * sizeof(T));
    }
}

template <class T>
void outer(const Outer<T>& p, int64_t first, int64_t last) {
    return by_width<T>(p.design.qp, [&](auto w) { return outer_of<T, decltype(w)::value>(p, first, last); });
}

template <class T, int V>
double values_of(const Values<T>& p, int64_t first, int64_t last) {
    const Design<T>& d = p.design;
    const int before = d.factors - 1;
    const int64_t n = d.terms, qp = V ? V * Lanes<T>::count : d.qp;
    const T *rows = d.factor[before], *table = d.table, *y = p.y, one = 1;
    // read once and then checked, because Python's arrays may change meanwhile
    auto place = [&](int mode, int64_t e) {
        const int64_t at = static_cast<const volatile int64_t*>(p.index[mode])[e];
        if (uint64_t(at) >= uint64_t(p.extent[mode])) out_of_range();
        return at;
    };
    Scratch<T> memory;
    T* c = memory.at_least(n + qp);
    T* v = c + n;
    int64_t at[MAX_MODES];
    double squares = 0;
    for (int64_t e = first; e < last; ++e) {
        const T* combined = &one;
        if (before == 1) {
            combined = d.factor[0] + place(1, e) * n;
        } else if (before > 1) {
            for (int f = 0; f < before; ++f) at[f] = place(f + 1, e);
            kronecker(d, before, at, T(1), c);
            combined = c;
        }
        combine<T, V>(combined, table + place(0, e) * n * qp, n, qp, v);
        T x = dot(v, rows + place(before + 1, e) * qp, qp);
        if (y) x -= y[e];
        p.out[e] = x;
        squares += double(x) * double(x);
    }
    return squares;
}

template <class T>
double values(const Values<T>& p, int64_t first, int64_t last) {
    return by_width<T>(p.design.qp, [&](auto w) { return values_of<T, decltype(w)::value>(p, first, last); });
}

// ---- dense matrices

// A strip of columns at a time, held in registers: eight vectors, and fewer for the last columns.
constexpr int STRIP = 8;

template <class T, int A> struct Strip {
    vec<T> lanes[A];
};

// Call work(j, A) for strips of A vectors from column j on; returns the first column left over.
template <class T, class F> inline int64_t in_strips(int64_t first, int64_t last, F work) {
    constexpr int64_t W = Lanes<T>::count;
    int64_t j = first;
    for (; j + STRIP * W <= last; j += STRIP * W) work(j, Width<STRIP>{});
    if (j + 4 * W <= last) work(j, Width<4>{}), j += 4 * W;
    if (j + 2 * W <= last) work(j, Width<2>{}), j += 2 * W;
    if (j + W <= last) work(j, Width<1>{}), j += W;
    return j;
}

// Numbers where bytes are not zero, and zeros elsewhere.
#ifdef __AVX512VL__
inline vec<double> only(const uint8_t* kept, vec<double> v) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kept));
    return (vec<double>)_mm512_maskz_mov_pd(__mmask8(_mm_test_epi8_mask(bytes, bytes)), (__m512d)v);
}
inline vec<float> only(const uint8_t* kept, vec<float> v) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kept));
    return (vec<float>)_mm512_maskz_mov_ps(_mm_test_epi8_mask(bytes, bytes), (__m512)v);
}
#else
inline vec<double> only(const uint8_t* kept, vec<double> v) {
    vec<double> mask;
    for (int64_t k = 0; k < Lanes<double>::count; ++k) mask[k] = double(kept[k]);
    return mask != 0 ? v : vec<double>{};
}
inline vec<float> only(const uint8_t* kept, vec<float> v) {
    vec<float> mask;
    for (int64_t k = 0; k < Lanes<float>::count; ++k) mask[k] = float(kept[k]);
    return mask != 0 ? v : vec<float>{};
}
#endif

// x . Rt[:, j ..] - Y, zero where not kept, for N rows x from the i-th on
template <class T, int N, int A>
inline void strips(const Dense<T>& p, const T* x, int64_t i, int64_t j, Strip<T, A>* r) {
    constexpr int64_t W = Lanes<T>::count;
    const int64_t n2 = p.n2, q = p.q;
    const T *Y = p.Y + i * n2 + j, *row = p.Rt + j;
    for (int n = 0; n < N; ++n)
        for (int a = 0; a < A; ++a) r[n].lanes[a] = -load(Y + n * n2 + a * W);
    for (int64_t k = 0; k < q; ++k, row += p.stride)
        for (int a = 0; a < A; ++a) {
            const vec<T> v = load(row + a * W);
            for (int n = 0; n < N; ++n) r[n].lanes[a] += x[n * q + k] * v;
        }
    for (int n = 0; p.kept && n < N; ++n) {
        const uint8_t* kept = p.kept + (i + n) * n2 + j;
        for (int a = 0; a < A; ++a) r[n].lanes[a] = only(kept + a * W, r[n].lanes[a]);
    }
}

// The same for one column.
template <class T>
inline T single(const Dense<T>& p, const T* x, int64_t i, int64_t j) {
    if (p.kept && !p.kept[i * p.n2 + j]) return 0;
    T r = -p.Y[i * p.n2 + j];
    for (int64_t k = 0; k < p.q; ++k) r += x[k] * p.Rt[k * p.stride + j];
    return r;
}

// N rows at a time, for which a strip of Rt is read once.
template <class T, int N>
double some_rows(const Dense<T>& p, int64_t i, vec<T>* sums) {
    constexpr int64_t W = Lanes<T>::count;
    const int64_t n2 = p.n2, q = p.q;
    const T* x = p.L + i * q;
    vec<T> square[N];
    double squares = 0;
    for (int n = 0; n < N; ++n) square[n] = vec<T>{};
    for (int64_t k = 0; k < N * q; ++k) sums[k] = vec<T>{};
    const int64_t whole = in_strips<T>(0, n2, [&](int64_t j, auto width) {
        constexpr int A = decltype(width)::value;
        Strip<T, A> r[N];
        strips<T, N, A>(p, x, i, j, r);
        for (int n = 0; n < N; ++n) {
            for (int a = 0; a < A; ++a) square[n] += r[n].lanes[a] * r[n].lanes[a];
            if (p.residual)
                for (int a = 0; a < A; ++a) store(p.residual + (i + n) * n2 + j + a * W, r[n].lanes[a]);
        }
        if (!p.by_rows) return;
        const T* row = p.Rt + j;
        for (int64_t k = 0; k < q; ++k, row += p.stride) {
            vec<T> part[N][A];
            for (int a = 0; a < A; ++a) {
                const vec<T> v = load(row + a * W);
                for (int n = 0; n < N; ++n) part[n][a] = r[n].lanes[a] * v;
            }
            for (int n = 0; n < N; ++n) {  // pairs, pairs of pairs, ...
                for (int half = A / 2; half > 0; half /= 2)
                    for (int a = 0; a < half; ++a) part[n][a] += part[n][a + half];
                sums[n * q + k] += part[n][0];
            }
        }
    });
    for (int n = 0; n < N; ++n) {
        double rest = 0;
        for (int64_t j = whole; j < n2; ++j) {
            const T r = single(p, x + n * q, i + n, j);
            rest += double(r) * double(r);
            if (p.residual) p.residual[(i + n) * n2 + j] = r;
            for (int64_t k = 0; p.by_rows && k < q; ++k) sums[n * q + k][0] += r * p.Rt[k * p.stride + j];
        }
        squares += double(add(square[n])) + rest;
        for (int64_t k = 0; p.by_rows && k < q; ++k) p.by_rows[(i + n) * q + k] = add(sums[n * q + k]);
    }
    return squares;
}

template <class T>
double dense_rows(const Dense<T>& p, int64_t first, int64_t last) {
    Scratch<vec<T>> memory;
    vec<T>* sums = memory.at_least(2 * p.q);
    double squares = 0;
    int64_t i = first;
    for (; i + 2 <= last; i += 2) squares += some_rows<T, 2>(p, i, sums);
    for (; i < last; ++i) squares += some_rows<T, 1>(p, i, sums);
    return squares;
}

// sums[k, :] += x[k] r for N rows x and their residuals r in a strip of columns
template <class T, int N, int A>
inline void add_columns(const Dense<T>& p, int64_t i, int64_t j, vec<T>* sums) {
    const T* x = p.L + i * p.q;
    Strip<T, A> r[N];
    strips<T, N, A>(p, x, i, j, r);
    for (int64_t k = 0; k < p.q; ++k)
        for (int a = 0; a < A; ++a) {
            vec<T> sum = sums[k * A + a];
            for (int n = 0; n < N; ++n) sum += x[n * p.q + k] * r[n].lanes[a];
            sums[k * A + a] = sum;
        }
}

template <class T>
void dense_columns(const Dense<T>& p, int64_t first, int64_t last) {
    constexpr int64_t W = Lanes<T>::count;
    Scratch<vec<T>> memory;
    vec<T>* sums = memory.at_least(p.q * STRIP);
    int64_t j = in_strips<T>(first, last, [&](int64_t j, auto width) {
        constexpr int A = decltype(width)::value;
        for (int64_t k = 0; k < p.q * A; ++k) sums[k] = vec<T>{};
        int64_t i = 0;
        for (; i + 2 <= p.n1; i += 2) {
            for (int64_t n = 2; n < 4 && i + n < p.n1; ++n) prefetch(p.Y + (i + n) * p.n2 + j, A * BYTES);
            add_columns<T, 2, A>(p, i, j, sums);
        }
        if (i < p.n1) add_columns<T, 1, A>(p, i, j, sums);
        for (int64_t a = 0; a < A * W; ++a)
            for (int64_t k = 0; k < p.q; ++k) p.by_columns[(j + a) * p.q + k] = sums[k * A + a / W][a % W];
    });
    for (; j < last; ++j) {
        T* out = p.by_columns + j * p.q;
        std::memset(out, 0, p.q * sizeof(T));
        for (int64_t i = 0; i < p.n1; ++i) {
            const T r = single(p, p.L + i * p.q, i, j);
            for (int64_t k = 0; k < p.q; ++k) out[k] += r * p.L[i * p.q + k];
        }
    }
}

// ---- numbers between two bounds

#ifdef __AVX512VL__
inline int64_t put(double* to, __mmask8 which, vec<double> v) {
    _mm512_storeu_pd(to, _mm512_maskz_compress_pd(which, (__m512d)v));
    return __builtin_popcount(which);
}
inline int64_t put(float* to, __mmask16 which, vec<float> v) {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(which, (__m512)v));
    return __builtin_popcount(which);
}
inline __mmask8 reaches(vec<double> a, vec<double> b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LE_OQ); }
inline __mmask16 reaches(vec<float> a, vec<float> b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
inline __mmask8 below(vec<double> a, vec<double> b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ); }
inline __mmask16 below(vec<float> a, vec<float> b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
#endif

template <class T>
void between(Between<T>& p, const T* x, int64_t n) {
    const T low = p.low, high = p.high;
    T* inside = p.inside;
    int64_t e = 0, count = 0, below = 0;
#ifdef __AVX512VL__
    constexpr int64_t W = Lanes<T>::count;
    const vec<T> lows = vec<T>{} + low, highs = vec<T>{} + high;
    for (; e + W <= n && count + W <= p.room; e += W) {
        vec<T> v = load(x + e);
        if (p.sizes) v = v < 0 ? -v : v;
        const auto from = reaches(lows, v), to = reaches(v, highs);
        // both comparisons fail for NaN, which counts as below
        below += __builtin_popcount(to & ~from);
        count += put(inside + count, from & to, v);
    }
#endif
    for (; e < n; ++e) {  // without a branch, which nobody could predict
        const T v = p.sizes ? std::abs(x[e]) : x[e];
        inside[count] = v;
        below += v < low;
        count += v >= low && v <= high && count < p.room;
    }
    p.count = count;
    p.below = below;
}

// The numbers below and above a pivot, and how many there are of each; NaN is above. They may be
// written in place.
template <class T>
void divide(const T* x, int64_t n, T pivot, T* less, int64_t& smaller, T* more, int64_t& larger) {
    int64_t e = 0, a = 0, b = 0;
#ifdef __AVX512VL__
    constexpr int64_t W = Lanes<T>::count;
    const vec<T> pivots = vec<T>{} + pivot;
    for (; e + W <= n; e += W) {
        const vec<T> v = load(x + e);
        a += put(less + a, below(v, pivots), v);
        const auto most = reaches(v, pivots);
        b += put(more + b, decltype(most)(~most), v);
    }
#endif
    for (; e < n; ++e) {
        less[a] = more[b] = x[e];
        a += x[e] < pivot;
        b += !(x[e] <= pivot);
    }
    smaller = a, larger = b;
}

template <class T>
bool kth(const T* x, int64_t n, int64_t k, T* room, T* found) {
    constexpr int64_t SOME = 16;
    T some[SOME], *less = room, *more = room + n + 8;
    for (;;) {
        // one of a few evenly spread samples, at the same relative rank
        const int64_t count = n < SOME ? n : SOME, wanted = (2 * k + 1) * count / (2 * n);
        for (int64_t e = 0; e < count; ++e) some[e] = x[(2 * e + 1) * n / (2 * count)];
        int64_t chosen = -1;
        for (int64_t e = 0; e < count && chosen < 0; ++e) {
            int64_t before = 0;
            for (int64_t c = 0; c < count; ++c) before += some[c] < some[e] || (some[c] == some[e] && c < e);
            if (before == wanted) chosen = e;
        }
        if (chosen < 0 || !(some[chosen] == some[chosen])) return false;
        int64_t smaller, larger;
        divide(x, n, some[chosen], less, smaller, more, larger);
        if (k >= smaller && k < n - larger) {
            *found = some[chosen];
            return true;
        }
        if (k < smaller) {
            x = less, n = smaller;
        } else {
            k -= n - larger;
            x = more, n = larger;
        }
    }
}

// ---- rows of a dense matrix with gross errors

// Solve S d = g in place for one symmetric S, whose upper triangle is overwritten.
void solve_one(double* S, int64_t q, double* g) {
    for (int64_t i = 0; i < q; ++i) {
        const double pivot = S[i * q + i], inverse = pivot > 0 ? 1 / pivot : 0;
        for (int64_t k = i + 1; k < q; ++k) {
            const double s = S[i * q + k] * inverse;
            for (int64_t j = k; j < q; ++j) S[k * q + j] -= s * S[i * q + j];
            g[k] -= s * g[i];
        }
    }
    for (int64_t i = q - 1; i >= 0; --i) {
        double sum = g[i];
        for (int64_t j = i + 1; j < q; ++j) sum -= S[i * q + j] * g[j];
        g[i] = S[i * q + i] > 0 ? sum / S[i * q + i] : 0;  // what is not determined is left alone
    }
}

// The next number towards zero.
inline double less(double x) { return __builtin_nextafter(x, 0.0); }
inline float less(float x) { return __builtin_nextafterf(x, 0.0f); }

// Zero the numbers whose sizes exceed a limit, and return how many they are; `out` has their places.
template <class T>
int64_t reject(const T* size, int64_t n, double limit, T* r, int32_t* out) {
    int64_t j = 0, count = 0;
#ifdef __AVX512VL__
    constexpr int64_t W = Lanes<T>::count;
    T most = T(limit);
    if (double(most) > limit) most = less(most);
    const __m512i steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (; j + W <= n; j += W) {
        const vec<T> s = load(size + j), v = load(r + j);
        const auto kept = reaches(s, vec<T>{} + most);
        store(r + j, s <= most ? v : vec<T>{});
        const __mmask16 others = decltype(kept)(~kept);
        const __m512i places = _mm512_maskz_compress_epi32(others, _mm512_add_epi32(_mm512_set1_epi32(int32_t(j)), steps));
        if (W == 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + count), _mm512_castsi512_si256(places));
        else _mm512_storeu_si512(out + count, places);
        count += __builtin_popcount(others);
    }
#endif
    for (; j < n; ++j) {  // without a branch, which nobody could predict
        out[count] = int32_t(j);
        const bool kept = double(size[j]) <= limit;
        r[j] = kept ? r[j] : T(0);
        count += !kept;
    }
    return count;
}

template <class T>
void cleaned(const Cleaned<T>& p, int64_t first, int64_t last) {
    constexpr int64_t W = Lanes<T>::count;
    const int64_t q = p.q, qp = p.qp, n = p.n2;
    Dense<T> d;
    d.n2 = n, d.q = q, d.Rt = p.Rt, d.stride = p.stride, d.Y = p.Y;
    Scratch<T> memory;
    T* r = memory.at_least(4 * n + 32 + BLOCK * qp + q);
    T *size = r + n, *room = size + n, *v = room + 2 * n + 32, *x = v + BLOCK * qp;
    Scratch<double> small;
    double* G = small.at_least(qp * qp + 2 * q * q + q);
    double *S = G + qp * qp, *held = S + q * q, *g = held + q * q;
    Scratch<int32_t> places;
    int32_t *out = places.at_least(2 * n + 2), *before = out + n + 1;
    for (int64_t i = first; i < last; ++i) {
        for (int64_t k = 0; k < q; ++k) x[k] = 0;
        for (int64_t a = 0; a < q * q; ++a) held[a] = 0;
        for (int64_t c = 0; p.ridge && c < q; ++c)
            for (int64_t a = 0; a < q; ++a) {
                const double s = double(p.ridge[i * q + c]) * double(p.turn[c * q + a]);
                for (int64_t b = 0; b < q; ++b) held[a * q + b] += s * double(p.turn[c * q + b]);
            }
        double limit = -1;
        int64_t had = -1;
        for (int t = 0; t < p.rounds; ++t) {
            const int64_t whole = in_strips<T>(0, n, [&](int64_t j, auto width) {
                constexpr int A = decltype(width)::value;
                Strip<T, A> s;
                strips<T, 1, A>(d, x, i, j, &s);
                for (int a = 0; a < A; ++a) {
                    store(r + j + a * W, s.lanes[a]);
                    store(size + j + a * W, s.lanes[a] < 0 ? -s.lanes[a] : s.lanes[a]);
                }
            });
            for (int64_t j = whole; j < n; ++j) {
                r[j] = single(d, x, i, j);
                size[j] = std::abs(r[j]);
            }
            if (!(limit >= 0 && limit <= p.floor)) {
                T middle = 0;
                if (!kth(size, n, (n - 1) / 2, room, &middle)) middle = 0;
                const double scale = p.multiple * double(middle);
                // the limit always falls, because errors on one side can keep the scale of a row
                // large
                const double less = limit >= 0 && p.fall * limit < scale ? p.fall * limit : scale;
                limit = less > p.floor ? less : p.floor;
            }
            const int64_t count = reject(size, n, limit, r, out);
            if (count == had && limit <= p.floor && std::memcmp(out, before, count * sizeof(int32_t)) == 0) break;
            std::memset(G, 0, qp * qp * sizeof(double));
            for (int64_t from = 0; from < count; from += BLOCK) {
                const int64_t m = count - from < BLOCK ? count - from : BLOCK;
                for (int64_t e = 0; e < m; ++e)
                    for (int64_t k = 0; k < qp; k += W)
                        store(v + e * qp + k, load(p.table + int64_t(out[from + e]) * qp + k));
                add_gram(v, m, q, qp, G);
            }
            double largest = 0;
            for (int64_t k = 0; k < q; ++k) {
                vec<T> even = {}, odd = {};
                const T* row = p.Rt + k * p.stride;
                int64_t j = 0;
                for (; j + 2 * W <= n; j += 2 * W) {
                    even += load(r + j) * load(row + j);
                    odd += load(r + j + W) * load(row + j + W);
                }
                g[k] = double(add(even + odd));
                for (; j < n; ++j) g[k] += double(r[j]) * double(row[j]);
                for (int64_t c = 0; c < q; ++c) g[k] += held[k * q + c] * double(x[c]);
                for (int64_t c = k; c < q; ++c) S[k * q + c] = p.whole[k * q + c] - G[k * qp + c];
                largest = S[k * q + k] > largest ? S[k * q + k] : largest;
            }
            for (int64_t k = 0; k < q; ++k) {
                for (int64_t c = k; c < q; ++c) S[k * q + c] += held[k * q + c];
                S[k * q + k] += p.jitter * (largest > 1e-12 ? largest : 1);
            }
            solve_one(S, q, g);
            for (int64_t k = 0; k < q; ++k) x[k] -= T(g[k]);
            had = count;
            int32_t* kept = before;
            before = out;
            out = kept;
        }
        std::memcpy(p.solved + i * q, x, q * sizeof(T));
    }
}

// ---- magnitudes within a threshold

template <class T>
void within(Within<T>& p, int64_t first, int64_t last) {
    constexpr int64_t W = Lanes<T>::count;
    const T *x = p.x, most = p.threshold;
    uint8_t* kept = p.kept;
    vec<T> largest = {};
    double squares = 0;
    int64_t count = 0;
    auto look = [&](T size, bool inside) {
        squares += inside ? double(size) * double(size) : 0.0;
        largest[0] = inside && size > largest[0] ? size : largest[0];
    };
    int64_t e = first;
    for (; e + 4 * W <= last; e += 4 * W) {
        vec<T> sum = {};
#ifdef __AVX512VL__
        uint64_t mask = 0;
        for (int64_t k = 0; k < 4 * W; k += W) {
            const vec<T> v = load(x + e + k), size = v < 0 ? -v : v;
            mask |= uint64_t(reaches(size, vec<T>{} + most)) << k;
        }
        count += __builtin_popcountll(mask);
        const __m512i ones = _mm512_maskz_set1_epi8(__mmask64(mask), 1);
        if (W == 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(kept + e), _mm512_castsi512_si256(ones));
        else _mm512_storeu_si512(kept + e, ones);
#else
        for (int64_t k = 0; k < 4 * W; ++k) {
            kept[e + k] = std::abs(x[e + k]) <= most;
            count += kept[e + k];
        }
#endif
        for (int64_t k = 0; k < 4 * W; k += W) {
            const vec<T> v = load(x + e + k), size = v < 0 ? -v : v;
            const vec<T> inside = size <= most ? size : vec<T>{};
            sum += inside * inside;
            largest = inside > largest ? inside : largest;
        }
        squares += add(sum);
    }
    for (; e < last; ++e) {
        kept[e] = std::abs(x[e]) <= most;
        count += kept[e];
        look(std::abs(x[e]), kept[e]);
    }
    p.count = count;
    p.squares = squares;
    p.largest = 0;
    for (int64_t k = 0; k < W; ++k) p.largest = largest[k] > p.largest ? largest[k] : p.largest;
}

// ---- rows of a Gaussian given their observed entries

// A row in one of the lanes: its missing columns, then its observed ones, each ascending.
struct Given {
    int64_t row = 0, missing = 0, observed = 0;
    bool by_observed = false;
    const int32_t* columns = nullptr;
    const double* values = nullptr;               // (d), zeros where missing
};

inline Given given(const Conditionals& p, int64_t row, int32_t* columns, double* values) {
    Given g;
    g.row = row, g.columns = columns, g.values = values;
    const double* z = p.Z + row * p.d;
    for (int64_t j = 0; j < p.d; ++j) {
        const double v = z[j];
        const bool seen = v == v;
        values[j] = seen ? v : 0;
        if (seen) columns[p.d - ++g.observed] = int32_t(j);
        else columns[g.missing++] = int32_t(j);
    }
    for (int64_t a = g.missing, b = p.d - 1; a < b; ++a, --b) {
        const int32_t kept = columns[a];
        columns[a] = columns[b], columns[b] = kept;
    }
    const double k = double(g.missing), observed = double(g.observed);
    g.by_observed = p.by_observed(k, observed) < p.by_missing(k, observed);
    return g;
}

// Gather M[near, near] and M[near, far] in one lane of the upper triangle of G, of `rows` rows of w
// numbers. Columns from q on are `far`; in a lane with fewer columns, others are independent.
inline void gather(const Conditionals& p, const double* M, const int32_t* near, int64_t m, int64_t q,
                   const int32_t* far, int64_t f, int64_t rows, int64_t w, int64_t lane, several* G) {
    for (int64_t a = 0; a < rows; ++a) {
        const bool first = a < q, none = first ? a >= m : a - q >= f;
        several* to = G + a * w;
        const double* from = none ? nullptr : M + (first ? near[a] : far[a - q]) * p.dp;
        if (none) {
            for (int64_t j = a; j < w; ++j) to[j][lane] = double(j == a);
            continue;
        }
        int64_t j = a;
        for (; j < m; ++j) to[j][lane] = from[near[j]];
        for (; j < q; ++j) to[j][lane] = 0;
        for (; j < q + f; ++j) to[j][lane] = from[far[j - q]];
        for (; j < w; ++j) to[j][lane] = 0;
    }
}

// Sums over n rows, w numbers long, of squares times the inverse of the row, for some columns.
inline void weighted_squares(const several* rows, const several* inverse, int64_t n, int64_t w, int64_t first,
                             int64_t last, several* sums) {
    for (int64_t j = first; j < last; ++j) sums[j - first] = several{};
    for (int64_t i = 0; i < n; ++i, rows += w)
        for (int64_t j = first; j < last; ++j) sums[j - first] += rows[j] * rows[j] * inverse[i];
}

// Rows in lanes, all from the side of their missing or all from that of their observed entries.
void condition(const Conditionals& p, const Given* rows, int64_t count, Scratch<several>& lanes,
               Scratch<double>& memory) {
    const bool by_observed = rows[0].by_observed, every = p.predicted != nullptr, all = p.total || p.variances;
    const double* M = by_observed ? p.covariance : p.precision;
    int64_t q = 0, f = 0;  // columns that are eliminated, and the others
    for (int64_t lane = 0; lane < count; ++lane) {
        const Given& g = rows[lane];
        const int64_t near = by_observed ? g.observed : g.missing, far = p.d - near;
        q = near > q ? near : q;
        f = far > f ? far : f;
    }
    q = (q + 3) / 4 * 4;  // which makes a row independent of those in the other lanes
    const bool wide = by_observed ? all : every;
    const int64_t w = wide ? q + f : q, height = by_observed && p.total ? w : q;
    const bool inverted = by_observed ? every : all;
    const int64_t inverses = inverted ? q * q : 0, covariances = p.total && !by_observed ? q * q : 0;
    several* G = lanes.at_least(height * w + inverses + covariances + 3 * q + f + w);
    several *Z = G + height * w, *V = Z + inverses, *b = V + covariances;
    several *inverse = b + q, *own = inverse + q, *of_far = own + q, *s = of_far + f;
    double* pulls = memory.at_least(SEVERAL * p.dp);
    for (int64_t k = 0; k < q; ++k) b[k] = several{};
    for (int64_t lane = 0; lane < SEVERAL; ++lane) {
        const Given* g = lane < count ? rows + lane : nullptr;
        const int64_t near = !g ? 0 : by_observed ? g->observed : g->missing;
        const int32_t* at = !g ? nullptr : by_observed ? g->columns + g->missing : g->columns;
        const int32_t* others = !g ? nullptr : by_observed ? g->columns : g->columns + g->missing;
        gather(p, M, at, near, q, others, g && wide ? p.d - near : 0, height, w, lane, G);
        if (!g) continue;
        double* pull = pulls + lane * p.dp;
        if (!by_observed) {
            for (int64_t j = 0; j < p.dp; ++j) pull[j] = 0;
            for (int64_t e = 0; e < g->observed; ++e)
                axpy(g->values[others[e]], p.precision + others[e] * p.dp, pull, p.dp);
        }
        for (int64_t a = 0; a < near; ++a) b[a][lane] = by_observed ? g->values[at[a]] : -pull[at[a]];
    }
    eliminate(G, q, height, w, inverse, s);
    forward(G, inverse, b, q, w);
    backward(G, inverse, b, q, w);
    if (inverted) {
        invert(G, inverse, q, w, s, Z);
        weighted_squares(Z, inverse, q, q, 0, q, own);
    }
    if (p.total && !by_observed) {
        for (int64_t k = 0; k < q * q; ++k) V[k] = several{};
        add_inverse(Z, inverse, q, V);
    }
    if (wide) weighted_squares(G, inverse, q, w, q, w, of_far);
    for (int64_t lane = 0; lane < count; ++lane) {
        const Given& g = rows[lane];
        const int32_t *missing = g.columns, *observed = g.columns + g.missing;
        double *pull = pulls + lane * p.dp, *filled = p.filled + g.row * p.d;
        std::memcpy(filled, g.values, p.d * sizeof(double));
        if (by_observed) {
            for (int64_t j = 0; j < p.dp; ++j) pull[j] = 0;
            for (int64_t e = 0; e < g.observed; ++e)
                axpy(double(b[e][lane]), p.covariance + observed[e] * p.dp, pull, p.dp);
            for (int64_t a = 0; a < g.missing; ++a) filled[missing[a]] = pull[missing[a]];
        } else {
            for (int64_t a = 0; a < g.missing; ++a) filled[missing[a]] = b[a][lane];
        }
        const several* spread = by_observed ? G + q * w + q : V;
        for (int64_t a = 0; p.total && a < g.missing; ++a) {
            double* to = p.total + missing[a] * p.d;
            const several* from = spread + a * (by_observed ? w : q);
            for (int64_t c = a; c < g.missing; ++c) to[missing[c]] += from[c][lane];
        }
        if (!p.variances) continue;
        double* variances = p.variances + g.row * p.d;
        for (int64_t a = 0; a < g.missing; ++a)
            variances[missing[a]] = by_observed ? M[missing[a] * (p.dp + 1)] - of_far[a][lane] : own[a][lane];
        if (!every) {
            for (int64_t e = 0; e < g.observed; ++e) variances[observed[e]] = 0;
            continue;
        }
        double* predicted = p.predicted + g.row * p.d;
        if (!by_observed)
            for (int64_t a = 0; a < g.missing; ++a)
                axpy(double(b[a][lane]), M + missing[a] * p.dp, pull, p.dp);
        for (int64_t a = 0; a < g.missing; ++a) predicted[missing[a]] = filled[missing[a]];
        for (int64_t e = 0; e < g.observed; ++e) {
            const int64_t j = observed[e];
            const double precision = by_observed ? own[e][lane] : M[j * (p.dp + 1)] - of_far[e][lane];
            const double tilt = by_observed ? b[e][lane] : pull[j];
            variances[j] = 1 / precision;
            predicted[j] = g.values[j] - tilt / precision;
        }
    }
}

void conditionals(const Conditionals& p, int64_t first, int64_t last) {
    Scratch<several> lanes;
    Scratch<double> memory, numbers;
    Scratch<int32_t> places;
    double* values = numbers.at_least(SEVERAL * p.d);
    int32_t* columns = places.at_least(SEVERAL * p.d);
    Given rows[SEVERAL];
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
        // arrays may change while they are read: what was read once decides
        rows[count] = given(p, p.order[i], columns + count * p.d, values + count * p.d);
        if (count > 0 && rows[count].by_observed != rows[0].by_observed) {
            condition(p, rows, count, lanes, memory);
            count = 0;
            --i;
            continue;
        }
        if (++count == SEVERAL || i + 1 == last) {
            condition(p, rows, count, lanes, memory);
            count = 0;
        }
    }
}

// R rows of A B, V vectors wide, where rows of A have `stride` numbers and those of B and out qp
template <class T, int R, int V>
inline void block(const T* A, int64_t stride, const T* B, int64_t q, int64_t qp, T* out) {
    constexpr int64_t W = Lanes<T>::count;
    vec<T> sums[R][V] = {};
    for (int64_t k = 0; k < q; ++k)
        for (int v = 0; v < V; ++v) {
            const vec<T> b = load(B + k * qp + v * W);
            for (int r = 0; r < R; ++r) sums[r][v] += A[r * stride + k] * b;
        }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(out + r * qp + v * W, sums[r][v]);
}

template <class T>
void times(const T* A, int64_t stride, const T* B, int64_t q, int64_t qp, T* out) {
    constexpr int64_t W = Lanes<T>::count;
    for (int64_t j = 0; j < qp;) {
        const bool two = j + 2 * W <= qp;
        int64_t i = 0;
        for (; i + 4 <= q; i += 4)
            two ? block<T, 4, 2>(A + i * stride, stride, B + j, q, qp, out + i * qp + j)
                : block<T, 4, 1>(A + i * stride, stride, B + j, q, qp, out + i * qp + j);
        for (; i < q; ++i)
            two ? block<T, 1, 2>(A + i * stride, stride, B + j, q, qp, out + i * qp + j)
                : block<T, 1, 1>(A + i * stride, stride, B + j, q, qp, out + i * qp + j);
        j += two ? 2 * W : W;
    }
}

template <class T>
void turn(const Turn<T>& p, int64_t first, int64_t last) {
    const int64_t q = p.q, qp = p.qp;
    Scratch<T> room;
    T* half = room.at_least(2 * q * qp);
    T* both = half + q * qp;
    for (int64_t i = first; i < last; ++i) {
        times(p.C + i * q * q, q, p.M, q, qp, half);
        times(p.adjoint, qp, half, q, qp, both);
        for (int64_t a = 0; a < q; ++a)
            std::memcpy(p.turned + (i * q + a) * q, both + a * qp, q * sizeof(T));
    }
}

template <class T> Table<T> table() {
    return {pass<T>, solve<T>, part<T>, whole<T>, outer<T>, values<T>, cleaned<T>, dense_rows<T>, dense_columns<T>, within<T>,
            turn<T>, between<T>, kth<T>};
}

}  // namespace

#define QUOTED(name) #name
#define NAME_OF(name) QUOTED(name)

namespace scaledgd {
namespace INSTRUCTIONS {
Kernels kernels() {
  return {table<double>(), table<float>(), conditionals, BYTES, NAME_OF(INSTRUCTIONS)};
}
}  // namespace INSTRUCTIONS
}  // namespace scaledgd
