// log(exp(a) + exp(b)) near 0, where max + log1p(exp(-distance)) cancels: in pairs of doubles, some 100 bits. Scalar,
// for the few elements that need it. Included by scans.inl.h.

struct Two {
  double high, low;
};
OSM_INLINE Two two_sum(double a, double b) {
  const double s = a + b, back = s - a;
  return {s, (a - (s - back)) + (b - back)};
}
OSM_INLINE Two quick_sum(double a, double b) {  // |a| >= |b|
  const double s = a + b;
  return {s, b - (s - a)};
}
OSM_INLINE Two add(Two a, Two b) {
  const Two s = two_sum(a.high, b.high);
  return quick_sum(s.high, s.low + (a.low + b.low));
}
OSM_INLINE Two mul(Two a, Two b) {
  const double p = a.high * b.high;
  return quick_sum(p, __builtin_fma(a.high, b.high, -p) + (a.high * b.low + a.low * b.high));
}

// exp(x) - 1 for -745 < x <= 1, x = k * log(2) + f: Taylor's series of f/16, then (1 + p)^2 - 1 = p * (2 + p) four
// times.
inline Two expm1_two(Two x) {
  // 1/n!, n from 14 down to 1
  constexpr Two c[] = {{0x1.93974a8c07c9dp-37, 0x1.05d6f8a2efd1fp-92},
                       {0x1.6124613a86d09p-33, 0x1.f28e0cc748ebep-87},
                       {0x1.1eed8eff8d898p-29, -0x1.2aec959e14c06p-83},
                       {0x1.ae64567f544e4p-26, -0x1.c062e06d1f209p-80},
                       {0x1.27e4fb7789f5cp-22, 0x1.cbbc05b4fa99ap-76},
                       {0x1.71de3a556c734p-19, -0x1.c154f8ddc6c00p-73},
                       {0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-76},
                       {0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-73},
                       {0x1.6c16c16c16c17p-10, -0x1.f49f49f49f49fp-65},
                       {0x1.1111111111111p-7, 0x1.1111111111111p-63},
                       {0x1.5555555555555p-5, 0x1.5555555555555p-59},
                       {0x1.5555555555555p-3, 0x1.5555555555555p-57},
                       {0x1p-1, 0},
                       {1, 0}};
  const double k = (x.high * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52;
  // log(2) in three parts: products of k with the first two are exact.
  Two f = two_sum(x.high, -k * 0x1.62e42ffp-1);
  f = add(f, two_sum(-k * -0x1.718432a2p-35, x.low));
  f = add(f, {-k * 0x1.3c7673007e5edp-69, 0});
  f = {f.high / 16, f.low / 16};
  Two p = mul(f, c[0]);
  for (int n = 1; n < 14; ++n) p = mul(f, add(p, c[n]));
  for (int n = 0; n < 4; ++n) p = mul(p, add({2, 0}, p));
  if (k == 0) return p;
  // 2^k in two factors: it may lie below the normal numbers.
  const double half = (k * 0.5 + 0x1.8p52) - 0x1.8p52;
  const auto power_of = [](double e) {
    const uint64_t bits = (uint64_t)(int64_t)(e + 1023) << 52;
    double v;
    __builtin_memcpy(&v, &bits, 8);
    return v;
  };
  const double first = power_of(half), second = power_of(k - half);
  p = add(p, {1, 0});
  return add({p.high * first * second, p.low * first * second}, {-1, 0});
}

inline double near_zero(double m, double less) {
  const Two d = two_sum(less, -m);
  if (!(d.high > -745)) return m;
  // e = exp(d) to the last bit where d is small, else 1 + (exp(d) - 1).
  Two e = add(expm1_two(d), {1, 0});
  if (d.high < -30) {  // 1 + expm1 has lost bits: from half of d, squared
    const Two h = add(expm1_two({d.high / 8, d.low / 8}), {1, 0});
    const Two h2 = mul(h, h), h4 = mul(h2, h2);
    e = mul(h4, h4);
  }
  // One step of Newton's from log1p in double: with g = (1 + e) * exp(-y) - 1, log(1 + e) = y + g - g^2/2 + ...
  const double y = __builtin_log1p(e.high);
  const Two back = expm1_two({-y, 0}), g = add(add(mul(back, e), back), e);
  const Two s = two_sum(m, y);
  const Two r = add(add(s, g), {-0.5 * g.high * g.high, 0});
  return r.high + r.low;
}

// One pair that is not finite, or whose result y lies near 0.
__attribute__((noinline)) inline double odd_pair(double a, double b, double y, double limit) {
  if (a != a || b != b) return __builtin_nan("");
  const double m = a > b ? a : b, less = a > b ? b : a;
  if (m == kInf || m == -kInf) return m;
  // At m = 0 nothing cancels and the distance is exact.
  return m != 0 && __builtin_fabs(y) < limit ? near_zero(m, less) : y;
}
