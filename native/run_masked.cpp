// Masked rows (`where`) that would be plain without their mask: they are copied with -inf in the masked places, a few
// rows at a time, and the copies, still in cache, go to the same kernels. exp(-inf) = 0 and -inf less anything is -inf,
// so what the kernels write in the masked places is right but in rows that come out as NaN, which are mended
// afterwards.
#include "context.h"

namespace osm {
namespace {

constexpr int64_t kCopyBytes = 128 << 10;  // copied at once

// Every element is read, masked or not: so the loop becomes vectors.
template <class U>
void masked_copy(const U* x, const char* where, int64_t step, U blank, U* __restrict to, int64_t n) {
  const auto chosen = [&](int64_t i, char live) {
    const U element = x[i], take = (U) - (U)(live != 0);
    to[i] = (U)((element & take) | (blank & (U)~take));
  };
  if (step == 1)
    for (int64_t i = 0; i < n; ++i) chosen(i, where[i]);
  else
    for (int64_t i = 0; i < n; ++i) chosen(i, where[i * step]);
}
void masked_copy(Dtype dtype, const char* x, const char* where, int64_t step, char* to, int64_t n) {
  char blank[8] = {};
  set_neg_inf(dtype, blank);
  const auto copy = [&]<class U>(U) {
    U none;
    std::memcpy(&none, blank, sizeof none);
    masked_copy((const U*)x, where, step, none, (U*)to, n);
  };
  const int64_t size = (int64_t)dtype_size(dtype);
  if (size == 8)
    copy(uint64_t{});
  else if (size == 4)
    copy(uint32_t{});
  else
    copy(uint16_t{});
}

bool is_nan(const Problem& p, const char* y) {
  double value;
  p.isa->kernels[(int)p.dtype].widen(y, &value, 1);
  return std::isnan(value);
}
// Masked places of a row that came out as NaN: 0, or -inf of log_softmax.
void mend(const Context& c, char* y, int64_t y_step, const char* where, int64_t where_step) {
  char blank[8] = {};
  if (c.problem.op == Op::log_softmax) set_neg_inf(c.problem.dtype, blank);
  for (int64_t i = 0; i < c.layout.cols; ++i)
    if (!where[i * where_step]) std::memcpy(y + i * y_step, blank, (size_t)c.size);
}

}  // namespace

bool masked_rows(const Context& c) {
  return c.adjacent && (!c.writes() || c.layout.adjacent_result(c.size)) && c.layout.cols * c.size <= kCopyBytes;
}

void run_masked_rows(const Context& c) {
  const Problem& p = c.problem;
  const int64_t cols = c.layout.cols, stride = aligned64(cols * c.size);
  const int64_t most = std::clamp<int64_t>(kCopyBytes / stride, 1, kBatch);
  const int64_t scratch = rows_scratch(p.dtype, c.algorithm == Algorithm::cached ? cols : 0);
  const Dim &inner = c.layout.inner(), &along = c.layout.along[0];
  const int64_t per_item = std::max<int64_t>(most, kItemBytes / stride);
  parallel_for((c.layout.rows + per_item - 1) / per_item, c.threads, [&](int64_t item) {
    char* copy = thread_scratch(most * stride + scratch);
    RowState states[kBatch];
    int64_t at[kBatch];
    const int64_t to = std::min((item + 1) * per_item, c.layout.rows);
    for (int64_t r = item * per_item; r < to;) {
      const Place place = c.layout.place(r);
      const int64_t n = std::min({most, to - r, inner.size - place.inner});
      const char* where = p.where + place.where;
      for (int64_t i = 0; i < n; ++i)
        masked_copy(p.dtype, p.x + place.x + i * inner.x, where + i * inner.where, along.where, copy + i * stride,
                    cols);
      RowsJob job = rows_job(c);
      job.x = copy, job.x_stride = stride, job.rows = n, job.scratch = copy + most * stride;
      job.y = p.y + place.y, job.y_stride = inner.y, job.states = states;
      c.kernels.rows(job);
      for (int64_t i = 0; i < n; ++i) at[i] = place.result + i * inner.result;
      if (!c.writes()) put_rows(c, job, at);
      for (int64_t i = 0; c.writes() && i < n; ++i)
        if (is_nan(p, job.y + i * inner.y)) mend(c, job.y + i * inner.y, along.y, where + i * inner.where, along.where);
      r += n;
    }
  });
}

bool masked_cols(const Context& c) {
  return !c.adjacent && c.layout.side_by_side(c.size, c.writes()) && c.layout.cols * 64 * c.size <= (16 << 20);
}

void run_masked_cols(const Context& c) {
  const Problem& p = c.problem;
  const Dim &side = c.layout.side(), &along = c.layout.along[0];
  // Lines of the copy: whole ones, a strip of 64 at least.
  const int64_t wide = std::clamp<int64_t>(4 * kCopyBytes / (along.size * c.size) / 64 * 64, 64, 4096),
                line = wide * c.size;
  const Algorithm algorithm = p.algorithm != kAuto            ? (Algorithm)p.algorithm
                              : along.size <= cached_column() ? Algorithm::cached
                                                              : Algorithm::online;
  const int64_t strips = (side.size + wide - 1) / wide, outer = c.layout.rows / side.size;
  const int64_t scratch = cols_scratch(p.dtype, algorithm == Algorithm::cached ? along.size : 0);
  parallel_for(outer * strips, c.threads, [&](int64_t item) {
    const Place place = c.layout.place_beside(item / strips);
    const int64_t from = item % strips * wide, count = std::min(wide, side.size - from);
    const char* where = p.where + place.where + from * side.where;
    char* copy = thread_scratch(along.size * line + scratch + wide * (int64_t)sizeof(RowState));
    for (int64_t i = 0; i < along.size; ++i)
      masked_copy(p.dtype, p.x + place.x + from * c.size + i * along.x, where + i * along.where, side.where,
                  copy + i * line, count);
    ColsJob job{};
    job.op = p.op, job.algorithm = algorithm, job.stream = c.stream && c.writes();
    job.x = copy, job.x_step = line, job.length = along.size, job.count = count;
    job.y = p.y + place.y + from * c.size, job.y_step = along.y;
    job.scratch = copy + along.size * line;
    job.states = (RowState*)(job.scratch + scratch);
    c.kernels.cols(job);
    if (c.writes()) {
      for (int64_t i = 0; i < count; ++i)
        if (is_nan(p, job.y + i * c.size)) mend(c, job.y + i * c.size, along.y, where + i * side.where, along.where);
      return;
    }
    Place first = place;
    first.result += from * side.result;
    put_columns(c, job, first.result, side.result);
  });
}

}  // namespace osm
