#include "compare.h"

#include <bit>
#include <cstddef>

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define EACH_CPU
#endif
#define INLINE inline __attribute__((always_inline))

namespace exhaustive {
namespace {

// The midpoint half a place above or below a positive value. Below 0 there is none: NaN, which no comparison holds for.
INLINE float midpoint(uint32_t code, int shift, float scale, int half_places) {
  return std::bit_cast<float>((code << shift) + (uint32_t)(half_places * (1 << (shift - 1)))) * scale;
}

INLINE uint32_t to_bf16(uint32_t bits) {
  const uint32_t number = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = 0x7fc0;
  return (bits & 0x7fffffff) > 0x7f800000 ? nan : number;
}
INLINE uint32_t to_f16(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  // Normal results: the exponent's bias changed, rounded in integers; a carry runs into the exponent, as it should.
  const uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
  // Subnormal ones: an addition that leaves the steps of 2^-24 in the low bits.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  uint32_t to = size < (113u << 23) ? small : normal;
  to = size >= 0x477ff000u ? 0x7c00u : to;  // 65520 and above
  to = size > 0x7f800000u ? 0x7e00u : to;
  return sign | to;
}

}  // namespace

EACH_CPU void take_apart(const uint16_t* y, uint16_t* ya, uint16_t* yb, int n) {
  for (int i = 0; i < n; ++i) ya[i] = y[2 * i], yb[i] = y[2 * i + 1];
}

EACH_CPU void round_to(const Format& format, const float* lse, uint16_t* codes, int n) {
  if (format.fraction == 7)
    for (int i = 0; i < n; ++i) codes[i] = (uint16_t)to_bf16(std::bit_cast<uint32_t>(lse[i]));
  else
    for (int i = 0; i < n; ++i) codes[i] = (uint16_t)to_f16(std::bit_cast<uint32_t>(lse[i]));
}

EACH_CPU void flag_softmax(const Stretch& s, const uint16_t* ya, const uint16_t* yb, int64_t* flag) {
  const double ea = s.format->e[(size_t)s.a];
  const double* e = s.format->e.data() + s.first;
  const int shift = s.format->shift;
  const float scale = s.format->scale;
  const uint32_t one = (uint32_t)s.format->one;
  for (int i = 0; i < s.n; ++i) {
    const double sum = ea + e[i], more = sum * (1 + kSlack), less = sum * (1 - kSlack);
    const double low_a = midpoint(ya[i], shift, scale, -1), high_a = midpoint(ya[i], shift, scale, 1);
    const double low_b = midpoint(yb[i], shift, scale, -1), high_b = midpoint(yb[i], shift, scale, 1);
    flag[i] = (int64_t)(ea <= low_a * more) | (int64_t)(ea >= high_a * less) | (int64_t)(e[i] <= low_b * more) |
              (int64_t)(e[i] >= high_b * less) | (int64_t)(ya[i] > one) | (int64_t)(yb[i] > one);
  }
}

namespace {

// With `base` = expm1 or exp of the greater: sum of the two in that measure against the result's midpoints.
INLINE void flag_between(double base, double other, double low, double high, int64_t* flag) {
  const double sum = base + other, slack = kSlack * ((base < 0 ? -base : base) + other);
  *flag = (int64_t)!(sum - slack > low) | (int64_t)!(sum + slack < high);
}

}  // namespace

// exp(a) + exp(b) lies between the exponentials of the result's midpoints. From -1/2 on by expm1, which keeps results
// near 0 sharp.
EACH_CPU void flag_lse(const Stretch& s, const uint16_t* codes, int64_t* flag) {
  const Format& f = *s.format;
  const double ea = f.e[(size_t)s.a], e1a = f.e1[(size_t)s.a], a = f.value[(size_t)s.a];
  const double *e = f.e.data() + s.first, *e1 = f.e1.data() + s.first, *b = f.value.data() + s.first;
  const double *below = f.below.data(), *above = f.above.data(), *below1 = f.below1.data(), *above1 = f.above1.data();
  for (int i = 0; i < s.n; ++i) {
    int64_t by_exp = 0, by_expm1 = 0;
    const bool b_greater = b[i] > a;
    flag_between(b_greater ? e1[i] : e1a, b_greater ? ea : e[i], below1[codes[i]], above1[codes[i]], &by_expm1);
    flag_between(ea, e[i], below[codes[i]], above[codes[i]], &by_exp);
    flag[i] = (b_greater ? b[i] : a) >= -0.5 ? by_expm1 : by_exp;
  }
}

EACH_CPU void flag_states(const Stretch& s, const double* m, const double* sum, double most, double* error,
                          int64_t* flag) {
  const double ea = s.format->e[(size_t)s.a], a = s.format->value[(size_t)s.a];
  const double *e = s.format->e.data() + s.first, *b = s.format->value.data() + s.first;
  for (int i = 0; i < s.n; ++i) {
    const double greater = b[i] > a ? b[i] : a, unit = b[i] > a ? e[i] : ea, exact = ea + e[i];
    const double off = (sum[i] * unit - exact) / exact;
    error[i] = off < 0 ? -off : off;
    flag[i] = (int64_t)!(error[i] <= most) | (int64_t)!(m[i] == greater);
  }
}

EACH_CPU void flag_lone_softmax(const Stretch& s, const uint16_t* ya, const uint16_t* yb, int64_t* flag) {
  const double a = s.format->value[(size_t)s.a], *b = s.format->value.data() + s.first;
  const int one = s.format->one;
  for (int i = 0; i < s.n; ++i) {
    const bool b_greater = b[i] > a;
    flag[i] = (int64_t)(ya[i] != (b_greater ? 0 : one)) | (int64_t)(yb[i] != (b_greater ? one : 0));
  }
}

EACH_CPU void flag_lone_lse(const Stretch& s, const uint16_t* codes, int64_t* flag) {
  const double a = s.format->value[(size_t)s.a], *b = s.format->value.data() + s.first, *v = s.format->value.data();
  for (int i = 0; i < s.n; ++i) flag[i] = (int64_t)!(v[codes[i]] == (b[i] > a ? b[i] : a));
}

EACH_CPU void flag_lone_states(const Stretch& s, const double* m, const double* sum, int64_t* flag) {
  const double a = s.format->value[(size_t)s.a], *b = s.format->value.data() + s.first;
  for (int i = 0; i < s.n; ++i) flag[i] = (int64_t)!(m[i] == (b[i] > a ? b[i] : a)) | (int64_t)!(sum[i] == 1.0);
}

}  // namespace exhaustive
