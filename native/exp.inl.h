// exp(x - m) for x <= m, by one polynomial for body and tail. Included inside the namespace of an instruction set.
//
//   d = x - m;  n = round(d*log2(e));  f = d*log2(e) - n in [-1/2, 1/2];  exp(d) = 2^n * (1 + f*q(f))
//
// The results come scaled by 2^64 (float) or 2^512 (double): 2^(n + 64) never leaves the normal range, no subnormal
// number is made on the way, and the one rounding into the subnormal range, where the result needs it, is the final
// multiplication by 1/s (which carries the 2^-64). 2^(n + 64) is a factor and not added to the exponent's bits: a NaN
// carries any bits at all, and an addition may make a number of them. Arguments below the floor count as the floor,
// whose scaled result vanishes in every sum and rounds to exactly 0 in every result; -inf needs no case of its own.
//
// Coefficients: scripts/fit_exp.py; what they are off by: proofs/ExpPolynomial.v, roundings in: proofs/ExpFloat32.v.
// Error of `exp_unshifted` over every float in (-104, 0]: tests/test_exp.py.

template <class V>
struct Log2e;
template <>
struct Log2e<F32> {
  static constexpr float high = 0x1.715476p+0f, low = 0x1.4ae0c0p-26f;
  static constexpr float bias = 127;  // of the exponent
  static constexpr float magic =
      0x1.8p23f + 64 + bias;  // adding it rounds to an integer and leaves n + 64 + bias in the low bits
  static constexpr float unscale = 0x1p-64f;
  static constexpr float floor = -111.0f;
  // From here on x - m is exact wherever exp(x - m) is not 0: x lies within a factor of two of m (Sterbenz).
  static constexpr float limit = 256.0f;
  static constexpr float fine = 0x1.8p10f;  // adding it rounds |m*log2(e)| < 370 to a multiple of 2^-13
};
template <>
struct Log2e<F64> {
  static constexpr double high = 0x1.71547652b82fep+0, low = 0x1.777d0ffda0d24p-56;
  static constexpr double bias = 1023;
  static constexpr double magic = 0x1.8p52 + 512 + bias;
  static constexpr double unscale = 0x1p-512;
  static constexpr double floor = -760.0;
  static constexpr double limit = 1536.0;
  static constexpr double fine = 0x1.8p13;  // |m*log2(e)| < 2217, to a multiple of 2^-39
};

template <class V, int degree>
struct Coefficients;
template <>
struct Coefficients<F32, 3> {
  static constexpr float c[] = {0x1.62f5fcp-1f, 0x1.f00c62p-3f, 0x1.c2a1e0p-5f};
};
template <>
struct Coefficients<F32, 4> {
  static constexpr float c[] = {0x1.62e12cp-1f, 0x1.ec0374p-3f, 0x1.c9fc7cp-5f, 0x1.3a03d6p-7f};
};
template <>
struct Coefficients<F32, 5> {
  static constexpr float c[] = {0x1.62e42ap-1f, 0x1.ebf9c2p-3f, 0x1.c6b6dap-5f, 0x1.3ce8b4p-7f, 0x1.5bd97ep-10f};
};
template <>
struct Coefficients<F32, 6> {
  static constexpr float c[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6af7cp-5f,
                                0x1.3b2de0p-7f, 0x1.5f0830p-10f, 0x1.416b5ap-13f};
};
template <>
struct Coefficients<F64, 11> {
  static constexpr double c[] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c598p-3,  0x1.c6b08d704a0c2p-5,
                                 0x1.3b2ab6fba1dd6p-7,  0x1.5d87fe78a5274p-10, 0x1.4309130970e5bp-13,
                                 0x1.ffcbfc670eb19p-17, 0x1.62bfd47443264p-20, 0x1.b524fae36f8adp-24,
                                 0x1.e60645d22d86cp-28, 0x1.e9d403a93b10bp-32};
};

// Each step of the formulas below is written for n registers at once. The chain of one exponential is about fifty
// cycles long; side by side, n of them keep the multipliers busy with few instructions waiting (measured: 8.2 -> 6.0
// cycles per 16 floats of softmax with n = 4 against one after the other, the compiler keeps the order it is given).
#define OSM_EACH _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i)

template <int degree, int n, class V>
OSM_INLINE void polynomial(const V (&f)[n], V (&q)[n]) {
  using K = Coefficients<V, degree>;
  OSM_EACH q[i] = fma(V::set(K::c[degree - 1]), f[i], V::set(K::c[degree - 2]));
  _Pragma("GCC unroll 16") for (int k = degree - 3; k >= 0; --k) OSM_EACH q[i] = fma(q[i], f[i], V::set(K::c[k]));
  OSM_EACH q[i] = fma(q[i], f[i], V::set(1));
}

// By the difference itself. Light, for sums and for results of 16 bits: d is rounded once (relative error of a term
// u*|d|, weighted by the term itself in a sum: at most u*ln(n) in all), the low word of log2(e) is left out
// (1.3e-8*|d|). Far, with the low word: exact reduction where d is exact, that is for large m.
template <class V, int degree, bool low_word>
struct ExpDirect {
  static constexpr bool kFoldEach = low_word;  // see sweep(): how often a sum goes over to double
  static double reference(double m) { return m; }
  using S = typename V::Scalar;
  using C = Log2e<V>;
  V m;
  OSM_INLINE explicit ExpDirect(S pivot) : m(V::set(pivot)) {}
  OSM_INLINE explicit ExpDirect(V pivot) : m(pivot) {}
  template <int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    V d[n], z[n], f[n];
    OSM_EACH d[i] = max(V::set(C::floor), sub(x[i], m));
    OSM_EACH z[i] = fma(d[i], V::set(C::high), V::set(C::magic));
    OSM_EACH f[i] = fms(d[i], V::set(C::high), sub(z[i], V::set(C::magic)));
    if constexpr (low_word) OSM_EACH f[i] = fma(d[i], V::set(C::low), f[i]);
    polynomial<degree>(f, x);
    OSM_EACH x[i] = mul(x[i], power(z[i]));
  }
};
template <class V, int degree>
using ExpLight = ExpDirect<V, degree, false>;
template <class V, int degree>
using ExpFar = ExpDirect<V, degree, true>;

// For results in float and narrower, |m| < limit: the pivot is N = round(m*log2(e)), an integer, so f = x*log2(e) - (n
// + N) takes one fused multiply-add and one rounding of a number below 1/2, whatever x and m are: the rounding of x -
// m, up to u*|x - m|, never enters. So m need not be the maximum: any element will do that is not so far below it that
// the scaled results overflow (kAbove). Sums of equal terms are exact in double, so equal logits give 1/n
// rounded once and a lone one exactly 1.
template <class V, int degree, bool low_word, bool fold_each = low_word>
struct ExpShifted {
  using S = typename V::Scalar;
  using C = Log2e<V>;
  static constexpr bool kFoldEach = fold_each;
  // What the results are relative to: exp(x - reference), where m is within log(2)/2 of it.
  static constexpr double kUnit = 1.0 / ((double)C::high + (low_word ? (double)C::low : 0.0));
  static double reference(double m) {
    S whole[V::W];
    store(whole, rounded(V::set((S)m)));
    return (double)whole[0] * kUnit;
  }
  static OSM_INLINE V rounded(V pivot) {
    const V magic = V::set(C::magic);
    return sub(fma(pivot, V::set(C::high), magic), magic);
  }
  V low, base;  // base: the magic number less N
  OSM_INLINE explicit ExpShifted(S pivot) : ExpShifted(V::set(pivot)) {}
  OSM_INLINE explicit ExpShifted(V pivot) {
    low = add(pivot, V::set(C::floor));
    base = sub(V::set(C::magic), rounded(pivot));
  }
  template <int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    V z[n], f[n];
    OSM_EACH x[i] = max(low, x[i]);
    OSM_EACH z[i] = fma(x[i], V::set(C::high), base);
    OSM_EACH f[i] = fms(x[i], V::set(C::high), sub(z[i], base));
    if constexpr (low_word) OSM_EACH f[i] = fma(x[i], V::set(C::low), f[i]);
    polynomial<degree>(f, x);
    OSM_EACH x[i] = mul(x[i], power(z[i]));
  }
};

// For doubles, |m| < limit: d only chooses n; f is taken from x itself by a fused multiply-add against
// n + N, where N is m*log2(e) rounded so coarsely that n + N is exact. So the rounding of x - m, up to u*|x - m|, never
// enters: what is left of N (rho, tiny) is formed by the same operation from m, hence f is exactly 0, and the result
// exactly 1, at x = m. Error of f: two roundings of numbers below 1/2.
template <class V, int degree>
struct ExpExact {
  static constexpr bool kFoldEach = true;
  static double reference(double m) { return m; }
  using S = typename V::Scalar;
  using C = Log2e<V>;
  V m, low, whole, minus_rho;
  OSM_INLINE explicit ExpExact(S pivot) : ExpExact(V::set(pivot)) {}
  OSM_INLINE explicit ExpExact(V pivot) {
    m = pivot;
    low = add(pivot, V::set(C::floor));
    whole = sub(fma(m, V::set(C::high), V::set(C::fine)), V::set(C::fine));
    minus_rho = sub(V::set(0), fms(m, V::set(C::high), whole));
  }
  template <int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    V d[n], z[n], f[n], t[n];
    OSM_EACH x[i] = max(low, x[i]);
    OSM_EACH d[i] = sub(x[i], m);
    OSM_EACH z[i] = fma(d[i], V::set(C::high), V::set(C::magic));
    OSM_EACH t[i] = fma(d[i], V::set(C::low), minus_rho);
    OSM_EACH f[i] = add(sub(z[i], V::set(C::magic)), whole);
    OSM_EACH f[i] = add(fms(x[i], V::set(C::high), f[i]), t[i]);
    polynomial<degree>(f, x);
    OSM_EACH x[i] = mul(x[i], power(z[i]));
  }
};

// exp(x) with no shift, overflowing and underflowing as the format does: the naive algorithm shows what that costs.
template <class V, int degree, int n>
OSM_INLINE void exp_unshifted(V (&x)[n]) {
  using C = Log2e<V>;
  using S = typename V::Scalar;
  const V magic = V::set(sizeof(S) == 4 ? (S)0x1.8p23 : (S)0x1.8p52), biased = add(magic, V::set(C::bias));
  V k[n], f[n];
  OSM_EACH x[i] = max(V::set(C::floor), x[i]);
  OSM_EACH x[i] = sub(V::set(0), max(V::set(C::floor), sub(V::set(0), x[i])));  // min(x, -floor), keeping NaN
  OSM_EACH k[i] = sub(fma(x[i], V::set(C::high), magic), magic);
  OSM_EACH f[i] = fma(x[i], V::set(C::low), fms(x[i], V::set(C::high), k[i]));
  polynomial<degree>(f, x);
  // 2^k in two normal factors; the second product is the one that may overflow or lose bits.
  OSM_EACH {
    const V half = sub(fma(k[i], V::set((S)0.5), magic), magic);
    const V first = power(add(half, biased)), second = power(add(sub(k[i], half), biased));
    x[i] = mul(mul(x[i], first), second);
  }
}

// log of positive normal doubles (sums lie in [1/2, 2^63]), within 2 ulp: atanh series on [sqrt(1/2), sqrt(2)].
OSM_INLINE F64 log_of(F64 a) {
  F64 k = exponent_of(mul(a, F64::set(1.4142135623730951)));
  F64 reduced = mul(a, power(sub(F64::set(0x1.8p52 + Log2e<F64>::bias), k)));  // a / 2^k
  F64 t = div(sub(reduced, F64::set(1)), add(reduced, F64::set(1))), t2 = mul(t, t);
  F64 q = F64::set(1.0 / 21);
  for (int d = 19; d >= 3; d -= 2) q = fma(q, t2, F64::set(1.0 / d));
  F64 twice = add(t, t);
  F64 series = fma(mul(twice, t2), q, twice);
  return fma(k, F64::set(0x1.62e42fefa39efp-1), fma(k, F64::set(0x1.abc9e3b39803fp-56), series));
}
