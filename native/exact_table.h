// What an instruction set offers for results whose bits depend on the elements alone: see exact.h.
#pragma once
#include "exact.h"
#include "table.h"

namespace osm {

// A state of either format: a float's m in double, its fourth sum unused.
struct ExactWide {
  double m;
  int64_t a[4];
};

// Rows whose elements are adjacent. Strides in bytes. Op::state: the states of the rows, into `states`; softmax and
// log_softmax: results, y may be x; with `given` of elements of rows whose states are known.
struct ExactRows {
  Op op;
  bool stream, given;
  const char* x;
  char* y;
  ExactWide* states;
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  char* scratch;  // exact_scratch() of it, 64-byte aligned
};

struct ExactKernels {
  void (*rows)(const ExactRows&);
  // States as arrays of the format: m[n], and their sums side by side. Results may be either operand.
  void (*merge)(const void* m_a, const int64_t* a, const void* m_b, const int64_t* b, void* m, int64_t* sums,
                int64_t n);
  void (*lse)(const void* m, const int64_t* a, void* lse, int64_t n);
  void (*log_sum)(const void* m, const int64_t* a, double* log_sum, int64_t n);
};

// Rows up to this length keep their terms; longer ones are read twice where there are results.
constexpr int64_t kExactKept = 32768;
int64_t exact_scratch(Dtype dtype, int64_t cols);

const ExactKernels& exact_kernels_of(const Isa& isa, Dtype dtype);

}  // namespace osm
