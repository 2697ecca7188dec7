// Ragged groups: neighbours along one axis that are reduced together, each by the kernels of rows and columns.
#include <vector>

#include "context.h"
#include "scans.h"

namespace osm {

namespace {

constexpr int64_t kSmallGroup = 16;    // groups up to this length are done side by side, whatever lies beside them
constexpr int64_t kGroupItem = 32768;  // elements of one claim of a thread, about

// Groups whose elements are adjacent and that have no other axes: no planning between them.
struct Adjacent {
  const Problem& p;
  const Kernels& kernels;
  const ScanKernels& small;
  int64_t size;

  // The algorithm that a row of this length gets by itself.
  Algorithm algorithm(int64_t n) const {
    return p.algorithm == kAuto ? choose_algorithm(p.op, p.dtype, n) : (Algorithm)p.algorithm;
  }
  void softmax(int64_t from, int64_t n) const {
    RowsJob job{};
    job.op = p.op, job.algorithm = algorithm(n);
    job.x = p.x + from * size, job.y = p.y + from * size;
    job.rows = 1, job.cols = n;
    job.scratch = thread_scratch(rows_scratch(p.dtype, job.algorithm == Algorithm::cached ? n : 0));
    kernels.rows(job);
  }
  RowState state(int64_t from, int64_t n) const {
    RowState result;
    RowsJob job{};
    job.op = Op::lse, job.algorithm = algorithm(n);
    job.x = p.x + from * size, job.states = &result;
    job.rows = 1, job.cols = n;
    job.scratch = thread_scratch(rows_scratch(p.dtype, job.algorithm == Algorithm::cached ? n : 0));
    kernels.rows(job);
    return result;
  }
  double lse(int64_t from, int64_t n) const {
    const RowState st = state(from, n);
    double result;
    p.isa->finish(&st, &result, 1);
    return std::fabs(result) < 0.25 ? lse_near_0(*p.isa, p.dtype, p.x + from * size, n) : result;
  }
  void run(const int64_t* offsets, int64_t first, int64_t last) const {
    double lses[kScanGroups];
    for (int64_t g = first; g < last;) {
      const int64_t from = offsets[g], n = offsets[g + 1] - from;
      if (n > kSmallGroup) {
        if (p.op == Op::lse)
          put_number(p, p.first, g, lse(from, n));
        else
          softmax(from, n);
        ++g;
        continue;
      }
      int64_t end = g + 1;
      while (end < last && end - g < kScanGroups && offsets[end + 1] - offsets[end] <= kSmallGroup &&
             offsets[end + 1] - from <= kScanGroups)
        ++end;
      char* y = p.op == Op::lse ? nullptr : p.y + from * size;
      small.groups({p.x + from * size, y, y ? nullptr : lses, offsets + g, end - g});
      for (int64_t k = g; !y && k < end; ++k) put_number(p, p.first, k, lses[k - g]);
      g = end;
    }
  }
};

}  // namespace

void run_groups(const Problem& p, int axis, const int64_t* offsets, int64_t groups) {
  const int64_t size = (int64_t)dtype_size(p.dtype), step = p.x_strides[axis];
  int64_t others = 1;
  for (int d = 0; d < p.ndim; ++d)
    if (d != axis) others *= p.shape[d];
  if (!others) return;
  const bool lse = p.op == Op::lse;
  const bool adjacent = others == 1 && p.ndim == 1 && step == size && (lse || p.y_strides[axis] == size);
  const auto one = [&](int64_t g, int threads) {
    Problem group = p;
    const int64_t n = offsets[g + 1] - offsets[g];
    group.threads = threads, group.shape[axis] = n, group.reduced = uint64_t{1} << axis;
    group.x = p.x + offsets[g] * step;
    if (lse)
      group.first = (char*)p.first + g * others * (p.single ? 4 : 8);
    else
      group.y = p.y + offsets[g] * p.y_strides[axis];
    if (n || lse) run(group);
  };
  const Adjacent direct{p, kernels_of(*p.isa, p.dtype, p.fast), scan_kernels_of(*p.isa, p.dtype), size};
  const auto some = [&](int64_t first, int64_t last) {
    if (!adjacent)
      for (int64_t g = first; g < last; ++g) one(g, 1);
    else
      direct.run(offsets, first, last);
  };
  // Runs of groups of about the same work; what is long enough to be shared out itself comes by itself.
  struct Run {
    int64_t first, last;
  };
  std::vector<Run> runs, giants;
  const int64_t total = (offsets[groups] - offsets[0]) * others;
  if (p.threads == 1 || total < kParallelElements) return some(0, groups);
  for (int64_t g = 0; g < groups;) {
    if ((offsets[g + 1] - offsets[g]) * others >= kParallelElements) {
      giants.push_back({g, g + 1}), ++g;
      continue;
    }
    int64_t last = g;
    while (last < groups && (offsets[last + 1] - offsets[last]) * others < kParallelElements &&
           (offsets[last] - offsets[g]) * others + (last - g) * 8 < kGroupItem)
      ++last;
    runs.push_back({g, last}), g = last;
  }
  parallel_for((int64_t)runs.size(), p.threads, [&](int64_t i) { some(runs[(size_t)i].first, runs[(size_t)i].last); });
  for (const Run& g : giants) one(g.first, p.threads);
}

}  // namespace osm
