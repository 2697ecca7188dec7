// Logarithms by operations that IEEE 754 defines, in a fixed order: the same bits on every machine, contraction on or
// off. What online_softmax/exact.py calls log1p, for other arguments too.
#pragma once
#include <stdint.h>

namespace osm {

// log(r + c) within 2 ulp, for a normal r > 0 and what rounding left out of it.
static inline double same_log_of(double r, double c) {
  constexpr double series[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                               1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};  // atanh(s) = s + s^3/3 + ...
  uint64_t bits;
  __builtin_memcpy(&bits, &r, 8);
  const int64_t k = (int64_t)(bits - 0x3FE6A09E667F3BCDull) >> 52;  // r * 2^-k is in [sqrt(1/2), sqrt(2))
  bits = (uint64_t)(1023 - k) << 52;
  double scale;
  __builtin_memcpy(&scale, &bits, 8);
  const double z = (r * scale - 1.0) + c * scale;
  const double s = z / (2.0 + z), square = s * s, twice = s + s;
  double q = series[10];
  for (int i = 9; i >= 0; --i) q = __builtin_fma(q, square, series[i]);
  const double sum = __builtin_fma(twice * square, q, twice), whole = (double)k;
  return __builtin_fma(whole, 0x1.62e42fefa39efp-1, __builtin_fma(whole, 0x1.abc9e3b39803fp-56, sum));
}
static inline double same_log(double x) { return same_log_of(x, 0.0); }
// log(1 + u), u from -1/2 on.
static inline double same_log1p(double u) {
  const double r = 1.0 + u, back = r - 1.0;
  return same_log_of(r, (1.0 - (r - back)) + (u - back));
}

}  // namespace osm
