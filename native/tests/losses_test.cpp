// Cross-entropy of every instruction set and format, on buffers of the exact size, against sums in long double.
#include "../losses.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

enum class Kind { plain, rich, probabilities, columns, capped, parts };
constexpr Kind kKinds[] = {Kind::plain, Kind::rich, Kind::probabilities, Kind::columns, Kind::capped, Kind::parts};
constexpr const char* kNames[] = {"plain", "rich", "probabilities", "columns", "capped", "parts"};
constexpr int64_t kSizes[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,  31,   32,   33,
                              63, 64, 65, 95, 97, 127, 129, 255, 257, 1023, 1025, 1057};
constexpr double kCap = 4, kInverse = 1.25, kUniform = 0.01, kSharp = 0.9, kSquare = 0.05;

struct One {
  Kind kind;
  int64_t rows, cols;
  bool in_place;
};

// Numbers of double that end where their memory ends.
struct Numbers {
  Buffer buffer;
  Numbers(int64_t n, Where where) : buffer(n * 8, where, 16) {}
  double* data() const { return buffer.as<double>(); }
};

// What a row is by the definitions.
struct LossRow {
  std::vector<long double> p, c;
  long double lse = 0, loss = 0, total = 0, entropy = 0, scores = 0;
  int64_t rank = 0;

  LossRow(const std::vector<double>& z, const std::vector<long double>& coefficients, int64_t t, double z_loss)
      : c(coefficients) {
    long double m = -HUGE_VALL, s = 0;
    for (const double v : z) m = std::max(m, (long double)v);
    for (const double v : z) p.push_back(std::exp((long double)v - m)), s += p.back();
    for (long double& v : p) v /= s;
    lse = m + std::log(s);
    for (size_t i = 0; i < z.size(); ++i) {
      const long double log_p = (z[i] - m) - std::log(s);
      loss -= c[i] * log_p, total += c[i], entropy -= p[i] * log_p;
      if (t >= 0) rank += z[i] > z[(size_t)t] || (z[i] == z[(size_t)t] && (int64_t)i < t);
    }
    loss += z_loss * lse * lse;
  }
};

void one(const Isa& isa, Dtype dtype, const One& w, Where where, int threads) {
  const int64_t rows = w.rows, cols = w.cols, size = (int64_t)osm::dtype_size(dtype), n = rows * cols;
  const bool each = w.kind == Kind::probabilities, rich = w.kind == Kind::rich, capped = w.kind == Kind::capped;
  const bool across = w.kind == Kind::columns, parts = w.kind == Kind::parts;
  Buffer x(n * size, where, 16), y(n * size, where, 16), p(n * 4, where, 16);
  std::mt19937 random((unsigned)(n + 31 * (int64_t)w.kind));
  std::uniform_real_distribution<double> values(-6, 6), shares(0, 1);
  // Place of a class of a row.
  const auto place = [&](int64_t r, int64_t c) { return across ? c * rows + r : r * cols + c; };
  for (int64_t i = 0; i < n; ++i) store(dtype, x.data() + i * size, values(random));
  for (int64_t i = 0; i < n; ++i) store(Dtype::f32, p.data() + i * 4, shares(random));
  Buffer target(rows * 8, where, 16), rank(rows * 8, where, 16);
  const Numbers weight(cols, where), by_row(rows, where), d_loss(rows, where), d_lse(rows, where);
  const Numbers loss(rows, where), lse(rows, where), entropy(rows, where), m(rows, where), s(rows, where),
      own(rows, where), scores(rows, where);
  for (int64_t c = 0; c < cols; ++c) weight.data()[c] = rounded(Dtype::f32, 0.5 + shares(random));
  for (int64_t r = 0; r < rows; ++r) {
    target.as<int64_t>()[r] = r % 4 == 3 ? osm::kIgnored : (int64_t)(random() % (uint64_t)cols);
    by_row.data()[r] = 0.5 + shares(random), d_loss.data()[r] = shares(random), d_lse.data()[r] = -shares(random);
    loss.data()[r] = 0;  // rows that take no part keep it
  }

  osm::LossProblem job;
  job.dtype = dtype, job.isa = &isa, job.threads = threads, job.ndim = 2, job.axis = across ? 0 : 1;
  job.shape[job.axis] = cols, job.shape[1 - job.axis] = rows;
  job.x_strides[1] = size, job.x_strides[0] = job.shape[1] * size;
  std::copy(job.x_strides, job.x_strides + 2, job.y_strides);
  job.p_strides[1] = 4, job.p_strides[0] = 4 * job.shape[1];
  job.x = x.data();
  if (each)
    job.probabilities = p.data(), job.probabilities_dtype = Dtype::f32;
  else
    job.target = target.as<int64_t>();
  if (rich) {
    job.class_weights = weight.data(), job.row_weights = by_row.data();
    job.sharp = kSharp, job.uniform = kUniform, job.z_loss = kSquare, job.d_lse = d_lse.data();
    job.entropy = entropy.data(), job.rank = rank.as<int64_t>(), job.lse = lse.data(), job.ignored_too = true;
  }
  if (capped) job.softcap = kCap, job.inverse_temperature = kInverse;
  job.loss = loss.data();
  if (parts) {
    job.loss = nullptr, job.uniform = kUniform, job.ignored_too = true, job.class_weights = weight.data();
    job.made.m = m.data(), job.made.s = s.data(), job.made.target = own.data(), job.made.scores = scores.data();
  } else {
    job.y = w.in_place ? x.data() : y.data(), job.d_loss = d_loss.data(), job.d_loss_each = true;
  }
  std::vector<double> given((size_t)n);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) given[(size_t)(r * cols + c)] = load(dtype, x.data() + place(r, c) * size);
  osm::run_losses(job);

  // Exponentials of 2 units of roundoff (48 for 16 bits), sums of a depth of 8, of scores within 6 of 0; distances up
  // to 12 + ln(cols), below 24, a few roundings each. Scores that are capped are rounded before.
  const double u = unit(dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32);
  const double relative = 2 * u * ((size == 2 && !capped && !each ? 48 : 2) + 16 + (capped ? 8 * kCap * kInverse : 0));
  const double of_scores = rich || each || parts ? 8 * u * 2 * 24 : 0;
  const std::string what = std::string("losses.") + short_name(dtype) + "." + isa.name + " " + kNames[(int)w.kind] +
                           " of " + std::to_string(rows) + " x " + std::to_string(cols) + ": ";
  const auto close = [&](double found, long double right, double allowed, const char* name) {
    tally.check(std::fabs((double)(found - right)) <= allowed, what + name);
  };
  const char* made = w.in_place ? x.data() : y.data();
  for (int64_t r = 0; r < rows; r += cols > 10'000 ? 6 : 1) {
    const int64_t t = each ? osm::kNoTarget : target.as<int64_t>()[r];
    const bool ignored = t == osm::kIgnored;
    std::vector<double> z, slope;
    std::vector<long double> c;
    for (int64_t k = 0; k < cols; ++k) {
      const double v = given[(size_t)(r * cols + k)], th = std::tanh(v / kCap);
      z.push_back(capped ? kCap * th * kInverse : v), slope.push_back(capped ? (1 - th * th) * kInverse : 1);
      const double wt = rich || parts ? weight.data()[k] : 1;
      c.push_back(each ? (long double)load(Dtype::f32, p.data() + place(r, k) * 4)
                       : (long double)wt * ((t == k ? job.sharp : 0) + job.uniform));
    }
    const LossRow row(z, c, t, job.z_loss);
    const double total = (double)row.total, bw = rich ? by_row.data()[r] : 1;
    if (parts) {
      long double s_right = 0, scores_right = 0, reach = 0;
      for (int64_t k = 0; k < cols; ++k) {
        s_right += k == t ? 0 : std::exp((long double)z[(size_t)k] - m.data()[r]);
        scores_right += (long double)weight.data()[k] * z[(size_t)k], reach += weight.data()[k];
      }
      close(s.data()[r], s_right, relative * (double)s_right, "s");
      close(scores.data()[r], scores_right, of_scores * (double)reach, "scores");
      tally.check(t >= 0 ? own.data()[r] == z[(size_t)t] : std::isnan(own.data()[r]), what + "target");
      continue;
    }
    const double allowed = bw * (total * (relative + of_scores) + job.z_loss * 2 * 24 * relative) +
                           16 * u * bw * std::fabs((double)row.loss);
    if (ignored)
      tally.check(loss.data()[r] == 0, what + "loss of an ignored row");
    else
      close(loss.data()[r], bw * row.loss, allowed, "loss");
    if (rich) {
      close(lse.data()[r], row.lse, relative + 8 * u * std::fabs((double)row.lse), "lse");
      close(entropy.data()[r], row.entropy, (relative + 8 * u * 24) * (1 + (double)row.entropy), "entropy");
      tally.check(rank.as<int64_t>()[r] == (ignored ? -1 : row.rank), what + "rank");
    }
    const double g = ignored ? 0 : d_loss.data()[r] * bw;
    const double of_lse = (rich ? d_lse.data()[r] : 0) + 2 * job.z_loss * g * (double)row.lse;
    for (int64_t k = 0; k < cols; ++k) {
      const double p_k = (double)row.p[(size_t)k], c_k = ignored ? 0 : (double)c[(size_t)k];
      const double of_p = g * total + of_lse, right = (of_p * p_k - g * c_k) * slope[(size_t)k];
      const double sizes = (std::fabs(g) * total + std::fabs(of_lse)) * p_k + std::fabs(g) * c_k;
      const double found = load(dtype, made + place(r, k) * size);
      // At the target a sum of differences; elsewhere one. Slopes: quotients of exponentials of up to 3.
      close(found, right,
            (2 * relative + 8 * u + (capped ? 40 * u : 0)) * sizes * slope[(size_t)k] +
                unit(dtype) * std::fabs(right) * (1 + 1e-3) + 2 * least_normal(dtype) * unit(dtype),
            "gradient");
      if (ignored && !rich) tally.check(found == 0, what + "gradient of an ignored row");
    }
  }
}

}  // namespace

void test_losses() {
  for (const Isa* isa : usable_isas())
    for (const Dtype dtype : kDtypes) {
      for (const Kind kind : kKinds)
        for (const int64_t cols : kSizes)
          for (const Where where : wheres) one(*isa, dtype, {kind, 5, cols, cols % 2 == 0}, where, 1);
      // More rows than an item, on several threads; and so many bytes that the gradient goes around the caches.
      for (const Kind kind : kKinds) one(*isa, dtype, {kind, 300, 701, false}, end_of_memory(), 3);
      const int64_t great = (int64_t{8} << 20) / (int64_t)osm::dtype_size(dtype) / 13 + 17;
      one(*isa, dtype, {Kind::plain, 13, great, false}, end_of_memory(), 2);
      one(*isa, dtype, {Kind::rich, 13, great, false}, end_of_memory(), 2);
    }
}

}  // namespace tests
