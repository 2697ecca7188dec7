#include "judge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "compare.h"

namespace exhaustive {
namespace {

constexpr size_t kLines = 10;

}  // namespace

void Tally::add(const Tally& other) {
  pairs += other.pairs, results += other.results;
  not_correctly_rounded += other.not_correctly_rounded, violations += other.violations;
  second_looks += other.second_looks, in_double_double += other.in_double_double, undecided += other.undecided;
  if (other.worst > worst) worst = other.worst, worst_a = other.worst_a, worst_b = other.worst_b;
  for (const std::string& line : other.lines)
    if (lines.size() < kLines) lines.push_back(line);
}

bool Judge::tabled(int a, int b) const { return std::fabs(value(a)) <= kMiddle && std::fabs(value(b)) <= kTabled; }

double Judge::ulps(int code, DD exact) const {
  if (format_.is_nan(code)) return kInfinite;
  // Infinity stands where the next value would: what lies beyond the last midpoint rounds to it.
  if ((code & 0x7fff) == format_.infinity) {
    const int last = code - 1;
    const double step = format_.spacing(last, code < kNegative),
                 place = value(last) + (code < kNegative ? step : -step);
    const bool past = code < kNegative ? exact.hi >= place : exact.hi <= place;
    return past ? 0.0 : std::fabs(to_double(plus({place, 0}, {-exact.hi, -exact.lo}))) / step;
  }
  const DD off = plus(exact, {-value(code), 0});
  return std::fabs(to_double(off)) / format_.spacing(code, to_double(off) > 0);
}

void Judge::worst(double error, int a, int b) {
  if (error > tally.worst) tally.worst = error, tally.worst_a = a, tally.worst_b = b;
}

void Judge::violation(int a, int b, const char* what, double got, double exact, double error, const char* unit) {
  ++tally.violations;
  if (tally.lines.size() >= kLines) return;
  char text[400];
  if (b < 0)
    std::snprintf(text, sizeof text, "%s %s(0x%04x = %.9g) = %.17g, exact %.17g: %.6g %s", id_.c_str(), what,
                  (unsigned)a, value(a), got, exact, error, unit);
  else
    std::snprintf(text, sizeof text, "%s %s(0x%04x = %.9g, 0x%04x = %.9g) = %.17g, exact %.17g: %.6g %s", id_.c_str(),
                  what, (unsigned)a, value(a), (unsigned)b, value(b), got, exact, error, unit);
  tally.lines.push_back(text);
}

template <class Exact>
void Judge::place(int a, int b, int code, const char* what, Near near, const Exact& exact) {
  ++tally.second_looks;
  DD truth{near.value, 0};
  double error = ulps(code, truth);
  const double unit = error < kInfinite ? format_.spacing(code, near.value > value(code)) : 1.0;
  const auto doubtful = [&](double slack) {
    return std::fabs(error - 0.5) <= slack || std::fabs(error - kBound) <= slack;
  };
  if (doubtful(near.slack / unit)) {
    ++tally.in_double_double;
    truth = exact(), error = ulps(code, truth);
    if (doubtful(kExactError * (near.slack / kSlack) / unit)) ++tally.undecided;
  }
  worst(error, a, b);
  if (error > 0.5) ++tally.not_correctly_rounded;
  if (error > kBound) violation(a, b, what, value(code), to_double(truth), error, "ulp");
}

void Judge::softmax(int a, int b, int code, bool swapped) {
  const double va = value(a), vb = value(b);
  // Where the tables end, the difference is exact: both are large and of a size, or the result is 0 or 1.
  const double ea = format_.e[(size_t)a], eb = format_.e[(size_t)b];
  const double share = tabled(a, b) || tabled(b, a) ? ea / (ea + eb) : 1 / (1 + std::exp(vb - va));
  const char* what = swapped ? "softmax[1]" : "softmax[0]";
  place(swapped ? b : a, swapped ? a : b, code, what, {share, kSlack * share}, [&] { return share_of(va, vb); });
}

void Judge::lse(int a, int b, int code) {
  const double va = value(a), vb = value(b), m = std::max(va, vb), more = std::log1p(std::exp(std::min(va, vb) - m));
  // The difference is rounded, which costs d*2^-53 of what it adds; past d = 100 that is nothing in either format.
  const double slack = 0x1p-46 * (std::fabs(m) + more);
  place(a, b, code, "logsumexp", {m + more, slack}, [&] { return logaddexp_of(va, vb); });
}

void Judge::exponential(int x, int code) {
  // Past the tables exp is 0 or infinite, as it is at their end.
  const double v = std::min(std::max(value(x), -kTabled), kTabled);
  place(x, -1, code, "exp", {std::exp(v), kSlack * std::exp(v)}, [&] { return exp_of({v, 0}); });
}

double Judge::state_error(int a, int b, double s) const {
  const double exact = 1 + std::exp(-std::fabs(value(b) - value(a)));
  return std::fabs(s - exact) / exact;
}

void Judge::state(int a, int b, double m, double s, double error, double most) {
  ++tally.second_looks;
  const double greater = std::max(value(a), value(b));
  expect(m == greater, a, b, "maximum", m, greater);
  worst(error, a, b);
  if (error <= most) return;
  violation(a, b, "sum", s, s / (1 + error), error, "relative");
}

void Judge::expect(bool good, int a, int b, const char* what, double got, double exact) {
  if (!good) violation(a, b, what, got, exact, kInfinite, "ulp");
}

void Judge::special_softmax(int a, int b, int ya, int yb) {
  const double low = std::min(value(a), value(b)), high = std::max(value(a), value(b));
  if (std::isnan(value(a)) || std::isnan(value(b)) || std::isinf(high)) {
    expect(format_.is_nan(ya), a, b, "softmax[0]", value(ya), NAN);
    expect(format_.is_nan(yb), a, b, "softmax[1]", value(yb), NAN);
  } else {  // low is -inf
    const int first = value(a) > low ? format_.one : 0;
    expect(ya == first, a, b, "softmax[0]", value(ya), value(first));
    expect(yb == format_.one - first, a, b, "softmax[1]", value(yb), value(format_.one - first));
  }
}

void Judge::special_lse(int a, int b, float lse, int code) {
  const bool nan = std::isnan(value(a)) || std::isnan(value(b));
  const double exact = nan ? NAN : std::max(value(a), value(b));
  // The one element left beside a -inf comes out in the format; in float it may be off by an ulp of float.
  const bool good = nan ? std::isnan(lse) : std::isinf(exact) ? (double)lse == exact : value(code) == exact;
  expect(good, a, b, "logsumexp", lse, exact);
}

void Judge::special_state(int a, int b, double m, double s) {
  const double va = value(a), vb = value(b);
  if (std::isnan(va) || std::isnan(vb)) {
    expect(std::isnan(m), a, b, "maximum", m, NAN);
    expect(std::isnan(s), a, b, "sum", s, NAN);
    return;
  }
  const double greater = std::max(va, vb), count = greater == -HUGE_VAL ? 0 : (va == greater) + (vb == greater);
  expect(m == greater, a, b, "maximum", m, greater);
  expect(s == count, a, b, "sum", s, count);
}

}  // namespace exhaustive
