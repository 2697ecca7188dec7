// A reduced axis that is not adjacent: lanes are rows, side by side in memory or brought there.
#include "context.h"

namespace osm {

// ---- the reduced axis is not the last: neighbours across it lie side by side

// Results of up to 64 columns from their states; job.x is where their elements lie.
static void put_column_states(const Context& c, const ColsJob& job, const int64_t* at) {
  if (job.op == Op::state) return put_states(c, job.states, at, job.count);
  put_lse(c, job.states, at, job.count, [&](int64_t column) {
    const double m = job.states[column].m;
    double total = 0;
    int64_t count = 0;
    char piece[64 * 8];
    for (int64_t q = 0; q < job.length; q += 64) {
      const int64_t n = std::min<int64_t>(64, job.length - q);
      copy_elements(c.size, job.x + q * job.x_step + column * c.size, job.x_step, piece, c.size, n);
      int64_t equal = 0;
      total += rest_in_double(*c.problem.isa, c.problem.dtype, piece, n, m, &equal).s;
      count += equal;
    }
    return lse_of_rest(m, total, count);
  });
}

void put_columns(const Context& c, const ColsJob& job, int64_t result, int64_t step) {
  for (int64_t i = 0; i < job.count; i += 64) {
    ColsJob part = job;
    part.x += i * c.size, part.states += i, part.count = std::min<int64_t>(64, job.count - i);
    int64_t at[64];
    for (int64_t k = 0; k < part.count; ++k) at[k] = result + (i + k) * step;
    put_column_states(c, part, at);
  }
}

void run_cols(const Context& c) {
  const Dim& side = c.layout.side();
  const Dim& along = c.layout.along[0];
  const int64_t outer = c.layout.rows / side.size;
  // Whole strips an item, and lines that no two items share.
  const int64_t wide = c.algorithm == Algorithm::cached
                           ? std::clamp<int64_t>(kItemBytes / (along.size * c.size) / 64 * 64, 64, 4096)
                           : 1024;
  const int64_t strips = (side.size + wide - 1) / wide;
  const int64_t scratch = cols_scratch(c.problem.dtype, c.algorithm == Algorithm::cached ? along.size : 0);
  parallel_for(outer * strips, c.threads, [&](int64_t item) {
    const Place p = c.layout.place_beside(item / strips);
    const int64_t from = item % strips * wide, count = std::min(wide, side.size - from);
    ColsJob job{};
    job.op = c.problem.op, job.algorithm = c.algorithm, job.stream = c.stream && c.writes();
    job.x = c.problem.x + p.x + from * c.size, job.x_step = along.x;
    job.length = along.size, job.count = count;
    job.scratch = thread_scratch(scratch + aligned64(count * (int64_t)sizeof(RowState)));
    RowState* states = (RowState*)(job.scratch + scratch);
    job.states = states, job.given = c.problem.given;
    Place first = p;
    first.result += from * side.result;
    if (job.given) read_states(c, first, side.result, count, states);
    if (c.writes()) {
      job.y = c.problem.y + p.y + from * c.size, job.y_step = along.y;
      c.kernels.cols(job);
      return;
    }
    c.kernels.cols(job);
    put_columns(c, job, first.result, side.result);
  });
}

// ---- the same, where neighbours have to be brought side by side first

constexpr int64_t kGroup = 32;             // rows brought together
constexpr int64_t kGroupBytes = 64 << 20;  // longer columns go one at a time, straight from where they lie

static void copy_group(const Context& c, const Place* rows, int64_t n, char* group, bool back) {
  const Dim& along = c.layout.along[0];
  const int64_t line = kGroup * c.size, step = back ? along.y : along.x;
  for (int64_t i = 0; i < n; ++i) {
    if (back)
      copy_elements(c.size, group + i * c.size, line, c.problem.y + rows[i].y, step, along.size);
    else
      copy_elements(c.size, c.problem.x + rows[i].x, step, group + i * c.size, line, along.size);
  }
}

void run_grouped(const Context& c) {
  const Dim& along = c.layout.along[0];
  const int64_t line = kGroup * c.size;
  const bool together = along.size * line <= kGroupBytes;
  const int64_t group = together ? kGroup : 1;
  const int64_t data = together ? aligned64(along.size * line) : 0;
  const int64_t scratch = cols_scratch(c.problem.dtype, c.algorithm == Algorithm::cached ? along.size : 0);
  parallel_for((c.layout.rows + group - 1) / group, c.threads, [&](int64_t item) {
    const int64_t from = item * group, n = std::min(group, c.layout.rows - from);
    Place rows[kGroup];
    int64_t at[kGroup];
    for (int64_t i = 0; i < n; ++i) rows[i] = c.layout.place(from + i), at[i] = rows[i].result;
    char* base = thread_scratch(scratch + data);
    RowState states[kGroup];
    ColsJob job{};
    job.op = c.problem.op, job.algorithm = c.algorithm;
    job.length = along.size, job.count = n, job.scratch = base, job.states = states, job.given = c.problem.given;
    if (job.given)
      for (int64_t i = 0; i < n; ++i) read_states(c, rows[i], 0, 1, states + i);
    if (together) {
      copy_group(c, rows, n, base + scratch, false);
      job.x = base + scratch, job.x_step = line, job.y = base + scratch, job.y_step = line;
    } else {
      job.x = c.problem.x + rows[0].x, job.x_step = along.x, job.y = c.problem.y + rows[0].y, job.y_step = along.y;
    }
    c.kernels.cols(job);
    if (c.writes()) {
      if (together) copy_group(c, rows, n, base + scratch, true);
    } else {
      put_column_states(c, job, at);
    }
  });
}

}  // namespace osm
