// Rows whose bits depend on their elements alone. Adjacent rows go to the kernels where they lie; everything else is
// brought together in pieces of a group of rows. Few long rows are cut for the threads and their states merged.
#include "run_exact.h"

#include <cstring>
#include <vector>

#include "context.h"
#include "turned.h"

namespace osm {
namespace isa_scalar {
extern const ExactKernels exact[kDtypes];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const ExactKernels exact[kDtypes];
}
namespace isa_avx512 {
extern const ExactKernels exact[kDtypes];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const ExactKernels exact[kDtypes];
}
#endif

const ExactKernels& exact_kernels_of(const Isa& isa, Dtype dtype) {
  const ExactKernels* all = isa_scalar::exact;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::exact;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::exact;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::exact;
#endif
  return all[(int)dtype];
}

int64_t exact_scratch(Dtype dtype, int64_t cols) { return rows_scratch(dtype, cols <= kExactKept ? cols : 0); }

namespace {

constexpr int64_t kGroup = 32;              // rows brought together
constexpr int64_t kGroupBytes = 512 << 10;  // of a group that is brought whole
constexpr int64_t kPart = 32768;            // least elements of a row that a thread is given
constexpr int64_t kGatheredPiece = 2048;    // elements of a row gathered at once

// An odd number of lines: rows a power of two apart would share their places in the cache.
int64_t row_stride(int64_t bytes) { return aligned64(bytes) | 64; }

ExactWide nothing() { return {-HUGE_VAL, {0, 0, 0, 0}}; }

template <class S>
ExactState<S> narrow_state(const ExactWide& w) {
  ExactState<S> st{};
  st.m = (S)w.m;
  std::memcpy(st.a, w.a, sizeof st.a);
  return st;
}
template <class S>
ExactWide merge_as(const ExactWide& a, const ExactWide& b) {
  const ExactState<S> st = merged(narrow_state<S>(a), narrow_state<S>(b));
  ExactWide w{(double)st.m, {0, 0, 0, 0}};
  std::memcpy(w.a, st.a, sizeof st.a);
  return w;
}

// Elements, `step` bytes apart, whose byte in `where` is 0 become `blank`. Every one is written: the loop becomes
// vectors.
template <class U>
void blank_out(char* row, int64_t n, const char* where, int64_t step, const char* blank) {
  U none, *to = (U*)row;
  std::memcpy(&none, blank, sizeof none);
  const auto chosen = [&](int64_t i, char live) {
    const U take = (U)((U)0 - (U)(live != 0));
    to[i] = (U)((to[i] & take) | (none & (U)~take));
  };
  if (step == 1)
    for (int64_t i = 0; i < n; ++i) chosen(i, where[i]);
  else
    for (int64_t i = 0; i < n; ++i) chosen(i, where[i * step]);
}

class Runner {
 public:
  explicit Runner(const ExactProblem& problem)
      : e(problem),
        p(problem.rows),
        layout(p),
        size((int64_t)dtype_size(p.dtype)),
        kernels(exact_kernels_of(*p.isa, p.dtype)) {
    wide = p.dtype == Dtype::f64;
    slices = wide ? Law<double>::slices : Law<float>::slices;
    writes = p.op == Op::softmax || p.op == Op::log_softmax;
    const int64_t total = layout.rows * layout.cols;
    stream = writes && total * size >= kStreamBytes;
    threads = total < kParallelElements ? 1 : p.threads;
    direct = !p.where && along_x() && (!writes || along_y());
  }

  void run() {
    if (layout.rows == 0) return;
    if (layout.cols == 0) {
      for (int64_t r = 0; r < layout.rows && !writes; ++r) put(layout.place(r).result, nothing());
      return;
    }
    // Neighbours that lie side by side are brought together; others gain nothing by it.
    group = direct ? 1 : std::min<int64_t>(kGroup, layout.inner().size);
    const int64_t groups = layout.rows / layout.inner().size * ((layout.inner().size + group - 1) / group);
    parts = 1;
    if (threads > 1 && groups < 2 * threads)
      parts = std::clamp<int64_t>(layout.cols / kPart, 1, (4 * threads + groups - 1) / groups);
    if (direct && parts == 1) return run_rows();
    whole = parts == 1 && layout.cols * size * group <= kGroupBytes;
    run_groups(groups);
  }

 private:
  const ExactProblem& e;
  const Problem& p;
  Layout layout;
  int64_t size;
  const ExactKernels& kernels;
  int64_t slices, group = 1, parts = 1;
  int threads;
  bool wide, writes, stream, direct, whole = false;

  bool along_x() const { return layout.along.size() == 1 && (layout.along[0].size == 1 || layout.along[0].x == size); }
  bool along_y() const { return layout.along[0].size == 1 || layout.along[0].y == size; }

  ExactWide merge(const ExactWide& a, const ExactWide& b) const {
    return wide ? merge_as<double>(a, b) : merge_as<float>(a, b);
  }
  ExactWide get(int64_t at) const {
    ExactWide st = nothing();
    st.m = wide ? ((const double*)e.m)[at] : (double)((const float*)e.m)[at];
    std::memcpy(st.a, e.sums + at * slices, (size_t)slices * 8);
    return st;
  }
  void put(int64_t at, const ExactWide& st) const {
    const auto m = (float)st.m;
    if (p.op == Op::lse) {
      if (wide)
        kernels.lse(&st.m, st.a, (double*)e.lse + at, 1);
      else
        kernels.lse(&m, st.a, (float*)e.lse + at, 1);
      return;
    }
    if (wide)
      ((double*)e.m)[at] = st.m;
    else
      ((float*)e.m)[at] = m;
    std::memcpy(e.sums + at * slices, st.a, (size_t)slices * 8);
  }

  ExactRows job_of(Op op) const {
    ExactRows job{};
    job.op = op, job.stream = stream;
    return job;
  }

  // ---- adjacent rows

  void run_rows() {
    const int64_t per_item = std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, layout.cols * size));
    parallel_for((layout.rows + per_item - 1) / per_item, threads, [&](int64_t item) {
      const int64_t to = std::min((item + 1) * per_item, layout.rows);
      const Dim& inner = layout.inner();
      ExactWide states[kBatch];
      ExactRows job = job_of(writes ? p.op : Op::state);
      job.given = p.given, job.states = states, job.cols = layout.cols;
      job.scratch = thread_scratch(exact_scratch(p.dtype, layout.cols));
      const int64_t most = writes && !p.given ? INT64_MAX : kBatch;
      for (int64_t r = item * per_item; r < to; r += job.rows) {
        const Place at = layout.place(r);
        job.rows = std::min({most, to - r, inner.size - at.inner});
        job.x = p.x + at.x, job.x_stride = inner.x, job.y = p.y + at.y, job.y_stride = inner.y;
        for (int64_t i = 0; p.given && i < job.rows; ++i) states[i] = get(at.result + i * inner.result);
        kernels.rows(job);
        for (int64_t i = 0; !writes && i < job.rows; ++i) put(at.result + i * inner.result, states[i]);
      }
    });
  }

  // ---- everything else, and rows cut for the threads

  struct Piece {
    Place first;       // of the group's first row
    int64_t count;     // of rows
    int64_t from, to;  // elements of each
  };
  Piece piece_of(int64_t g, int64_t part) const {
    const int64_t inner = layout.inner().size, each = (inner + group - 1) / group;
    const int64_t from = g % each * group, length = (layout.cols + parts - 1) / parts;
    return {layout.place(g / each * inner + from), std::min(group, inner - from), std::min(part * length, layout.cols),
            std::min((part + 1) * length, layout.cols)};
  }

  void run_groups(int64_t groups) {
    std::vector<ExactWide> states;
    if (!whole && !p.given) states.assign((size_t)(groups * parts * group), nothing());
    if (!p.given)
      parallel_for(groups * parts, threads, [&](int64_t item) {
        const Piece piece = piece_of(item / parts, item % parts);
        if (whole) return whole_group(piece);
        sum_piece(piece, &states[(size_t)(item * group)]);
      });
    if (whole && !p.given) return;
    for (int64_t g = 0; g < groups && !p.given; ++g) {
      ExactWide* first = &states[(size_t)(g * parts * group)];
      const Piece piece = piece_of(g, 0);
      for (int64_t i = 0; i < piece.count; ++i) {
        for (int64_t k = 1; k < parts; ++k) first[i] = merge(first[i], first[k * group + i]);
        if (!writes) put(piece.first.result + i * layout.inner().result, first[i]);
      }
    }
    if (!writes) return;
    parallel_for(groups * parts, threads, [&](int64_t item) {
      const Piece piece = piece_of(item / parts, item % parts);
      ExactWide given[kGroup];
      for (int64_t i = 0; i < piece.count; ++i)
        given[i] = p.given ? get(piece.first.result + i * layout.inner().result)
                           : states[(size_t)(item / parts * parts * group + i)];
      write_piece(piece, given);
    });
  }

  // A group of rows brought together, done and taken back.
  void whole_group(const Piece& piece) const {
    const int64_t stride = row_stride(layout.cols * size);
    char* rows = thread_scratch(group * stride + exact_scratch(p.dtype, layout.cols));
    gather(piece, 0, layout.cols, rows, stride);
    ExactWide states[kGroup];
    ExactRows job = job_of(writes ? p.op : Op::state);
    job.x = job.y = rows, job.x_stride = job.y_stride = stride, job.states = states, job.stream = false;
    job.rows = piece.count, job.cols = layout.cols, job.scratch = rows + group * stride;
    kernels.rows(job);
    if (writes) return scatter(piece, 0, layout.cols, rows, stride);
    for (int64_t i = 0; i < piece.count; ++i) put(piece.first.result + i * layout.inner().result, states[i]);
  }

  void sum_piece(const Piece& piece, ExactWide* states) const {
    ExactRows job = job_of(Op::state);
    ExactWide found[kGroup];
    job.states = found, job.rows = piece.count;
    if (direct) {
      job.x = p.x + piece.first.x + piece.from * size, job.cols = piece.to - piece.from;
      if (job.cols > 0) kernels.rows(job), states[0] = found[0];
      return;
    }
    const int64_t stride = row_stride(kGatheredPiece * size);
    char* rows = thread_scratch(group * stride);
    for (int64_t i = piece.from; i < piece.to; i += kGatheredPiece) {
      const int64_t n = std::min(kGatheredPiece, piece.to - i);
      gather(piece, i, n, rows, stride);
      job.x = rows, job.x_stride = stride, job.cols = n;
      kernels.rows(job);
      for (int64_t k = 0; k < piece.count; ++k) states[k] = merge(states[k], found[k]);
    }
  }

  void write_piece(const Piece& piece, ExactWide* states) const {
    ExactRows job = job_of(p.op);
    job.given = true, job.states = states, job.rows = piece.count;
    const int64_t stride = row_stride(kGatheredPiece * size);
    char* rows = thread_scratch(group * stride + exact_scratch(p.dtype, 0));
    job.scratch = rows + group * stride;
    if (direct) {
      job.x = p.x + piece.first.x + piece.from * size, job.y = p.y + piece.first.y + piece.from * size;
      job.cols = piece.to - piece.from;
      return kernels.rows(job);
    }
    job.stream = false;
    for (int64_t i = piece.from; i < piece.to; i += kGatheredPiece) {
      const int64_t n = std::min(kGatheredPiece, piece.to - i);
      gather(piece, i, n, rows, stride);
      job.x = job.y = rows, job.x_stride = job.y_stride = stride, job.cols = n;
      kernels.rows(job);
      scatter(piece, i, n, rows, stride);
    }
  }

  // Elements [from, from + n) of the group's rows, one row after the other; what is masked is -inf.
  void gather(const Piece& piece, int64_t from, int64_t n, char* rows, int64_t stride) const {
    const Dim& inner = layout.inner();
    layout.each_run(from, n, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
      const char* x = p.x + piece.first.x + o.x;
      const bool turned = inner.x == size && piece.count > 1;
      if (turned) copy_turned(size, x, d.x, rows + at * size, stride, count, piece.count);
      for (int64_t k = 0; !turned && k < piece.count; ++k)
        copy_elements(size, x + k * inner.x, d.x, rows + k * stride + at * size, size, count);
      if (!p.where) return;
      char blank[8] = {};
      set_neg_inf(p.dtype, blank);
      mask(piece, o, d, at, count, rows, stride, blank);
    });
  }
  void mask(const Piece& piece, const Place& o, const Dim& d, int64_t at, int64_t count, char* rows, int64_t stride,
            const char* blank) const {
    for (int64_t k = 0; k < piece.count; ++k) {
      const char* where = p.where + piece.first.where + o.where + k * layout.inner().where;
      char* row = rows + k * stride + at * size;
      if (size == 2)
        blank_out<uint16_t>(row, count, where, d.where, blank);
      else if (size == 4)
        blank_out<uint32_t>(row, count, where, d.where, blank);
      else
        blank_out<uint64_t>(row, count, where, d.where, blank);
    }
  }
  // Results back to their places; what is masked gets 0, or -inf of a logarithm.
  void scatter(const Piece& piece, int64_t from, int64_t n, char* rows, int64_t stride) const {
    const Dim& inner = layout.inner();
    char blank[8] = {};
    if (p.op == Op::log_softmax) set_neg_inf(p.dtype, blank);
    layout.each_run(from, n, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
      if (p.where) mask(piece, o, d, at, count, rows, stride, blank);
      char* y = p.y + piece.first.y + o.y;
      const bool turned = inner.y == size && piece.count > 1;
      if (turned) copy_turned(size, rows + at * size, stride, y, d.y, piece.count, count);
      for (int64_t k = 0; !turned && k < piece.count; ++k)
        copy_elements(size, rows + k * stride + at * size, size, y + k * inner.y, d.y, count);
    });
  }
};

// States of an item of parallel_for().
constexpr int64_t kStates = 4096;
template <class F>
void in_parts(int64_t n, int threads, const F& f) {
  parallel_for((n + kStates - 1) / kStates, n < 4 * kStates ? 1 : threads,
               [&](int64_t item) { f(item * kStates, std::min(kStates, n - item * kStates)); });
}
int64_t slices_of_format(Dtype dtype) { return dtype == Dtype::f64 ? Law<double>::slices : Law<float>::slices; }

}  // namespace

void run_exact(const ExactProblem& problem) { Runner(problem).run(); }

void run_exact_merge(const Isa& isa, Dtype dtype, int threads, const void* m_a, const int64_t* a, const void* m_b,
                     const int64_t* b, void* m, int64_t* sums, int64_t n) {
  const ExactKernels& kernels = exact_kernels_of(isa, dtype);
  const int64_t size = (int64_t)dtype_size(dtype), k = slices_of_format(dtype);
  in_parts(n, threads, [&](int64_t i, int64_t count) {
    kernels.merge((const char*)m_a + i * size, a + i * k, (const char*)m_b + i * size, b + i * k, (char*)m + i * size,
                  sums + i * k, count);
  });
}
void run_exact_lse(const Isa& isa, Dtype dtype, int threads, const void* m, const int64_t* a, void* lse, int64_t n) {
  const ExactKernels& kernels = exact_kernels_of(isa, dtype);
  const int64_t size = (int64_t)dtype_size(dtype), k = slices_of_format(dtype);
  in_parts(n, threads, [&](int64_t i, int64_t count) {
    kernels.lse((const char*)m + i * size, a + i * k, (char*)lse + i * size, count);
  });
}
void run_exact_log_sum(const Isa& isa, Dtype dtype, int threads, const void* m, const int64_t* a, double* log_sum,
                       int64_t n) {
  const ExactKernels& kernels = exact_kernels_of(isa, dtype);
  const int64_t size = (int64_t)dtype_size(dtype), k = slices_of_format(dtype);
  in_parts(n, threads, [&](int64_t i, int64_t count) {
    kernels.log_sum((const char*)m + i * size, a + i * k, log_sum + i, count);
  });
}

}  // namespace osm
