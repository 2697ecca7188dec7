// Drawing, by every instruction set and format, on buffers of the exact size, against all keys in double.
#include "../sample.h"

#include <algorithm>
#include <cmath>

#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

struct Case {
  int64_t rows, cols, first_token;
  double temperature;
  int64_t top_k;  // 0: all
  double top_p, min_p;
};
// Blocks of 32 with tokens left over on either side, groups of 512, two pieces, every filter, the greatest.
constexpr Case kCases[] = {
    {3, 1, 0, 1.0, 0, 1, 0},        {2, 31, 0, 1.0, 0, 1, 0},         {2, 33, 0, 0.7, 0, 1, 0},
    {3, 64, 31, 1.0, 0, 1, 0},      {2, 100, 5, 1.5, 0, 1, 0},        {1, 1500, 500, 0.2, 0, 1, 0},
    {1, 33000, 7, 1.0, 0, 1, 0},    {2, 77, 0, 0.0, 0, 1, 0},         {3, 45, 3, 1.0, 4, 1, 0},
    {2, 600, 0, 0.8, 0, 0.7, 0},    {2, 130, 1, 1.0, 0, 1, 0.1},      {1, 9000, 0, 1.0, 20, 0.9, 0.02},
    {2, 9000, 40, 1.2, 0, 0.95, 0}, {1, 33000, 9, 0.0, 50, 0.5, 0.3},
};

struct Truth {
  int64_t token = -1;
  double key = -HUGE_VAL, log_probability = NAN;
};

// One row by sorting, and by the keys of all tokens.
Truth truth_of(const Table& t, int64_t row, const Case& c, const osm::SampleNoise& noise) {
  Truth best;
  const double warmth = c.temperature == 0 ? 1.0 : c.temperature;
  std::vector<int64_t> order;
  double top = -HUGE_VAL;
  for (int64_t i = 0; i < c.cols; ++i) {
    const double x = t.at(row, i);
    if (std::isnan(x) || x == HUGE_VAL) return best;
    if (x > -HUGE_VAL) order.push_back(i);
    top = std::max(top, x);
  }
  const auto z = [&](int64_t i) { return t.at(row, i) / warmth; };
  const auto weight = [&](int64_t i) { return std::exp(z(i) - top / warmth); };
  const auto sum = [&] {
    double total = 0;
    for (const int64_t i : order) total += weight(i);
    return total;
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return z(a) > z(b); });
  if (c.top_k && (int64_t)order.size() > c.top_k) order.resize((size_t)c.top_k);
  if (c.top_p < 1) {
    const double target = c.top_p * sum();
    double so_far = 0;
    size_t kept = 0;
    while (kept < order.size() && so_far < target) so_far += weight(order[kept++]);
    order.resize(kept);
  }
  const auto light = [&](int64_t i) { return weight(i) < c.min_p; };
  order.erase(std::remove_if(order.begin(), order.end(), light), order.end());
  std::sort(order.begin(), order.end());
  for (const int64_t i : order) {
    const int64_t token = c.first_token + i;
    const double key =
        c.temperature == 0 ? z(i) : z(i) + osm::sample_gumbel(noise, token, osm::sample_leading_of(noise, token));
    if (key > best.key) best = {token, key, z(i) - top / warmth};
  }
  if (best.token >= 0) best.log_probability -= std::log(sum());
  return best;
}

void one(const Isa& isa, Dtype dtype, const Case& c, Fill fill, Where where, int threads) {
  const Table table = table_of(dtype, c.rows, c.cols, fill, false, (unsigned)(c.cols + c.rows));
  const int64_t size = (int64_t)osm::dtype_size(dtype);
  Buffer x(c.rows * c.cols * size, where, 16);
  for (int64_t i = 0; i < c.rows * c.cols; ++i) store(dtype, x.data() + i * size, table.x[(size_t)i]);
  const std::vector<double> temperature((size_t)c.rows, c.temperature), top_p((size_t)c.rows, c.top_p),
      min_p((size_t)c.rows, c.min_p);
  const std::vector<int64_t> top_k((size_t)c.rows, c.top_k);
  std::vector<int64_t> tokens((size_t)c.rows);
  std::vector<double> logs((size_t)c.rows);
  osm::SampleProblem p;
  p.rows.dtype = dtype, p.rows.isa = &isa, p.rows.threads = threads, p.rows.ndim = 2, p.rows.reduced = 2;
  p.rows.shape[0] = c.rows, p.rows.shape[1] = c.cols;
  p.rows.x = x.data(), p.rows.x_strides[0] = c.cols * size, p.rows.x_strides[1] = size;
  p.temperature = temperature.data(), p.top_k = top_k.data(), p.top_p = top_p.data(), p.min_p = min_p.data();
  p.seed = 77, p.draw = 3, p.first_row = 5, p.first_token = c.first_token;
  p.tokens = tokens.data(), p.log_probabilities = logs.data();
  osm::run_sample(p);
  for (int64_t r = 0; r < c.rows; ++r) {
    const Truth truth = truth_of(table, r, c, osm::sample_noise(77, 3, (uint64_t)(5 + r), false));
    const std::string what = std::string("sample.") + short_name(dtype) + "." + isa.name + " of " +
                             std::to_string(c.cols) + " from " + std::to_string(c.first_token);
    tally.check(tokens[(size_t)r] == truth.token, what + " token");
    const double found = logs[(size_t)r], bound = dtype == Dtype::f64 ? 1e-12 : 4e-6;
    tally.check(
        std::isnan(truth.log_probability) ? std::isnan(found) : std::fabs(found - truth.log_probability) <= bound,
        what + " log-probability");
  }
}

}  // namespace

void test_sample() {
  for (const Isa* isa : usable_isas())
    for (const Dtype dtype : kDtypes)
      for (const Case& c : kCases)
        for (const Fill fill : {Fill::near, Fill::wide, Fill::special})
          for (const Where where : wheres)
            for (const int threads : {1, 3})
              if (threads == 1 || where == Where::heap) one(*isa, dtype, c, fill, where, threads);
}

}  // namespace tests
