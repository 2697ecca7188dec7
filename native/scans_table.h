// What an instruction set offers for scans: log-sum-exps of pairs, of prefixes and of windows. Plain pointers and
// sizes.
#pragma once
#include "table.h"

namespace osm {

// Longest piece of a scan that is summed as one: longer rows are cut here, wherever they lie and however many threads
// there are, and each piece starts from the merged states of those before it.
constexpr int64_t kScanSegment = 32768;
constexpr int64_t kScanLanes = 64;  // columns scanned side by side at the most

// The running state of one scan. t of the law (native/state.h) is (high + low) * factor: terms are summed relative to a
// pivot, from which the maximum may have risen since, and factor = exp(pivot - m). m is that of the finite entries;
// `over` is what the infinite ones and NaN make of the result, 0 for nothing. `before`: the last result, for exclusive
// scans.
struct ScanChain {
  double m = -__builtin_inf(), pivot = 0, high = 0, low = 0, factor = 1, over = 0, before = -__builtin_inf();
};
struct ScanLanesState {
  alignas(64) double m[kScanLanes], pivot[kScanLanes], high[kScanLanes], low[kScanLanes], factor[kScanLanes],
      over[kScanLanes], before[kScanLanes];
};

// n adjacent elements, results adjacent; y null: the state alone. With `exclusive` result i is that of what comes
// before element i. y may be x.
struct ScanRow {
  const char* x;
  char* y;
  int64_t n;
  bool exclusive;
  ScanChain* chain;
};

// `count` <= kScanLanes columns side by side, n elements of each, steps in bytes from one to the next.
struct ScanCols {
  const char* x;
  char* y;
  int64_t n, count, x_step, y_step;
  bool exclusive;
  ScanLanesState* lanes;
};

// Results of n adjacent elements, the first of which begins a block of `window`; `back`: whether a whole block lies
// right before x. scratch: 2 * (n + window + kScanLanes) doubles.
struct ScanWindow {
  const char* x;
  char* y;
  int64_t n, window;
  bool back;
  double* scratch;
};

// dx_j = sum over i >= j of dy_i * exp(x_j - lse_i), of n adjacent elements; scratch: n doubles.
struct ScanGradient {
  const char *x, *dy;
  char* dx;
  int64_t n;
  double* scratch;
};

// `count` groups of neighbours, x and y at the first of them; group g is [offsets[g], offsets[g + 1]). No more than
// kScanGroups groups, nor elements in all of them. Either result may be null; y may be x.
constexpr int64_t kScanGroups = 256;
struct ScanGroups {
  const char* x;
  char* y;
  double* lse;
  const int64_t* offsets;
  int64_t count;
};

struct ScanKernels {
  // y = log(exp(a) + exp(b)), n adjacent elements; y may be a or b.
  void (*add)(const char* a, const char* b, char* y, int64_t n);
  void (*row)(const ScanRow&);
  void (*cols)(const ScanCols&);
  void (*window)(const ScanWindow&);
  void (*gradient)(const ScanGradient&);
  void (*groups)(const ScanGroups&);
  void (*narrow)(const double* from, char* to, int64_t n);
};

const ScanKernels& scan_kernels_of(const Isa& isa, Dtype dtype);

}  // namespace osm
