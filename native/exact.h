// The law of online_softmax/exact.py, number by number, in portable C++: the same bits with multiply-adds contracted or
// not, at any level of optimisation, with subnormal numbers flushed or not. What it needs is rounding to nearest and
// operations done in the order they are written.
//
// Internal linkage throughout: each translation unit has code for its own instruction set.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "same_log.h"

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
#error "the law of exact.py does not survive reassociation: no -ffast-math here"
#endif

namespace osm {
namespace {

template <class S>
struct Law;
template <>
struct Law<float> {
  using Bits = uint32_t;
  static constexpr int width = 22, slices = 3, mantissa = 23, bias = 127, terms = 6;
  static constexpr float log2e = 0x1.715476p+0f;
  static constexpr float c[terms] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6af7cp-5f,
                                     0x1.3b2de0p-7f, 0x1.5f0830p-10f, 0x1.416b5ap-13f};
  static constexpr float large = 0x1p30f, reach = 128.0f;
  static constexpr int smallest = -125;  // exponent of the smallest probability
  // Up to this magnitude of m rows are done in vectors; what lies so far below m is 0 in sums and results.
  static constexpr float near = 0x1p19f, depth = 100.0f;
};
template <>
struct Law<double> {
  using Bits = uint64_t;
  static constexpr int width = 32, slices = 4, mantissa = 52, bias = 1023, terms = 12;
  static constexpr double log2e = 0x1.71547652b82fep+0, log2e_low = 0x1.777d0ffda0d24p-56, far = 0x1p49;
  static constexpr double c[terms] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0ccp-5,
                                      0x1.3b2ab6fba4e7ap-7,  0x1.5d87fe78a2817p-10, 0x1.430912f86ae8bp-13,
                                      0x1.ffcbfc767e0d0p-17, 0x1.62c02246389cbp-20, 0x1.b524d66e8dfc9p-24,
                                      0x1.e4ceffef1e38ap-28, 0x1.ea0fee33cacf4p-32, 0x1.c4beee69db273p-36};
  static constexpr double large = 0x1p62, reach = 1024.0;
  static constexpr int smallest = -1021;
  static constexpr double near = 0x1p48, depth = 720.0;
};

// The statistics of a multiset of elements. 32 bytes of float, 40 of double.
template <class S>
struct ExactState {
  S m;
  int64_t a[Law<S>::slices];
};
static_assert(sizeof(ExactState<float>) == 32 && sizeof(ExactState<double>) == 40);

inline uint32_t bits_of(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
inline uint64_t bits_of(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, 8);
  return u;
}
inline float number_of(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
inline double number_of(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, 8);
  return x;
}
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
// 2^n of a normal double.
inline double power_of_2(int64_t n) { return number_of((uint64_t)(n + 1023) << 52); }
// To a whole number, ties to even; |x| < 2^51. A sum that keeps no fraction: contraction finds nothing to change.
inline double whole_of(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

template <class S>
inline typename Law<S>::Bits magnitude_of(S x) {
  return bits_of(x) & ((typename Law<S>::Bits) - 1 >> 1);
}
template <class S>
inline bool is_nan(S x) {
  return magnitude_of(x) > magnitude_of((S)__builtin_inf());
}
template <class S>
inline bool is_finite(S x) {
  return magnitude_of(x) < magnitude_of((S)__builtin_inf());
}
// Whether the terms of a row with this maximum are summed; false for NaN and infinities.
template <class S>
inline bool is_plain(S m) {
  return magnitude_of(m) <= bits_of(Law<S>::large);
}
template <class S>
inline S canonical(S m) {
  const auto size = magnitude_of(m);
  if (size >> Law<S>::mantissa == 0) return 0;
  return size > magnitude_of((S)__builtin_inf()) ? (S)__builtin_nan("") : m;
}

template <class S>
inline ExactState<S> empty_state() {
  ExactState<S> st{};
  st.m = -(S)__builtin_inf();
  return st;
}

// T = p * 2^n near exp(x), |x| <= large.
template <class S>
struct Term {
  S p;
  int64_t n;
};
template <class S>
inline S polynomial_of(S f) {
  S p = Law<S>::c[Law<S>::terms - 1];
  for (int k = Law<S>::terms - 2; k >= 0; --k) p = fused(p, f, Law<S>::c[k]);
  return fused(p, f, (S)1);
}
inline Term<float> term_of(float x) {
  const double y = (double)x * (double)Law<float>::log2e;  // exact: 24 and 24 bits
  const double n = whole_of(y);
  return {polynomial_of((float)(y - n)), (int64_t)n};
}
// Far out the product has no place left for a fraction, and its low part takes its turn.
inline Term<double> far_term_of(double x) {
  using L = Law<double>;
  // Products that contraction must not join with the differences below.
  const double high = __builtin_fma(x, L::log2e, 0.0), low = __builtin_fma(x, L::log2e, -high);
  const double part = __builtin_fma(x, L::log2e_low, 0.0), part_low = __builtin_fma(x, L::log2e_low, -part);
  const double first = __builtin_rint(high), second = __builtin_rint(low), third = __builtin_rint(part);
  const double left = ((high - first) + (low - second)) + ((part - third) + part_low);
  const double fourth = __builtin_rint(left);
  return {polynomial_of(left - fourth), (int64_t)first + (int64_t)(second + third + fourth)};
}
inline Term<double> term_of(double x) {
  using L = Law<double>;
  if (!(__builtin_fabs(x) < L::far)) return far_term_of(x);
  const double n = __builtin_fma(x, L::log2e, 0x1.8p52) - 0x1.8p52;
  const double f = __builtin_fma(x, L::log2e_low, __builtin_fma(x, L::log2e, -n));
  return {polynomial_of(f), (int64_t)n};
}

// floor((n + 1) / width)
template <class S>
inline int64_t bin_of(int64_t n) {
  // A multiple of the width makes it positive: division then rounds down.
  constexpr uint64_t width = Law<S>::width, bins = (uint64_t{1} << 63) / width;
  return (int64_t)(((uint64_t)(n + 1) + bins * width) / width - bins);
}
inline int64_t exponent_of(float x) { return (int64_t)whole_of((double)x * (double)Law<float>::log2e); }
inline int64_t exponent_of(double x) { return term_of(x).n; }
template <class S>
inline int64_t top_of(S m) {
  return bin_of<S>(exponent_of(is_plain(m) ? m : (S)0));
}

// p * 2^e in slices, a whole number of units each; e is relative to the top bin's unit.
template <class S>
inline void slices_of(Term<S> t, int64_t b, int64_t* s) {
  using L = Law<S>;
  const int64_t e = t.n - L::width * b, lowest = -L::width * L::slices - 8;
  double rest = (double)t.p * power_of_2(e < lowest ? lowest : e > L::width - 2 ? L::width - 2 : e);
  for (int k = 0; k < L::slices; ++k) {
    const double whole = whole_of(rest);
    s[k] = (int64_t)whole;
    rest = (rest - whole) * power_of_2(L::width);
  }
}
inline void add_to(int64_t& a, int64_t b) { a = (int64_t)((uint64_t)a + (uint64_t)b); }

// The sums of a row that has its maximum already: one element more, x <= m.
template <class S>
inline void add_element(ExactState<S>& st, bool plain, int64_t b, S x) {
  using L = Law<S>;
  if (!plain) {
    if (x == st.m && x > -(S)__builtin_inf()) add_to(st.a[0], 1);
    return;
  }
  if (!(x >= st.m - (S)(L::width * (L::slices + 2)))) return;
  int64_t s[L::slices];
  slices_of(term_of(x), b, s);
  for (int k = 0; k < L::slices; ++k) add_to(st.a[k], s[k]);
}

// How many slots the sums of maximum `small` move down under maximum m >= small; `slices` where nothing is left.
template <class S>
inline int64_t down_of(S m, S small) {
  const int64_t d = top_of(m) - top_of(small), most = Law<S>::slices;
  const int64_t down = is_plain(m) & is_plain(small) & (d >= 0) & (d < most) ? d : most;
  return m == small ? 0 : down;
}
// Without branches, for maxima have no order that could be foreseen.
template <class S>
inline ExactState<S> merged(const ExactState<S>& left, const ExactState<S>& right) {
  constexpr int K = Law<S>::slices;
  const bool lower = left.m < right.m, nan = is_nan(left.m) | is_nan(right.m);
  const S upper = lower ? right.m : left.m, small = lower ? left.m : right.m;
  ExactState<S> st;
  st.m = nan ? (S)__builtin_nan("") : canonical(upper);
  const uint64_t swap = (uint64_t)0 - (uint64_t)lower, kept = (uint64_t)0 - (uint64_t)(st.m > -(S)__builtin_inf());
  uint64_t padded[2 * K] = {}, top[K];
  for (int k = 0; k < K; ++k) {
    const uint64_t a = (uint64_t)left.a[k], b = (uint64_t)right.a[k], either = (a ^ b) & swap;
    top[k] = a ^ either, padded[K + k] = b ^ either;
  }
  const int64_t down = down_of(st.m, small);
  for (int k = 0; k < K; ++k) st.a[k] = (int64_t)((top[k] + padded[K + k - down]) & kept);
  return st;
}

// The sums in units of the top slice.
template <class S>
inline double total_of(const int64_t* a) {
  constexpr int K = Law<S>::slices, W = Law<S>::width;
  int64_t digit[K];
  for (int k = 0; k < K; ++k) digit[k] = a[k];
  for (int k = K - 1; k > 0; --k) {
    add_to(digit[k - 1], digit[k] >> W);
    digit[k] &= (int64_t{1} << W) - 1;
  }
  double total = (double)digit[K - 1];
  for (int k = K - 2; k >= 0; --k) total = total * power_of_2(-W) + (double)digit[k];
  return total;
}

// V - T(m) and T(m) in units of the top slice, m finite; where equal elements are counted, their number less 1, and 1.
struct Rest {
  double rest, own;
};
template <class S>
inline Rest rest_of(const ExactState<S>& st, int64_t* top = nullptr) {
  using L = Law<S>;
  int64_t a[L::slices], own[L::slices] = {1};
  double term = 1.0;
  if (is_plain(st.m)) {
    const Term<S> t = term_of(st.m);
    const int64_t b = bin_of<S>(t.n);
    slices_of(t, b, own);
    term = (double)t.p * power_of_2(t.n - L::width * b);
    if (top) *top = b;
  }
  for (int k = 0; k < L::slices; ++k) a[k] = (int64_t)((uint64_t)st.a[k] - (uint64_t)own[k]);
  return {total_of<S>(a), term};
}
// What the log-sum-exp has above m; 0 where m is not finite.
template <class S>
inline double log_sum_of(const ExactState<S>& st) {
  if (!is_finite(st.m)) return 0;
  const Rest r = rest_of(st);
  return same_log1p(r.rest / r.own);
}
template <class S>
inline S lse_of(const ExactState<S>& st) {
  return is_nan(st.m) ? (S)__builtin_nan("") : (S)((double)st.m + log_sum_of(st));
}

// x * 2^n of a positive normal x: exact, without numbers that a machine may flush; 0 below the smallest probability.
template <class S>
inline S scaled_by(S x, int64_t n) {
  using L = Law<S>;
  if (!(x > 0) || !is_finite(x)) return x;
  const int64_t e = (int64_t)(bits_of(x) >> L::mantissa) - L::bias;
  if (n < -4096 || e + n < L::smallest) return 0;
  if (n > 4096 || e + n > L::bias) return (S)__builtin_inf();
  return number_of((typename L::Bits)(bits_of(x) + ((typename L::Bits)n << L::mantissa)));
}

// What turns terms into probabilities: 1/V = (high + low) * 2^-k in units of top bin b; and into their logarithms.
template <class S>
struct Divisor {
  S m, high, low;
  int64_t b, k;
  double log_sum;
  bool plain, finite;
};
template <class S>
inline Divisor<S> divisor_of(const ExactState<S>& st, bool logs) {
  Divisor<S> d{};
  d.m = st.m, d.plain = is_plain(st.m), d.finite = is_finite(st.m);
  if (!d.finite) return d;
  const Rest r = rest_of(st, &d.b);
  const double sum = r.rest + r.own;
  if (logs) d.log_sum = same_log1p(r.rest / r.own);
  d.k = (int64_t)(bits_of(sum) >> 52 & 0x7ff) - 1023;
  const double v = number_of((bits_of(sum) & uint64_t{0x800fffffffffffff}) | uint64_t{0x3ff0000000000000}),
               one = 1.0 / v;
  d.high = (S)one;
  if constexpr (sizeof(S) == 8)
    d.low = __builtin_fma(-one, v, 1.0) * one;
  else
    d.low = (S)(one - (double)d.high);
  return d;
}

template <class S>
inline S value_of(const Divisor<S>& d, S x) {
  using L = Law<S>;
  if (!d.finite || is_nan(x)) return (S)__builtin_nan("");
  if (!d.plain) return x == d.m ? scaled_by(d.high, -d.k) : (S)0;
  if (!(x <= L::large) || !(x >= d.m - L::reach)) return 0;
  const Term<S> t = term_of(x);
  return scaled_by(fused(t.p, d.high, t.p * d.low), t.n - L::width * d.b - d.k);
}

inline double widened(float x) {  // also where subnormal numbers count as 0
  if ((bits_of(x) & 0x7f800000) || !(bits_of(x) & 0x7fffffff)) return (double)x;
  const double size = (double)(int32_t)(bits_of(x) & 0x7fffff) * 0x1p-149;
  return bits_of(x) >> 31 ? -size : size;
}
inline float log_value_of(const Divisor<float>& d, float x) {
  if (!d.finite || is_nan(x)) return __builtin_nanf("");
  const double y = (widened(x) - (double)d.m) - d.log_sum;
  if (__builtin_fabs(y) >= 0x1p-126) return (float)y;
  // What rounds to a subnormal number is 0; the last step below the least normal one rounds up to it.
  return __builtin_fabs(y) < 0x1.fffffep-127 ? 0.0f : y < 0 ? -0x1p-126f : 0x1p-126f;
}
inline double log_value_of(const Divisor<double>& d, double x) {
  if (!d.finite || is_nan(x)) return __builtin_nan("");
  if (d.log_sum == 0 && __builtin_fabs(d.m) < 0x1p-900 && magnitude_of(x) < bits_of(0x1p-900)) {
    // The difference may be subnormal, and x itself: in units of 2^-1074, where it matters.
    const double size =
        magnitude_of(x) >> 52 ? __builtin_fabs(x) * 0x1p200 : (double)(int64_t)magnitude_of(x) * 0x1p-874;
    const double y = (bits_of(x) >> 63 ? -size : size) - d.m * 0x1p200;
    return __builtin_fabs(y) < 0x1p-822 ? 0.0 : y * 0x1p-200;
  }
  const double y = (x - d.m) - d.log_sum;
  return __builtin_fabs(y) < 0x1p-1022 ? 0.0 : y;
}

}  // namespace
}  // namespace osm
