// The draw from what filters leave of a row: a list of the tokens that may be kept, and a mark in it.
#pragma once
#include "sample_row.h"
#include "sample_select.h"

namespace osm {

// Relative error of a sum of float exponentials, some ten times what is seen: what a choice by such a sum must not hang
// on.
constexpr double kSumError = 1e-6;

// Sum of exp(z - m) of a whole row in double.
inline double exact_sum(const Row& row, double m) {
  constexpr int64_t chunk = 256;
  double z[chunk], e[chunk], total = 0;
  for (int64_t i = 0; i < row.cols(); i += chunk) {
    const int64_t n = std::min(chunk, row.cols() - i);
    row.c.kernels.widen(row.x + i * row.c.size, z, n);
    for (int64_t k = 0; k < n; ++k) z[k] /= row.warmth();
    row.c.problem.isa->kernels[(int)Dtype::f64].exps((const char*)z, e, n, m);
    double part = 0;
    for (int64_t k = 0; k < n; ++k) part += e[k];
    total += part;
  }
  return total;
}

// What a choice of cut goes by: runs of a row, evenly spread. None of a row that is too short to need one.
struct Glance {
  static constexpr int64_t run = 32, runs = 64, most = run * runs;
  double x[most];
  int64_t n = 0;
  double each = 1;  // tokens that one of them stands for

  explicit Glance(const Row& row) {
    const int64_t cols = row.cols();
    if (cols < 4 * most) return;
    n = most, each = (double)cols / (double)most;
    for (int64_t i = 0; i < runs; ++i) row.c.kernels.widen(row.x + i * (cols / runs) * row.c.size, x + i * run, run);
  }
};

// A logit that about k tokens and some more are above; -inf where there is none.
inline double cut_for_count(const Row& row, int64_t k) {
  Glance glance(row);
  const double share = (double)k / glance.each;
  const int64_t rank = (int64_t)(share + 4 * std::sqrt(share) + 4);
  if (rank >= glance.n) return -HUGE_VAL;
  for (double& x : glance.x)
    if (std::isnan(x)) x = HUGE_VAL;
  std::nth_element(glance.x, glance.x + rank, glance.x + glance.n, std::greater<>());
  return glance.x[rank];
}

// Over the temperature: a logit below which lies about `share` of the sum of exp(z - m), and rather less. What lies
// below a logit is made of many small terms, so a glance tells it well.
inline double cut_for_share(const Row& row, double m, double share) {
  constexpr int buckets = 256;
  Glance glance(row);
  if (!glance.n) return -HUGE_VAL;
  double w[Glance::most];
  for (double& x : glance.x) x /= row.warmth();
  row.c.problem.isa->kernels[(int)Dtype::f64].exps((const char*)glance.x, w, glance.n, m);
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const double z : glance.x)
    if (z > -HUGE_VAL) low = std::min(low, z), high = std::max(high, z);
  low = std::max(low, high - 64);
  const double scale = buckets / (high - low);
  if (!(scale > 0 && scale < 1e300)) return -HUGE_VAL;
  double sums[buckets] = {}, squares[buckets] = {};
  for (int64_t i = 0; i < glance.n; ++i) {
    const int b = (int)std::min(std::max((glance.x[i] - low) * scale, 0.0), (double)(buckets - 1));
    sums[b] += w[i], squares[b] += w[i] * w[i];
  }
  double sum = 0, square = 0;
  int b = 0;
  for (; b < buckets; ++b) {
    sum += sums[b], square += squares[b];
    if (glance.each * (sum + 4 * std::sqrt(square)) > share) break;
  }
  return b ? low + b / scale : -HUGE_VAL;
}

// A little below, so that rounding to the row's format never takes it above.
inline double lowered(double cut) { return cut == HUGE_VAL ? 0x1.fffffp127 : cut - 1e-6 * std::fabs(cut) - 1e-40; }

class Filter {
 public:
  Filter(const Row& row, char* room) : row_(row), list_(room, row.cols()) {}

  static int64_t room(int64_t cols) { return SampleList::room(cols); }

  Drawn draw() {
    if (!(row_.most() < row_.cols() ? take_most() : take_near())) return {};
    if (row_.reach() < 1) take_reach();
    if (row_.least() > 0) list_.keep_weights(row_.least());
    return row_.greedy() ? first_of_greatest() : race();
  }

 private:
  bool gather(double cut) {
    list_.n = row_.kernels.above(row_.x, row_.cols(), cut, row_.warmth(), list_.z, list_.places);
    return list_.greatest(&m_);
  }
  void weigh() { row_.c.problem.isa->kernels[(int)Dtype::f64].exps((const char*)list_.z, list_.w, list_.n, m_); }

  // The k largest. False where there is nothing to draw from.
  bool take_most() {
    const int64_t k = row_.most();
    const double cut = cut_for_count(row_, k);
    const bool some = cut > -HUGE_VAL && gather(lowered(cut));
    if (cut > -HUGE_VAL && !some && list_.n > 0) return false;  // NaN or +inf
    if ((!some || list_.n < k) && !gather(-HUGE_VAL)) return false;
    if (list_.n > k) list_.keep(list_.select(nullptr, (double)k));
    weigh();
    total_ = list_.total();
    return true;
  }

  // All that top_p or min_p could keep: what weighs less than min_p is out, and what weighs less than 1 - top_p of the
  // whole together.
  bool take_near() {
    std::vector<SamplePiece> pieces;
    const bool shares = row_.reach() < 1, weighs = row_.least() > 0;
    for (int64_t i = 0; i < row_.pieces(); ++i) pieces.push_back(piece_of(row_, i, false, weighs));
    const State law = law_of(pieces);
    if (spoilt(law) || law.m == -HUGE_VAL) return false;
    about_ = row_.c.problem.dtype != Dtype::f64;
    const double light = weighs ? law.m + std::min(std::log(row_.least()), 0.0) : -HUGE_VAL;
    if (shares) {
      const double share = (1 - row_.reach()) * law.s;
      const double cut = cut_for_share(row_, law.m, share);
      if (cut > light && near(cut) && enough(law)) return true;
      // So low that all the tokens of the row together would weigh less.
      const double sure = law.m + std::log(share * 0.99 / (double)row_.cols());
      if (sure > light && near(sure) && enough(law)) return true;
    }
    return near(light) && (!shares || weigh_whole(law));
  }
  bool near(double z) {
    if (!gather(z > -HUGE_VAL ? lowered(lowered(z) * row_.warmth()) : z)) return false;
    weigh();
    return true;
  }
  bool weigh_whole(const State& law) {
    total_ = law.s * std::exp(law.m - m_);
    return true;
  }
  // Whether the list reaches top_p whatever the rounding of the sum. Then nothing that is left out can be kept.
  bool enough(const State& law) {
    weigh_whole(law);
    return list_.total() >= row_.reach() * total_ * (1 + kSumError);
  }

  // The fewest of the greatest weights that reach top_p of the sum.
  void take_reach() {
    SampleCut cut = list_.select(list_.w, row_.reach() * total_);
    if (about_) {
      const double target = row_.reach() * total_, error = kSumError * target;
      if (std::fabs(cut.before - target) <= error || std::fabs(cut.after - target) <= error)  // too near to say
        cut = list_.select(list_.w, row_.reach() * exact_sum(row_, m_));
    }
    list_.keep(cut);
  }

  double log_probability(int64_t chosen) const {
    const double p = (list_.z[chosen] - m_) - std::log(list_.total());
    if (p < kSharp) return p;
    double others = 0, lost = 0;
    for (int64_t i = 0; i < list_.n; ++i) {
      if (i == chosen) continue;
      const double one = list_.w[i] - lost, next = others + one;
      lost = (next - others) - one, others = next;
    }
    return -std::log1p(others / list_.w[chosen]);
  }
  Drawn drawn(int64_t chosen) const {
    Drawn d;
    if (chosen < 0) return d;
    d.best.token = row_.problem.first_token + list_.places[chosen];
    d.log_probability = log_probability(chosen);
    return d;
  }
  Drawn first_of_greatest() const {
    for (int64_t i = 0; i < list_.n; ++i)
      if (list_.z[i] == m_) return drawn(i);
    return {};
  }
  // As the kernels race: 16 bits of a token's noise tell whether it may win.
  Drawn race() const {
    const SampleNoise noise = row_.noise();
    SampleBest best = kNoBest;
    double limit = 64 * 0x1p16;
    int64_t chosen = -1;
    for (int64_t i = 0; i < list_.n; ++i) {
      const int64_t token = row_.problem.first_token + list_.places[i];
      const uint32_t leading = sample_leading_of(noise, token);
      if ((double)leading > list_.w[i] * limit) continue;
      const SampleBest its = sample_key(list_.z[i], sample_gumbel(noise, token, leading), token);
      if (!sample_beats(its, best)) continue;
      best = its, chosen = i;
      limit = std::min(limit, std::exp((m_ - its.key) - its.rest) * 0x1p16 * (1 + 0x1p-10));
    }
    return drawn(chosen);
  }

  const Row& row_;
  SampleList list_;
  double m_ = 0, total_ = 0;
  bool about_ = false;
};

}  // namespace osm
