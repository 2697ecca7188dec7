// Sums of slices in vectors, and what is made of them: the law of exact.h on rows of adjacent elements. Included inside
// the namespace of an instruction set, after elements.inl.h and the vectors of *_exact.h.
//
// A sweep serves up to three rows: it finds the maximum of the one to come, sums the terms of the current one, whose
// maximum is known and with it the top bin, and writes the results of the one before. The terms of a softmax are kept
// for that, scaled by a power of two that leaves no number subnormal. Factors that are powers of two change no bit, so
// the results are those of exact.h.

template <class V>
struct Cuts;
template <>
struct Cuts<F32> {
  static constexpr double magic = 0x1.8p23;
  static constexpr int shift = 30, lift = 30;  // terms are kept times 2^shift; those far below the maximum need more
  static constexpr int64_t depth = 150;        // so many powers of two below the top bin all is 0
  // Down to 2^fast, and for sums of fewer bits than `bits`, the product with the lower half of 1/V is a normal number.
  static constexpr int64_t fast = -68, bits = 43;
};
template <>
struct Cuts<F64> {
  static constexpr double magic = 0x1.8p52;
  static constexpr int shift = 512, lift = 0;
  static constexpr int64_t depth = 1040, fast = -800, bits = 63;
};

// Adding it rounds to a whole number of units of slice k.
template <class V>
OSM_INLINE typename V::Scalar magic_of(int k) {
  return (typename V::Scalar)(Cuts<V>::magic * power_of_2(Cuts<V>::shift - Law<typename V::Scalar>::width * k));
}

template <class V>
OSM_INLINE V low_word_of(V x, V f) {
  if constexpr (sizeof(typename V::Scalar) == 8)
    return fused(x, V::set(Law<double>::log2e_low), f);
  else
    return f;
}

// Terms for a top bin.
template <class V>
struct Grid {
  using S = typename V::Scalar;
  using L = Law<S>;
  V low, base;
  OSM_INLINE explicit Grid(int64_t b) {
    low = V::set((S)((double)(L::width * b - Cuts<V>::depth) * 0x1.62e42fefa39efp-1));
    base = V::set((S)(Cuts<V>::magic + (double)(L::bias + Cuts<V>::shift - L::width * b)));
  }
  template <int n>
  OSM_INLINE void terms(V (&x)[n]) const {
    V z[n], f[n];
    OSM_EACH x[i] = max(low, x[i]);
    OSM_EACH z[i] = fused(x[i], V::set(L::log2e), base);
    OSM_EACH f[i] = low_word_of(x[i], fused_less(x[i], V::set(L::log2e), sub(z[i], base)));
    OSM_EACH x[i] = fused(V::set(L::c[L::terms - 1]), f[i], V::set(L::c[L::terms - 2]));
    _Pragma("GCC unroll 16") for (int k = L::terms - 3; k >= 0; --k) OSM_EACH x[i] = fused(x[i], f[i], V::set(L::c[k]));
    OSM_EACH x[i] = fused(x[i], f[i], V::set(1));
    OSM_EACH x[i] = mul(x[i], power(z[i]));
  }
};

// What a sweep finds in a row.
template <class V>
struct Slices {
  using S = typename V::Scalar;
  using B = typename Law<S>::Bits;
  static constexpr int K = Law<S>::slices;
  BitSum<V> sum[K];
  V marks = V::set(0), most[2] = {V::set(-(S)kInf), V::set(-(S)kInf)}, least = V::set((S)kInf);

  // Slices of terms, from the top down: each is what is left rounded to a whole number of its unit. Of the top ones the
  // sum of n <= 8 is a small number, but where one is of NaN: no sum of n bit patterns of NaN or magic numbers comes
  // near n times the magic number's, modulo 2^32 or 2^64. The bits of the others' magic numbers are left in the sums.
  template <int n>
  OSM_INLINE void cut(V (&t)[n]) {
    static_assert(n <= 8);
    V v[n];
    _Pragma("GCC unroll 4") for (int k = 0; k < K; ++k) {
      const V magic = V::set(magic_of<V>(k));
      OSM_EACH v[i] = add(t[i], magic);
      BitSum<V> group;
      OSM_EACH group.add(v[i]);
      if (k == 0) group.less((B)((B)n * bits_of(magic_of<V>(0)))), marks = either(marks, group.bits());
      sum[k].add(group.bits());
      if (k + 1 < K) OSM_EACH t[i] = sub(t[i], sub(v[i], magic));
    }
  }
  OSM_INLINE void flush(int64_t vectors, int64_t* a) {
    for (int k = 0; k < K; ++k) {
      add_to(a[k], sum[k].beyond(k ? (B)((B)vectors * bits_of(magic_of<V>(k))) : (B)0));
      sum[k] = {};
    }
  }
  OSM_INLINE bool sure() const {
    S lane[V::W];
    store(lane, marks);
    B all = 0;
    for (int i = 0; i < V::W; ++i) all |= bits_of(lane[i]);
    return all >> (Law<S>::width + 3) == 0;  // 8 slices of up to 2^(width - 1), and one bit more
  }
};

template <class S>
struct Found {
  S coming;   // maximum of the row to come, NaN passed over
  S least;    // of the current row, where it is wanted
  bool sure;  // no NaN in the current row
  int64_t a[Law<S>::slices];
};

// ---- results

// From kept terms: two steps where no result is small, exact factors and the cut at the smallest result where one may
// be.
template <class V>
struct FromTerms {
  V high, low;
  template <int n>
  OSM_INLINE void operator()(V (&t)[n]) const {
    V rest[n];
    OSM_EACH rest[i] = mul(t[i], low);
    OSM_EACH t[i] = fused(t[i], high, rest[i]);
  }
};
template <class V>
struct FromSmallTerms {
  V high, low, lift, factor, smallest;
  template <int n>
  OSM_INLINE void operator()(V (&t)[n]) const {
    V rest[n];
    if constexpr (Cuts<V>::lift != 0) OSM_EACH t[i] = mul(t[i], lift);
    OSM_EACH rest[i] = mul(t[i], low);
    OSM_EACH t[i] = fused(t[i], high, rest[i]);
    OSM_EACH t[i] = at_least(mul(t[i], factor), smallest);
  }
};
// From the elements themselves.
template <class V, class R>
struct FromElements {
  Grid<V> grid;
  R result;
  template <int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    grid.terms(x);
    result(x);
  }
};
struct LogOf32 {
  F64 m, log_sum;
  template <int n>
  OSM_INLINE void operator()(F32 (&x)[n]) const {
    OSM_EACH x[i] = narrow(sub(sub(low_half(x[i]), m), log_sum), sub(sub(high_half(x[i]), m), log_sum));
  }
};
struct LogOf64 {
  F64 m, log_sum;
  template <int n>
  OSM_INLINE void operator()(F64 (&x)[n]) const {
    OSM_EACH x[i] = sub(sub(x[i], m), log_sum);
  }
};
OSM_INLINE LogOf32 log_result(const Divisor<float>& d) { return {F64::set((double)d.m), F64::set(d.log_sum)}; }
OSM_INLINE LogOf64 log_result(const Divisor<double>& d) { return {F64::set(d.m), F64::set(d.log_sum)}; }

// Whether logarithms come out right in vectors: not where an element or a difference that matters may be subnormal.
OSM_INLINE bool logs_in_vectors(const Divisor<float>& d) {
  return d.plain && (d.m == 0 ? d.log_sum > 0 : __builtin_fabsf(d.m) >= 0x1p-60f);
}
OSM_INLINE bool logs_in_vectors(const Divisor<double>& d) {
  return d.plain && (d.log_sum > 0 || __builtin_fabs(d.m) >= 0x1p-900);
}
template <class V, class S>
OSM_INLINE bool terms_in_vectors(const Divisor<S>& d) {
  return d.plain && __builtin_fabs((double)d.m) < (double)Law<S>::near;
}
// Whether two steps do for a row whose least element this is.
template <class V, class S>
OSM_INLINE bool none_small(const Divisor<S>& d, S least) {
  const double e = (double)least * (double)Law<S>::log2e - (double)(Law<S>::width * d.b + d.k + 1);
  return e > (double)Cuts<V>::fast && Cuts<V>::bits > d.k;
}
template <class V, class S>
OSM_INLINE FromTerms<V> from_terms(const Divisor<S>& d) {
  const double factor = power_of_2(-d.k - Cuts<V>::shift);
  return {V::set((S)((double)d.high * factor)), V::set((S)((double)d.low * factor))};
}
template <class V, class S>
OSM_INLINE FromSmallTerms<V> from_small_terms(const Divisor<S>& d) {
  using C = Cuts<V>;
  return {V::set(d.high), V::set(d.low), V::set((S)power_of_2(C::lift)),
          V::set((S)power_of_2(-d.k - C::shift - C::lift)), V::set((S)power_of_2(Law<S>::smallest))};
}

// ---- the sweep

// Results of the row before: none, from its kept terms, from the row itself.
enum class Past { none, kept, mapped };

template <class T, class R>
struct Pass {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const T* next;  // its maximum is found; the current row itself where there is none
  const T* cur;
  S* keep;
  Grid<V> grid;
  const S* kept;
  const T* prev;
  R result;
  T* y;
};
struct NoResult {
  template <class V, int n>
  OSM_INLINE void operator()(V (&)[n]) const {}
};

// What is done with the current row: nothing, its sums, and beside them its least element, and its terms kept.
enum class Now { none, sums, least, terms };

template <int n, Now kNow, Past kPast, Store kStore, class T, class R>
OSM_INLINE void pass_pairs(const Pass<T, R>& w, int64_t i, T* y, Slices<typename Of<T>::V>& found) {
  using V = typename Of<T>::V;
  constexpr int64_t P = pair_of<T>();
  V v[2 * n];
  if constexpr (kPast != Past::none) {
    if constexpr (kPast == Past::kept) {
      for (int k = 0; k < 2 * n; ++k) v[k] = V::load(w.kept + i + k * V::W);
    } else {
      for (int p = 0; p < n; ++p) load2(w.prev + i + p * P, v[2 * p], v[2 * p + 1]);
      if constexpr (kNow == Now::none)
        for (int64_t b = 0; b < n * P * (int64_t)sizeof(T); b += 64) prefetch((const char*)(w.prev + i) + kAhead + b);
    }
    w.result(v);
    for (int p = 0; p < n; ++p) put2<kStore>(y + p * P, v[2 * p], v[2 * p + 1]);
  }
  if constexpr (kNow != Now::none) {
    if constexpr (kExactPrefetch)
      for (int64_t b = 0; b < n * P * (int64_t)sizeof(T); b += 64) prefetch((const char*)(w.next + i) + kAhead + b);
    for (int p = 0; p < n; ++p) load2(w.next + i + p * P, v[2 * p], v[2 * p + 1]);
    for (int k = 0; k < 2 * n; ++k) found.most[k & 1] = max(v[k], found.most[k & 1]);
    for (int p = 0; p < n; ++p) load2(w.cur + i + p * P, v[2 * p], v[2 * p + 1]);
    if constexpr (kNow != Now::sums)
      for (int k = 0; k < 2 * n; ++k) found.least = min(found.least, v[k]);
    w.grid.terms(v);
    if constexpr (kNow == Now::terms)
      for (int k = 0; k < 2 * n; ++k) store(w.keep + i + k * V::W, v[k]);
    found.cut(v);
  }
}

// Blocks between two times that lanes are emptied: 32 of their bits hold 1023 slices.
constexpr int64_t kEmptied = 1023 / (2 * kBlock);

template <Now kNow, Past kPast, Store kStore, class T, class R>
void pass(const Pass<T, R>& given, int64_t cols, char* space, Found<typename Of<T>::S>* found) {
  using V = typename Of<T>::V;
  constexpr int64_t P = pair_of<T>(), G = kTogether;
  constexpr bool kBuffer = kPast != Past::none && kStore == Store::lines, kSum = kNow != Now::none;
  const Pass<T, R> w = given;  // by value: a store through y might change what a reference shows
  Slices<V> sums;
  if constexpr (kSum)
    for (int64_t& a : found->a) a = 0;
  [[maybe_unused]] Lines<T> lines;
  if constexpr (kBuffer) lines.begin(w.y, space);
  const int64_t pairs = cols / P, left = cols - pairs * P;
  int64_t vectors = 0, full = 0;
  for (int64_t start = 0; start < pairs; start += kBlock) {
    const int64_t stop = start + kBlock < pairs ? start + kBlock : pairs;
    T* y = w.y + start * P;
    if constexpr (kBuffer) y = lines.place();
    int64_t j = start;
    for (; j + G <= stop; j += G) pass_pairs<G, kNow, kPast, kStore>(w, j * P, y + (j - start) * P, sums);
    for (; j < stop; ++j) pass_pairs<1, kNow, kPast, kStore>(w, j * P, y + (j - start) * P, sums);
    if constexpr (kBuffer) lines.advance((stop - start) * P * (int64_t)sizeof(T));
    vectors += 2 * (stop - start);
    if (kSum && ++full == kEmptied) sums.flush(vectors, found->a), vectors = full = 0;
  }
  if (left) {
    const int64_t done = pairs * P;
    V v[2];
    if constexpr (kPast != Past::none) {
      if constexpr (kPast == Past::kept)
        v[0] = V::load(w.kept + done), v[1] = V::load(w.kept + done + V::W);
      else
        load_some(w.prev + done, left, v[0], v[1]);
      w.result(v);
      if constexpr (kBuffer) {
        store_some(lines.place(), left, v[0], v[1]);
        lines.advance(left * (int64_t)sizeof(T));
      } else {
        store_some(w.y + done, left, v[0], v[1]);
      }
    }
    if constexpr (kSum) {
      if constexpr (kNow != Now::sums) {
        T some[P];  // past the end what is there already: -inf would be the least
        for (int64_t i = 0; i < P; ++i) some[i] = w.cur[done + (i < left ? i : 0)];
        load2(some, v[0], v[1]);
        sums.least = min(sums.least, min(v[0], v[1]));
      }
      load_some(w.next + done, left, v[0], v[1]);
      sums.most[0] = max(v[0], sums.most[0]), sums.most[1] = max(v[1], sums.most[1]);
      load_some(w.cur + done, left, v[0], v[1]);
      w.grid.terms(v);
      if constexpr (kNow == Now::terms) store(w.keep + done, v[0]), store(w.keep + done + V::W, v[1]);
      sums.cut(v);
      vectors += 2;
    }
  }
  if constexpr (kBuffer) lines.end();
  if constexpr (kSum) {
    sums.flush(vectors, found->a);
    found->coming = hmax(max(sums.most[0], sums.most[1])), found->sure = sums.sure();
    if constexpr (kNow != Now::sums) found->least = -hmax(sub(V::set(0), sums.least));
  }
}
