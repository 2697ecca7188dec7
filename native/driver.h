// From strided arrays to kernels: joins axes, chooses rows, columns or packing, cuts the work for the threads.
#pragma once
#include <cstdint>

#include "table.h"

namespace osm {

constexpr int kMaxDims = 64;
constexpr int kAuto = -1;

struct Problem {
  Op op = Op::softmax;
  Dtype dtype = Dtype::f32;
  const Isa* isa = nullptr;
  int algorithm = kAuto;  // or an Algorithm
  bool fast = false;
  int threads = 1;
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  uint64_t reduced = 0;  // bit d: axis d is reduced
  const char* x = nullptr;
  int64_t x_strides[kMaxDims] = {};  // bytes, as all strides
  char* y = nullptr;                 // softmax, log_softmax
  int64_t y_strides[kMaxDims] = {};
  const char* where = nullptr;  // one byte an element, or null
  int64_t where_strides[kMaxDims] = {};
  const char* weights = nullptr;  // double, Op::lse alone, or null
  int64_t weights_strides[kMaxDims] = {};
  // Op::lse: lse and, with weights, the sign; Op::state: m and s. In the order of the axes that are left, row-major.
  // With `given`, softmax and log_softmax take m and s (double) from here: the write pass alone.
  bool given = false;
  void* first = nullptr;
  void* second = nullptr;
  bool single = false;  // results in float, not double
};

void run(const Problem& problem);

// Row-wise top-k along one axis: k values (probabilities) and places a row, and the row's lse. Row-major results.
struct TopkProblem {
  Problem rows;  // op, first, second unused
  int64_t k = 0;
  double* values = nullptr;
  int64_t* places = nullptr;
  double* lse = nullptr;
};
void run_topk(const TopkProblem& problem);

// Softmax or log-softmax of a few rows that lie end to end, with no planning: for calls on a few thousand elements.
void small_rows(const Isa& isa, Op op, Dtype dtype, const char* x, char* y, int64_t rows, int64_t cols);

// The log-sum-exps of such rows.
void small_lse(const Isa& isa, Dtype dtype, const char* x, int64_t rows, int64_t cols, double* lse);

// What `auto` means for a row of this length: `cached` up to a limit, `online` beyond.
Algorithm choose_algorithm(Op op, Dtype dtype, int64_t cols);
// The limits come from the model of the caches (traffic/cache.py); until they are set they are those of a core with
// 32 KiB and 1 MiB. `columns`: the longest column whose strip keeps its exponentials.
void set_cached_limit(Op op, Dtype dtype, int64_t cols);
void set_cached_column(int64_t length);
int64_t cached_column();

}  // namespace osm
