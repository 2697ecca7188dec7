// Scans of strided arrays: which rows and columns go to which thread.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "context.h"
#include "scans.h"

namespace osm {

namespace isa_scalar {
extern const ScanKernels scans[kDtypes];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const ScanKernels scans[kDtypes];
}
namespace isa_avx512 {
extern const ScanKernels scans[kDtypes];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const ScanKernels scans[kDtypes];
}
#endif

const ScanKernels& scan_kernels_of(const Isa& isa, Dtype dtype) {
  const ScanKernels* all = isa_scalar::scans;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::scans;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::scans;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::scans;
#endif
  return all[(int)dtype];
}

namespace {

constexpr int64_t kPiece = 1024;      // elements brought together at once
constexpr int64_t kScanItem = 16384;  // elements of one claim of a thread, about
constexpr int64_t kScanParallel = 20000;
constexpr int64_t kSideBySide = 8;  // fewer columns are scanned one after the other
constexpr int64_t kShortRow = 32;   // rows shorter than this are scanned side by side

struct Axis {
  int64_t size, x, b, y;
};
struct Spot {
  int64_t x = 0, b = 0, y = 0;
};

Spot spot_of(const std::vector<Axis>& axes, int64_t index) {
  Spot p;
  for (size_t k = axes.size(); k-- > 0;) {
    const int64_t i = index % axes[k].size;
    index /= axes[k].size;
    p.x += i * axes[k].x, p.b += i * axes[k].b, p.y += i * axes[k].y;
  }
  return p;
}

// All axes but `skip`, largest steps of the result first, joined where they can be.
std::vector<Axis> axes_of(const ScanProblem& p, int skip) {
  std::vector<Axis> axes, joined;
  for (int d = 0; d < p.ndim; ++d)
    if (d != skip && p.shape[d] != 1) axes.push_back({p.shape[d], p.x_strides[d], p.b_strides[d], p.y_strides[d]});
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return std::llabs(a.y) > std::llabs(b.y); });
  for (const Axis& a : axes) {
    if (!joined.empty()) {
      Axis& big = joined.back();
      if (big.x == a.x * a.size && big.b == a.b * a.size && big.y == a.y * a.size) {
        big = {big.size * a.size, a.x, a.b, a.y};
        continue;
      }
    }
    joined.push_back(a);
  }
  return joined;
}

int64_t count_of(const std::vector<Axis>& axes) {
  int64_t n = 1;
  for (const Axis& a : axes) n *= a.size;
  return n;
}

Tail tail_of(double m, double high, double low, double factor, double over) {
  if (over != 0) return {over, 0};
  return {m, (high + low) * factor};
}
Tail tail_of(const ScanChain& c) { return tail_of(c.m, c.high, c.low, c.factor, c.over); }
Tail tail_of(const ScanLanesState& s, int64_t k) {
  return tail_of(s.m[k], s.high[k], s.low[k], s.factor[k], s.over[k]);
}
ScanChain chain_of(Tail t) {
  ScanChain c;
  if (std::isnan(t.m) || t.m == HUGE_VAL)
    c.over = t.m;
  else if (t.m != -HUGE_VAL)
    c.m = c.pivot = t.m, c.high = t.t;
  return c;
}
void put_chain(ScanLanesState& s, int64_t k, const ScanChain& c) {
  s.m[k] = c.m, s.pivot[k] = c.pivot, s.high[k] = c.high, s.low[k] = c.low, s.factor[k] = c.factor;
  s.over[k] = c.over, s.before[k] = c.before;
}

struct Scanner {
  const ScanProblem& p;
  const ScanKernels& kernels;
  int64_t size, n, x_step, y_step;
  bool exclusive;

  // ---- one row

  void row(const char* x, char* y, int64_t count, ScanChain& chain) const {
    if (x_step == size && (!y || y_step == size)) return kernels.row({x, y, count, exclusive, &chain});
    alignas(64) char in[kPiece * 8], out[kPiece * 8];
    for (int64_t i = 0; i < count; i += kPiece) {
      const int64_t here = std::min(kPiece, count - i);
      copy_elements(size, x + i * x_step, x_step, in, size, here);
      kernels.row({in, y ? out : nullptr, here, exclusive, &chain});
      if (y) copy_elements(size, out, size, y + i * y_step, y_step, here);
    }
  }

  // ---- columns, side steps sx and sy

  void strip(const char* x, int64_t sx, char* y, int64_t sy, int64_t from, int64_t count, int64_t columns,
             ScanLanesState& lanes) const {
    x += from * x_step;
    if (y) y += from * y_step;
    if (sx == size && (!y || sy == size))
      return kernels.cols({x, y, count, columns, x_step, y_step, exclusive, &lanes});
    constexpr int64_t rows = kPiece / kScanLanes;
    alignas(64) char in[kPiece * 8], out[kPiece * 8];
    const int64_t line = kScanLanes * size;
    for (int64_t i = 0; i < count; i += rows) {
      const int64_t here = std::min(rows, count - i);
      // Along the lesser step, so that lines of memory are used up as they come.
      for (int64_t k = 0; k < here; ++k) copy_elements(size, x + (i + k) * x_step, sx, in + k * line, size, columns);
      kernels.cols({in, y ? out : nullptr, here, columns, line, line, exclusive, &lanes});
      for (int64_t k = 0; y && k < here; ++k)
        copy_elements(size, out + k * line, size, y + (i + k) * y_step, sy, columns);
    }
  }

  // ---- a strip of columns (or one row) in its segments

  int64_t segments() const { return (n + kScanSegment - 1) / kScanSegment; }
  int64_t length(int64_t s) const { return std::min(kScanSegment, n - s * kScanSegment); }

  void unit(const char* x, int64_t sx, char* y, int64_t sy, int64_t columns, bool side, int threads) const {
    const int64_t count = segments();
    const auto scan = [&](int64_t s, ScanChain* chains, char* to) {
      if (!side)
        return row(x + s * kScanSegment * x_step, to ? to + s * kScanSegment * y_step : to, length(s), *chains);
      ScanLanesState lanes;
      for (int64_t k = 0; k < kScanLanes; ++k) put_chain(lanes, k, k < columns ? chains[k] : ScanChain{});
      strip(x, sx, to, sy, s * kScanSegment, length(s), columns, lanes);
      for (int64_t k = 0; k < columns; ++k) {
        const Tail t = tail_of(lanes, k);
        chains[k] = chain_of(t), chains[k].before = lanes.before[k];
      }
    };
    std::vector<ScanChain> chains((size_t)(count * columns));
    if (count > 1) {
      // The states of the segments by themselves, then of all before each: where the results start from.
      parallel_for(count - 1, threads, [&](int64_t s) { scan(s, &chains[(size_t)(s * columns)], nullptr); });
      for (int64_t k = 0; k < columns; ++k) {
        Tail all;
        for (int64_t s = 0; s < count; ++s) {
          ScanChain& c = chains[(size_t)(s * columns + k)];
          const Tail own = tail_of(c);
          c = chain_of(all);
          all = merge_tails(all, own);
        }
      }
    }
    parallel_for(count, threads, [&](int64_t s) { scan(s, &chains[(size_t)(s * columns)], y); });
    if (!exclusive) return;
    // A segment begins with the last result of the one before it.
    for (int64_t s = 1; s < count; ++s)
      for (int64_t k = 0; k < columns; ++k)
        kernels.narrow(&chains[(size_t)((s - 1) * columns + k)].before, y + s * kScanSegment * y_step + k * sy, 1);
  }
};

}  // namespace

void run_scan(const ScanProblem& p, int axis, bool exclusive) {
  const int64_t size = (int64_t)dtype_size(p.dtype);
  const Scanner scanner{
      p, scan_kernels_of(*p.isa, p.dtype), size, p.shape[axis], p.x_strides[axis], p.y_strides[axis], exclusive};
  std::vector<Axis> others = axes_of(p, axis);
  const int64_t rows = count_of(others), total = rows * scanner.n;
  if (!total) return;
  const int threads = total < kScanParallel ? 1 : p.threads;
  // Rows and columns give the same bits, so that the choice is one of speed alone.
  const bool side = !others.empty() && others.back().size >= kSideBySide &&
                    (std::llabs(others.back().x) < std::llabs(scanner.x_step) || scanner.n < kShortRow);
  Axis beside{1, 0, 0, 0};
  if (side) beside = others.back(), others.pop_back();
  const int64_t strips = (beside.size + kScanLanes - 1) / kScanLanes, units = count_of(others) * strips;
  const auto work = [&](int64_t u, int inner) {
    const Spot at = spot_of(others, u / strips);
    const int64_t first = u % strips * kScanLanes;
    scanner.unit(p.x + at.x + first * beside.x, beside.x, p.y + at.y + first * beside.y, beside.y,
                 std::min(kScanLanes, beside.size - first), side, inner);
  };
  if (units < 2 * threads && scanner.segments() > 1) {
    for (int64_t u = 0; u < units; ++u) work(u, threads);
    return;
  }
  const int64_t each = std::max<int64_t>(1, kScanItem / (scanner.n * (side ? kScanLanes : 1)));
  parallel_for((units + each - 1) / each, threads, [&](int64_t item) {
    for (int64_t u = item * each; u < std::min(units, (item + 1) * each); ++u) work(u, 1);
  });
}

void run_add(const ScanProblem& p) {
  const ScanKernels& kernels = scan_kernels_of(*p.isa, p.dtype);
  const int64_t size = (int64_t)dtype_size(p.dtype);
  std::vector<Axis> outer = axes_of(p, -1);
  Axis inner{1, 0, 0, 0};
  if (!outer.empty()) inner = outer.back(), outer.pop_back();
  const int64_t rows = count_of(outer), pieces = (inner.size + kScanItem - 1) / kScanItem;
  const int64_t each = std::max<int64_t>(1, kScanItem / std::max<int64_t>(1, inner.size));
  const bool a_whole = inner.x == size, b_whole = inner.b == size, y_whole = inner.y == size;
  const auto run = [&](const char* a, const char* b, char* y, int64_t n) {
    if (a_whole && b_whole && y_whole) return kernels.add(a, b, y, n);
    alignas(64) char left[kPiece * 8], right[kPiece * 8], out[kPiece * 8];
    for (int64_t i = 0; i < n; i += kPiece) {
      const int64_t here = std::min(kPiece, n - i);
      // What is broadcast is written out once.
      if (!a_whole && (i == 0 || inner.x)) copy_elements(size, a + i * inner.x, inner.x, left, size, here);
      if (!b_whole && (i == 0 || inner.b)) copy_elements(size, b + i * inner.b, inner.b, right, size, here);
      char* to = y_whole ? y + i * size : out;
      kernels.add(a_whole ? a + i * size : left, b_whole ? b + i * size : right, to, here);
      if (!y_whole) copy_elements(size, out, size, y + i * inner.y, inner.y, here);
    }
  };
  const int threads = rows * inner.size < kScanParallel ? 1 : p.threads;
  const int64_t groups = (rows + each - 1) / each;
  parallel_for(groups * pieces, threads, [&](int64_t item) {
    const int64_t from = item % pieces * kScanItem, n = std::min(kScanItem, inner.size - from);
    const int64_t first = item / pieces * each;
    for (int64_t r = first; r < std::min(rows, first + each); ++r) {
      const Spot at = spot_of(outer, r);
      run(p.x + at.x + from * inner.x, p.b + at.b + from * inner.b, p.y + at.y + from * inner.y, n);
    }
  });
}

void run_window(const RowsProblem& p, int64_t window) {
  const ScanKernels& kernels = scan_kernels_of(*p.isa, p.dtype);
  const int64_t size = (int64_t)dtype_size(p.dtype);
  const int64_t chunk = window * std::max<int64_t>(1, kPiece / window), chunks = (p.n + chunk - 1) / chunk;
  const int threads = p.rows * p.n < kScanParallel ? 1 : p.threads;
  parallel_for(p.rows * chunks, threads, [&](int64_t item) {
    const int64_t at = item % chunks * chunk, first = item / chunks * p.n + at, n = std::min(chunk, p.n - at);
    double* scratch = (double*)thread_scratch(2 * (n + window + kScanLanes) * 8);
    kernels.window({p.x + first * size, p.y + first * size, n, window, at > 0, scratch});
  });
}

void run_scan_gradient(const RowsProblem& p) {
  const ScanKernels& kernels = scan_kernels_of(*p.isa, p.dtype);
  const int64_t step = p.n * (int64_t)dtype_size(p.dtype);
  const int threads = p.rows * p.n < kScanParallel ? 1 : p.threads;
  const int64_t each = std::max<int64_t>(1, kScanItem / std::max<int64_t>(1, p.n));
  parallel_for((p.rows + each - 1) / each, threads, [&](int64_t item) {
    double* scratch = (double*)thread_scratch((p.n + 1) * 8);
    for (int64_t r = item * each; r < std::min(p.rows, (item + 1) * each); ++r)
      kernels.gradient({p.x + r * step, p.dy + r * step, p.y + r * step, p.n, scratch});
  });
}

}  // namespace osm
