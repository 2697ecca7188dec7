// Drawing on the CPU: rows cut into pieces, their states and best keys merged; rows with filters by a list of the
// tokens that may be kept.
#include "sample.h"

#include "context.h"
#include "sample_select.h"

namespace osm {
namespace isa_scalar {
extern const SampleKernels sample[kDtypes];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const SampleKernels sample[kDtypes];
}
namespace isa_avx512 {
extern const SampleKernels sample[kDtypes];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const SampleKernels sample[kDtypes];
}
#endif

const SampleKernels& sample_kernels_of(const Isa& isa, Dtype dtype) {
  const SampleKernels* all = isa_scalar::sample;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::sample;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::sample;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::sample;
#endif
  return all[(int)dtype];
}

namespace {

// Where a token's log-probability is above this, 1 - p is summed by itself: log(1 + r) keeps what log(s) would not.
constexpr double kSharp = -0.25;
// Relative error of a sum of float exponentials, some ten times what is seen: what a choice by such a sum must not hang
// on.
constexpr double kSumError = 1e-6;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Drawn {
  SampleBest best = kNoBest;
  State law;
  double log_probability = kNaN;
};

struct Row {
  const SampleProblem& problem;
  const Context& c;
  const SampleKernels& kernels;
  int64_t number;  // row-major
  const char* x;   // adjacent elements
  double temperature;

  Row(const SampleProblem& problem, const Context& c, const SampleKernels& kernels, int64_t number)
      : problem(problem),
        c(c),
        kernels(kernels),
        number(number),
        x(nullptr),
        temperature(problem.temperature[number]) {}

  int64_t cols() const { return c.layout.cols; }
  bool greedy() const { return temperature == 0; }
  double warmth() const { return greedy() ? 1.0 : temperature; }
  int64_t most() const { return problem.top_k && problem.top_k[number] ? problem.top_k[number] : cols(); }
  double reach() const { return problem.top_p ? problem.top_p[number] : 1.0; }
  double least() const { return problem.min_p ? problem.min_p[number] : 0.0; }
  bool filtered() const { return most() < cols() || reach() < 1 || least() > 0; }

  SampleNoise noise() const {
    return sample_noise(problem.seed, problem.draw, (uint64_t)problem.first_row + (uint64_t)number);
  }
  // Pieces are cut at multiples of kSegment by token number, wherever the row begins.
  int64_t pieces() const {
    const int64_t first = problem.first_token;
    return cols() ? (first + cols() - 1) / kSegment - first / kSegment + 1 : 0;
  }
  SampleJob job(int64_t piece, bool draws, bool true_maximum) const {
    const int64_t first = problem.first_token, start = (first / kSegment + piece) * kSegment;
    const int64_t from = std::max(first, start), to = std::min(first + cols(), start + kSegment);
    return {x + (from - first) * c.size, to - from, from, warmth(), noise(), true_maximum, draws};
  }
};

SamplePiece piece_of(const Row& row, int64_t i, bool draws, bool true_maximum) {
  SamplePiece piece;
  const SampleJob job = row.job(i, draws, true_maximum);
  row.kernels.piece(job, &piece);
  // The law of infinities and NaN, by the kernels that know it.
  if (std::isnan(piece.state.s)) piece.state = row.c.kernels.state(job.x, job.n);
  return piece;
}

bool spoilt(const State& law) { return std::isnan(law.s) || std::isnan(law.m) || law.m == HUGE_VAL; }

State law_of(const std::vector<SamplePiece>& pieces) {
  State law;
  for (size_t i = 0; i < pieces.size(); ++i)
    law = i ? merge(law, to_state(pieces[i].state)) : to_state(pieces[i].state);
  return law;
}

// The log-probability of a token from the pieces' states.
double log_probability(const Row& row, const std::vector<SamplePiece>& pieces, const SampleBest& best,
                       const State& law) {
  const double p = (best.logit - law.m) - std::log(law.s);
  if (p < kSharp) return p;
  double others = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SampleJob job = row.job((int64_t)i, false, false);
    double sum = pieces[i].state.s;
    const int64_t at = best.token - job.first;
    if (at >= 0 && at < job.n) {
      const int64_t start = std::max(job.first, best.token / kSampleFold * kSampleFold);
      SampleJob group = job;
      group.x += (start - job.first) * row.c.size, group.first = start;
      group.n = std::min(job.first + job.n, best.token / kSampleFold * kSampleFold + kSampleFold) - start;
      const double with = row.kernels.sum(group, pieces[i].pivot, -1);
      sum = sum - with + row.kernels.sum(group, pieces[i].pivot, best.token - start);
    }
    if (sum > 0) others += sum * std::exp(pieces[i].state.m - best.logit);
  }
  return -std::log1p(others);
}

Drawn finish(const Row& row, const std::vector<SamplePiece>& pieces) {
  Drawn drawn;
  drawn.law = law_of(pieces);
  for (const SamplePiece& piece : pieces)
    if (sample_beats(piece.best, drawn.best)) drawn.best = piece.best;
  if (spoilt(drawn.law) || drawn.best.token < 0) {
    drawn.best = kNoBest;
    return drawn;
  }
  if (!row.problem.keys) drawn.log_probability = log_probability(row, pieces, drawn.best, drawn.law);
  return drawn;
}

Drawn greedy(const Row& row) {
  Drawn drawn;
  int64_t found = -1;
  for (int64_t i = 0; i < row.pieces(); ++i) {
    const SampleJob job = row.job(i, false, true);
    const State piece = to_state(row.c.kernels.state(job.x, job.n));
    if (found < 0 || piece.m > drawn.law.m) found = i;
    drawn.law = i ? merge(drawn.law, piece) : piece;
  }
  if (spoilt(drawn.law) || drawn.law.m == -HUGE_VAL) return drawn;
  const SampleJob job = row.job(found, false, true);
  const double m = drawn.law.m;
  drawn.best = {m, 0, m, job.first + row.kernels.find(job.x, job.n, m)};
  if (!row.problem.keys) drawn.log_probability = -row.c.kernels.log_sum(row.x, row.cols(), to_row(drawn.law));
  return drawn;
}

// ---- filters

// Sum of exp(z - m) of a whole row in double.
double exact_sum(const Row& row, double m) {
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
double cut_for_count(const Row& row, int64_t k) {
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
double cut_for_share(const Row& row, double m, double share) {
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
double lowered(double cut) { return cut == HUGE_VAL ? 0x1.fffffp127 : cut - 1e-6 * std::fabs(cut) - 1e-40; }

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
    double others = 0;
    for (int64_t i = 0; i < list_.n; ++i)
      if (i != chosen) others += list_.w[i];
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

void put(const SampleProblem& p, int64_t row, const Drawn& d) {
  p.tokens[row] = d.best.token;
  if (!p.keys) {
    p.log_probabilities[row] = d.log_probability;
    return;
  }
  p.keys[row] = d.best.key, p.rests[row] = d.best.rest, p.logits[row] = d.best.logit, p.m[row] = d.law.m,
  p.s[row] = d.law.s;
}

}  // namespace

void run_sample(const SampleProblem& problem) {
  Problem inner = problem.rows;
  inner.op = Op::state;
  const Context c(inner);
  const SampleKernels& kernels = sample_kernels_of(*inner.isa, inner.dtype);
  const bool adjacent = c.layout.along.size() == 1 && (c.layout.along[0].size == 1 || c.layout.along[0].x == c.size);
  const int64_t rows = c.layout.rows, cols = c.layout.cols;
  const auto row_at = [&](int64_t r) {
    const Place place = c.layout.place(r);
    Row row(problem, c, kernels, place.result);
    if (adjacent) row.x = inner.x + place.x;
    return row;
  };
  const auto plain = [](const Row& row) { return !row.greedy() && !row.filtered(); };

  // Few long rows are shared out by pieces.
  const int64_t pieces = Row(problem, c, kernels, 0).pieces();
  const bool split = adjacent && c.threads > 1 && pieces > 1 && rows < 4 * c.threads;
  std::vector<SamplePiece> all;
  const bool state = problem.keys != nullptr;
  if (split) {
    all.resize((size_t)(rows * pieces));
    parallel_for(rows * pieces, c.threads, [&](int64_t i) {
      const Row row = row_at(i / pieces);
      if (plain(row)) all[(size_t)i] = piece_of(row, i % pieces, true, state);
    });
  }
  const int64_t gathered = adjacent ? 0 : aligned64(cols * c.size);
  parallel_for(rows, c.threads, [&](int64_t r) {
    Row row = row_at(r);
    const bool filtered = row.filtered();
    char* room = thread_scratch(gathered + (filtered ? Filter::room(cols) : 0));
    if (!adjacent) {
      const Place place = c.layout.place(r);
      c.layout.each_run(0, cols, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(room + (at + i) * c.size, inner.x + place.x + o.x + i * d.x, (size_t)c.size);
      });
      row.x = room;
    }
    if (filtered) return put(problem, row.number, Filter(row, room + gathered).draw());
    if (row.greedy()) return put(problem, row.number, greedy(row));
    std::vector<SamplePiece> mine;
    if (split)
      mine.assign(all.begin() + r * pieces, all.begin() + (r + 1) * pieces);
    else
      for (int64_t i = 0; i < row.pieces(); ++i) mine.push_back(piece_of(row, i, true, state));
    put(problem, row.number, finish(row, mine));
  });
}

}  // namespace osm
