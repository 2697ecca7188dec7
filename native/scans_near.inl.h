// log(exp(a) + exp(b)) near 0, where max + log1p(exp(-distance)) cancels: in pairs of doubles, for the registers that
// need it. Included by scans.inl.h.

struct Two {
  F64 high, low;
};
OSM_INLINE Two two_sum(F64 a, F64 b) {
  const F64 s = add(a, b), back = sub(s, a);
  return {s, add(sub(a, sub(s, back)), sub(b, back))};
}
OSM_INLINE Two quick_sum(F64 a, F64 b) {  // |a| >= |b|
  const F64 s = add(a, b);
  return {s, sub(b, sub(s, a))};
}
OSM_INLINE Two add(Two a, Two b) {
  const Two s = two_sum(a.high, b.high);
  return quick_sum(s.high, add(s.low, add(a.low, b.low)));
}
OSM_INLINE Two mul(Two a, Two b) {
  const F64 p = mul(a.high, b.high);
  return quick_sum(p, fma(a.high, b.low, fma(a.low, b.high, fms(a.high, b.high, p))));
}
OSM_INLINE Two times(Two a, F64 b) { return {mul(a.high, b), mul(a.low, b)}; }  // b a power of two

// 1/n!, n from 14 down to 1.
constexpr double kInverse[14][2] = {{0x1.93974a8c07c9dp-37, 0x1.05d6f8a2efd1fp-92},
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

// exp(x) = scale * (1 + p), -700 <= x <= 1: x = k * log(2) + f, Taylor's series of f/16, then (1 + p)^2 - 1 = p * (2 +
// p) four times. p is good to 2^-66 of itself, and where `all` to 2^-98: then every term is a pair.
template <bool all>
OSM_INLINE Two grow(Two x, F64& scale) {
  const F64 magic = F64::set(0x1.8p52), k = sub(fma(x.high, F64::set(0x1.71547652b82fep+0), magic), magic);
  scale = power(add(k, F64::set(0x1.8p52 + Log2e<F64>::bias)));
  // log(2) in three parts: products of k with the first two are exact.
  Two f = two_sum(x.high, mul(k, F64::set(-0x1.62e42ffp-1)));
  f = add(f, two_sum(mul(k, F64::set(0x1.718432a2p-35)), x.low));
  f = add(f, {mul(k, F64::set(-0x1.3c7673007e5edp-69)), F64::set(0)});
  f = times(f, F64::set(0.0625));
  Two p;
  if constexpr (all) {
    p = mul(f, {F64::set(kInverse[0][0]), F64::set(kInverse[0][1])});
    for (int n = 1; n < 14; ++n) p = mul(f, add(p, {F64::set(kInverse[n][0]), F64::set(kInverse[n][1])}));
  } else {
    F64 q = F64::set(kInverse[5][0]);
    for (int n = 6; n < 12; ++n) q = fma(q, f.high, F64::set(kInverse[n][0]));
    const F64 cube = mul(mul(mul(f.high, f.high), f.high), q);
    p = add(add(f, times(mul(f, f), F64::set(0.5))), {cube, F64::set(0)});
  }
  for (int n = 0; n < 4; ++n) p = mul(p, add({F64::set(2), F64::set(0)}, p));
  return p;
}

// y: log(1 + exp(less - m)), roughly. One step of Newton's from there: with g = (1 + e) * exp(-y) - 1,
// log(1 + e) = y + g - g^2/2 + ...
template <bool all>
OSM_INLINE F64 near_zero(F64 m, Two distance, F64 y) {
  F64 scale;
  Two p = grow<all>(distance, scale);
  const Two e = add({scale, F64::set(0)}, times(p, scale));
  p = grow<all>({neg(y), F64::set(0)}, scale);
  const Two back = add({sub(scale, F64::set(1)), F64::set(0)}, times(p, scale));
  const Two g = add(add(mul(back, e), back), e), s = two_sum(m, y);
  const Two r = add(add(s, g), {mul(F64::set(-0.5), mul(g.high, g.high)), F64::set(0)});
  return add(r.high, r.low);
}

// One register of pairs some of whose results y are NaN or nearer 0 than `limit`; log1p is what y = max + log1p was
// made of. Results nearer 0 than `tiny` take all the terms.
__attribute__((noinline)) inline F64 odd_pairs(F64 a, F64 b, F64 log1p, F64 y, double limit, double tiny) {
  const F64 m = max(a, b), less = min(a, b);
  Two d = two_sum(less, neg(m));
  // Far below, the lesser is nothing beside m; at m = 0 nothing cancels and the distance is exact.
  const uint32_t reach = above(d.high, F64::set(-700)) & ~above(neg(d.high), F64::set(700)) & kEvery;
  const uint32_t near = reach & ~beyond(y, limit) & beyond(m, 0);
  if (near) {
    d = {select(near, d.high, F64::set(-1)), select(near, d.low, F64::set(0))};
    const F64 at = select(near, m, F64::set(-1)), log = select(near, log1p, F64::set(0.3));
    F64 r = near_zero<false>(at, d, log);
    if (near & ~beyond(r, tiny)) r = near_zero<true>(at, d, log);
    y = select(near, r, y);
  }
  double p[F64::W], q[F64::W], r[F64::W];
  store(p, a), store(q, b), store(r, y);
  for (int k = 0; k < F64::W; ++k)
    if (r[k] != r[k] && p[k] == p[k] && q[k] == q[k]) r[k] = p[k];  // the same infinity twice
  return F64::load(r);
}
