// What the driver's parts share: a problem with its layout and choices, and how results are put down.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "driver.h"
#include "layout.h"
#include "pool.h"
#include "state.h"

namespace osm {

// Work below this many elements is done by the caller alone: waking a thread costs tens of microseconds, and a thread
// that shares its core with another process may keep its item for a whole time slice.
constexpr int64_t kParallelElements = 200000;
// Results beyond this many bytes go around the cache.
constexpr int64_t kStreamBytes = 8 << 20;
constexpr int64_t kItemBytes = 256 << 10;  // about what one claim of a thread reads

// Most results put down at once.
constexpr int64_t kBatch = 256;

inline RowState to_row(State s) { return {s.m, s.s}; }
inline State to_state(RowState s) { return {s.m, s.s}; }

inline void put_number(const Problem& p, void* array, int64_t at, double value) {
  if (p.single)
    ((float*)array)[at] = (float)value;
  else
    ((double*)array)[at] = value;
}

inline int64_t aligned64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Context {
  const Problem& problem;
  const Kernels& kernels;
  Layout layout;
  int64_t size;  // of an element
  Algorithm algorithm;
  bool plain, adjacent;  // neither mask nor weights; elements of a row adjacent
  bool stream;
  int threads;

  explicit Context(const Problem& p)
      : problem(p), kernels(kernels_of(*p.isa, p.dtype, p.fast)), layout(p), size((int64_t)dtype_size(p.dtype)) {
    plain = !p.where && !p.weights;
    adjacent = layout.adjacent(size);
    if (p.algorithm != kAuto)
      algorithm = (Algorithm)p.algorithm;
    else if (plain && !adjacent && layout.across())
      algorithm = layout.cols <= cached_column() ? Algorithm::cached : Algorithm::online;
    else
      algorithm = choose_algorithm(p.op, p.dtype, layout.cols);
    const int64_t total = layout.rows * layout.cols;
    stream = total * size >= kStreamBytes;
    threads = total < kParallelElements ? 1 : p.threads;
  }
  bool writes() const { return problem.op == Op::softmax || problem.op == Op::log_softmax; }
  RowState segment(const char* x, int64_t n) const {
    if (problem.op == Op::softmax) return kernels.softmax_state(x, n);
    return (problem.op == Op::lse ? kernels.segment : kernels.state)(x, n);
  }
};

// log(s), where one term may dominate: the others are summed by themselves (`rest`), log1p keeps what 1 + r rounds
// away.
inline bool blunt(const RowState& st) { return st.s < 1.25 && st.s >= 1.0 && std::isfinite(st.m); }
template <class Rest>
double log_sum(const RowState& st, const Rest& rest) {
  if (!blunt(st)) return std::log(st.s);
  int64_t equal = 0;
  const RowState r = rest(&equal);
  return std::log((double)equal) + std::log1p(r.s / (double)equal);
}

// Sum of exp(x - m) over the elements that are not m, and the count of those that are; all in double.
inline RowState rest_in_double(const Isa& isa, Dtype dtype, const char* x, int64_t n, double m, int64_t* equal) {
  constexpr int64_t piece = 256;
  double wide[piece];
  RowState total{m, 0};
  *equal = 0;
  for (int64_t i = 0; i < n; i += piece) {
    const int64_t here = std::min(piece, n - i);
    isa.kernels[(int)dtype].widen(x + i * (int64_t)dtype_size(dtype), wide, here);
    int64_t same = 0;
    total.s += isa.kernels[(int)Dtype::f64].rest((const char*)wide, here, m, &same).s;
    *equal += same;
  }
  return total;
}
inline double lse_of_rest(double m, double rest, int64_t equal) {
  return m + std::log((double)equal) + std::log1p(rest / (double)equal);
}
// The log-sum-exp of a row of adjacent elements whose result is so near 0 that the rounding of float shows.
inline double lse_near_0(const Isa& isa, Dtype dtype, const char* x, int64_t cols) {
  const int64_t size = (int64_t)dtype_size(dtype);
  double m = -HUGE_VAL;
  for (int64_t i = 0; i < cols; i += kSegment)
    m = std::max(m, isa.kernels[(int)dtype].maximum(x + i * size, std::min(kSegment, cols - i)));
  int64_t equal = 0;
  const RowState rest = rest_in_double(isa, dtype, x, cols, m, &equal);
  return lse_of_rest(m, rest.s, equal);
}

// log-sum-exps of n rows from their states; `near_0` makes the i-th anew where it is so near 0 that it must be sharp.
inline void put_lse(const Context& c, const RowState* states, const int64_t* at, int64_t n,
                    const std::function<double(int64_t)>& near_0) {
  double lse[kBatch];
  c.problem.isa->finish(states, lse, n);
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(lse[i]) < 0.25) lse[i] = near_0(i);
    put_number(c.problem, c.problem.first, at[i], lse[i]);
  }
}
inline void put_states(const Context& c, const RowState* states, const int64_t* at, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    put_number(c.problem, c.problem.first, at[i], states[i].m);
    put_number(c.problem, c.problem.second, at[i], states[i].s);
  }
}

inline RowsJob rows_job(const Context& c) {
  RowsJob job{};
  job.op = c.problem.op;
  job.algorithm = c.algorithm;
  job.fast = c.problem.fast;
  job.given = c.problem.given;
  job.stream = c.stream && c.writes();
  job.cols = c.layout.cols;
  return job;
}

// The states a caller gave for n rows from r on.
inline void read_states(const Context& c, const Place& p, int64_t step, int64_t n, RowState* states) {
  const double *m = (const double*)c.problem.first, *s = (const double*)c.problem.second;
  for (int64_t i = 0; i < n; ++i) states[i] = {m[p.result + i * step], s[p.result + i * step]};
}

template <int size>
void copy_strided(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, size);
}
inline void copy_elements(int64_t size, const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n) {
  if (size == 4)
    copy_strided<4>(from, from_step, to, to_step, n);
  else if (size == 8)
    copy_strided<8>(from, from_step, to, to_step, n);
  else
    copy_strided<2>(from, from_step, to, to_step, n);
}

inline void set_neg_inf(Dtype d, char* p) {
  if (d == Dtype::f64) {
    const double v = -HUGE_VAL;
    std::memcpy(p, &v, 8);
  } else if (d == Dtype::f32) {
    const float v = -HUGE_VALF;
    std::memcpy(p, &v, 4);
  } else {
    const uint16_t v = d == Dtype::f16 ? 0xfc00 : 0xff80;
    std::memcpy(p, &v, 2);
  }
}

// The ways to carry a problem out; run() in driver.cpp chooses.
void run_rows(const Context& c);  // rows of adjacent elements
bool few_long_rows(const Context& c);
void run_segments(const Context& c);  // few long rows, shared out by segments
void run_cols(const Context& c);      // neighbours across the reduced axis lie side by side
// Results of rows whose states are known, at their places.
void put_rows(const Context& c, const RowsJob& job, const int64_t* at);
// Results of columns whose states are known, `step` results apart.
void put_columns(const Context& c, const ColsJob& job, int64_t result, int64_t step);
bool masked_rows(const Context& c);
void run_masked_rows(const Context& c);
bool masked_cols(const Context& c);
void run_masked_cols(const Context& c);
void run_grouped(const Context& c);  // neighbours are brought side by side
void run_packed(const Context& c);   // elements are gathered one by one

}  // namespace osm
