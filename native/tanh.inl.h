// exp(x) of numbers that are not far above 0, and tanh. Included inside the namespace of an instruction set, after
// elements.inl.h.

// exp(x) for x up to 8, exactly 0 below the floor, where no subnormal numbers are made. NaN stays NaN.
template <class V, int degree>
struct Weight {
  using C = Log2e<V>;
  using S = typename V::Scalar;
  static constexpr S floor = sizeof(S) == 4 ? (S)-87 : (S)-708, magic = C::magic - (sizeof(S) == 4 ? 64 : 512);
  template <int n>
  static OSM_INLINE void of(V (&d)[n]) {
    V z[n], f[n], x[n];
    OSM_EACH d[i] = max(V::set(floor), d[i]);
    OSM_EACH z[i] = fma(d[i], V::set(C::high), V::set(magic));
    OSM_EACH f[i] = fms(d[i], V::set(C::high), sub(z[i], V::set(magic)));
    OSM_EACH f[i] = fma(d[i], V::set(C::low), f[i]);
    polynomial<degree>(f, x);
    OSM_EACH d[i] = keep_unequal(mul(x[i], power(z[i])), d[i], V::set(floor));
  }
  static OSM_INLINE S one(S x) {
    V d[1] = {V::set(x)};
    of(d);
    S all[V::W];
    store(all, d[0]);
    return all[0];
  }
};

// tanh(x) within a few units of roundoff: a series where it is small, the exponential elsewhere. Its
// derivative too, where asked for.
template <class V, int degree>
OSM_INLINE V tanh_of(V x, V* slope = nullptr) {
  using S = typename V::Scalar;
  const V size = max(x, sub(V::set(0), x)), t = mul(x, x);
  // x - x^3/3 + 2 x^5/15 - ...: the terms up to x^21 leave 3e-9 at 0.6 and 1e-17 at 0.25.
  constexpr double c[] = {-1.0 / 3,
                          2.0 / 15,
                          -17.0 / 315,
                          62.0 / 2835,
                          -1382.0 / 155925,
                          21844.0 / 6081075,
                          -929569.0 / 638512875,
                          6404582.0 / 10854718875.0,
                          -443861162.0 / 1856156927625.0,
                          18888466084.0 / 194896477400625.0};
  V series = V::set((S)c[9]);
  for (int i = 8; i >= 0; --i) series = fma(series, t, V::set((S)c[i]));
  series = fma(mul(series, t), x, x);
  V e[1] = {mul(size, V::set(-2))};
  Weight<V, degree>::of(e);
  if (slope) {  // 1 - tanh^2, without its cancellation
    const V with = add(V::set(1), e[0]);
    *slope = div(mul(V::set(4), e[0]), mul(with, with));
  }
  const V whole = div(sub(V::set(1), e[0]), add(V::set(1), e[0]));
  const V signed_whole = select(above(x, V::set(0)), whole, sub(V::set(0), whole));
  return select(above(size, V::set(sizeof(S) == 4 ? (S)0.5 : (S)0.2)), signed_whole, series);
}
