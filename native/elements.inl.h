// Elements in and out: formats and the exponentials they deserve, loads, sums, the last multiplication, stores.
// Included inside the namespace of an instruction set, after exp.inl.h.
//
// Everything moves in pairs of registers (2W elements), the unit in which 16-bit formats are loaded. Sums are kept in
// four accumulators of the row's working format for at most kBlock pairs and then folded into double, so a sum of any
// length errs by a few units in the last place of the working format at the most.

#ifndef OSM_TOGETHER
#define OSM_TOGETHER 2
#endif
constexpr int kTogether = OSM_TOGETHER;                 // pairs side by side in a sweep
constexpr int64_t kBlock = 64 / kTogether * kTogether;  // pairs between folds; also the grain of staging and prefetch
constexpr int64_t kAhead = 8192;  // bytes of prefetch distance inside a sweep: two pages (1, 2, 4, 8 and 16 KiB tried)

// Main: exponentials that are summed and divided by their own sum. Map: relative to the true maximum, for sums made
// elsewhere. Sum: for log-sum-exps, by any pivot; Light: by the maximum. State: where m and s themselves are the
// result.
template <class T>
struct Of {  // 16-bit formats
  using V = F32;
  using S = float;
  using Main = ExpShifted<F32, 4, false>;
  using Map = ExpLight<F32, 4>;
  using Sum = ExpShifted<F32, 5, false>;  // a log-sum-exp may cancel to near 0, where more bits show
  using State = ExpLight<F32, 6>;
  using Light = ExpLight<F32, 5>;
  using Fast = ExpShifted<F32, 3, false>;
  static constexpr int kDegree = 4;
};
template <>
struct Of<float> {
  using V = F32;
  using S = float;
  using Main = ExpShifted<F32, 6, true>;
  using Fast = Main;  // precision="fast" is for 16-bit results
  using Map = ExpExact<F32, 6>;
  using Sum = ExpShifted<F32, 6, true, false>;
  using State = ExpLight<F32, 6>;
  using Light = State;
  static constexpr int kDegree = 6;
};
template <>
struct Of<double> {
  using V = F64;
  using S = double;
  using Main = ExpExact<F64, 11>;
  using Fast = Main;
  using Map = Main;
  using Sum = ExpFar<F64, 11>;
  using State = Sum;
  using Light = Sum;
  static constexpr int kDegree = 11;
};

template <class T>
constexpr int64_t pair_of() {
  return 2 * Of<T>::V::W;
}

constexpr double kInf = __builtin_inf();

// exp2 of the scaled sums brought back.
template <class T>
constexpr double unscale() {
  return (double)Log2e<typename Of<T>::V>::unscale;
}

// Softmax and log-sum-exp in float take any pivot: an element near the row's start, and no pass for the maximum.
template <class T>
constexpr bool kAnyPivot = sizeof(typename Of<T>::S) == 4;
template <class T>
OSM_INLINE bool near(double m) {  // false for NaN
  return __builtin_fabs(m) < (double)Log2e<typename Of<T>::V>::limit;
}
// The pivot p does where no element is further above it than this: beyond, the exponent of a scaled result would wrap.
// No element that is negative is, for the least of these pivots; so of the elements only the peak() is looked at.
constexpr double kAbove = 40;
template <class T>
OSM_INLINE bool may_do(double p) {
  return p > -kAbove && near<T>(p);
}
// The scaled sum of a row whose peak is no further above its pivot: 1/s keeps its low word. NaN is not usable.
OSM_INLINE bool usable(double sum) { return sum < 0x1p100; }

// ---- loads and stores of pairs

OSM_INLINE void load2(const float* p, F32& a, F32& b) { a = F32::load(p), b = F32::load(p + F32::W); }
OSM_INLINE void load2(const double* p, F64& a, F64& b) { a = F64::load(p), b = F64::load(p + F64::W); }
OSM_INLINE void store2(float* p, F32 a, F32 b) { store(p, a), store(p + F32::W, b); }
OSM_INLINE void store2(double* p, F64 a, F64 b) { store(p, a), store(p + F64::W, b); }
OSM_INLINE void stream2(float* p, F32 a, F32 b) { stream(p, a), stream(p + F32::W, b); }
OSM_INLINE void stream2(double* p, F64 a, F64 b) { stream(p, a), stream(p + F64::W, b); }

OSM_INLINE void put_neg_inf(float& x) { x = -__builtin_inff(); }
OSM_INLINE void put_neg_inf(double& x) { x = -__builtin_inf(); }
OSM_INLINE void put_neg_inf(bf16& x) { x.bits = 0xff80; }
OSM_INLINE void put_neg_inf(f16& x) { x.bits = 0xfc00; }
OSM_INLINE void put_nan(float& x) { x = __builtin_nanf(""); }
OSM_INLINE void put_nan(double& x) { x = __builtin_nan(""); }
OSM_INLINE void put_nan(bf16& x) { x.bits = 0x7fc0; }
OSM_INLINE void put_nan(f16& x) { x.bits = 0x7e00; }

// The last elements of a row, 0 < n < 2W: -inf in the places past the end, which no memory stands behind.
template <class T, class V>
OSM_INLINE void load_some(const T* p, int64_t n, V& a, V& b) {
  T full[2 * V::W];
  for (int64_t i = 0; i < 2 * V::W; ++i) {
    if (i < n)
      full[i] = p[i];
    else
      put_neg_inf(full[i]);
  }
  load2(full, a, b);
}
template <class T, class V>
OSM_INLINE void store_some(T* p, int64_t n, V a, V b) {
  T full[2 * V::W];
  store2(full, a, b);
  for (int64_t i = 0; i < n; ++i) p[i] = full[i];
}

OSM_INLINE double as_double(float x) { return x; }
OSM_INLINE double as_double(double x) { return x; }
template <class T16>
OSM_INLINE double as_double(T16 x) {
  T16 pair[2 * F32::W] = {x};
  F32 a, b;
  load2(pair, a, b);
  float first[F32::W];
  store(first, a);
  return first[0];
}

OSM_INLINE F64 widen_sum(F32 a) { return add(low_half(a), high_half(a)); }
OSM_INLINE F64 widen_sum(F64 a) { return a; }

// The running sum of a row. Floats are summed in double; doubles carry what each addition rounds away.
template <class V>
struct Total {
  F64 sum = F64::set(0);
  OSM_INLINE void fold(V a) { sum = add(sum, widen_sum(a)); }
  OSM_INLINE double value() const { return hsum(sum); }
};
template <>
struct Total<F64> {
  F64 sum = F64::set(0), lost = F64::set(0);
  OSM_INLINE void fold(F64 a) {
    const F64 t = add(sum, a), back = sub(t, sum);
    lost = add(lost, add(sub(sum, sub(t, back)), sub(a, back)));
    sum = t;
  }
  OSM_INLINE double value() const {
    double s[F64::W], l[F64::W], total = 0, rest = 0;
    store(s, sum), store(l, lost);
    for (int i = 0; i < F64::W; ++i) {
      const double t = total + s[i], back = t - total;
      rest += (total - (t - back)) + (s[i] - back) + l[i];
      total = t;
    }
    return total - total == 0 ? total + rest : total;  // what infinity lost is NaN
  }
};

// Place in memory of slot i of a loaded pair: bfloat16 pairs are split into even and odd places.
template <class T>
constexpr int64_t place_of(int64_t i) {
  return i;
}
template <>
constexpr int64_t place_of<bf16>(int64_t i) {
  return i < F32::W ? 2 * i : 2 * (i - F32::W) + 1;
}

// ---- 1/s and the last multiplication

// 1/s in two parts: high + low is good to twice the format, so dividing costs one rounding, as a true division would.
template <class V>
struct Scale {
  V high, low;
  OSM_INLINE Scale(V h, V l) : high(h), low(l) {}
  OSM_INLINE explicit Scale(double sum) {  // sum as scaled by the exp
    using S = typename V::Scalar;
    const double inverse = 1.0 / sum;
    high = V::set((S)inverse);
    if constexpr (sizeof(S) == 8)
      low = V::set(inverse * __builtin_fma(-inverse, sum, 1.0));
    else
      low = V::set((S)(inverse - (double)(S)inverse));
  }
  template <int n>
  OSM_INLINE void operator()(V (&e)[n]) const {
    V t[n];
    OSM_EACH t[i] = mul(e[i], low);
    OSM_EACH e[i] = fma(e[i], high, t[i]);
  }
};
// For 16-bit results one rounding of float more is nothing.
template <class V>
struct ScaleLight {
  V high;
  OSM_INLINE explicit ScaleLight(double sum) : high(V::set((typename V::Scalar)(1.0 / sum))) {}
  template <int n>
  OSM_INLINE void operator()(V (&e)[n]) const {
    OSM_EACH e[i] = mul(e[i], high);
  }
};
template <class T>
struct ScaleOf {
  using type = ScaleLight<F32>;
};
template <>
struct ScaleOf<float> {
  using type = Scale<F32>;
};
template <>
struct ScaleOf<double> {
  using type = Scale<F64>;
};

// (x - m) - log(s), never x - (m + log(s)): for equal logits of 1e8 the sum would round log(s) away.
template <class T>
struct LogShift {  // 16 bits: float carries more than the result keeps
  F32 m, log_sum;
  OSM_INLINE LogShift(double max, double log_s) : m(F32::set((float)max)), log_sum(F32::set((float)log_s)) {}
  template <int n>
  OSM_INLINE void operator()(F32 (&x)[n]) const {
    OSM_EACH x[i] = sub(sub(x[i], m), log_sum);
  }
};
template <>
struct LogShift<float> {  // float: in double, rounded once
  F64 m, log_sum;
  OSM_INLINE LogShift(double max, double log_s) : m(F64::set(max)), log_sum(F64::set(log_s)) {}
  template <int n>
  OSM_INLINE void operator()(F32 (&x)[n]) const {
    OSM_EACH x[i] = narrow(sub(sub(low_half(x[i]), m), log_sum), sub(sub(high_half(x[i]), m), log_sum));
  }
};
template <>
struct LogShift<double> {
  F64 m, log_sum;
  OSM_INLINE LogShift(double max, double log_s) : m(F64::set(max)), log_sum(F64::set(log_s)) {}
  template <int n>
  OSM_INLINE void operator()(F64 (&x)[n]) const {
    OSM_EACH x[i] = sub(sub(x[i], m), log_sum);
  }
};

// ---- where results go

// Non-temporal stores must fill whole aligned lines. A row that starts elsewhere is put together in a buffer that has
// the row's own offset inside a line, and leaves it line by line.
template <class T>
struct Lines {
  char* line = nullptr;  // the line the buffer's start stands for
  char* buffer = nullptr;
  int64_t start = 0, fill = 0;
  void begin(T* y, char* space) {
    buffer = space;
    start = fill = (int64_t)((uintptr_t)y & 63);
    line = (char*)y - start;
  }
  OSM_INLINE T* place() { return (T*)(buffer + fill); }
  void advance(int64_t bytes) {
    fill += bytes;
    const int64_t full = fill & ~(int64_t)63;
    if (full == 0) return;
    int64_t i = 0;
    if (start) {
      for (int64_t b = start; b < 64; ++b) line[b] = buffer[b];
      start = 0, i = 64;
    }
    for (; i < full; i += 64) copy_line(buffer + i, line + i, true);
    for (int64_t b = 0; b < fill - full; ++b) buffer[b] = buffer[full + b];
    line += full, fill -= full;
  }
  void end() {
    for (int64_t b = start; b < fill; ++b) line[b] = buffer[b];
  }
};
template <class T>
constexpr int64_t lines_bytes() {
  return 128 + kBlock * pair_of<T>() * (int64_t)sizeof(T);
}

enum class Store { plain, stream, lines };

template <Store how, class T, class V>
OSM_INLINE void put2(T* p, V a, V b) {
  if constexpr (how == Store::stream)
    stream2(p, a, b);
  else
    store2(p, a, b);
}

template <class T>
Store store_kind(bool wanted, const char* y, int64_t stride, int64_t cols) {
  if (!kStreams || !wanted || sizeof(T) * (size_t)cols < 64) return Store::plain;
  const bool aligned = (uintptr_t)y % 64 == 0 && stride % 64 == 0 && cols % pair_of<T>() == 0;
  return aligned ? Store::stream : Store::lines;
}
