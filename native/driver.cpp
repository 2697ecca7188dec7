#include "driver.h"

#include <atomic>

#include "context.h"

namespace osm {
namespace {

void empty_rows(const Context& c) {
  for (int64_t r = 0; r < c.layout.rows; ++r) {
    const int64_t at = c.layout.place(r).result;
    put_number(c.problem, c.problem.first, at, -HUGE_VAL);
    if (c.problem.second) put_number(c.problem, c.problem.second, at, 0.0);
  }
}

struct Limits {
  std::atomic<int64_t> rows[4][kDtypes];
  std::atomic<int64_t> column{1024};
  Limits() {
    for (int op = 0; op < 4; ++op)
      for (int d = 0; d < kDtypes; ++d) {
        const int64_t element = (int64_t)dtype_size((Dtype)d), kept = element < 4 ? 4 : element;
        rows[op][d] = (Op)op == Op::softmax ? (512 << 10) / (2 * element + kept) : (21 << 10) / element;
      }
  }
} limits;

}  // namespace

Algorithm choose_algorithm(Op op, Dtype dtype, int64_t cols) {
  const int64_t limit = limits.rows[(int)op][(int)dtype].load(std::memory_order_relaxed);
  return cols <= limit ? Algorithm::cached : Algorithm::online;
}
void set_cached_limit(Op op, Dtype dtype, int64_t cols) { limits.rows[(int)op][(int)dtype] = cols; }
void set_cached_column(int64_t length) { limits.column = length; }
int64_t cached_column() { return limits.column.load(std::memory_order_relaxed); }

void run(const Problem& problem) {
  const Context c(problem);
  if (c.layout.rows == 0) return;
  if (c.layout.cols == 0) {
    if (!c.writes()) empty_rows(c);
    return;
  }
  if (c.plain && c.adjacent && (!c.writes() || c.layout.adjacent_result(c.size))) {
    if (few_long_rows(c)) return run_segments(c);
    return run_rows(c);
  }
  const bool own_kernel = c.algorithm == Algorithm::cached || c.algorithm == Algorithm::online;
  if (c.plain && !c.adjacent && own_kernel && c.layout.across())
    return c.layout.side_by_side(c.size, c.writes()) ? run_cols(c) : run_grouped(c);
  if (own_kernel && c.problem.where && !c.problem.weights && !c.problem.given) {
    if (masked_rows(c)) return run_masked_rows(c);
    if (masked_cols(c)) return run_masked_cols(c);
  }
  run_packed(c);
}
void small_rows(const Isa& isa, Op op, Dtype dtype, const char* x, char* y, int64_t rows, int64_t cols) {
  RowsJob job{};
  job.op = op, job.algorithm = choose_algorithm(op, dtype, cols);
  job.x = x, job.y = y, job.rows = rows, job.cols = cols;
  job.x_stride = job.y_stride = cols * (int64_t)dtype_size(dtype);
  job.scratch = thread_scratch(rows_scratch(dtype, cols));
  isa.kernels[(int)dtype].rows(job);
}

void small_lse(const Isa& isa, Dtype dtype, const char* x, int64_t rows, int64_t cols, double* lse) {
  constexpr int64_t kBlock = 64;
  RowState states[kBlock];
  const int64_t row_bytes = cols * (int64_t)dtype_size(dtype);
  RowsJob job{};
  job.op = Op::lse, job.algorithm = choose_algorithm(Op::lse, dtype, cols);
  job.states = states, job.cols = cols, job.x_stride = row_bytes;
  job.scratch = thread_scratch(rows_scratch(dtype, cols));
  for (int64_t first = 0; first < rows; first += kBlock) {
    job.x = x + first * row_bytes, job.rows = std::min(kBlock, rows - first);
    isa.kernels[(int)dtype].rows(job);
    isa.finish(states, lse + first, job.rows);
  }
  for (int64_t r = 0; r < rows; ++r)
    if (std::fabs(lse[r]) < 0.25) lse[r] = lse_near_0(isa, dtype, x + r * row_bytes, cols);
}

int64_t rows_scratch(Dtype dtype, int64_t cols) {
  // A row of exponentials padded to whole pairs, and the buffer that puts lines together.
  const int64_t working = dtype == Dtype::f64 ? 8 : 4;
  return (cols + 64) * working + 64 * 1024;
}

int64_t cols_scratch(Dtype dtype, int64_t length) {
  const int64_t working = dtype == Dtype::f64 ? 8 : 4;
  // A strip's states, and its elements: those of one pair of registers at least.
  return std::max<int64_t>(256 * 1024, length * 32 * working) + 96 * 1024;
}

}  // namespace osm
