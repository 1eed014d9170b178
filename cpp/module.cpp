// The Python interface of the kernels: arrays are checked and padded here, and work is divided
// among threads.
//
// Work is cut into pieces that do not depend on the number of threads, and sums over pieces are
// added in their order, so results are the same to the bit for every number of threads.
#include "kernels.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace nb = nanobind;
using namespace scaledgd;
using std::optional;

namespace scaledgd {
void out_of_memory() { throw std::bad_alloc(); }
void out_of_range() { throw std::out_of_range("index out of range"); }
}  // namespace scaledgd

namespace {

// ---- threads

int default_threads() {
    for (const char* name : {"SCALEDGD_NUM_THREADS", "OMP_NUM_THREADS"})
        if (const char* value = std::getenv(name))
            if (const int n = std::atoi(value); n > 0) return n;
    return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<int> limit{0};

int threads() {
    const int n = limit.load();
    return n > 0 ? n : default_threads();
}

// For tests: the n-th piece of work from now fails, as if there were no memory for it.
std::atomic<int64_t> failing{-1};

void fail_where_told() {
    if (failing.load(std::memory_order_relaxed) >= 0 && failing.fetch_sub(1) == 0) throw std::bad_alloc();
}

// Threads that sleep until there is work. They are kept because a woken thread runs at once, while
// a new one would wait behind whatever keeps the other cores busy. The caller does not wait for
// threads that come too late.
//
// An exception in a piece is stored, and thrown again in the caller's thread once all helpers have
// stopped; pieces that have not begun by then are skipped.
class Pool {
    struct Job {
        const std::function<void(int64_t)>& work;
        const int64_t pieces;
        int64_t seats;                  // helpers that may still join; guarded by the pool's mutex
        int64_t inside = 0;             // helpers at work; likewise
        std::exception_ptr failure;     // the first one; likewise
        std::atomic<int64_t> next{0};
        std::condition_variable left;

        Job(const std::function<void(int64_t)>& work, int64_t pieces, int64_t seats)
            : work(work), pieces(pieces), seats(seats) {}

        void run(std::mutex& mutex) noexcept {
            try {
                for (int64_t k; (k = next.fetch_add(1)) < pieces;) {
                    fail_where_told();
                    work(k);
                }
            } catch (...) {
                next.store(pieces);
                std::lock_guard<std::mutex> lock(mutex);
                if (!failure) failure = std::current_exception();
            }
        }
    };
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Job*> jobs;
    int64_t workers = 0;

    void help() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return !jobs.empty(); });
            Job* job = jobs.front();
            if (--job->seats == 0) jobs.pop_front();
            ++job->inside;
            lock.unlock();
            job->run(mutex);
            lock.lock();
            if (--job->inside == 0) job->left.notify_one();
        }
    }

  public:
    void share(int64_t pieces, int64_t helpers, const std::function<void(int64_t)>& work) {
        Job job(work, pieces, helpers);
        {
            std::lock_guard<std::mutex> lock(mutex);
            try {
                for (; workers < helpers; ++workers) std::thread([this] { help(); }).detach();
            } catch (const std::exception&) {
                // no more threads available: the existing ones do the work
            }
            jobs.push_back(&job);
        }
        for (int64_t k = 0; k < helpers; ++k) wake.notify_one();
        job.run(mutex);
        std::unique_lock<std::mutex> lock(mutex);
        jobs.erase(std::remove(jobs.begin(), jobs.end(), &job), jobs.end());
        job.left.wait(lock, [&] { return job.inside == 0; });
        if (job.failure) std::rethrow_exception(job.failure);
    }
};

std::atomic<Pool*> pool{nullptr};  // never deleted: its threads sleep until the process ends

// Call work(k) once for each k = 0 .. pieces - 1, on as many threads as allowed.
void share(int64_t pieces, const std::function<void(int64_t)>& work) {
    const int64_t helpers = std::min<int64_t>(threads(), pieces) - 1;
    if (helpers > 0) return pool.load()->share(pieces, helpers, work);
    for (int64_t k = 0; k < pieces; ++k) {
        fail_where_told();
        work(k);
    }
}

// A forked child has none of its parent's threads, one of which may hold a lock.
void start_anew() { pool.store(new Pool); }

constexpr int64_t PIECE = 1 << 20;  // multiplications

// Divide n items, of `cost` multiplications in all, into equal ranges; a multiple of `unit` each.
struct Pieces {
    int64_t n, size, count;
    Pieces(int64_t n, int64_t cost, int64_t unit = 1) : n(n) {
        const int64_t wanted = std::clamp<int64_t>(cost / PIECE, 1, 512);
        size = std::max<int64_t>(1, (n + wanted - 1) / wanted);
        size = (size + unit - 1) / unit * unit;
        count = n ? (n + size - 1) / size : 0;
    }
    int64_t first(int64_t k) const { return k * size; }
    int64_t last(int64_t k) const { return std::min(n, (k + 1) * size); }
};

// Divide rows into ranges of about equal cost, counting entries and rows; each range is a multiple
// of `unit` rows. Some may be empty.
struct Cuts {
    std::vector<int64_t> bounds;
    int64_t count;
    Cuts(const Side& side, int64_t per_entry, int64_t per_row, int64_t unit = 1) {
        auto cost = [&](int64_t i) { return side.starts[i] * per_entry + i * per_row; };
        count = std::clamp<int64_t>(cost(side.rows) / PIECE, 1, 512);
        bounds.push_back(0);
        for (int64_t k = 1; k < count; ++k) {
            const int64_t wanted = cost(side.rows) / count * k;
            int64_t low = bounds.back(), high = side.rows;
            while (low < high) {
                const int64_t middle = low + (high - low) / 2;
                if (cost(middle) < wanted) low = middle + 1;
                else high = middle;
            }
            bounds.push_back(std::min(side.rows, (low + unit - 1) / unit * unit));
        }
        bounds.push_back(side.rows);
    }
    int64_t first(int64_t k) const { return bounds[k]; }
    int64_t last(int64_t k) const { return bounds[k + 1]; }
};

template <class P, class F> void each(const P& pieces, F work) {
    nb::gil_scoped_release release;
    share(pieces.count, [&](int64_t k) { work(pieces.first(k), pieces.last(k)); });
}

template <class P, class F> double add_up(const P& pieces, F work) {
    std::vector<double> parts(pieces.count);
    {
        nb::gil_scoped_release release;
        share(pieces.count, [&](int64_t k) { parts[k] = work(pieces.first(k), pieces.last(k)); });
    }
    return std::accumulate(parts.begin(), parts.end(), 0.0);
}

// ---- arrays

void demand(bool truth, const char* message) {
    if (!truth) throw std::invalid_argument(message);
}

// Kernels run without Python's lock, and their arguments may change meanwhile: what they count in
// one pass bounds what they write in a second.
void unchanged(bool truth) {
    if (!truth) throw std::runtime_error("an array changed while it was read");
}

template <class T, size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T> using Any = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T> using Out = nb::ndarray<nb::numpy, T>;

// Large arrays on large pages, if available: most of the cost of making one is its pages.
void* reserved(size_t bytes) {
    constexpr size_t page = size_t(1) << 21;
    void* memory = nullptr;
#ifdef MADV_HUGEPAGE
    if (bytes >= 2 * page) {
        bytes = (bytes + page - 1) / page * page;
        memory = std::aligned_alloc(page, bytes);
        if (memory != nullptr) madvise(memory, bytes, MADV_HUGEPAGE);
    }
#endif
    if (memory == nullptr) memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

template <class T> Out<T> made(std::vector<size_t> shape, T** data) {
    size_t size = 1;
    for (size_t n : shape) size *= n;
    T* memory = static_cast<T*>(reserved(std::max<size_t>(1, size) * sizeof(T)));
    nb::capsule owner(memory, [](void* p) noexcept { std::free(p); });
    *data = memory;
    return Out<T>(memory, shape.size(), shape.data(), owner);
}

template <class T> const T* data(const optional<Any<T>>& x) { return x ? x->data() : nullptr; }

template <class T> void same_size(const optional<Any<T>>& x, int64_t n, const char* message) {
    demand(!x || int64_t(x->size()) == n, message);
}

// Memory on large pages that is not cleared.
template <class T> struct Room {
    T* data;
    explicit Room(int64_t n) : data(static_cast<T*>(reserved(std::max<int64_t>(1, n) * sizeof(T)))) {}
    Room(Room&& other) noexcept : data(std::exchange(other.data, nullptr)) {}
    Room& operator=(const Room&) = delete;
    ~Room() { std::free(data); }
};

// ---- the instruction set of this processor

Kernels chosen() {
#if defined(SCALEDGD_WIDE)
    __builtin_cpu_init();
    const char* most = std::getenv("SCALEDGD_INSTRUCTIONS");
    const bool narrow = most && std::strcmp(most, "baseline") == 0;
    const bool middle = most && std::strcmp(most, "wide") == 0;
    if (!narrow && !middle && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
        return widest::kernels();
    if (!narrow && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return wide::kernels();
#endif
    return baseline::kernels();
}

const Kernels& all() {
    static const Kernels kernels = chosen();
    return kernels;
}
template <class T> const Table<T>& table();
template <> const Table<double>& table<double>() { return all().doubles; }
template <> const Table<float>& table<float>() { return all().floats; }

// The number of columns in whole vectors, at least one.
template <class T> int64_t padded(int64_t q) {
    const int64_t lanes = all().bytes / sizeof(T);
    return std::max<int64_t>(1, (q + lanes - 1) / lanes) * lanes;
}

// Rows padded with zeros to whole vectors, which do not cross cache lines.
template <class T> struct Padded {
    optional<Room<T>> copy;
    const T* data;
    int64_t width;
    Padded(const T* from, int64_t rows, int64_t q) : data(from), width(padded<T>(q)) {
        const bool aligned = reinterpret_cast<uintptr_t>(from) % all().bytes == 0;
        if ((width == q && aligned) || (from == nullptr && q > 0)) return;
        copy.emplace(rows * width);
        for (int64_t i = 0; i < rows; ++i) {
            T* to = copy->data + i * width;
            if (q > 0) std::memcpy(to, from + i * q, q * sizeof(T));
            std::fill(to + q, to + width, T(0));
        }
        data = copy->data;
    }
};

// ---- entries, sorted by one of their modes

struct Sorted {
    int64_t m = 0;
    std::vector<int64_t> starts;
    std::vector<uint32_t> position;                   // empty: in the given order
    std::vector<std::vector<int32_t>> other;          // of the modes but this one, in order
    std::vector<int64_t> extent;                      // which are below these

    Side side() const {
        Side s;
        s.rows = int64_t(starts.size()) - 1;
        s.starts = starts.data();
        s.position = position.empty() ? nullptr : position.data();
        for (size_t k = 0; k < other.size(); ++k) s.other[k] = other[k].data();
        return s;
    }
    void add(std::vector<int32_t> places, int64_t below) {
        other.push_back(std::move(places));
        extent.push_back(below);
    }
};

using Index = std::vector<In<int64_t, 1>>;

void check_index(const Index& index, const std::vector<int64_t>& shape) {
    demand(!index.empty() && index.size() == shape.size() && index.size() < MAX_MODES,
           "index must have one array per mode");
    for (size_t k = 0; k < shape.size(); ++k) {
        demand(index[k].size() == index[0].size(), "index arrays must have the same length");
        demand(shape[k] >= 0 && shape[k] < INT32_MAX, "a mode is too long");
    }
}

// A value of a Python array, read once because it may change meanwhile.
int64_t place(const int64_t* index, int64_t e, int64_t n) {
    const int64_t at = static_cast<const volatile int64_t*>(index)[e];
    demand(uint64_t(at) < uint64_t(n), "index out of range");
    return at;
}

// A stable counting sort of the entries, taken in some order, by their row in one mode.
void count_rows(const int64_t* rows, int64_t m, int64_t n, std::vector<int64_t>& starts) {
    starts.assign(n + 1, 0);
    for (int64_t e = 0; e < m; ++e) ++starts[place(rows, e, n) + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
}

std::unique_ptr<Sorted> sorted(const Index& index, const std::vector<int64_t>& shape, int mode) {
    check_index(index, shape);
    demand(mode >= 0 && mode < int(shape.size()), "there is no such mode");
    auto result = std::make_unique<Sorted>();
    const int64_t m = index[0].size();
    demand(m <= int64_t(UINT32_MAX), "too many entries");
    const int64_t* rows = index[mode].data();
    nb::gil_scoped_release release;
    result->m = m;
    count_rows(rows, m, shape[mode], result->starts);
    const bool as_is = std::is_sorted(rows, rows + m);
    if (!as_is) {
        result->position.resize(m);
        std::vector<int64_t> next(result->starts.begin(), result->starts.end() - 1);
        for (int64_t e = 0; e < m; ++e) {
            const int64_t to = next[place(rows, e, shape[mode])]++;
            unchanged(to < m);
            result->position[to] = uint32_t(e);
        }
    }
    for (size_t k = 0; k < shape.size(); ++k) {
        if (int(k) == mode) continue;
        std::vector<int32_t> other(m);
        const int64_t* from = index[k].data();
        const uint32_t* position = as_is ? nullptr : result->position.data();
        const Pieces pieces(m, m);
        share(pieces.count, [&](int64_t piece) {
            for (int64_t e = pieces.first(piece); e < pieces.last(piece); ++e)
                other[e] = int32_t(place(from, position ? position[e] : e, shape[k]));
        });
        result->add(std::move(other), shape[k]);
    }
    return result;
}

// Per-measurement values in the order of the entries.
template <class T> Out<T> arranged(const Sorted& entries, const In<T, 1>& x) {
    demand(int64_t(x.size()) == entries.m, "x does not fit the entries");
    T* out;
    auto result = made<T>({x.size()}, &out);
    const T* from = x.data();
    const uint32_t* position = entries.position.empty() ? nullptr : entries.position.data();
    each(Pieces(entries.m, entries.m * 8), [&](int64_t a, int64_t b) {
        for (int64_t e = a; e < b; ++e) out[e] = from[position ? position[e] : e];
    });
    return result;
}

// Which of eight bytes are zero: ones in these bytes; the bits of one byte; and their number.
constexpr uint64_t ONES = 0x0101010101010101;
inline uint64_t zeros(const uint8_t* bytes) {
    constexpr uint64_t low = 0x7f * ONES;
    uint64_t x;
    std::memcpy(&x, bytes, sizeof(x));
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) x = __builtin_bswap64(x);  // the first byte is the lowest
    return ~(((x & low) + low) | x) >> 7 & ONES;
}
inline uint64_t bits(uint64_t zeros) { return zeros * 0x0102040810204080 >> 56; }
inline int64_t number(uint64_t zeros) { return int64_t(zeros * ONES >> 56); }

// The entries that a mask rejects, sorted by rows or by columns.
std::unique_ptr<Sorted> rejected(const In<uint8_t, 2>& kept, int mode) {
    const int64_t n1 = kept.shape(0), n2 = kept.shape(1);
    demand(mode == 0 || mode == 1, "there is no such mode");
    demand(n1 < INT32_MAX && n2 < INT32_MAX, "a mode is too long");
    const uint8_t* mask = kept.data();
    auto result = std::make_unique<Sorted>();
    nb::gil_scoped_release release;
    std::vector<int64_t> starts(n1 + 1, 0);
    const Pieces pieces(n1, n1 * n2 * 8);
    share(pieces.count, [&](int64_t piece) {
        for (int64_t i = pieces.first(piece); i < pieces.last(piece); ++i) {
            const uint8_t* row = mask + i * n2;
            int64_t count = 0, j = 0;
            for (; j + 8 <= n2; j += 8) count += number(zeros(row + j));
            for (; j < n2; ++j) count += !row[j];
            starts[i + 1] = count;
        }
    });
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    const int64_t m = starts.back();
    std::vector<int32_t> columns(m);
    share(pieces.count, [&](int64_t piece) {
        std::vector<int32_t> found(n2 + 1);
        for (int64_t i = pieces.first(piece); i < pieces.last(piece); ++i) {
            const uint8_t* row = mask + i * n2;
            int64_t count = 0, j = 0;
            for (; j + 64 <= n2; j += 64) {
                uint64_t left = 0;
                for (int k = 0; k < 64; k += 8) left |= bits(zeros(row + j + k)) << k;
                for (; left; left &= left - 1) found[count++] = int32_t(j + __builtin_ctzll(left));
            }
            for (; j < n2; ++j) {  // without a branch, which nobody could predict
                found[count] = int32_t(j);
                count += !row[j];
            }
            unchanged(count == starts[i + 1] - starts[i]);
            std::copy(found.begin(), found.begin() + count, columns.begin() + starts[i]);
        }
    });
    result->m = m;
    if (mode == 0) {
        result->starts = std::move(starts);
        result->add(std::move(columns), n2);
        return result;
    }
    result->starts.assign(n2 + 1, 0);
    for (int32_t j : columns) ++result->starts[j + 1];
    std::partial_sum(result->starts.begin(), result->starts.end(), result->starts.begin());
    std::vector<int64_t> next(result->starts.begin(), result->starts.end() - 1);
    std::vector<int32_t> other(m);
    for (int64_t i = 0; i < n1; ++i)
        for (int64_t e = starts[i]; e < starts[i + 1]; ++e) other[next[columns[e]]++] = int32_t(i);
    result->add(std::move(other), n1);
    return result;
}

std::unique_ptr<Sorted> nothing(int64_t rows) {
    demand(rows >= 0, "rows must not be negative");
    auto result = std::make_unique<Sorted>();
    result->starts.assign(rows + 1, 0);
    result->add({}, 0);
    return result;
}

// Whether no entry is named twice.
bool distinct(const Index& index, const std::vector<int64_t>& shape) {
    check_index(index, shape);
    const int64_t m = index[0].size();
    const size_t d = shape.size();
    nb::gil_scoped_release release;
    auto compare = [&](int64_t a, int64_t b) {  // -1, 0, 1
        for (size_t k = 0; k < d; ++k) {
            const int64_t x = index[k].data()[a], y = index[k].data()[b];
            if (x != y) return x < y ? -1 : 1;
        }
        return 0;
    };
    bool rising = true;
    for (int64_t e = 1; e < m && rising; ++e) rising = compare(e - 1, e) < 0;
    if (rising) return true;
    // stable sorts by one mode after the other, the last first
    std::vector<int64_t> order(m), sorted_order(m), next;
    std::iota(order.begin(), order.end(), 0);
    for (size_t k = d; k-- > 0;) {
        const int64_t* rows = index[k].data();
        count_rows(rows, m, shape[k], next);
        for (int64_t e : order) {
            const int64_t to = next[place(rows, e, shape[k])]++;
            unchanged(to < m);
            sorted_order[to] = e;
        }
        order.swap(sorted_order);
    }
    for (int64_t e = 1; e < m; ++e)
        if (compare(order[e - 1], order[e]) == 0) return false;
    return true;
}

// How many parts share no slice of any mode; slices without entries are left out.
int64_t parts(const Index& index, const std::vector<int64_t>& shape) {
    check_index(index, shape);
    nb::gil_scoped_release release;
    std::vector<int64_t> offset(shape.size() + 1, 0);
    std::partial_sum(shape.begin(), shape.end(), offset.begin() + 1);
    std::vector<int64_t> parent(offset.back(), -1);
    auto root = [&](int64_t a) {
        while (parent[a] != a) a = parent[a] = parent[parent[a]];
        return a;
    };
    int64_t count = 0, seen = 0;
    const int64_t m = index[0].size();
    auto join = [&](int64_t e) {
        int64_t first = -1;
        for (size_t k = 0; k < shape.size(); ++k) {
            int64_t a = offset[k] + place(index[k].data(), e, shape[k]);
            if (parent[a] < 0) {
                parent[a] = a;
                ++count;
                ++seen;
            }
            a = root(a);
            if (first < 0) first = a;
            else if (a != first) {
                parent[a] = first;
                --count;
            }
        }
    };
    // a few entries usually show that all is one part, or leave short paths for the others
    for (int64_t stride : {61, 7, 1})
        for (int64_t e = 0; e < m && !(count == 1 && seen == offset.back()); e += stride) join(e);
    return count;
}

// ---- designs

template <class T> struct Prepared {
    Design<T> design;
    std::vector<Padded<T>> kept;

    // Rows of one matrix.
    explicit Prepared(const In<T, 2>& M) {
        kept.emplace_back(M.data(), int64_t(M.shape(0)), int64_t(M.shape(1)));
        design.q = M.shape(1);
        design.qp = design.stride = kept.back().width;
        design.table = kept.back().data;
    }
    // Combinations of rows: table (n, terms, q), and factors whose widths multiply to terms.
    Prepared(const In<T, 3>& M, const std::vector<In<T, 2>>& factors) {
        kept.emplace_back(M.data(), int64_t(M.shape(0) * M.shape(1)), int64_t(M.shape(2)));
        design.q = M.shape(2);
        design.qp = design.stride = kept.back().width;
        design.table = kept.back().data;
        design.terms = M.shape(1);
        with(factors);
    }
    void with(const std::vector<In<T, 2>>& factors) {
        demand(factors.size() < MAX_MODES, "too many modes");
        design.factors = int(factors.size());
        int64_t terms = 1;
        for (size_t f = 0; f < factors.size(); ++f) {
            design.factor[f] = factors[f].data();
            design.width[f] = factors[f].shape(1);
            demand(factors[f].shape(1) > 0, "a factor has no columns");
            terms *= factors[f].shape(1);
        }
        demand(terms == design.terms, "the factors do not fit the table");
    }
};

// ---- what Python calls

template <class T>
nb::tuple one_pass(const Sorted& entries, const In<T, 2>& M, optional<In<T, 2>> x,
                   optional<Any<T>> y, optional<Any<T>> weights, bool residuals, bool sums) {
    Prepared<T> prepared(M);
    Pass<T> p;
    p.side = entries.side();
    p.design = prepared.design;
    demand(entries.other.size() == 1, "matrices only");
    demand(int64_t(M.shape(0)) >= entries.extent[0], "M does not fit the entries");
    same_size<T>(y, entries.m, "y does not fit the entries");
    same_size<T>(weights, entries.m, "weights do not fit the entries");
    demand(x || !residuals, "residuals need x");
    demand(!x || (int64_t(x->shape(0)) == p.side.rows && x->shape(1) == M.shape(1)), "x does not fit");
    Padded<T> rows(x ? x->data() : nullptr, p.side.rows, p.design.q);
    p.x = x ? rows.data : nullptr;
    p.y = data<T>(y);
    p.weights = data<T>(weights);
    nb::object residual = nb::none(), sum = nb::none();
    if (residuals) residual = nb::cast(made<T>({size_t(entries.m)}, &p.residual));
    if (sums) sum = nb::cast(made<T>({size_t(p.side.rows), M.shape(1)}, &p.sums));
    const double squares = add_up(Cuts(p.side, p.design.qp * 2, p.design.qp),
                                  [&](int64_t a, int64_t b) { return table<T>().pass(p, a, b); });
    return nb::make_tuple(squares, residual, sum);
}

// Rows with so many entries that their systems are formed in segments of equal length.
struct Segments {
    std::vector<int64_t> rows, parts{0}, row, first, last;
    Segments(const Side& side) {
        const int64_t length = std::max<int64_t>(1 << 14, side.starts[side.rows] >> 8);
        for (int64_t i = 0; i < side.rows; ++i) {
            if (side.starts[i + 1] - side.starts[i] < 2 * length) continue;
            for (int64_t e = side.starts[i]; e < side.starts[i + 1]; e += length) {
                row.push_back(i);
                first.push_back(e);
                last.push_back(std::min(e + length, side.starts[i + 1]));
            }
            rows.push_back(i);
            parts.push_back(int64_t(row.size()));
        }
    }
};

// Solve the rows. The inverses and NUMBERS numbers are summed over them.
template <class T>
void solve_all(Solve<T>& p, bool spread, double* total, double* numbers = nullptr, double* moments = nullptr) {
    const int64_t q = p.design.q, qp = p.design.qp;
    const int64_t work = p.steps ? 2 * p.steps : q / 2 + 4;
    const Cuts cuts(p.side, qp * work, qp * q * (p.steps ? 2 * p.steps : spread ? q : q / 2 + 4), padded<double>(1));
    std::vector<double> sums(cuts.count * (spread ? q * q : 0), 0.0), others(cuts.count * (NUMBERS + q), 0.0);
    const int64_t size = (qp + 2) * qp + SUMS;
    nb::gil_scoped_release release;
    std::vector<double> parts;
    optional<Segments> segments;
    if (!p.steps) {
        segments.emplace(p.side);
        parts.resize(segments->row.size() * size);
        share(int64_t(segments->row.size()), [&](int64_t k) {
            table<T>().part(p, segments->row[k], segments->first[k], segments->last[k], parts.data() + k * size);
        });
        p.longs = int64_t(segments->rows.size());
        p.long_rows = segments->rows.data();
        p.long_parts = segments->parts.data();
        p.parts = parts.data();
    }
    share(cuts.count, [&](int64_t k) {
        Solve<T> own = p;
        own.total = spread ? sums.data() + k * q * q : nullptr;
        own.numbers = numbers ? others.data() + k * (NUMBERS + q) : nullptr;
        own.moments = moments ? others.data() + k * (NUMBERS + q) + NUMBERS : nullptr;
        table<T>().solve(own, cuts.first(k), cuts.last(k));
    });
    for (int64_t piece = 0; piece < cuts.count; ++piece) {
        for (int64_t k = 0; spread && k < q * q; ++k) total[k] += sums[piece * q * q + k];
        const double* own = others.data() + piece * (NUMBERS + q);
        for (int64_t k = 0; numbers && k < NUMBERS; ++k) numbers[k] += own[k];
        for (int64_t k = 0; moments && k < q; ++k) moments[k] += own[NUMBERS + k];
    }
}

template <class T>
nb::tuple solve_rows(const Sorted& entries, const In<T, 3>& M, const std::vector<In<T, 2>>& factors,
                     int lead, const In<T, 2>& turn, optional<In<T, 2>> x, optional<In<T, 2>> target,
                     optional<Any<T>> y, optional<Any<T>> root, optional<Any<uint8_t>> kept,
                     optional<Any<T>> ridge, optional<In<double, 2>> whole, double jitter, int steps,
                     double tol, bool spread) {
    Prepared<T> prepared(M, factors);
    Solve<T> p;
    p.side = entries.side();
    p.design = prepared.design;
    const size_t n = p.side.rows, q = p.design.q;
    demand(entries.other.size() == factors.size() + 1 && lead >= 0 && lead <= int(factors.size()),
           "the design does not fit the modes");
    demand(!factors.empty() || p.design.terms == 1, "the factors do not fit the table");
    // the mode of the table comes first
    std::rotate(p.side.other, p.side.other + lead, p.side.other + lead + 1);
    std::vector<int64_t> extent = entries.extent;
    std::rotate(extent.begin(), extent.begin() + lead, extent.begin() + lead + 1);
    demand(int64_t(M.shape(0)) >= extent[0], "the table does not fit the entries");
    for (size_t f = 0; f < factors.size(); ++f)
        demand(int64_t(factors[f].shape(0)) >= extent[f + 1], "a factor does not fit the entries");
    demand(turn.shape(0) == q && turn.shape(1) == q, "turn does not fit");
    demand(bool(x) != bool(target) && bool(x) == bool(y), "give x and y, or a target");
    demand(!x || (x->shape(0) == n && x->shape(1) == q), "x does not fit");
    demand(!target || (target->shape(0) == n && target->shape(1) == q), "target does not fit");
    demand(!ridge || ridge->size() == q || ridge->size() == n * q, "ridge does not fit");
    demand(!whole || (whole->shape(0) == q && whole->shape(1) == q && !steps), "whole does not fit");
    same_size<T>(y, entries.m, "y does not fit the entries");
    same_size<T>(root, entries.m, "root does not fit the entries");
    same_size<uint8_t>(kept, entries.m, "kept does not fit the entries");
    p.x = x ? x->data() : nullptr;
    p.target = target ? target->data() : nullptr;
    p.y = data<T>(y);
    p.root = data<T>(root);
    p.kept = data<uint8_t>(kept);
    p.turn = turn.data();
    p.ridge = data<T>(ridge);
    p.same_ridge = ridge && ridge->size() == q;
    p.whole = whole ? whole->data() : nullptr;
    p.jitter = jitter;
    p.steps = spread ? 0 : steps;
    p.tol = tol;
    nb::object diagonals = nb::none(), total = nb::none();
    nb::object step = nb::cast(made<T>({n, q}, &p.step));
    if (spread) diagonals = nb::cast(made<T>({n, q}, &p.diagonals));
    std::vector<double> sum(q * q, 0.0);
    double numbers[NUMBERS] = {};
    solve_all<T>(p, spread, sum.data(), p.steps ? nullptr : numbers);
    if (spread) {
        T* whole_sum;
        total = nb::cast(made<T>({q, q}, &whole_sum));
        for (size_t k = 0; k < q * q; ++k) whole_sum[k] = T(sum[k]);
    }
    return nb::make_tuple(step, diagonals, total, numbers[BEFORE], numbers[AFTER]);
}

// The same for the rows of a matrix in the original coordinates, with a prior, where the other
// matrix is uncertain: its rows M have variances (of as many leading columns as are given). The
// further term of X is own[i] given[j, 0], and given[j, 1] is the variance of given[j, 0].
template <class T>
nb::tuple update_rows(const Sorted& entries, const In<T, 2>& M, const In<T, 2>& x, const In<T, 1>& y,
                      const In<T, 2>& variances, const In<T, 1>& ridge, const In<double, 1>& sizes,
                      optional<In<T, 1>> own, optional<In<T, 2>> given, optional<In<T, 1>> root,
                      optional<In<uint8_t, 1>> kept, double jitter, double noise) {
    Solve<T> p;
    p.side = entries.side();
    const size_t n = p.side.rows, q = M.shape(1), others = M.shape(0), known = variances.shape(1);
    demand(entries.other.size() == 1, "matrices only");
    demand(int64_t(others) >= entries.extent[0], "M does not fit the entries");
    demand(x.shape(0) == n && x.shape(1) == q, "x does not fit");
    demand(variances.shape(0) == others && known <= q, "variances do not fit");
    demand(ridge.size() == q && sizes.size() == q, "ridge does not fit");
    demand(bool(own) == bool(given), "give both own and given, or neither");
    demand(!own || (own->size() == n && given->shape(0) == others && given->shape(1) == 2), "own does not fit");
    demand(int64_t(y.size()) == entries.m, "y does not fit the entries");
    demand(!root || int64_t(root->size()) == entries.m, "root does not fit the entries");
    demand(!kept || int64_t(kept->size()) == entries.m, "kept does not fit the entries");
    Design<T>& d = p.design;
    d.q = q;
    d.qp = padded<T>(q);
    const int64_t after = d.qp + d.qp * int64_t(sizeof(float)) / int64_t(sizeof(T));
    d.stride = padded<T>(after + (own ? 2 : 0));
    Room<T> rows(others * d.stride);  // side by side, because they are used together
    const Pieces pieces(others, others * d.stride * 8);
    const T *vectors = M.data(), *doubts = variances.data(), *beside = given ? given->data() : nullptr;
    std::vector<double> units(d.qp, 0.0), largest(pieces.count * d.qp, 0.0);
    each(pieces, [&](int64_t a, int64_t b) {
        double* most = largest.data() + a / pieces.size * d.qp;
        for (int64_t i = a; i < b; ++i)
            for (int64_t k = 0; k < int64_t(known); ++k) most[k] = std::max(most[k], double(doubts[i * known + k]));
    });
    for (int64_t k = 0; k < int64_t(largest.size()); ++k) units[k % d.qp] = std::max(units[k % d.qp], largest[k]);
    std::vector<double> inverse(d.qp, 0.0);
    for (int64_t k = 0; k < d.qp; ++k) inverse[k] = units[k] > 0 ? 1 / units[k] : 0;
    each(pieces, [&](int64_t a, int64_t b) {
        for (int64_t i = a; i < b; ++i) {
            T* to = rows.data + i * d.stride;
            float* doubt = reinterpret_cast<float*>(to + d.qp);
            for (int64_t k = 0; k < d.qp; ++k) to[k] = k < int64_t(q) ? vectors[i * q + k] : T(0);
            for (int64_t k = 0; k < d.qp; ++k)
                doubt[k] = k < int64_t(known) ? float(double(doubts[i * known + k]) * inverse[k]) : 0.0f;
            for (int64_t k = 0; beside && k < 2; ++k) to[after + k] = beside[i * 2 + k];
        }
    });
    d.table = rows.data;
    p.x = x.data();
    p.y = y.data();
    p.root = root ? root->data() : nullptr;
    p.kept = kept ? kept->data() : nullptr;
    p.ridge = ridge.data();
    p.same_ridge = true;
    p.sizes = sizes.data();
    p.unsure = units.data();
    p.beside = own ? own->data() : nullptr;
    p.jitter = jitter;
    p.noise = noise;
    nb::object step = nb::cast(made<T>({n, q}, &p.step)), diagonals = nb::cast(made<T>({n, q}, &p.diagonals));
    T *whole_sum, *squares;
    nb::object total = nb::cast(made<T>({q, q}, &whole_sum)), moment = nb::cast(made<T>({q}, &squares));
    std::vector<double> sum(q * q, 0.0), moments(q, 0.0);
    double numbers[NUMBERS] = {};
    solve_all<T>(p, true, sum.data(), numbers, moments.data());
    for (size_t k = 0; k < q * q; ++k) whole_sum[k] = T(sum[k]);
    for (size_t k = 0; k < q; ++k) squares[k] = T(moments[k]);
    return nb::make_tuple(step, diagonals, total, moment, numbers[BEFORE], numbers[AFTER], numbers[SEEN],
                          numbers[FROM_ROWS], numbers[FROM_OTHERS]);
}

// Rows of a matrix, solved in some columns, with full covariances: those of the columns `known` of
// the rows of M are C, and the others are certain.
template <class T>
nb::tuple whole_rows(const Sorted& entries, const In<T, 2>& M, optional<In<T, 3>> C,
                     const std::vector<int64_t>& known, const In<T, 2>& x, const In<T, 1>& y,
                     optional<In<T, 1>> root, const std::vector<int64_t>& columns, const In<T, 1>& ridge,
                     double noise) {
    Whole<T> p;
    p.side = entries.side();
    const size_t n = p.side.rows, others = M.shape(0), f = columns.size(), g = known.size();
    p.q = M.shape(1);
    demand(entries.other.size() == 1, "matrices only");
    demand(int64_t(others) >= entries.extent[0], "M does not fit the entries");
    demand(!C || (C->shape(0) == others && C->shape(1) == g && C->shape(2) == g), "C does not fit");
    demand(x.shape(0) == n && int64_t(x.shape(1)) == p.q, "x does not fit");
    demand(int64_t(y.size()) == entries.m, "y does not fit the entries");
    demand(!root || int64_t(root->size()) == entries.m, "root does not fit the entries");
    demand(ridge.size() == f, "ridge does not fit");
    for (const auto* some : {&known, &columns})
        for (size_t k = 0; k < some->size(); ++k)
            demand((*some)[k] >= 0 && (*some)[k] < p.q && (!k || (*some)[k] > (*some)[k - 1]), "no such column");
    p.qp = padded<T>(p.q);
    p.tp = padded<T>(p.q * (p.q + 1) / 2);
    Room<T> rows(others * (p.qp + p.tp));
    const T *vectors = M.data(), *spread = C ? C->data() : nullptr;
    each(Pieces(others, others * (p.qp + p.tp) * 4), [&](int64_t a, int64_t b) {
        for (int64_t i = a; i < b; ++i) {
            T *to = rows.data + i * (p.qp + p.tp), *triangle = to + p.qp;
            std::memset(to, 0, (p.qp + p.tp) * sizeof(T));
            std::copy(vectors + i * p.q, vectors + (i + 1) * p.q, to);
            for (size_t k = 0; spread && k < g; ++k)
                for (size_t j = k; j < g; ++j) {
                    const int64_t row = known[k], before = row * p.q - row * (row - 1) / 2;
                    triangle[before + known[j] - row] = spread[(i * g + k) * g + j];
                }
        }
    });
    p.table = rows.data;
    p.x = x.data();
    p.y = y.data();
    p.root = root ? root->data() : nullptr;
    p.free = int64_t(f);
    p.columns = columns.data();
    const std::vector<double> held(ridge.data(), ridge.data() + f);
    p.ridge = held.data();
    p.noise = noise;
    nb::object solved = nb::cast(made<T>({n, f}, &p.solved));
    nb::object covariance = nb::cast(made<T>({n, f, f}, &p.covariance));
    T* sum;
    nb::object total = nb::cast(made<T>({f, f}, &sum));
    const Cuts cuts(p.side, p.qp * p.qp + 2 * p.tp, p.qp * p.qp * p.qp, padded<double>(1));
    std::vector<double> sums(cuts.count * f * f, 0.0), others_sums(cuts.count * NUMBERS, 0.0);
    {
        nb::gil_scoped_release release;
        share(cuts.count, [&](int64_t k) {
            Whole<T> own = p;
            own.total = sums.data() + k * f * f;
            own.numbers = others_sums.data() + k * NUMBERS;
            table<T>().whole(own, cuts.first(k), cuts.last(k));
        });
    }
    double numbers[NUMBERS] = {};
    std::vector<double> whole_sum(f * f, 0.0);
    for (int64_t piece = 0; piece < cuts.count; ++piece) {
        for (size_t k = 0; k < f * f; ++k) whole_sum[k] += sums[piece * f * f + k];
        for (int64_t k = 0; k < NUMBERS; ++k) numbers[k] += others_sums[piece * NUMBERS + k];
    }
    for (size_t k = 0; k < f * f; ++k) sum[k] = T(whole_sum[k]);
    return nb::make_tuple(solved, covariance, total, numbers[BEFORE], numbers[AFTER], numbers[SEEN],
                          numbers[FROM_ROWS], numbers[FROM_OTHERS]);
}

// M'C M for the small symmetric matrices of C.
template <class T> Out<T> turned(const In<T, 3>& C, const In<T, 2>& M) {
    const size_t n = C.shape(0), q = C.shape(1);
    demand(C.shape(2) == q && M.shape(0) == q && M.shape(1) == q, "M does not fit");
    Turn<T> p;
    p.q = int64_t(q);
    p.qp = padded<T>(p.q);
    std::vector<T> both(2 * p.q * p.qp, T(0));
    for (int64_t a = 0; a < p.q; ++a)
        for (int64_t b = 0; b < p.q; ++b)
            both[a * p.qp + b] = both[(p.q + b) * p.qp + a] = M.data()[a * p.q + b];
    p.C = C.data();
    p.M = both.data();
    p.adjoint = p.M + p.q * p.qp;
    Out<T> found = made<T>({n, q, q}, &p.turned);
    each(Pieces(n, n * q * q * 2 * q), [&](int64_t a, int64_t b) { table<T>().turn(p, a, b); });
    return found;
}

// Factors whose last one is padded, as `outer` and `values` expect.
template <class T> Padded<T> last_padded(const std::vector<In<T, 2>>& factors, Design<T>& d) {
    demand(!factors.empty() && factors.size() < MAX_MODES, "one factor per other mode");
    const In<T, 2>& last = factors.back();
    d.factors = int(factors.size());
    for (size_t f = 0; f < factors.size(); ++f) {
        demand(factors[f].shape(1) > 0, "a factor has no columns");
        d.factor[f] = factors[f].data();
        d.width[f] = factors[f].shape(1);
        if (f + 1 < factors.size()) d.terms *= factors[f].shape(1);
    }
    Padded<T> found(last.data(), last.shape(0), last.shape(1));
    d.q = last.shape(1);
    d.qp = found.width;
    return found;
}

template <class T>
Out<T> outer_sums(const Sorted& entries, const std::vector<In<T, 2>>& factors, const Any<T>& weights) {
    Outer<T> p;
    p.side = entries.side();
    demand(entries.other.size() == factors.size(), "one factor per other mode");
    demand(int64_t(weights.size()) == entries.m, "weights do not fit the entries");
    for (size_t f = 0; f < factors.size(); ++f)
        demand(int64_t(factors[f].shape(0)) >= entries.extent[f], "a factor does not fit the entries");
    const Padded<T> last = last_padded(factors, p.design);
    p.design.factor[factors.size() - 1] = last.data;
    p.weights = weights.data();
    auto result = made<T>({size_t(p.side.rows), size_t(p.design.terms * p.design.q)}, &p.sums);
    const int64_t work = p.design.terms * p.design.qp;
    each(Cuts(p.side, 2 * work, work), [&](int64_t a, int64_t b) { table<T>().outer(p, a, b); });
    return result;
}

template <class T>
nb::tuple tucker_values(const Index& index, const In<T, 2>& small, const std::vector<In<T, 2>>& factors,
                        optional<Any<T>> y) {
    Values<T> p;
    demand(index.size() == factors.size() + 1 && index.size() < MAX_MODES, "one index per mode");
    const int64_t m = index[0].size();
    same_size<T>(y, m, "y does not fit the entries");
    for (size_t k = 0; k < index.size(); ++k) {
        demand(int64_t(index[k].size()) == m, "index arrays must have the same length");
        p.index[k] = index[k].data();
        p.extent[k] = k ? factors[k - 1].shape(0) : small.shape(0);
    }
    const Padded<T> last = last_padded(factors, p.design);
    p.design.factor[factors.size() - 1] = last.data;
    demand(int64_t(small.shape(1)) == p.design.terms * p.design.q, "the factors do not fit the table");
    const Padded<T> rows(small.data(), int64_t(small.shape(0)) * p.design.terms, p.design.q);
    p.design.table = rows.data;
    p.y = data<T>(y);
    auto result = made<T>({size_t(m)}, &p.out);
    const double squares = add_up(Pieces(m, m * p.design.terms * p.design.qp * 2),
                                  [&](int64_t a, int64_t b) { return table<T>().values(p, a, b); });
    return nb::make_tuple(squares, result);
}

template <class T>
nb::tuple dense(const In<T, 2>& L, const In<T, 2>& Rt, const In<T, 2>& Y, optional<In<uint8_t, 2>> kept,
                bool residuals, int gradient) {
    Dense<T> p;
    p.n1 = Y.shape(0), p.n2 = Y.shape(1), p.q = L.shape(1);
    demand(int64_t(L.shape(0)) == p.n1 && int64_t(Rt.shape(1)) == p.n2 && int64_t(Rt.shape(0)) == p.q,
           "L and R do not fit Y");
    demand(!kept || kept->size() == Y.size(), "kept does not fit Y");
    const Padded<T> columns(Rt.data(), p.q, p.n2);
    p.L = L.data(), p.Rt = columns.data, p.stride = columns.width, p.Y = Y.data();
    p.kept = kept ? kept->data() : nullptr;
    nb::object residual = nb::none(), sums = nb::none();
    if (residuals) residual = nb::cast(made<T>({Y.shape(0), Y.shape(1)}, &p.residual));
    if (gradient == 0) sums = nb::cast(made<T>({Y.shape(0), L.shape(1)}, &p.by_rows));
    if (gradient == 1) sums = nb::cast(made<T>({Y.shape(1), L.shape(1)}, &p.by_columns));
    double squares = 0;
    const int64_t cost = p.n1 * p.n2 * (p.q + 1) * 2;
    if (residuals || gradient != 1)
        squares = add_up(Pieces(p.n1, cost), [&](int64_t a, int64_t b) { return table<T>().dense_rows(p, a, b); });
    if (gradient == 1)
        each(Pieces(p.n2, cost, 8 * padded<T>(1)), [&](int64_t a, int64_t b) { table<T>().dense_columns(p, a, b); });
    return nb::make_tuple(squares, residual, sums);
}

// Rows of Y fitted without gross errors, by the vectors in Rt, in the coordinates of `turn`.
template <class T>
Out<T> cleaned_rows(const In<T, 2>& Y, const In<T, 2>& Rt, const In<T, 2>& turn, optional<In<T, 2>> ridge,
                    const In<double, 2>& whole, double floor, double multiple, double fall, double jitter,
                    int rounds) {
    Cleaned<T> p;
    const size_t n1 = Y.shape(0), n2 = Y.shape(1), q = Rt.shape(0);
    demand(n2 > 0 && n2 < size_t(INT32_MAX) && Rt.shape(1) == n2, "Rt does not fit Y");
    demand(turn.shape(0) == q && turn.shape(1) == q, "turn does not fit");
    demand(whole.shape(0) == q && whole.shape(1) == q, "whole does not fit");
    demand(!ridge || (ridge->shape(0) == n1 && ridge->shape(1) == q), "ridge does not fit");
    p.n2 = int64_t(n2), p.q = int64_t(q), p.qp = padded<T>(p.q);
    std::vector<T> table_(n2 * p.qp, T(0));
    for (size_t k = 0; k < q; ++k)
        for (size_t j = 0; j < n2; ++j) table_[j * p.qp + k] = Rt.data()[k * n2 + j];
    const Padded<T> columns(Rt.data(), p.q, p.n2);
    p.Y = Y.data(), p.Rt = columns.data, p.stride = columns.width, p.table = table_.data(), p.turn = turn.data(), p.whole = whole.data();
    p.ridge = ridge ? ridge->data() : nullptr;
    p.floor = floor, p.multiple = multiple, p.fall = fall, p.jitter = jitter, p.rounds = rounds;
    auto result = made<T>({n1, q}, &p.solved);
    each(Pieces(int64_t(n1), int64_t(n1) * p.n2 * (p.q + 8) * 8),
         [&](int64_t a, int64_t b) { table<T>().cleaned(p, a, b); });
    return result;
}

// ---- reading

// The positions and values of the numbers in an array that are not NaN, or that a mask marks as
// observed; and whether any of them is not finite.
template <class T> nb::tuple present(const Any<T>& x, optional<Any<uint8_t>> observed) {
    const size_t d = x.ndim();
    demand(d >= 1 && d < MAX_MODES, "too many modes");
    demand(d < 2 || int64_t(x.shape(d - 1)) < INT32_MAX, "a mode is too long");
    demand(!observed || observed->size() == x.size(), "observed does not fit");
    const int64_t n = x.size(), inner = d > 1 ? x.shape(d - 1) : 1, rows = inner ? n / inner : 0;
    const T* from = x.data();
    const uint8_t* mask = observed ? observed->data() : nullptr;
    std::vector<int64_t> starts(rows + 1, 0);
    const Pieces pieces(rows, n * 8);
    const double strange = add_up(pieces, [&](int64_t a, int64_t b) {
        int64_t bad = 0;
        for (int64_t r = a; r < b; ++r) {
            const T* row = from + r * inner;
            const uint8_t* sees = mask ? mask + r * inner : nullptr;
            int64_t count = 0, wild = 0;
            if (sees)
                for (int64_t j = 0; j < inner; ++j) {
                    count += sees[j] != 0;
                    wild += sees[j] != 0 && !(row[j] - row[j] == 0);
                }
            else
                for (int64_t j = 0; j < inner; ++j) {
                    count += row[j] == row[j];
                    wild += row[j] == row[j] && !(row[j] - row[j] == 0);
                }
            bad += wild;
            starts[r + 1] = count;
        }
        return double(bad);
    });
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    const size_t m = starts.back();
    if (int64_t(m) == n) return nb::make_tuple(nb::none(), nb::none(), strange > 0);
    std::vector<int64_t*> index(d);
    nb::list arrays;
    for (size_t k = 0; k < d; ++k) arrays.append(nb::cast(made<int64_t>({m}, &index[k])));
    T* values;
    nb::object found = nb::cast(made<T>({m}, &values));
    each(pieces, [&](int64_t a, int64_t b) {
        std::vector<int32_t> there(inner + 1);
        for (int64_t r = a; r < b; ++r) {
            const T* row = from + r * inner;
            const uint8_t* sees = mask ? mask + r * inner : nullptr;
            int64_t count = 0;
            if (sees)
                for (int64_t j = 0; j < inner; ++j) {  // without a branch
                    there[count] = int32_t(j);
                    count += sees[j] != 0;
                }
            else
                for (int64_t j = 0; j < inner; ++j) {
                    there[count] = int32_t(j);
                    count += row[j] == row[j];
                }
            const int64_t to = starts[r];
            unchanged(count == starts[r + 1] - to);
            int64_t rest = r;
            for (size_t k = d > 1 ? d - 1 : 0; k-- > 0; rest /= int64_t(x.shape(k)))
                std::fill(index[k] + to, index[k] + to + count, rest % int64_t(x.shape(k)));
            for (int64_t e = 0; e < count; ++e) {
                index[d - 1][to + e] = d > 1 ? there[e] : r;
                values[to + e] = row[there[e]];
            }
        }
    });
    return nb::make_tuple(nb::tuple(arrays), found, strange > 0);
}

// ---- order statistics

template <class T> struct Bits;
template <> struct Bits<double> { using type = uint64_t; };
template <> struct Bits<float> { using type = uint32_t; };

// Numbers as integers in the same order.
template <class T> inline typename Bits<T>::type ordered(T x) {
    using U = typename Bits<T>::type;
    U u;
    std::memcpy(&u, &x, sizeof(T));
    const U sign = U(1) << (8 * sizeof(T) - 1);
    return u & sign ? ~u : u | sign;
}
template <class T> inline T number(typename Bits<T>::type u) {
    using U = typename Bits<T>::type;
    const U sign = U(1) << (8 * sizeof(T) - 1);
    u = u & sign ? u ^ sign : ~u;
    T x;
    std::memcpy(&x, &u, sizeof(T));
    return x;
}

// The k-th smallest (k from 0) of numbers, or of their magnitudes. An evenly spread sample of many
// numbers gives likely bounds; only numbers between these are examined further.
template <class T> struct Selecting {
    using U = typename Bits<T>::type;
    static constexpr int64_t MANY = 20'000;
    std::vector<T> own, room;
    std::vector<U> some;

    // Two likely bounds of the k-th of many numbers.
    std::pair<T, T> bracket(const T* x, int64_t n, int64_t k, bool sizes) {
        const int64_t root = n > 200'000 ? 64 : 24, count = root * root;
        some.resize(count);
        for (int64_t e = 0; e < count; ++e) {
            const T value = x[n / count * e + e * 7 % (n / count)];
            some[e] = ordered(sizes ? std::abs(value) : value);
        }
        const int64_t at = int64_t(double(k) / double(n) * double(count)), margin = 3 * root / 2;
        const int64_t low = std::max<int64_t>(0, at - margin), high = std::min(count - 1, at + margin);
        std::nth_element(some.begin(), some.begin() + low, some.end());
        std::nth_element(some.begin() + low + 1, some.begin() + high, some.end());
        const T least = sizes ? T(0) : -std::numeric_limits<T>::infinity();
        return {at < margin ? least : number<T>(some[low]),
                at + margin >= count ? std::numeric_limits<T>::infinity() : number<T>(some[high])};
    }
    T thoroughly(const T* x, int64_t n, int64_t k, bool sizes) {
        if (sizes) {
            own.resize(n);
            for (int64_t e = 0; e < n; ++e) own[e] = std::abs(x[e]);
            x = own.data();
        }
        if (int64_t(room.size()) < 2 * n + 16) room.resize(2 * n + 16);
        T found;
        if (table<T>().kth(x, n, k, room.data(), &found)) return found;
        some.resize(n);  // there is a NaN: integers are still ordered
        for (int64_t e = 0; e < n; ++e) some[e] = ordered(x[e]);
        std::nth_element(some.begin(), some.begin() + k, some.end());
        return number<T>(some[k]);
    }
};

// The k-th smallest magnitude (k from 0), on all threads.
template <class T> T kth_magnitude(const Any<T>& x, int64_t k) {
    const int64_t n = x.size();
    demand(k >= 0 && k < n, "k must be below the size");
    const T* from = x.data();
    nb::gil_scoped_release release;
    Selecting<T> selecting;
    if (n < Selecting<T>::MANY) return selecting.thoroughly(from, n, k, true);
    const auto [low, high] = selecting.bracket(from, n, k, true);
    const int64_t groups = std::clamp<int64_t>(n >> 16, 1, 4);
    std::vector<Between<T>> found(groups);
    std::vector<std::vector<T>> inside(groups);
    share(groups, [&, low = low, high = high](int64_t g) {
        const int64_t a = n * g / groups, b = n * (g + 1) / groups;
        Between<T>& p = found[g];
        p.room = (b - a) / 4;
        inside[g].resize(p.room + 8);
        p.sizes = true, p.low = low, p.high = high, p.inside = inside[g].data();
        table<T>().between(p, from + a, b - a);
    });
    int64_t below = 0, count = 0;
    bool room = true;
    for (const auto& p : found) below += p.below, count += p.count, room = room && p.count < p.room;
    if (!room || k < below || k >= below + count) return selecting.thoroughly(from, n, k, true);
    std::vector<T> all;
    for (int64_t g = 0; g < groups; ++g) all.insert(all.end(), inside[g].begin(), inside[g].begin() + found[g].count);
    return selecting.thoroughly(all.data(), count, k - below, false);
}

// The k-th smallest of every fibre (outer, :, inner) of an array (outer, n, inner).
template <class T> Out<T> kth_of_fibres(const In<T, 3>& x, int64_t k) {
    const int64_t outer = x.shape(0), n = x.shape(1), inner = x.shape(2);
    demand(k >= 0 && k < n, "k must be below the length of a fibre");
    T* out;
    auto result = made<T>({size_t(outer), size_t(inner)}, &out);
    constexpr int64_t together = 8;  // neighbouring fibres, which share cache lines
    const int64_t strips = (inner + together - 1) / together;
    const T* from = x.data();
    each(Pieces(outer * strips, outer * n * inner * 16), [&](int64_t a, int64_t b) {
        std::vector<T> fibres(inner == 1 ? 0 : together * n);
        Selecting<T> selecting;
        for (int64_t s = a; s < b; ++s) {
            const int64_t o = s / strips, j = s % strips * together;
            const int64_t width = std::min(together, inner - j);
            if (inner == 1) {
                out[o] = selecting.thoroughly(from + o * n, n, k, false);
                continue;
            }
            for (int64_t e = 0; e < n; ++e)
                for (int64_t c = 0; c < width; ++c) fibres[c * n + e] = from[(o * n + e) * inner + j + c];
            for (int64_t c = 0; c < width; ++c)
                out[o * inner + j + c] = selecting.thoroughly(fibres.data() + c * n, n, k, false);
        }
    });
    return result;
}

// For every fibre (outer, :, inner): its median (the lower of two), and the median distance to it.
template <class T> nb::tuple spreads(const In<T, 3>& x) {
    const int64_t outer = x.shape(0), n = x.shape(1), inner = x.shape(2);
    demand(n > 0, "fibres must not be empty");
    T* out[2];
    nb::object found[2];
    for (int k = 0; k < 2; ++k) found[k] = nb::cast(made<T>({size_t(outer), size_t(inner)}, &out[k]));
    constexpr int64_t together = 8;
    const int64_t strips = (inner + together - 1) / together;
    const T* from = x.data();
    each(Pieces(outer * strips, outer * n * inner * 32), [&](int64_t a, int64_t b) {
        std::vector<T> fibres(together * n);
        Selecting<T> selecting;
        for (int64_t s = a; s < b; ++s) {
            const int64_t o = s / strips, j = s % strips * together, width = std::min(together, inner - j);
            for (int64_t e = 0; e < n; ++e)
                for (int64_t c = 0; c < width; ++c) fibres[c * n + e] = from[(o * n + e) * inner + j + c];
            for (int64_t c = 0; c < width; ++c) {
                T* own = fibres.data() + c * n;
                const T middle = selecting.thoroughly(own, n, (n - 1) / 2, false);
                for (int64_t e = 0; e < n; ++e) own[e] = std::abs(own[e] - middle);
                const int64_t to = o * inner + j + c;
                out[0][to] = middle;
                out[1][to] = selecting.thoroughly(own, n, (n - 1) / 2, false);
            }
        }
    });
    return nb::make_tuple(found[0], found[1]);
}

// The median (the lower of two) of the values of every row; 0 if it has none.
template <class T> Out<T> row_medians(const Sorted& entries, const In<T, 1>& x) {
    demand(int64_t(x.size()) == entries.m, "x does not fit the entries");
    const Side side = entries.side();
    T* out;
    auto result = made<T>({size_t(side.rows)}, &out);
    const T* from = x.data();
    each(Cuts(side, 16, 16), [&](int64_t a, int64_t b) {
        Selecting<T> selecting;
        for (int64_t i = a; i < b; ++i) {
            const int64_t n = side.starts[i + 1] - side.starts[i];
            out[i] = n ? selecting.thoroughly(from + side.starts[i], n, (n - 1) / 2, false) : T(0);
        }
    });
    return result;
}

// The means of the values of every row, and the sums of their squared distances to it; 0 if it has
// none.
template <class T> nb::tuple row_moments(const Sorted& entries, const In<T, 1>& x) {
    demand(int64_t(x.size()) == entries.m, "x does not fit the entries");
    const Side side = entries.side();
    T *means, *squares;
    nb::object first = nb::cast(made<T>({size_t(side.rows)}, &means));
    nb::object second = nb::cast(made<T>({size_t(side.rows)}, &squares));
    const T* from = x.data();
    each(Cuts(side, 8, 16), [&](int64_t a, int64_t b) {
        constexpr int lanes = 4;  // independent sums, which do not wait for one another
        for (int64_t i = a; i < b; ++i) {
            const int64_t begin = side.starts[i], end = side.starts[i + 1];
            auto sum = [&](auto term) {
                double sums[lanes] = {};
                int64_t e = begin;
                for (; e + lanes <= end; e += lanes)
                    for (int k = 0; k < lanes; ++k) sums[k] += term(double(from[e + k]));
                for (int k = 0; e < end; ++k, ++e) sums[k] += term(double(from[e]));
                return std::accumulate(sums, sums + lanes, 0.0);
            };
            const double mean = end > begin ? sum([](double x) { return x; }) / double(end - begin) : 0;
            means[i] = T(mean);
            squares[i] = T(sum([mean](double x) { return (x - mean) * (x - mean); }));
        }
    });
    return nb::make_tuple(first, second);
}

// Which magnitudes do not exceed a threshold; their number, the sum of their squares, the largest.
template <class T> nb::tuple magnitudes_within(const Any<T>& x, double threshold) {
    const int64_t n = x.size();
    Within<T> p;
    std::vector<size_t> shape(x.ndim());
    for (size_t k = 0; k < x.ndim(); ++k) shape[k] = x.shape(k);
    auto mask = made<uint8_t>(shape, &p.kept);
    p.x = x.data();
    p.threshold = T(threshold);
    const Pieces pieces(n, n * 4);
    std::vector<Within<T>> found(pieces.count, p);
    each(pieces, [&](int64_t a, int64_t b) { table<T>().within(found[a / pieces.size], a, b); });
    for (const auto& piece : found) {
        p.count += piece.count;
        p.squares += piece.squares;
        p.largest = std::max(p.largest, piece.largest);
    }
    return nb::make_tuple(mask, p.count, p.squares, double(p.largest));
}

// The sum of squares of the kept entries.
template <class T> double kept_squares(const Any<T>& x, const Any<uint8_t>& kept) {
    demand(x.size() == kept.size(), "kept does not fit x");
    const T* from = x.data();
    const uint8_t* mask = kept.data();
    const int64_t n = x.size();
    return add_up(Pieces(n, n * 8), [&](int64_t a, int64_t b) {
        constexpr int lanes = 8;
        double sums[lanes] = {};
        int64_t e = a;
        auto look = [&](int64_t at, int lane) { sums[lane] += mask[at] ? double(from[at]) * double(from[at]) : 0.0; };
        for (; e + lanes <= b; e += lanes)
            for (int lane = 0; lane < lanes; ++lane) look(e + lane, lane);
        for (; e < b; ++e) look(e, 0);
        return std::accumulate(sums, sums + lanes, 0.0);
    });
}

// Rows of a Gaussian given their observed entries: filled, and what else is wanted, or None.
nb::tuple conditional_rows(const In<double, 2>& Z, const In<double, 2>& covariance, const In<double, 2>& precision,
                           bool total, bool variances, bool others) {
    Conditionals p;
    const size_t n = Z.shape(0), d = Z.shape(1);
    demand(d < size_t(INT32_MAX), "too many columns");
    for (const auto* M : {&covariance, &precision})
        demand(M->shape(0) == d && M->shape(1) == d, "a matrix does not fit Z");
    const Padded<double> C(covariance.data(), d, d), K(precision.data(), d, d);
    p.d = d, p.dp = C.width;
    p.Z = Z.data();
    p.covariance = C.data, p.precision = K.data;
    nb::object filled = nb::cast(made<double>({n, d}, &p.filled));
    nb::object sum = nb::none(), predicted = nb::none(), spread = nb::none();
    if (total) sum = nb::cast(made<double>({d, d}, &p.total));
    if (others) predicted = nb::cast(made<double>({n, d}, &p.predicted));
    if (others || variances) spread = nb::cast(made<double>({n, d}, &p.variances));
    {
        nb::gil_scoped_release release;
        // rows in the order of their counts, so that those in the lanes are of like cost
        std::vector<int64_t> missing(n), starts(d + 2), order(n), bounds{0};
        for (size_t i = 0; i < n; ++i) {
            for (size_t j = 0; j < d; ++j) missing[i] += std::isnan(p.Z[i * d + j]);
            ++starts[missing[i] + 1];
        }
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        for (size_t i = 0; i < n; ++i) order[starts[missing[i]]++] = i;
        p.order = order.data();
        auto cost = [&](size_t i) {
            const double k = double(missing[order[i]]), observed = double(d) - k;
            return std::min(p.by_missing(k, observed), p.by_observed(k, observed)) + 2 * double(d * d);
        };
        double whole = 0, so_far = 0;
        for (size_t i = 0; i < n; ++i) whole += cost(i);
        const double most = std::max(double(PIECE), whole / 64);  // every piece has a sum of its own
        for (size_t i = 0; i < n; ++i) {
            so_far += cost(i);
            if (so_far < most || (i + 1) % padded<double>(1)) continue;
            bounds.push_back(i + 1);
            so_far = 0;
        }
        if (bounds.back() != int64_t(n)) bounds.push_back(n);
        const int64_t pieces = d ? int64_t(bounds.size()) - 1 : 0;
        std::vector<double> sums(total ? pieces * d * d : 0, 0.0);
        share(pieces, [&](int64_t k) {
            Conditionals own = p;
            if (total) own.total = sums.data() + k * d * d;
            all().conditionals(own, bounds[k], bounds[k + 1]);
        });
        if (total) std::fill(p.total, p.total + d * d, 0.0);
        for (int64_t k = 0; total && k < pieces; ++k)
            for (size_t e = 0; e < d * d; ++e) p.total[e] += sums[k * d * d + e];
        for (size_t a = 0; total && a < d; ++a)
            for (size_t c = 0; c < a; ++c) p.total[a * d + c] = p.total[c * d + a];
    }
    return nb::make_tuple(filled, sum, predicted, spread);
}

template <class T> void bind(nb::module_& m) {
    m.def("one_pass", one_pass<T>, nb::arg(), nb::arg().noconvert(), nb::arg().none(), nb::arg().none(),
          nb::arg().none(), nb::arg(), nb::arg());
    m.def("solve_rows", solve_rows<T>, nb::arg(), nb::arg().noconvert(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(),
          nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    m.def("update_rows", update_rows<T>, nb::arg(), nb::arg().noconvert(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(),
          nb::arg());
    m.def("whole_rows", whole_rows<T>, nb::arg(), nb::arg().noconvert(), nb::arg().none(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("turned", turned<T>, nb::arg().noconvert(), nb::arg());
    m.def("outer_sums", outer_sums<T>, nb::arg(), nb::arg().noconvert(), nb::arg().noconvert());
    m.def("tucker_values", tucker_values<T>, nb::arg(), nb::arg().noconvert(), nb::arg(), nb::arg().none());
    m.def("dense", dense<T>, nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
          nb::arg().none(), nb::arg(), nb::arg());
    m.def("arranged", arranged<T>, nb::arg(), nb::arg().noconvert());
    m.def("present", present<T>, nb::arg().noconvert(), nb::arg().none());
    m.def("kth_magnitude", kth_magnitude<T>, nb::arg().noconvert(), nb::arg());
    m.def("kth_of_fibres", kth_of_fibres<T>, nb::arg().noconvert(), nb::arg());
    m.def("row_medians", row_medians<T>, nb::arg(), nb::arg().noconvert());
    m.def("spreads", spreads<T>, nb::arg().noconvert());
    m.def("cleaned_rows", cleaned_rows<T>, nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(),
          nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    m.def("row_moments", row_moments<T>, nb::arg(), nb::arg().noconvert());
    m.def("within", magnitudes_within<T>, nb::arg().noconvert(), nb::arg());
    m.def("kept_squares", kept_squares<T>, nb::arg().noconvert(), nb::arg());
}

}  // namespace

// For threadpoolctl, which calls them by name.
extern "C" __attribute__((visibility("default"))) int scaledgd_get_num_threads() { return threads(); }
extern "C" __attribute__((visibility("default"))) void scaledgd_set_num_threads(int n) { limit = n; }

NB_MODULE(_compiled, m) {
    nb::set_leak_warnings(false);  // objects that live until the interpreter ends are not leaks
    start_anew();
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, start_anew);
#endif
    nb::class_<Sorted>(m, "Sorted")
        .def_ro("size", &Sorted::m)
        .def_prop_ro("as_measured", [](const Sorted& s) { return s.position.empty(); })
        .def_prop_ro("rows", [](const Sorted& s) { return int64_t(s.starts.size()) - 1; })
        .def("counts", [](const Sorted& s) {
            int64_t* count;
            auto found = made<int64_t>({s.starts.size() - 1}, &count);
            for (size_t i = 0; i + 1 < s.starts.size(); ++i) count[i] = s.starts[i + 1] - s.starts[i];
            return found;
        });
    m.def("sorted", sorted);
    m.def("rejected", rejected);
    m.def("nothing", nothing);
    m.def("distinct", distinct);
    m.def("parts", parts);
    m.def("fail_at", [](int64_t piece) { failing = piece; });
    m.def("instructions", [] { return all().instructions; });
    m.def("get_num_threads", threads);
    m.def("set_num_threads", [](int n) { limit = n; });
    m.def("conditional_rows", conditional_rows, nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
          nb::arg(), nb::arg(), nb::arg());
    m.def("arranged", arranged<uint8_t>, nb::arg(), nb::arg().noconvert());
    bind<double>(m);
    bind<float>(m);
}
