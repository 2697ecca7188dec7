// Rows of adjacent elements: whole rows to each thread, or the segments of a few long ones.
#include <vector>

#include "context.h"

namespace osm {

// ---- rows of adjacent elements

void put_rows(const Context& c, const RowsJob& job, const int64_t* at) {
  if (job.op == Op::state) return put_states(c, job.states, at, job.rows);
  put_lse(c, job.states, at, job.rows,
          [&](int64_t i) { return lse_near_0(*c.problem.isa, c.problem.dtype, job.x + i * job.x_stride, job.cols); });
}

static void reduce_rows(const Context& c, RowsJob job, int64_t from, int64_t to) {
  RowState states[kBatch];
  int64_t at[kBatch];
  const Dim& inner = c.layout.inner();
  for (int64_t r = from; r < to;) {
    const Place p = c.layout.place(r);
    const int64_t n = std::min({kBatch, to - r, inner.size - p.inner});
    job.x = c.problem.x + p.x, job.x_stride = inner.x;
    job.rows = n, job.states = states;
    c.kernels.rows(job);
    for (int64_t i = 0; i < n; ++i) at[i] = p.result + i * inner.result;
    put_rows(c, job, at);
    r += n;
  }
}

static void map_rows(const Context& c, RowsJob job, int64_t from, int64_t to) {
  const Dim& inner = c.layout.inner();
  RowState states[kBatch];
  const int64_t most = c.problem.given ? kBatch : INT64_MAX;
  for (int64_t r = from; r < to;) {
    const Place p = c.layout.place(r);
    job.rows = std::min({to - r, inner.size - p.inner, most});
    if (job.given) read_states(c, p, inner.result, job.rows, states), job.states = states;
    job.x = c.problem.x + p.x, job.x_stride = inner.x;
    job.y = c.problem.y + p.y, job.y_stride = inner.y;
    c.kernels.rows(job);
    r += job.rows;
  }
}

void run_rows(const Context& c) {
  const int64_t row_bytes = std::max<int64_t>(1, c.layout.cols * c.size);
  const int64_t per_item = std::max<int64_t>(1, kItemBytes / row_bytes);
  const int64_t items = (c.layout.rows + per_item - 1) / per_item;
  const int64_t scratch = rows_scratch(c.problem.dtype, c.algorithm == Algorithm::cached ? c.layout.cols : 0);
  parallel_for(items, c.threads, [&](int64_t item) {
    RowsJob job = rows_job(c);
    job.scratch = thread_scratch(scratch);
    const int64_t from = item * per_item, to = std::min(from + per_item, c.layout.rows);
    if (c.writes())
      map_rows(c, job, from, to);
    else
      reduce_rows(c, job, from, to);
  });
}

// ---- few long rows: their segments are shared out and the states merged from left to right

bool few_long_rows(const Context& c) {
  return c.algorithm == Algorithm::online && !c.problem.given && c.threads > 1 && c.layout.rows < 2 * c.threads &&
         c.layout.cols >= 2 * kSegment;
}

void run_segments(const Context& c) {
  const int64_t cols = c.layout.cols, segments = (cols + kSegment - 1) / kSegment;
  std::vector<RowState> states((size_t)segments);
  for (int64_t r = 0; r < c.layout.rows; ++r) {
    const Place p = c.layout.place(r);
    const char* x = c.problem.x + p.x;
    const auto length = [&](int64_t i) { return std::min(kSegment, cols - i * kSegment); };
    parallel_for(segments, c.threads,
                 [&](int64_t i) { states[(size_t)i] = c.segment(x + i * kSegment * c.size, length(i)); });
    State all = to_state(states[0]);
    for (size_t i = 1; i < states.size(); ++i) all = merge(all, to_state(states[i]));
    const RowState st = to_row(all);
    if (c.problem.op == Op::state) {
      put_states(c, &st, &p.result, 1);
    } else if (c.problem.op == Op::lse) {
      put_lse(c, &st, &p.result, 1, [&](int64_t) { return lse_near_0(*c.problem.isa, c.problem.dtype, x, cols); });
    } else {
      char* y = c.problem.y + p.y;
      const double log_s = c.problem.op == Op::log_softmax ? c.kernels.log_sum(x, cols, st) : 0.0;
      parallel_for(segments, c.threads, [&](int64_t i) {
        const int64_t at = i * kSegment * c.size;
        c.kernels.write(c.problem.op, x + at, y + at, length(i), st, log_s, c.stream);
      });
    }
  }
}

}  // namespace osm
