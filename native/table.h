// What an instruction set offers: plain pointers and sizes in, nothing thrown, no framework known.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace osm {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

enum class Dtype : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 3 };
constexpr int kDtypes = 4;
constexpr size_t dtype_size(Dtype d) { return d == Dtype::f64 ? 8 : d == Dtype::f32 ? 4 : 2; }

enum class Op : int { softmax = 0, log_softmax = 1, lse = 2, state = 3 };
enum class Algorithm : int { naive = 0, three_pass = 1, online = 2, cached = 3 };

// Longest piece of a row that one state is made of: longer rows are cut here, wherever they lie and however many
// threads there are, and the states are merged from left to right. So the bits of a row depend on the row alone.
constexpr int64_t kSegment = 32768;

// State of a row or segment: m the true maximum, s the sum of exp(x - m). A NaN makes s NaN; (-inf, 0) is empty. Where
// it says so, m is another finite number near the maximum, which merging and the log-sum-exp take as well.
struct RowState {
  double m, s;
};

// Rows whose elements are adjacent. Strides in bytes. For Op::lse and Op::state y is unused and the results go to
// `states`, one a row.
struct RowsJob {
  Op op;
  Algorithm algorithm;
  bool fast;    // precision="fast": a 16-bit result may be off by one unit in the last place
  bool stream;  // the result will not be read again soon: non-temporal stores
  bool given;   // the states are known: the write pass alone
  const char* x;
  char* y;
  RowState* states;
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  char* scratch;  // scratch_bytes() of it, 64-byte aligned
};

// Columns: the reduced axis has stride x_step, `count` columns lie side by side. y_step and y follow the same pattern.
struct ColsJob {
  Op op;
  Algorithm algorithm;
  bool stream, given;
  const char* x;
  char* y;
  RowState* states;
  int64_t length, count;
  int64_t x_step, y_step;
  char* scratch;
};

// The k largest logits of one row. NaN counts as the largest, ties go to the lower index.
struct TopkJob {
  const char* x;
  int64_t cols;
  int64_t k;
  double* best;    // k logits, descending
  int64_t* index;  // their places
};

struct Kernels {
  void (*rows)(const RowsJob&);
  void (*cols)(const ColsJob&);
  // State of n adjacent elements, n <= kSegment: for a log-sum-exp; for a state that is itself the result; for a
  // softmax, by the very exponentials that write() divides. In the first and the last m is what s is relative to, some
  // number near the maximum.
  RowState (*segment)(const char* x, int64_t n);
  RowState (*state)(const char* x, int64_t n);
  RowState (*softmax_state)(const char* x, int64_t n);
  double (*maximum)(const char* x, int64_t n);  // no word on NaN
  // m and the sum over the elements that are not equal to m, with their count: for a log-sum-exp near zero.
  RowState (*rest)(const char* x, int64_t n, double m, int64_t* equal);
  // log(s) of a whole row whose state is known, to full accuracy near 0.
  double (*log_sum)(const char* x, int64_t n, RowState state);
  // y = exp(x - m) / s, or (x - m) - log_s.
  void (*write)(Op op, const char* x, char* y, int64_t n, RowState state, double log_s, bool stream);
  // e = exp(x - m) in double, for weighted sums.
  void (*exps)(const char* x, double* e, int64_t n, double m);
  void (*widen)(const char* x, double* to, int64_t n);
  void (*topk)(const TopkJob&);
};

struct Isa {
  const char* name;
  bool (*usable)();
  Kernels kernels[kDtypes];
  // lse[i] = m + log(s), with the rules for empty, infinite and NaN rows.
  void (*finish)(const RowState* states, double* lse, int64_t n);
  void (*exp_f32)(const float* x, float* y, int64_t n);
  uint64_t (*probe_read)(const char* src, int64_t bytes);
  void (*probe_copy)(const char* src, char* dst, int64_t bytes, bool stream);
};

// Bytes of scratch that rows() and cols() need for this length.
int64_t rows_scratch(Dtype dtype, int64_t cols);
int64_t cols_scratch(Dtype dtype, int64_t length);

// The kernels of a format; with `fast`, those that trade a unit or two of a 16-bit result for speed, where there are
// any.
const Kernels& kernels_of(const Isa& isa, Dtype dtype, bool fast);

// Best first; the scalar one is last and always there.
const Isa* const* all_isas(int* count);
const Isa* find_isa(const char* name);  // null where the name is unknown or the CPU lacks it

}  // namespace osm
