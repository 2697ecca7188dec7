// Cross-entropy on the CPU: rows to kernels, and what their statistics mean.
//
// The target of a row is kept apart from the other classes. With d = lse of the others - score of the target,
//
//   -log p = softplus(d),  1 - p = logistic(d),  lse = score + softplus(d)
//
// so neither the loss nor the gradient of a row that is sure of its target cancels to nothing.
#include "losses.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "context.h"

namespace osm {
namespace isa_scalar {
extern const LossKernels losses[kDtypes];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const LossKernels losses[kDtypes];
}
namespace isa_avx512 {
extern const LossKernels losses[kDtypes];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const LossKernels losses[kDtypes];
}
#endif

const LossKernels& loss_kernels_of(const Isa& isa, Dtype dtype) {
  const LossKernels* all = isa_scalar::losses;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::losses;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::losses;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::losses;
#endif
  return all[(int)dtype];
}

int64_t loss_scratch(Dtype dtype, int64_t cols) { return rows_scratch(dtype, cols); }

namespace {

constexpr int64_t kGroupBytes = 256 << 10;  // of rows that are brought together before they are gone through
constexpr int64_t kItemRows = 8;            // rows of an item at the least, where there are enough: two are in flight

// A row of the gradient that is all one number: 0 or NaN.
void fill(Dtype dtype, char* y, int64_t n, double value) {
  if (dtype == Dtype::f64)
    std::fill_n((double*)y, n, value);
  else if (dtype == Dtype::f32)
    std::fill_n((float*)y, n, (float)value);
  else
    std::fill_n((uint16_t*)y, n, (uint16_t)(std::isnan(value) ? dtype == Dtype::f16 ? 0x7e00 : 0x7fc0 : 0));
}

// What the statistics of a row say once they are complete. share: what exp(z - m) is to be multiplied by for
// probabilities; here and rest: of the target and of all others.
struct Finished {
  double lse, loss_of_target, target, here, rest, share;
  double above;  // lse - m, which keeps its bits where m is great
};

Finished finish(double m, double s, double target) {
  const double nan = std::nan("");
  if (std::isnan(m) || m == HUGE_VAL) return {m, nan, target, nan, nan, nan, nan};
  const double above = s > 0 ? std::log(s) : -HUGE_VAL, others = s > 0 ? m + above : -HUGE_VAL;
  if (std::isnan(target)) return {others, nan, target, nan, nan, 1 / s, above};
  // Not others - target: where m is great, log(s) is lost in it.
  const double d = s > 0 ? (m - target) + above : others - target, e = std::exp(-std::fabs(d)), more = std::log1p(e);
  const double less = e / (1 + e), most = 1 / (1 + e);
  if (d > 0) return {others + more, d + more, target, less, most, most / s, above + more};
  // Not less / s: the roundings of log(s) would come back with it.
  return {target + more, more, target, most, less, s > 0 ? std::exp(m - target) * most : 0, (target - m) + more};
}

// In pairs: the error of the sum grows with the logarithm of n.
double summed(const double* v, int64_t n) {
  if (n > 64) return summed(v, n / 2) + summed(v + n / 2, n - n / 2);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += v[i];
  return sum;
}

class Runner {
 public:
  explicit Runner(const LossProblem& problem)
      : p(problem), layout(as_rows(problem)), size((int64_t)dtype_size(p.dtype)), cols(p.shape[p.axis]) {
    each = p.probabilities != nullptr, part = p.whole_m != nullptr;
    mapped = p.softcap > 0 || p.inverse_temperature != 1 || (each && size == 2);
    working = mapped && p.dtype != Dtype::f64 ? Dtype::f32 : p.dtype;
    number = working == Dtype::f64 ? 8 : 4;
    kernels = &loss_kernels_of(*p.isa, working), given = &loss_kernels_of(*p.isa, p.dtype);
    rows_of_working = &p.isa->kernels[(int)working];
    uniform = p.uniform != 0;
    total = (double)cols;
    if (p.class_weights) {
      total = summed(p.class_weights, cols);
      if (uniform && !each) {
        weights.assign((size_t)((cols + kLossPadding) * number), 0);
        for (int64_t c = 0; c < cols; ++c) put(weights.data(), kernels->slot(c), p.class_weights[c]);
      }
    }
  }

  void run() {
    if (layout.rows == 0) return;
    const int threads = layout.rows * cols < kParallelElements ? 1 : p.threads;
    // Enough rows for two to be in flight, and enough items for the threads to end together.
    const int64_t least = std::max<int64_t>(1, std::min<int64_t>(kItemRows, layout.rows / (4 * threads)));
    const int64_t per_item = std::max(least, kItemBytes / (cols * size));
    parallel_for((layout.rows + per_item - 1) / per_item, threads,
                 [&](int64_t i) { rows_of(i * per_item, std::min(layout.rows, (i + 1) * per_item)); });
  }

 private:
  // The strides of probabilities and of the second stream go where a softmax has those of mask and weights.
  static Layout as_rows(const LossProblem& p) {
    Problem b;
    b.dtype = p.dtype, b.isa = p.isa, b.ndim = p.ndim, b.reduced = uint64_t{1} << p.axis;
    for (int d = 0; d < p.ndim; ++d) {
      b.shape[d] = p.shape[d], b.x_strides[d] = p.x_strides[d];
      if (p.y) b.y_strides[d] = p.y_strides[d];
      if (p.probabilities) b.where_strides[d] = p.p_strides[d];
      if (p.other) b.weights_strides[d] = p.other_strides[d];
    }
    return Layout(b);
  }
  void put(char* to, int64_t at, double value) const {
    if (number == 8)
      ((double*)to)[at] = value;
    else
      ((float*)to)[at] = (float)value;
  }
  double class_weight(int64_t c) const { return p.class_weights ? p.class_weights[c] : 1.0; }

  // Rows that a kernel goes through at once, and what settled() has to know of them.
  struct Batch {
    const Runner& runner;
    const LossJob& job;
    const int64_t* number;       // of each row
    const double* coefficients;  // of classes that have probabilities: (rows, cols); else null
    const double *sum, *own;     // of each row's coefficients, and that of its target
    const char* other;           // rows of the second stream, adjacent elements of the working format
    int64_t other_stride;
    const char* x(int64_t row) const { return job.x + row * job.x_stride; }
  };

  void rows_of(int64_t from, int64_t to) const {
    const Dim &inner = layout.inner(), &along = layout.along[0];
    const bool adjacent =
        cols == 1 || (along.x == size && (!p.y || along.y == size) && (!p.other || along.weights == size));
    const bool plain = adjacent && !mapped && !each;
    std::vector<int64_t> target, number_of;
    for (int64_t r = from; r < to;) {
      const Place at = layout.place(r);
      int64_t n = std::min(to - r, inner.size - at.inner);
      if (!plain) n = std::min(n, std::max<int64_t>(1, kGroupBytes / (cols * 8)));
      target.resize((size_t)n), number_of.resize((size_t)n);
      for (int64_t i = 0; i < n; ++i) {
        number_of[(size_t)i] = at.result + i * inner.result;
        target[(size_t)i] = p.target ? p.target[number_of[(size_t)i]] : kNoTarget;
      }
      LossJob job{};
      job.rows = n, job.cols = cols, job.target = target.data(), job.ignored_too = p.ignored_too;
      job.moment = p.entropy || p.made.moment, job.rank = p.rank != nullptr;
      job.scores = uniform || each || p.made.scores, job.uniform = p.y && (uniform || each);
      job.settle = settle, job.odd = odd, job.scratch = thread_scratch(loss_scratch(working, cols));
      Batch batch{*this, job, number_of.data(), nullptr, nullptr, nullptr, nullptr, 0};
      if (uniform && !each && p.class_weights) job.weights = weights.data();
      job.context = &batch;
      if (plain) {
        job.x = p.x + at.x, job.x_stride = inner.x;
        if (p.y) job.y = p.y + at.y, job.y_stride = inner.y;
        job.stream = p.y && p.y != p.x && layout.rows * cols * size >= kStreamBytes;
        if (p.other) batch.other = p.other + at.weights, batch.other_stride = inner.weights;
        kernels->rows(job);
      } else {
        brought_together(job, batch, at, target);
      }
      r += n;
    }
  }

  // Rows copied side by side and, where softcap or temperature ask for it, made into scores.
  struct Rows {
    std::vector<char> plain, scores, slopes;
    const char* first = nullptr;
    int64_t stride = 0;
  };
  void copy_rows(const char* from, int64_t row_step, int64_t step, const LossJob& job, bool with_slopes,
                 Rows& to) const {
    to.plain.resize((size_t)(job.rows * cols * size));
    to.first = to.plain.data(), to.stride = cols * size;
    if (mapped) {
      to.scores.resize((size_t)(job.rows * cols * number)), to.slopes.resize(with_slopes ? to.scores.size() : 0);
      to.first = to.scores.data(), to.stride = cols * number;
    }
    for (int64_t i = 0; i < job.rows; ++i) {
      if (job.target[i] == kIgnored && !job.ignored_too) continue;
      char* row = to.plain.data() + i * cols * size;
      copy_elements(size, from + i * row_step, step, row, size, cols);
      if (mapped)
        given->scores(row, to.scores.data() + i * to.stride, with_slopes ? to.slopes.data() + i * to.stride : nullptr,
                      cols, p.softcap, p.inverse_temperature);
    }
  }

  void brought_together(LossJob& job, Batch& batch, const Place& at, std::vector<int64_t>& target) const {
    const Dim &inner = layout.inner(), &along = layout.along[0];
    const int64_t n = job.rows;
    Rows rows, other;
    copy_rows(p.x + at.x, inner.x, along.x, job, p.y != nullptr, rows);
    job.x = rows.first, job.x_stride = rows.stride;
    if (p.y) job.y = (char*)rows.first, job.y_stride = rows.stride;
    if (p.other) {
      copy_rows(p.other + at.weights, inner.weights, along.weights, job, false, other);
      batch.other = other.first, batch.other_stride = other.stride;
    }
    std::vector<double> coefficients, sum, own;
    std::vector<char> weight;
    if (each) {
      const int64_t padded = cols + kLossPadding;
      coefficients.resize((size_t)(n * cols)), sum.resize((size_t)n), own.resize((size_t)n);
      weight.assign((size_t)(n * padded * number), 0);
      for (int64_t i = 0; i < n; ++i) {
        double* c = &coefficients[(size_t)(i * cols)];
        sum[(size_t)i] = coefficients_of(at, i, c);
        for (int64_t k = 0; k < cols; ++k) put(weight.data(), i * padded + k, c[k]);
        if (part) {  // the row's statistics are known, and its greatest class may lie elsewhere
          target[(size_t)i] = kNoTarget, sum[(size_t)i] = p.target_weight[batch.number[i]];
          continue;
        }
        target[(size_t)i] = kernels->greatest(batch.x(i), cols), own[(size_t)i] = c[target[(size_t)i]];
        // Its score is counted in double, apart from the others', and so is its gradient.
        put(weight.data(), i * padded + target[(size_t)i], 0);
      }
      batch.coefficients = coefficients.data(), batch.sum = sum.data(), batch.own = own.data();
      job.weights = weight.data(), job.weights_stride = padded;
    }
    kernels->rows(job);
    for (int64_t i = 0; p.y && i < n; ++i) {
      char* row = rows.plain.data() + i * cols * size;
      // Not 0 * slope: an ignored row may hold NaN, and then its slopes are.
      if (target[(size_t)i] == kIgnored && !p.d_lse)
        fill(p.dtype, row, cols, 0);
      else if (mapped)
        given->narrow(rows.first + i * rows.stride, rows.slopes.data() + i * rows.stride, row, cols);
      copy_elements(size, row, size, p.y + at.y + i * inner.y, along.y, cols);
    }
  }

  // weight * (sharp * probability + uniform) of row i, and their sum.
  double coefficients_of(const Place& at, int64_t i, double* c) const {
    const Dim &inner = layout.inner(), &along = layout.along[0];
    const int64_t bytes = (int64_t)dtype_size(p.probabilities_dtype);
    std::vector<char> row((size_t)(cols * bytes));
    copy_elements(bytes, p.probabilities + at.where + i * inner.where, along.where, row.data(), bytes, cols);
    p.isa->kernels[(int)p.probabilities_dtype].widen(row.data(), c, cols);
    for (int64_t k = 0; k < cols; ++k) c[k] = class_weight(k) * (p.sharp * c[k] + p.uniform);
    return summed(c, cols);
  }

  // ---- what the statistics mean

  static void settle(void* context, int64_t row, const LossStats& stats, LossResult* result) {
    const Batch& b = *(const Batch*)context;
    b.runner.settled(b, row, stats, result);
  }
  static void odd(void* context, int64_t row) {
    const Batch& b = *(const Batch*)context;
    b.runner.odd_row(b, row);
  }

  struct Coefficients {
    double own, all;  // of the target, and of all classes of the whole vocabulary
  };
  Coefficients coefficients(const Batch& b, int64_t row) const {
    const int64_t t = b.job.target[row];
    if (each) return {b.own[row], b.sum[row]};
    const double w = part ? p.target_weight[b.number[row]] : t >= 0 ? class_weight(t) : 0;
    return {t >= 0 ? class_weight(t) * (p.sharp + p.uniform) : 0,
            p.sharp * w + p.uniform * (part ? p.weight_sum : total)};
  }
  // Of the loss of a row, its own weight included, and of its lse.
  struct Upstream {
    double loss, lse;
  };
  Upstream upstream(const Batch& b, int64_t row, double lse) const {
    const int64_t i = b.number[row];
    if (b.job.target[row] == kIgnored) return {0, p.d_lse ? p.d_lse[i] : 0};
    const double d = by_row(i) * (p.d_loss ? p.d_loss[p.d_loss_each ? i : 0] : 1.0);
    return {d, (p.d_lse ? p.d_lse[i] : 0) + (p.z_loss != 0 ? d * 2 * p.z_loss * lse : 0)};
  }
  // Of the whole vocabulary; `share` goes with the exponentials of this part.
  Finished finished(int64_t i, const LossStats& stats) const {
    if (!part) return finish(stats.m, stats.s, stats.target);
    Finished f = finish(p.whole_m[i], p.whole_s[i], p.whole_target[i]);
    f.share = std::exp(p.whole_m[i] == -HUGE_VAL ? stats.m - f.lse : (stats.m - p.whole_m[i]) - f.above);
    return f;
  }
  double by_row(int64_t i) const { return p.row_weights ? p.row_weights[i] : 1.0; }

  void settled(const Batch& b, int64_t row, const LossStats& stats, LossResult* result) const {
    const int64_t i = b.number[row], t = b.job.target[row];
    if (p.made.m) keep_parts(i, stats);
    const Finished f = finished(i, stats);
    const Coefficients c = coefficients(b, row);
    if (p.lse) p.lse[i] = f.lse;
    if (p.entropy) p.entropy[i] = entropy(stats, f);
    if (p.rank) p.rank[i] = t >= 0 ? stats.rank : -1;
    if (p.divergence) p.divergence[i] = divergence(b, row, stats.m, f.above);
    for (int64_t k = 0; k < p.tokens_count; ++k) {
      const int64_t token = p.tokens[i * p.tokens_count + k];
      p.log_probabilities[i * p.tokens_count + k] =
          token == t ? -f.loss_of_target : (score(b, row, token) - stats.m) - f.above;
    }
    if (p.loss) {
      const double squared = p.z_loss != 0 ? p.z_loss * f.lse * f.lse : 0;
      p.loss[i] = t == kIgnored ? 0 : by_row(i) * (loss_of(c, t, stats, f) + squared);
    }
    if (!b.job.y) return;
    const Upstream d = upstream(b, row, f.lse);
    result->by = (d.loss * c.all + d.lse) * f.share;
    result->uniform = each ? d.loss : d.loss * p.uniform;
    if (t >= 0) result->at_target = d.loss * (f.here * (c.all - c.own) - c.own * f.rest) + d.lse * f.here;
  }

  double loss_of(const Coefficients& c, int64_t t, const LossStats& stats, const Finished& f) const {
    const double sharp = each ? c.own : c.own - p.uniform * (t >= 0 ? class_weight(t) : 0);
    double loss = sharp != 0 ? sharp * f.loss_of_target : 0;
    // Of probabilities the greatest class is left out of what follows: it has been counted.
    if (each)
      loss += (c.all - c.own) * from_lse(stats, f) - stats.scores;
    else if (uniform)
      loss += p.uniform * (total * from_lse(stats, f) - stats.scores);
    return loss;
  }

  // lse - from. Of rows that are gone through one number after the other `from` is 0.
  static double from_lse(const LossStats& stats, const Finished& f) {
    return stats.from == 0 ? f.lse : f.above + (stats.m - stats.from);
  }

  static double entropy(const LossStats& stats, const Finished& f) {
    double sum = f.share * (stats.moment - stats.s * from_lse(stats, f));
    if (std::isfinite(f.loss_of_target)) sum -= f.here * f.loss_of_target;
    // Never below 0, which roundings of a sure row may fall short of. NaN stays.
    return sum > 0 ? 0.0 : 0.0 - sum;
  }

  double score(const Batch& b, int64_t row, int64_t c) const {
    double z;
    rows_of_working->widen(b.x(row) + c * (int64_t)dtype_size(working), &z, 1);
    return z;
  }

  // Sum of p * (log p - log q), where p is 0 nothing.
  double divergence(const Batch& b, int64_t row, double m, double above) const {
    constexpr int64_t piece = 256;
    const int64_t bytes = (int64_t)dtype_size(working);
    const char *x = b.x(row), *y = b.other + row * b.other_stride;
    State q;
    for (int64_t i = 0; i < cols; i += kSegment)
      q = merge(q, to_state(rows_of_working->state(y + i * bytes, std::min(kSegment, cols - i))));
    const double above_q = std::log(q.s);
    if (!std::isfinite(q.m)) return std::nan("");
    double sum = 0, zx[piece], zy[piece], e[piece];
    for (int64_t i = 0; i < cols; i += piece) {
      const int64_t n = std::min(piece, cols - i);
      rows_of_working->widen(x + i * bytes, zx, n), rows_of_working->widen(y + i * bytes, zy, n);
      p.isa->kernels[(int)Dtype::f64].exps((const char*)zx, e, n, m);
      for (int64_t k = 0; k < n; ++k) sum += e[k] > 0 ? e[k] * (((zx[k] - m) - above) - ((zy[k] - q.m) - above_q)) : 0;
    }
    return std::exp(-above) * sum;
  }

  void keep_parts(int64_t i, const LossStats& stats) const {
    p.made.m[i] = stats.m, p.made.s[i] = stats.s, p.made.target[i] = stats.target;
    if (p.made.scores) p.made.scores[i] = stats.scores + total * stats.from;
    if (p.made.moment) p.made.moment[i] = stats.moment + stats.s * stats.from;
  }

  // ---- rows that hold infinities or a NaN, one number after the other

  void odd_row(const Batch& b, int64_t row) const {
    const int64_t i = b.number[row], t = b.job.target[row];
    std::vector<double> z((size_t)cols);
    rows_of_working->widen(b.x(row), z.data(), cols);
    double m = -HUGE_VAL, infinite = 0;
    bool nan = false;
    for (const double v : z) nan |= std::isnan(v), infinite += v == HUGE_VAL, m = std::max(m, v);
    if (nan) m = std::nan("");
    // Classes of a part may all be out of it; the others say what becomes of the row, and where it lies.
    if (part && m == -HUGE_VAL) {
      const double lse = finish(p.whole_m[i], p.whole_s[i], p.whole_target[i]).lse;
      m = std::isfinite(lse) ? lse : 0;
    }
    LossStats stats{m, nan ? m : infinite, t >= 0 ? z[(size_t)t] : std::nan(""), 0, 0, 0, -1};
    if (std::isfinite(m)) {
      stats.s = 0, stats.rank = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double v = z[(size_t)c], e = v == -HUGE_VAL ? 0 : std::exp(v - m);
        if (c != t) stats.s += e, stats.moment += e > 0 ? e * v : 0;
        if (v != -HUGE_VAL || coefficient(b, row, c) != 0) stats.scores += scored(b, row, c) * v;
        if (c != t && t >= 0) stats.rank += v > stats.target || (v == stats.target && c < t);
      }
      if (p.made.m) keep_parts(i, stats);
      return odd_settled(b, row, z, stats);
    }
    if (p.made.m) {
      // The target is one of the infinite ones, or what makes the row NaN: then the others alone would not tell.
      stats.s = nan ? m : m > 0 ? std::max(infinite - (stats.target == HUGE_VAL), 1.0) : 0;
      stats.scores = stats.moment = m;
      // Classes out of the distribution that weigh nothing count nothing.
      if (m == -HUGE_VAL) {
        stats.scores = 0;
        for (int64_t c = 0; c < cols; ++c)
          if (coefficient(b, row, c) != 0) stats.scores += scored(b, row, c) * m;
      }
      keep_parts(i, stats);
    }
    const double none = std::nan("");
    const bool ignored = t == kIgnored;
    if (p.lse) p.lse[i] = m;
    if (p.entropy) p.entropy[i] = none;
    if (p.rank) p.rank[i] = -1;
    if (p.divergence) p.divergence[i] = none;
    for (int64_t k = 0; k < p.tokens_count; ++k) p.log_probabilities[i * p.tokens_count + k] = none;
    if (p.loss) p.loss[i] = ignored ? 0 : none;
    // An ignored row has the gradient of its lse alone, which at -inf moves nothing.
    if (b.job.y)
      fill(working, b.job.y + row * b.job.y_stride, cols, ignored && (!p.d_lse || m == -HUGE_VAL) ? 0 : none);
  }
  // The factor of a class's score in stats.scores, and in the loss.
  double scored(const Batch& b, int64_t row, int64_t c) const {
    return each ? coefficient(b, row, c) : class_weight(c);
  }
  double coefficient(const Batch& b, int64_t row, int64_t c) const {
    if (each) return b.coefficients[row * cols + c];
    return class_weight(c) * (p.uniform + (c == b.job.target[row] ? p.sharp : 0));
  }

  // An ordinary distribution, where classes that are out of it (-inf) have a weight of 0, or a loss of infinity.
  void odd_settled(const Batch& b, int64_t row, const std::vector<double>& z, const LossStats& stats) const {
    const int64_t i = b.number[row], t = b.job.target[row];
    const bool ignored = t == kIgnored;
    LossResult result{};
    settled(b, row, stats, &result);
    const Finished f = finished(i, stats);
    double loss = p.z_loss != 0 ? p.z_loss * f.lse * f.lse : 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double w = coefficient(b, row, c);
      if (w != 0) loss += w * (c == t ? f.loss_of_target : f.above + (stats.m - z[(size_t)c]));
    }
    if (p.loss) p.loss[i] = ignored ? 0 : by_row(i) * loss;
    if (!b.job.y) return;
    const Upstream d = upstream(b, row, f.lse);
    const Coefficients whole = coefficients(b, row);
    char* y = b.job.y + row * b.job.y_stride;
    std::vector<double> gradient((size_t)cols, 0.0);
    // An ignored row has the gradient of its lse alone, which at -inf moves nothing.
    for (int64_t c = 0; c < cols && !(ignored && f.lse == -HUGE_VAL); ++c)
      gradient[(size_t)c] = c == t ? result.at_target
                                   : std::exp(z[(size_t)c] - stats.m) * f.share * (d.loss * whole.all + d.lse) -
                                         d.loss * (ignored ? 0 : coefficient(b, row, c));
    if (working == Dtype::f64) {
      std::memcpy(y, gradient.data(), (size_t)(cols * 8));
    } else {
      const std::vector<float> single(gradient.begin(), gradient.end()), ones((size_t)cols, 1.0f);
      kernels->narrow(single.data(), ones.data(), y, cols);
    }
  }

  const LossProblem& p;
  const Layout layout;
  const int64_t size, cols;
  int64_t number = 4;  // bytes of a number of the working format
  // mapped: rows are made into scores first; each: targets are probabilities; part: of a vocabulary that lies in
  // pieces.
  bool mapped = false, each = false, part = false, uniform = false;
  Dtype working = Dtype::f32;
  const LossKernels *kernels = nullptr, *given = nullptr;  // of the working format, of the logits' own
  const Kernels* rows_of_working = nullptr;
  double total = 0;  // of the class weights
  std::vector<char> weights;
};

}  // namespace

void run_losses(const LossProblem& problem) { Runner(problem).run(); }

}  // namespace osm
