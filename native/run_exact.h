// From strided arrays to the kernels of exact_table.h. Any way of cutting the work gives the same bits.
#pragma once
#include "driver.h"
#include "exact_table.h"

namespace osm {

// rows: op (softmax, log_softmax, lse, state), dtype, isa, threads, shape, reduced, x, y and where as in Problem.
// States are row-major over the axes that are left, of the format's dtype (float, or double for Dtype::f64).
struct ExactProblem {
  Problem rows;
  void* m = nullptr;        // Op::state: results; with rows.given, softmax and log_softmax: the states
  int64_t* sums = nullptr;  // beside m: slices of them each
  void* lse = nullptr;      // Op::lse
};
void run_exact(const ExactProblem& problem);

// n states in arrays, Dtype::f32 or Dtype::f64; results may be either operand.
void run_exact_merge(const Isa& isa, Dtype dtype, int threads, const void* m_a, const int64_t* a, const void* m_b,
                     const int64_t* b, void* m, int64_t* sums, int64_t n);
void run_exact_lse(const Isa& isa, Dtype dtype, int threads, const void* m, const int64_t* a, void* lse, int64_t n);
void run_exact_log_sum(const Isa& isa, Dtype dtype, int threads, const void* m, const int64_t* a, double* log_sum,
                       int64_t n);

}  // namespace osm
