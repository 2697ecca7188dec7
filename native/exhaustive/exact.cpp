#include "exact.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace exhaustive {
namespace {

// ln 2 in three doubles.
constexpr double kLn2[] = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56, 0x1.7b57a079a1934p-111};

DD two_sum(double a, double b) {
  const double s = a + b, back = s - a;
  return {s, (a - (s - back)) + (b - back)};
}
DD quick_sum(double a, double b) {  // |a| >= |b|
  const double s = a + b;
  return {s, b - (s - a)};
}
DD two_product(double a, double b) {
  const double p = a * b;
  return {p, std::fma(a, b, -p)};
}
DD times(DD a, DD b) {
  const DD p = two_product(a.hi, b.hi);
  return quick_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}
DD times(DD a, double b) { return times(a, DD{b, 0}); }
DD over(DD a, DD b) {
  const double first = a.hi / b.hi;
  const DD left = plus(a, times(b, -first));
  const double second = left.hi / b.hi;
  const DD rest = plus(left, times(b, -second));
  return plus(two_sum(first, second), {rest.hi / b.hi, 0});
}

// x less the nearest multiple of ln 2, which is `k` of them.
DD reduced(DD x, int* k) {
  const double n = std::nearbyint(x.hi / kLn2[0]);
  *k = (int)n;
  for (double part : kLn2) x = plus(x, two_product(-n, part));
  return x;
}
constexpr size_t kTerms = 13;
std::array<DD, kTerms + 1> inverses() {
  std::array<DD, kTerms + 1> all{};
  for (size_t k = 1; k <= kTerms; ++k) all[k] = over({1, 0}, {(double)k, 0});
  return all;
}
// expm1 for |x| < 0.35: Taylor at x/256, then eight times (1 + p)^2 - 1 = 2p + p^2.
DD expm1_near_0(DD x) {
  const DD t{std::ldexp(x.hi, -8), std::ldexp(x.lo, -8)};
  static const std::array<DD, kTerms + 1> inverse = inverses();
  DD sum{1, 0};  // 1 + t/2 (1 + t/3 (1 + ...)); the first term left out is less than 2^-150 of the first
  for (size_t k = kTerms; k >= 2; --k) sum = plus({1, 0}, times(times(t, inverse[k]), sum));
  DD p = times(t, sum);
  for (int i = 0; i < 8; ++i) p = plus({2 * p.hi, 2 * p.lo}, times(p, p));
  return p;
}

}  // namespace

double to_double(DD a) { return a.hi + a.lo; }
DD difference(double a, double b) { return two_sum(a, -b); }

DD plus(DD a, DD b) {
  const DD s = two_sum(a.hi, b.hi), t = two_sum(a.lo, b.lo);
  const DD u = quick_sum(s.hi, s.lo + t.hi);
  return quick_sum(u.hi, u.lo + t.lo);
}

DD exp_of(DD x) {
  int k = 0;
  const DD e = plus({1, 0}, expm1_near_0(reduced(x, &k)));
  // Twice: 2^k alone may be beyond the doubles.
  return {std::ldexp(std::ldexp(e.hi, k / 2), k - k / 2), std::ldexp(std::ldexp(e.lo, k / 2), k - k / 2)};
}

DD expm1_of(DD x) {
  if (std::fabs(x.hi) < 0.34) return expm1_near_0(x);
  return plus(exp_of(x), {-1, 0});
}

DD log1p_of(DD x) {
  // One step of Newton's: y + (1 + x)*exp(-y) - 1, whose large parts cancel exactly as written here.
  const double y = std::log1p(x.hi);
  const DD step = plus(x, times(plus({1, 0}, x), expm1_of({-y, 0})));
  return plus({y, 0}, step);
}

DD share_of(double a, double b) {
  DD d = difference(b, a);
  if (std::fabs(d.hi) > 600) d = {d.hi > 0 ? 600.0 : -600.0, 0};
  return over({1, 0}, plus({1, 0}, exp_of(d)));
}

DD logaddexp_of(double a, double b) {
  const double m = std::max(a, b), o = std::min(a, b);
  const DD d = difference(o, m);
  return plus({m, 0}, log1p_of(d.hi < -600 ? DD{0, 0} : exp_of(d)));
}

}  // namespace exhaustive
