// What a lane that is a row of its own needs: pivots, sums, results. Included inside an instruction set's namespace.

constexpr int64_t kColsBlock = 8;          // elements of each column between updates of the running state
constexpr int64_t kColsKeep = 256 * 1024;  // bytes of a strip kept adjacent, where a column is short enough for it
constexpr int64_t kColsWrite = 4;          // rows written side by side
constexpr int64_t kColsStrip = 1024;       // columns side by side whose states are kept at once

// Lanes whose maximum is infinite get the pivot 0.
template <class V>
OSM_INLINE V guarded(V m) {
  const V biggest = V::set(sizeof(typename V::Scalar) == 4 ? (typename V::Scalar)0x1.fffffep127
                                                           : (typename V::Scalar)0x1.fffffffffffffp1023);
  const uint32_t odd = above(m, biggest) | above(sub(V::set(0), m), biggest);
  return select(odd, V::set(0), m);
}

// ExpExact for lanes of any magnitude: far lanes (see Log2e::limit) are shifted first, exactly where it matters, so
// that a lane's bits never depend on the lanes beside it.
template <class T>
struct LaneExp {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  V shift;
  typename Of<T>::Map exp;
  static OSM_INLINE V shift_of(V m) {
    const V limit = V::set(Log2e<V>::limit);
    return select(above(m, limit) | above(sub(V::set(0), m), limit), m, V::set(0));
  }
  OSM_INLINE explicit LaneExp(V m) : shift(shift_of(m)), exp(sub(m, shift_of(m))) {}
  template <int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    OSM_EACH x[i] = sub(x[i], shift);
    exp(x);
  }
};
template <class T>
struct LaneMain {
  using type = LaneExp<T>;
};
template <>
struct LaneMain<bf16> {
  using type = ExpLight<F32, 4>;
};
template <>
struct LaneMain<f16> {
  using type = ExpLight<F32, 4>;
};

// Sums of the lanes of one register, in double.
template <class V>
struct LaneSum;
template <>
struct LaneSum<F32> {
  static constexpr bool kHalves = F32::W == 2 * F64::W;
  F64 lo, hi;
  OSM_INLINE LaneSum() : lo(F64::set(0)), hi(F64::set(0)) {}
  OSM_INLINE void add_in(F32 a) { lo = add(lo, low_half(a)), hi = add(hi, high_half(a)); }
  OSM_INLINE void rescale(F32 f) { lo = mul(lo, low_half(f)), hi = mul(hi, high_half(f)); }
  OSM_INLINE void put(double* p) const {
    store(p, lo);
    if constexpr (kHalves) store(p + F64::W, hi);
  }
  OSM_INLINE void get(const double* p) {
    lo = F64::load(p);
    if constexpr (kHalves) hi = F64::load(p + F64::W);
  }
};
template <>
struct LaneSum<F64> {
  F64 all;
  OSM_INLINE LaneSum() : all(F64::set(0)) {}
  OSM_INLINE void add_in(F64 a) { all = add(all, a); }
  OSM_INLINE void rescale(F64 f) { all = mul(all, f); }
  OSM_INLINE void put(double* p) const { store(p, all); }
  OSM_INLINE void get(const double* p) { all = F64::load(p); }
};

// (x - m) - log(s), lane by lane; float in double, rounded once.
template <class T>
struct LaneLog {  // 16 bits
  F32 m, log_s;
  OSM_INLINE LaneLog(const float* max, const double* log_sum) : m(F32::load(max)) {
    float t[F32::W];
    for (int i = 0; i < F32::W; ++i) t[i] = (float)log_sum[i];
    log_s = F32::load(t);
  }
  template <int n>
  OSM_INLINE void operator()(F32 (&x)[n]) const {
    OSM_EACH x[i] = sub(sub(x[i], m), log_s);
  }
};
template <>
struct LaneLog<float> {
  F64 m0, m1, s0, s1;
  OSM_INLINE LaneLog(const float* max, const double* log_sum) {
    F32 m = F32::load(max);
    m0 = low_half(m), m1 = high_half(m), s0 = F64::load(log_sum);
    s1 = LaneSum<F32>::kHalves ? F64::load(log_sum + F32::W - F64::W) : s0;
  }
  template <int n>
  OSM_INLINE void operator()(F32 (&x)[n]) const {
    OSM_EACH x[i] = narrow(sub(sub(low_half(x[i]), m0), s0), sub(sub(high_half(x[i]), m1), s1));
  }
};
template <>
struct LaneLog<double> {
  F64 m, log_s;
  OSM_INLINE LaneLog(const double* max, const double* log_sum) : m(F64::load(max)), log_s(F64::load(log_sum)) {}
  template <int n>
  OSM_INLINE void operator()(F64 (&x)[n]) const {
    OSM_EACH x[i] = sub(sub(x[i], m), log_s);
  }
};

// 1/s in two parts and log(s) of one register's lanes. An infinite maximum makes m - m NaN, and with it all three.
OSM_INLINE F64 log_or_nan(F64 s) { return add(log_of(mul(s, F64::set(Log2e<F64>::unscale))), sub(s, s)); }
OSM_INLINE void settle_one(const double* m, const double* sums, double* high, double* low, double* log_s, bool logs) {
  const F64 max = F64::load(m), s = add(F64::load(sums), sub(max, max)), inverse = div(F64::set(1), s);
  store(high, inverse);
  store(low, mul(inverse, sub(F64::set(0), fms(inverse, s, F64::set(1)))));
  if (logs) store(log_s, log_or_nan(s));
}
OSM_INLINE void settle_one(const float* m, const double* sums, float* high, float* low, double* log_s, bool logs) {
  const F32 max = F32::load(m), nothing = sub(max, max);
  LaneSum<F32> s;
  s.get(sums);
  s.lo = add(s.lo, low_half(nothing)), s.hi = add(s.hi, high_half(nothing));
  const F64 i0 = div(F64::set(1), s.lo), i1 = div(F64::set(1), s.hi);
  const F32 first = narrow(i0, i1);
  store(high, first);
  store(low, narrow(sub(i0, low_half(first)), sub(i1, high_half(first))));
  if (!logs) return;
  const F64 unscale = F64::set(Log2e<F32>::unscale);
  s.lo = mul(s.lo, unscale), s.hi = mul(s.hi, unscale);
  s.lo = add(log_of(s.lo), sub(s.lo, s.lo)), s.hi = add(log_of(s.hi), sub(s.hi, s.hi));
  s.put(log_s);
}

// What the lanes of a pair of registers need for their results, in lane order.
template <class T>
struct Lanes {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  static constexpr int64_t P = pair_of<T>();
  S m[P];             // true maxima
  S high[P], low[P];  // 1/s in two parts; NaN in special lanes
  double s[P];        // sums, scaled by the exp
  double log_s[P];    // of the true sums; NaN in special lanes

  void settle(bool logs) {
    settle_one(m, s, high, low, log_s, logs);
    settle_one(m + V::W, s + V::W, high + V::W, low + V::W, log_s + V::W, logs);
  }
};

// State of one column by itself, where its lane turned out special.
template <class T>
RowState special_column(const char* x, int64_t step, int64_t length, double m, double s) {
  if (m != kInf && s == s) return {-kInf, 0.0};
  T some[64];
  RowState all{-kInf, 0.0};
  for (int64_t c = 0; c < length; c += 64) {
    const int64_t n = length - c < 64 ? length - c : 64;
    for (int64_t i = 0; i < n; ++i) some[i] = *(const T*)(x + (c + i) * step);
    all = merged(all, segment_by_maximum<T, typename Of<T>::State>(some, n));
  }
  return all;
}

// log_sum() of one column.
template <class T>
double log_sum_column(const char* x, int64_t step, int64_t length, double m) {
  T some[64];
  double total = 0;
  int64_t equal = 0;
  for (int64_t c = 0; c < length; c += 64) {
    const int64_t n = length - c < 64 ? length - c : 64;
    for (int64_t i = 0; i < n; ++i) some[i] = *(const T*)(x + (c + i) * step);
    int64_t same = 0;
    total += rest(some, n, m, &same).s;
    equal += same;
  }
  return __builtin_log((double)equal) + __builtin_log1p(total / (double)equal);
}
