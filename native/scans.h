// Scans of strided arrays: log-sum-exps of pairs, prefixes, windows and ragged groups.
#pragma once
#include <cstdint>

#include "driver.h"
#include "scans_table.h"

namespace osm {

// Arrays of one shape, strides in bytes. y may be x (of add: a or b) or memory apart from it.
struct ScanProblem {
  Dtype dtype = Dtype::f32;
  const Isa* isa = nullptr;
  int threads = 1;
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  const char *x = nullptr, *b = nullptr;
  int64_t x_strides[kMaxDims] = {}, b_strides[kMaxDims] = {};
  char* y = nullptr;
  int64_t y_strides[kMaxDims] = {};
};

void run_add(const ScanProblem& problem);
void run_scan(const ScanProblem& problem, int axis, bool exclusive);

// `rows` rows of n adjacent elements that lie end to end; y apart from x.
struct RowsProblem {
  Dtype dtype = Dtype::f32;
  const Isa* isa = nullptr;
  int threads = 1;
  int64_t rows = 0, n = 0;
  const char *x = nullptr, *dy = nullptr;
  char* y = nullptr;
};
void run_window(const RowsProblem& problem, int64_t window);
void run_scan_gradient(const RowsProblem& problem);

// Ragged groups along `axis` of `rows`: group g is [offsets[g], offsets[g + 1]). Op::lse: rows.first has groups x the
// other axes, row-major; Op::softmax: rows.y has x's shape.
void run_groups(const Problem& rows, int axis, const int64_t* offsets, int64_t groups);

}  // namespace osm
