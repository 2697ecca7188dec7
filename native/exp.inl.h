// exp(x - m) for x <= m, by one polynomial for body and tail. Included inside the namespace of an instruction set.
//
//   d = x - m;  n = round(d*log2(e));  f = d*log2(e) - n in [-1/2, 1/2];  exp(d) = 2^n * (1 + f*q(f))
//
// The results come scaled by 2^64 (float) or 2^512 (double): adding n + 64 to the exponent then never leaves the normal
// range, no subnormal number is made on the way, and the one rounding into the subnormal range, where the result needs
// it, is the final multiplication by 1/s (which carries the 2^-64). Arguments below the floor count as the floor,
// whose scaled result vanishes in every sum and rounds to exactly 0 in every result; -inf needs no case of its own.
//
// Coefficients: scripts/fit_exp.py. Error of ExpExact at m = 0 over every float in (-104, 0]: tests/test_exp.py.

template <class V>
struct Log2e;
template <>
struct Log2e<F32> {
  static constexpr float high = 0x1.715476p+0f, low = 0x1.4ae0c0p-26f;
  static constexpr float magic = 0x1.8p23f + 64;  // adding it rounds to an integer and adds 64 in the low bits
  static constexpr float unscale = 0x1p-64f;
  static constexpr float floor = -111.0f;
  // Up to here m*log2(e) and the integers near it are exact enough for the fused reduction; above, floats are so far
  // apart that x - m itself is exact wherever exp(x - m) is not 0 (both are multiples of 1/8, and close).
  static constexpr float limit = 0x1p20f;
};
template <>
struct Log2e<F64> {
  static constexpr double high = 0x1.71547652b82fep+0, low = 0x1.777d0ffda0d24p-56;
  static constexpr double magic = 0x1.8p52 + 512;
  static constexpr double unscale = 0x1p-512;
  static constexpr double floor = -760.0;
  static constexpr double limit = 0x1p48;
};

template <int degree>
OSM_INLINE F32 polynomial(F32 f) {
  if constexpr (degree == 3) {
    F32 q = fma(F32::set(0x1.c2a1e0p-5f), f, F32::set(0x1.f00c62p-3f));
    q = fma(q, f, F32::set(0x1.62f5fcp-1f));
    return fma(q, f, F32::set(1.0f));
  } else if constexpr (degree == 4) {
    F32 q = fma(F32::set(0x1.3a03d6p-7f), f, F32::set(0x1.c9fc7cp-5f));
    q = fma(q, f, F32::set(0x1.ec0374p-3f));
    q = fma(q, f, F32::set(0x1.62e12cp-1f));
    return fma(q, f, F32::set(1.0f));
  } else {
    static_assert(degree == 6);
    F32 q = fma(F32::set(0x1.416b5ap-13f), f, F32::set(0x1.5f0830p-10f));
    q = fma(q, f, F32::set(0x1.3b2de0p-7f));
    q = fma(q, f, F32::set(0x1.c6af7cp-5f));
    q = fma(q, f, F32::set(0x1.ebfbdcp-3f));
    q = fma(q, f, F32::set(0x1.62e430p-1f));
    return fma(q, f, F32::set(1.0f));
  }
}
template <int degree>
OSM_INLINE F64 polynomial(F64 f) {
  static_assert(degree == 11);
  constexpr double c[] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c598p-3,  0x1.c6b08d704a0c2p-5,  0x1.3b2ab6fba1dd6p-7,
                          0x1.5d87fe78a5274p-10, 0x1.4309130970e5bp-13, 0x1.ffcbfc670eb19p-17, 0x1.62bfd47443264p-20,
                          0x1.b524fae36f8adp-24, 0x1.e60645d22d86cp-28, 0x1.e9d403a93b10bp-32};
  F64 q = F64::set(c[10]);
  for (int k = 9; k >= 0; --k) q = fma(q, f, F64::set(c[k]));
  return fma(q, f, F64::set(1.0));
}

// For sums, and for results of 16 bits: d is rounded once (relative error of a term u*|d|, weighted by the term itself
// in a sum: at most u*ln(n) in all), the low word of log2(e) is left out (1.3e-8*|d|).
template <class V, int degree>
struct ExpLight {
  using S = typename V::Scalar;
  using C = Log2e<V>;
  V m;
  OSM_INLINE explicit ExpLight(S pivot) : m(V::set(pivot)) {}
  OSM_INLINE explicit ExpLight(V pivot) : m(pivot) {}
  OSM_INLINE V operator()(V x) const {
    V d = max(V::set(C::floor), sub(x, m));
    V z = fma(d, V::set(C::high), V::set(C::magic));
    V f = fms(d, V::set(C::high), sub(z, V::set(C::magic)));
    return shift_exponent(polynomial<degree>(f), z);
  }
};

// As ExpLight with the low word: exact reduction where d is exact (large m).
template <class V, int degree>
struct ExpFar {
  using S = typename V::Scalar;
  using C = Log2e<V>;
  V m;
  OSM_INLINE explicit ExpFar(S pivot) : m(V::set(pivot)) {}
  OSM_INLINE explicit ExpFar(V pivot) : m(pivot) {}
  OSM_INLINE V operator()(V x) const {
    V d = max(V::set(C::floor), sub(x, m));
    V z = fma(d, V::set(C::high), V::set(C::magic));
    V f = fms(d, V::set(C::high), sub(z, V::set(C::magic)));
    f = fma(d, V::set(C::low), f);
    return shift_exponent(polynomial<degree>(f), z);
  }
};

// For results of full width, |m| < limit: d only chooses n; f is taken from x itself by a fused multiply-add against
// the integer n + N, N = round(m*log2(e)), so the rounding of x - m, up to u*|x - m|, never enters. rho is m's own
// remainder, formed by the same operation, hence f is exactly 0 and exp exactly 1 at x = m.
template <class V, int degree>
struct ExpExact {
  using S = typename V::Scalar;
  using C = Log2e<V>;
  V m, low, whole, rho;
  OSM_INLINE explicit ExpExact(S pivot) : ExpExact(V::set(pivot)) {}
  OSM_INLINE explicit ExpExact(V pivot) {
    m = pivot;
    low = add(pivot, V::set(C::floor));
    const V plain = V::set(C::magic);
    whole = sub(fma(m, V::set(C::high), plain), plain);
    rho = fms(m, V::set(C::high), whole);
  }
  OSM_INLINE V operator()(V x) const {
    x = max(low, x);
    V d = sub(x, m);
    V z = fma(d, V::set(C::high), V::set(C::magic));
    V n = sub(z, V::set(C::magic));
    V f = sub(fms(x, V::set(C::high), add(n, whole)), rho);
    f = fma(d, V::set(C::low), f);
    return shift_exponent(polynomial<degree>(f), z);
  }
};

// exp(x) with no shift, overflowing and underflowing as the format does: the naive algorithm shows what that costs.
template <class V, int degree>
OSM_INLINE V exp_unshifted(V x) {
  using C = Log2e<V>;
  using S = typename V::Scalar;
  const V magic = V::set(sizeof(S) == 4 ? (S)0x1.8p23 : (S)0x1.8p52);
  V a = max(V::set(C::floor), x);
  a = sub(V::set(0), max(V::set(C::floor), sub(V::set(0), a)));  // min(a, -floor), keeping NaN
  V n = sub(fma(a, V::set(C::high), magic), magic);
  V f = fma(a, V::set(C::low), fms(a, V::set(C::high), n));
  // 2^n in two normal factors; the second product is the one that may overflow or lose bits.
  V half = sub(fma(n, V::set((S)0.5), magic), magic);
  V one = V::set(1);
  V first = shift_exponent(one, add(half, magic)), second = shift_exponent(one, add(sub(n, half), magic));
  return mul(mul(polynomial<degree>(f), first), second);
}
