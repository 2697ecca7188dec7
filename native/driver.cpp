#include "driver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "layout.h"
#include "pool.h"
#include "state.h"

namespace osm {
namespace {

// Work below this many elements is done by the caller alone: waking a thread costs tens of microseconds, and a thread
// that shares its core with another process may keep its item for a whole time slice.
constexpr int64_t kParallelElements = 200000;
// Results beyond this many bytes go around the cache.
constexpr int64_t kStreamBytes = 8 << 20;
constexpr int64_t kItemBytes = 256 << 10;  // about what one claim of a thread reads

// Columns up to this length keep their exponentials in cache between the passes.
constexpr int64_t kColumnCached = 1024;

RowState to_row(State s) { return {s.m, s.s}; }
State to_state(RowState s) { return {s.m, s.s}; }

void put_number(const Problem& p, void* array, int64_t at, double value) {
  if (p.single)
    ((float*)array)[at] = (float)value;
  else
    ((double*)array)[at] = value;
}

int64_t aligned64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

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
      : problem(p), kernels(p.isa->kernels[(int)p.dtype]), layout(p), size((int64_t)dtype_size(p.dtype)) {
    plain = !p.where && !p.weights;
    adjacent = layout.adjacent(size, writes());
    if (p.algorithm != kAuto)
      algorithm = (Algorithm)p.algorithm;
    else if (plain && !adjacent && layout.across())
      algorithm = layout.cols <= kColumnCached ? Algorithm::cached : Algorithm::online;
    else
      algorithm = choose_algorithm(p.op, p.dtype, layout.cols);
    const int64_t total = layout.rows * layout.cols;
    stream = total * size >= kStreamBytes;
    threads = total < kParallelElements ? 1 : p.threads;
  }
  bool writes() const { return problem.op == Op::softmax || problem.op == Op::log_softmax; }
  RowState segment(const char* x, int64_t n) const {
    if (problem.op == Op::softmax) return kernels.softmax_state(x, n);
    return (problem.op == Op::state ? kernels.state : kernels.segment)(x, n);
  }
};

// log(s), where one term may dominate: the others are summed by themselves (`rest`), log1p keeps what 1 + r rounds
// away.
bool blunt(const RowState& st) { return st.s < 1.25 && st.s >= 1.0 && std::isfinite(st.m); }
template <class Rest>
double log_sum(const RowState& st, const Rest& rest) {
  if (!blunt(st)) return std::log(st.s);
  int64_t equal = 0;
  const RowState r = rest(&equal);
  return std::log((double)equal) + std::log1p(r.s / (double)equal);
}

// log-sum-exps of n rows from their states; sharpened as above where the result is so near 0 that it shows.
void put_lse(const Context& c, const RowState* states, const int64_t* at, int64_t n,
             const std::function<RowState(int64_t, int64_t*)>& rest) {
  double lse[64];
  c.problem.isa->finish(states, lse, n);
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(lse[i]) < 0.25 && blunt(states[i]))
      lse[i] = states[i].m + log_sum(states[i], [&](int64_t* equal) { return rest(i, equal); });
    put_number(c.problem, c.problem.first, at[i], lse[i]);
  }
}
void put_states(const Context& c, const RowState* states, const int64_t* at, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    put_number(c.problem, c.problem.first, at[i], states[i].m);
    put_number(c.problem, c.problem.second, at[i], states[i].s);
  }
}

// ---- rows of adjacent elements
// -------------------------------------------------------------------------------------------

RowsJob rows_job(const Context& c) {
  RowsJob job{};
  job.op = c.problem.op;
  job.algorithm = c.algorithm;
  job.fast = c.problem.fast;
  job.given = c.problem.given;
  job.stream = c.stream && c.writes();
  job.cols = c.layout.cols;
  return job;
}

void reduce_rows(const Context& c, RowsJob job, int64_t from, int64_t to) {
  RowState states[64];
  int64_t at[64];
  const Dim& inner = c.layout.inner();
  for (int64_t r = from; r < to;) {
    const Place p = c.layout.place(r);
    const int64_t n = std::min({(int64_t)64, to - r, inner.size - p.inner});
    job.x = c.problem.x + p.x, job.x_stride = inner.x;
    job.rows = n, job.states = states;
    c.kernels.rows(job);
    for (int64_t i = 0; i < n; ++i) at[i] = p.result + i * inner.result;
    if (job.op == Op::state)
      put_states(c, states, at, n);
    else
      put_lse(c, states, at, n, [&](int64_t i, int64_t* equal) {
        return c.kernels.rest(job.x + i * inner.x, job.cols, states[i].m, equal);
      });
    r += n;
  }
}

// The states a caller gave for n rows from r on.
void read_states(const Context& c, const Place& p, int64_t step, int64_t n, RowState* states) {
  const double *m = (const double*)c.problem.first, *s = (const double*)c.problem.second;
  for (int64_t i = 0; i < n; ++i) states[i] = {m[p.result + i * step], s[p.result + i * step]};
}

void map_rows(const Context& c, RowsJob job, int64_t from, int64_t to) {
  const Dim& inner = c.layout.inner();
  RowState states[64];
  const int64_t most = c.problem.given ? 64 : INT64_MAX;
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
// --------------------------------

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
      put_lse(c, &st, &p.result, 1, [&](int64_t, int64_t* equal) { return c.kernels.rest(x, cols, st.m, equal); });
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

// ---- the reduced axis is not the last: neighbours across it lie side by side
// ---------------------------------------------

template <int size>
void copy_strided(const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, size);
}
void copy_elements(int64_t size, const char* from, int64_t from_step, char* to, int64_t to_step, int64_t n) {
  if (size == 4)
    copy_strided<4>(from, from_step, to, to_step, n);
  else if (size == 8)
    copy_strided<8>(from, from_step, to, to_step, n);
  else
    copy_strided<2>(from, from_step, to, to_step, n);
}

// Results of up to 64 columns from their states; job.x is where their elements lie.
void put_column_states(const Context& c, const ColsJob& job, const int64_t* at) {
  if (job.op == Op::state) return put_states(c, job.states, at, job.count);
  put_lse(c, job.states, at, job.count, [&](int64_t column, int64_t* equal) {
    RowState total{job.states[column].m, 0};
    char piece[64 * 8];
    *equal = 0;
    for (int64_t q = 0; q < job.length; q += 64) {
      const int64_t n = std::min<int64_t>(64, job.length - q);
      copy_elements(c.size, job.x + q * job.x_step + column * c.size, job.x_step, piece, c.size, n);
      int64_t same = 0;
      total.s += c.kernels.rest(piece, n, total.m, &same).s;
      *equal += same;
    }
    return total;
  });
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
    for (int64_t i = 0; i < count; i += 64) {
      ColsJob part = job;
      part.x += i * c.size, part.states += i, part.count = std::min<int64_t>(64, count - i);
      int64_t at[64];
      for (int64_t k = 0; k < part.count; ++k) at[k] = p.result + (from + i + k) * side.result;
      put_column_states(c, part, at);
    }
  });
}

// ---- the same, where neighbours have to be brought side by side first
// ------------------------------------------------------

constexpr int64_t kGroup = 32;             // rows brought together
constexpr int64_t kGroupBytes = 64 << 20;  // longer columns go one at a time, straight from where they lie

void copy_group(const Context& c, const Place* rows, int64_t n, char* group, bool back) {
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

// ---- everything else: a row is gathered into adjacent elements, masked slots selected out
// ---------------------------------

void set_neg_inf(Dtype d, char* p) {
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

struct Packed {
  const Context& c;
  Place row;
  char* data;       // one segment (or row) of elements
  uint8_t* live;    // which of them take part; all ones without a mask
  double* weights;  // null without weights
  char* kernel_scratch;
  int64_t live_count = 0;

  // Elements [from, from + n) of the row; masked ones and those of weight 0 become -inf.
  void gather(int64_t from, int64_t n) {
    const Problem& p = c.problem;
    std::memset(live, 1, (size_t)n);
    c.layout.each_run(from, n, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
      copy_elements(c.size, p.x + row.x + o.x, d.x, data + at * c.size, c.size, count);
      if (p.where) {
        const char* where = p.where + row.where + o.where;
        for (int64_t i = 0; i < count; ++i) live[at + i] = where[i * d.where] != 0;
      }
      if (p.weights)
        for (int64_t i = 0; i < count; ++i) {
          double w;
          std::memcpy(&w, p.weights + row.weights + o.weights + i * d.weights, 8);
          live[at + i] &= w != 0;
          weights[at + i] = live[at + i] ? w : 0.0;
        }
    });
    live_count = n;
    if (p.where || p.weights)
      live_count = c.size == 8 ? select<uint64_t>(n) : c.size == 4 ? select<uint32_t>(n) : select<uint16_t>(n);
  }
  template <class U>
  int64_t select(int64_t n) {
    U* element = (U*)data;
    char bits[8] = {};
    set_neg_inf(c.problem.dtype, bits);
    U blank;
    std::memcpy(&blank, bits, sizeof blank);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      element[i] = live[i] ? element[i] : blank;
      count += live[i];
    }
    return count;
  }

  // Results back to their places; masked slots get 0 (softmax) or -inf (log_softmax).
  void scatter(int64_t from, int64_t n) {
    const Problem& p = c.problem;
    char blank[8] = {};
    if (p.op == Op::log_softmax) set_neg_inf(p.dtype, blank);
    c.layout.each_run(from, n, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
      char* y = p.y + row.y + o.y;
      copy_elements(c.size, data + at * c.size, c.size, y, d.y, count);
      if (!p.where) return;
      for (int64_t i = 0; i < count; ++i)
        if (!live[at + i]) std::memcpy(y + i * d.y, blank, (size_t)c.size);
    });
  }

  // sum of weight * exp(x - m): a state whose s may have any sign.
  RowState weighted(int64_t n) {
    if (c.algorithm == Algorithm::naive) return weighted_unshifted(n);
    const RowState plain = c.segment(data, n);
    if (std::isnan(plain.s)) return plain;
    double s = 0;
    if (plain.m == HUGE_VAL) {  // only the infinite terms count
      for (int64_t i = 0; i < n; ++i)
        if (element(i) == HUGE_VAL) s += weights[i];
      return {plain.m, s == 0 ? std::nan("") : s};
    }
    std::vector<double> e((size_t)n);
    c.kernels.exps(data, e.data(), n, guard(plain.m));
    for (int64_t i = 0; i < n; ++i)
      if (live[i]) s += weights[i] * e[(size_t)i];
    return {plain.m, s};
  }
  // The same with no maximum taken out, overflowing where the working format does.
  RowState weighted_unshifted(int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (!live[i]) continue;
      const double e = std::exp(element(i));
      s += weights[i] * (c.problem.dtype == Dtype::f64 ? e : (double)(float)e);
    }
    return {0.0, s};
  }
  double element(int64_t i) const {
    double e;
    c.kernels.widen(data + i * c.size, &e, 1);
    return e;
  }
};

RowState packed_rest(const Context& c, Packed& p, int64_t chunk, double m, int64_t* equal) {
  RowState total{m, 0};
  *equal = 0;
  for (int64_t from = 0; from < c.layout.cols; from += chunk) {
    const int64_t n = std::min(chunk, c.layout.cols - from);
    p.gather(from, n);
    int64_t same = 0;
    total.s += c.kernels.rest(p.data, n, m, &same).s;
    *equal += same;
  }
  return total;
}

void packed_reduce(const Context& c, Packed& p, int64_t chunk) {
  const int64_t cols = c.layout.cols;
  State all;
  for (int64_t from = 0; from < cols; from += chunk) {
    const int64_t n = std::min(chunk, cols - from);
    p.gather(from, n);
    RowState piece;
    if (p.weights) {
      piece = p.weighted(n);
    } else if (c.algorithm == Algorithm::online || chunk < cols) {
      piece = c.segment(p.data, n);
    } else {
      RowsJob job = rows_job(c);
      job.x = p.data, job.rows = 1, job.cols = n, job.states = &piece, job.scratch = p.kernel_scratch;
      c.kernels.rows(job);
    }
    all = from ? merge(all, to_state(piece)) : to_state(piece);
  }
  const RowState st = to_row(all);
  const int64_t at = p.row.result;
  if (c.problem.op == Op::state) return put_states(c, &st, &at, 1);
  if (p.weights) {
    const double s = st.s;
    const double lse = std::isnan(s) || st.m == -HUGE_VAL ? (std::isnan(s) ? s : st.m) : st.m + std::log(std::fabs(s));
    put_number(c.problem, c.problem.first, at, lse);
    put_number(c.problem, c.problem.second, at, std::isnan(s) ? s : (double)((s > 0) - (s < 0)));
    return;
  }
  put_lse(c, &st, &at, 1, [&](int64_t, int64_t* equal) { return packed_rest(c, p, chunk, st.m, equal); });
}

void packed_map(const Context& c, Packed& p, int64_t chunk) {
  const int64_t cols = c.layout.cols;
  if (c.problem.given) {
    RowState st;
    read_states(c, p.row, 0, 1, &st);
    for (int64_t from = 0; from < cols; from += chunk) {
      const int64_t n = std::min(chunk, cols - from);
      p.gather(from, n);
      c.kernels.write(c.problem.op, p.data, p.data, n, st, std::log(st.s), false);
      p.scatter(from, n);
    }
    return;
  }
  if (chunk >= cols) {  // gathered once
    p.gather(0, cols);
    if (p.live_count) {
      RowsJob job = rows_job(c);
      job.x = p.data, job.y = p.data, job.rows = 1, job.cols = cols, job.stream = false, job.scratch = p.kernel_scratch;
      c.kernels.rows(job);
    }
    return p.scatter(0, cols);
  }
  State all;
  int64_t live = 0;
  for (int64_t from = 0; from < cols; from += chunk) {
    const int64_t n = std::min(chunk, cols - from);
    p.gather(from, n);
    live += p.live_count;
    const State piece = to_state(c.segment(p.data, n));
    all = from ? merge(all, piece) : piece;
  }
  const RowState st = to_row(all);
  const double log_s = c.problem.op == Op::log_softmax
                           ? log_sum(st, [&](int64_t* equal) { return packed_rest(c, p, chunk, st.m, equal); })
                           : 0.0;
  for (int64_t from = 0; from < cols; from += chunk) {
    const int64_t n = std::min(chunk, cols - from);
    p.gather(from, n);
    if (live) c.kernels.write(c.problem.op, p.data, p.data, n, st, log_s, false);
    p.scatter(from, n);
  }
}

void run_packed(const Context& c) {
  const int64_t cols = c.layout.cols;
  // The teaching algorithms want the row whole; the others take it segment by segment, as rows of adjacent elements do.
  const bool whole =
      c.algorithm == Algorithm::naive || c.algorithm == Algorithm::three_pass || c.algorithm == Algorithm::cached;
  const int64_t chunk = whole && !c.problem.weights ? std::max<int64_t>(cols, 1) : kSegment;
  const int64_t room = std::min(chunk, std::max<int64_t>(cols, 1));
  const int64_t data = aligned64(room * c.size), live = aligned64(room),
                weights = c.problem.weights ? aligned64(room * 8) : 0;
  const int64_t scratch = rows_scratch(c.problem.dtype, c.algorithm == Algorithm::cached ? room : 0);
  const int64_t per_item = std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, cols * c.size));
  const int64_t items = (c.layout.rows + per_item - 1) / per_item;
  parallel_for(items, c.threads, [&](int64_t item) {
    char* base = thread_scratch(data + live + weights + scratch);
    Packed p{c,
             {},
             base,
             (uint8_t*)(base + data),
             weights ? (double*)(base + data + live) : nullptr,
             base + data + live + weights};
    for (int64_t r = item * per_item; r < std::min((item + 1) * per_item, c.layout.rows); ++r) {
      p.row = c.layout.place(r);
      if (c.writes())
        packed_map(c, p, chunk);
      else
        packed_reduce(c, p, chunk);
    }
  });
}

void empty_rows(const Context& c) {
  for (int64_t r = 0; r < c.layout.rows; ++r) {
    const int64_t at = c.layout.place(r).result;
    put_number(c.problem, c.problem.first, at, -HUGE_VAL);
    if (c.problem.second) put_number(c.problem, c.problem.second, at, 0.0);
  }
}

}  // namespace

Algorithm choose_algorithm(Op op, Dtype dtype, int64_t cols) {
  const int64_t element = (int64_t)dtype_size(dtype), working = dtype == Dtype::f64 ? 8 : 4;
  // Sums alone are made just as fast segment by segment; whole rows pay where they are too short for that.
  if (op != Op::softmax) return cols * element <= (32 << 10) ? Algorithm::cached : Algorithm::online;
  // Two rows of logits and one of exponentials must stay in half a second-level cache (1 MiB a core and up).
  return cols * (2 * element + working) <= (512 << 10) ? Algorithm::cached : Algorithm::online;
}

void run(const Problem& problem) {
  const Context c(problem);
  if (c.layout.rows == 0) return;
  if (c.layout.cols == 0) {
    if (!c.writes()) empty_rows(c);
    return;
  }
  if (c.plain && c.adjacent) {
    if (few_long_rows(c)) return run_segments(c);
    return run_rows(c);
  }
  const bool own_kernel = c.algorithm == Algorithm::cached || c.algorithm == Algorithm::online;
  if (c.plain && own_kernel && c.layout.side_by_side(c.size, c.writes())) return run_cols(c);
  if (c.plain && own_kernel && c.layout.across()) return run_grouped(c);
  run_packed(c);
}

void run_topk(const TopkProblem& problem) {
  Problem inner = problem.rows;
  inner.op = Op::state;
  const Context c(inner);
  const int64_t cols = c.layout.cols, room = aligned64(std::min(kSegment, std::max<int64_t>(cols, 1)) * c.size);
  parallel_for(c.layout.rows, c.threads, [&](int64_t r) {
    Packed p{c, c.layout.place(r), nullptr, nullptr, nullptr, nullptr};
    char* base = thread_scratch(room + std::min(kSegment, std::max<int64_t>(cols, 1)));
    p.data = base, p.live = (uint8_t*)(base + room);
    const int64_t at = p.row.result, k = problem.k;
    State all;
    // Per segment: its state, and its own k largest merged into the row's, both while the segment is in cache.
    std::vector<double> best((size_t)k), mine((size_t)k), next((size_t)k);
    std::vector<int64_t> index((size_t)k), my_index((size_t)k), next_index((size_t)k);
    int64_t held = 0;
    for (int64_t from = 0; from < cols; from += kSegment) {
      const int64_t n = std::min(kSegment, cols - from);
      const char* x = c.problem.x + p.row.x + from * c.size;
      if (!c.layout.adjacent(c.size, false)) {
        p.gather(from, n);
        x = p.data;
      }
      const State piece = to_state(c.segment(x, n));
      all = from ? merge(all, piece) : piece;
      const int64_t found = std::min(k, n);
      if (found > 0) c.kernels.topk({x, n, found, mine.data(), my_index.data()});
      int64_t i = 0, j = 0, o = 0;
      const auto beats = [](double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); };
      while (o < k && (i < held || j < found)) {
        const bool take_old = j >= found || (i < held && !beats(mine[(size_t)j], best[(size_t)i]));
        next[(size_t)o] = take_old ? best[(size_t)i] : mine[(size_t)j];
        next_index[(size_t)o++] = take_old ? index[(size_t)i++] : my_index[(size_t)j++] + from;
      }
      best.swap(next), index.swap(next_index), held = o;
    }
    const RowState st = to_row(all);
    c.problem.isa->finish(&st, &problem.lse[at], 1);
    for (int64_t i = 0; i < k; ++i) {
      const bool fine = std::isfinite(st.m) && !std::isnan(st.s);
      problem.values[at * k + i] = fine ? std::exp(best[(size_t)i] - st.m) / st.s : std::nan("");
      problem.places[at * k + i] = index[(size_t)i];
    }
  });
}

void small_rows(const Isa& isa, Op op, Dtype dtype, const char* x, char* y, int64_t rows, int64_t cols) {
  RowsJob job{};
  job.op = op, job.algorithm = choose_algorithm(op, dtype, cols);
  job.x = x, job.y = y, job.rows = rows, job.cols = cols;
  job.x_stride = job.y_stride = cols * (int64_t)dtype_size(dtype);
  job.scratch = thread_scratch(rows_scratch(dtype, cols));
  isa.kernels[(int)dtype].rows(job);
}

int64_t rows_scratch(Dtype dtype, int64_t cols) {
  // A row of exponentials padded to whole pairs, and the buffer that puts lines together.
  const int64_t working = dtype == Dtype::f64 ? 8 : 4;
  return (cols + 64) * working + 64 * 1024;
}

int64_t cols_scratch(Dtype dtype, int64_t length) {
  const int64_t working = dtype == Dtype::f64 ? 8 : 4;
  return length * 32 * working + 96 * 1024;
}

}  // namespace osm
