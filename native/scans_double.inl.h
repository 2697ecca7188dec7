// What scans are computed with: exponentials and logarithms in double, and runs of each format as doubles. Included by
// scans.inl.h.

constexpr int64_t kScanBlock = 256;  // elements whose states are made side by side
constexpr int kScanGroup = 4;        // registers side by side
constexpr int64_t kScanGrain = kScanGroup * F64::W;
// How far the maximum may rise above the pivot: exponentials, factors and their products stay far inside the range.
constexpr double kRise = 300;
constexpr double kBiggest = 0x1.fffffffffffffp1023;
constexpr double kUnscale = (double)Log2e<F64>::unscale;

// Good to 2^-33, for results of up to 32 bits that stay away from 0.
template <>
struct Coefficients<F64, 7> {
  static constexpr double c[] = {0x1.62e42fefa39efp-1, 0x1.ebfbe045f99c4p-3,  0x1.c6b08d883f431p-5,
                                 0x1.3b2a1b6af1ebbp-7, 0x1.5d879ea91937bp-10, 0x1.44400629f3173p-13,
                                 0x1.00a58546bf153p-16};
};

OSM_INLINE F64 neg(F64 a) { return sub(F64::set(0), a); }
OSM_INLINE F64 min(F64 a, F64 b) { return neg(max(neg(a), neg(b))); }
OSM_INLINE uint32_t beyond(F64 a, double limit) { return above(a, F64::set(limit)) | above(neg(a), F64::set(limit)); }
constexpr uint32_t kEvery = (1u << F64::W) - 1;

// exp(x - pivot), x at most kRise above it. Far pivots are taken off first, exactly where it matters; for near ones
// that changes nothing, so a lane's bits do not depend on the others.
template <int n>
OSM_INLINE void exp_at(F64 (&x)[n], F64 pivot) {
  const uint32_t far = beyond(pivot, Log2e<F64>::limit);
  if (__builtin_expect(far != 0, 0)) {
    const F64 shift = select(far, pivot, F64::set(0));
    OSM_EACH x[i] = sub(x[i], shift);
    pivot = sub(pivot, shift);
  }
  const ExpExact<F64, 11> e(pivot);
  e(x);
  OSM_EACH x[i] = mul(x[i], F64::set(kUnscale));
}

// exp(d), d <= 0, n rounded up to whole groups.
OSM_INLINE void exp_block(double* d, int64_t n) {
  for (int64_t i = 0; i < n; i += kScanGrain) {
    F64 v[kScanGroup];
    for (int k = 0; k < kScanGroup; ++k) v[k] = F64::load(d + i + k * F64::W);
    ExpFar<F64, 11>{0.0}(v);
    for (int k = 0; k < kScanGroup; ++k) store(d + i + k * F64::W, mul(v[k], F64::set(kUnscale)));
  }
}

// log(1 + t), t >= 0, within 2 ulp: log_of() with what 1 + t rounds away put back into the numerator of its series.
template <int n>
OSM_INLINE void log1p_of(F64 (&t)[n]) {
  const F64 one = F64::set(1);
  F64 k[n], q[n], r[n], r2[n];
  OSM_EACH {
    const F64 u = add(one, t[i]), lost = sub(t[i], sub(u, one));
    k[i] = exponent_of(mul(u, F64::set(1.4142135623730951)));
    const F64 scale = power(sub(F64::set(0x1.8p52 + Log2e<F64>::bias), k[i])), reduced = mul(u, scale);
    r[i] = div(fma(lost, scale, sub(reduced, one)), add(reduced, one));
    r2[i] = mul(r[i], r[i]);
  }
  OSM_EACH q[i] = F64::set(1.0 / 21);
  for (int d = 19; d >= 3; d -= 2) OSM_EACH q[i] = fma(q[i], r2[i], F64::set(1.0 / d));
  OSM_EACH {
    const F64 twice = add(r[i], r[i]), series = fma(mul(twice, r2[i]), q[i], twice);
    t[i] = fma(k[i], F64::set(0x1.62e42fefa39efp-1), fma(k[i], F64::set(0x1.abc9e3b39803fp-56), series));
  }
}

// log(1 + e) = 2 * atanh(e / (2 + e)), 0 <= e <= 1: no exponent to take apart. For results of the format T: in full, to
// 2^-36, and in float to 2^-26.
template <class T>
struct Log1p {
  static constexpr float c[] = {0x1.55554cp-2f, 0x1.99ad6cp-3f, 0x1.21249ap-3f, 0x1.12f598p-3f};
};
template <>
struct Log1p<double> {
  static constexpr double c[] = {0x1.5555555555555p-2, 0x1.9999999999944p-3, 0x1.2492492499d46p-3, 0x1.c71c71bedea97p-4,
                                 0x1.745d19937b1fcp-4, 0x1.3b13515f6f9efp-4, 0x1.111abdc8abe16p-4, 0x1.e0a2d581ab68fp-5,
                                 0x1.bc37f0140c19ep-5, 0x1.32e0d25c9c761p-5, 0x1.401d3e65cdc48p-4};
};
template <>
struct Log1p<float> {
  static constexpr double c[] = {0x1.55555553e7594p-2, 0x1.9999a0d3dcfedp-3, 0x1.248f579c7d0d0p-3,
                                 0x1.c7fb3587cdba6p-4, 0x1.65ad56d9e0064p-4, 0x1.a9bafb0c93ac9p-4};
};
template <class T, int n, class V>
OSM_INLINE void log1p_below_1(V (&e)[n]) {
  using K = Log1p<T>;
  constexpr int last = sizeof(K::c) / sizeof(K::c[0]) - 1;
  V r[n], r2[n], q[n];
  OSM_EACH r[i] = div(e[i], add(V::set(2), e[i]));
  OSM_EACH r2[i] = mul(r[i], r[i]);
  OSM_EACH q[i] = V::set(K::c[last]);
  _Pragma("GCC unroll 16") for (int k = last - 1; k >= 0; --k) OSM_EACH q[i] = fma(q[i], r2[i], V::set(K::c[k]));
  OSM_EACH {
    const V twice = add(r[i], r[i]);
    e[i] = fma(mul(twice, r2[i]), q[i], twice);
  }
}

// ---- formats as doubles

// Registers of doubles in a pair of registers of T.
template <class T>
constexpr int kQuads = sizeof(T) == 8 || F32::W == F64::W ? 2 : 4;
template <class T, class V>
OSM_INLINE void split_pair(V a, V b, F64 (&q)[kQuads<T>]) {
  if constexpr (sizeof(T) == 8)
    q[0] = a, q[1] = b;
  else if constexpr (kQuads<T> == 2)
    q[0] = low_half(a), q[1] = low_half(b);
  else
    q[0] = low_half(a), q[1] = high_half(a), q[2] = low_half(b), q[3] = high_half(b);
}
template <class T, class V>
OSM_INLINE void join_pair(const F64 (&q)[kQuads<T>], V& a, V& b) {
  if constexpr (sizeof(T) == 8)
    a = q[0], b = q[1];
  else if constexpr (kQuads<T> == 2)
    a = narrow(q[0], q[0]), b = narrow(q[1], q[1]);
  else
    a = narrow(q[0], q[1]), b = narrow(q[2], q[3]);
}

OSM_INLINE void widen_run(const double* p, double* to, int64_t n) { __builtin_memcpy(to, p, (size_t)n * 8); }
OSM_INLINE void widen_run(const float* p, double* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = (double)p[i];
}
OSM_INLINE void widen_run(const bf16* p, double* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = (uint32_t)p[i].bits << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    to[i] = (double)f;
  }
}
OSM_INLINE void widen_run(const f16* p, double* to, int64_t n) {
  constexpr int64_t P = pair_of<f16>();
  for (int64_t i = 0; i < n; i += P) {
    F32 a, b;
    if (n - i >= P)
      load2(p + i, a, b);
    else
      load_some(p + i, n - i, a, b);
    float f[P];
    store(f, a), store(f + F32::W, b);
    for (int64_t k = 0; k < P && i + k < n; ++k) to[i + k] = (double)f[k];
  }
}

OSM_INLINE void narrow_run(const double* p, double* to, int64_t n) { __builtin_memcpy(to, p, (size_t)n * 8); }
OSM_INLINE void narrow_run(const double* p, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = (float)p[i];
}
// To nearest, ties away from zero, as store2() does.
OSM_INLINE void narrow_run(const double* p, bf16* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float f = (float)p[i];
    uint32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    to[i].bits = f == f ? (uint16_t)((bits + 0x8000) >> 16) : (uint16_t)0x7fc0;
  }
}
OSM_INLINE void narrow_run(const double* p, f16* to, int64_t n) {
  constexpr int64_t P = pair_of<f16>();
  for (int64_t i = 0; i < n; i += P) {
    float f[P];
    for (int64_t k = 0; k < P; ++k) f[k] = i + k < n ? (float)p[i + k] : 0.0f;
    const F32 a = F32::load(f), b = F32::load(f + F32::W);
    if (n - i >= P)
      store2(to + i, a, b);
    else
      store_some(to + i, n - i, a, b);
  }
}
