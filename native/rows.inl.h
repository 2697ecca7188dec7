// The sweep over rows of adjacent elements, and the state of a segment. Included inside the namespace of an instruction
// set, after elements.inl.h.

// ---- the sweep

// One pass that serves up to three rows at once, so that reading, arithmetic and writing go on side by side and none
// comes in bursts: the maximum of the row `next`, exponentials and sum of the row `cur` (kept in `keep` for softmax),
// and the results of the row `prev`.
enum class Write { none, scaled, mapped };
// What is found beside: nothing, the maximum of `next`, or the peak of `cur`.
enum class Top { none, next, peak };

template <class T, class E, class R>
struct Sweep {
  using S = typename Of<T>::S;
  const T* next;  // maximum of these
  const T* cur;   // exponentials of these
  S* keep;        // null: sums only
  E exp;
  const S* kept;  // Write::scaled: exponentials of the row to write
  const T* prev;  // Write::mapped: the row itself, `result` does the rest
  R result;
  T* y;
};

// Exponentials and results may ask for the place of their elements in the row.
template <class F, class V, int n>
OSM_INLINE void apply(const F& f, V (&v)[n], int64_t at) {
  if constexpr (requires { f(v, at); })
    f(v, at);
  else
    f(v);
}

// n pairs at element i. Sums: tree of the pairs' exponentials. The row to write comes before the one whose exponentials
// take its place: `keep` may be `kept`, and one buffer serves all rows.
template <int n, class T, class E, class R, Top kTop, bool kExp, bool kKeep, Write kWrite, Store kStore>
OSM_INLINE void sweep_pairs(const Sweep<T, E, R>& w, int64_t i, T* y, typename Of<T>::V& m0, typename Of<T>::V& m1,
                            typename Of<T>::V& sum) {
  using V = typename Of<T>::V;
  constexpr int64_t P = pair_of<T>();
  constexpr bool kMax = kTop == Top::next;
  V v[2 * n];
  if constexpr (kMax) {
    for (int p = 0; p < n; ++p) load2(w.next + i + p * P, v[2 * p], v[2 * p + 1]);
    for (int64_t b = 0; b < n * P * (int64_t)sizeof(T); b += 64) prefetch((const char*)(w.next + i) + kAhead + b);
    for (int p = 0; p < n; ++p) m0 = max(m0, v[2 * p]), m1 = max(m1, v[2 * p + 1]);
  }
  if constexpr (kWrite != Write::none) {
    if constexpr (kWrite == Write::scaled) {
      for (int k = 0; k < 2 * n; ++k) v[k] = V::load(w.kept + i + k * V::W);
    } else {
      if constexpr (!kMax)
        for (int64_t b = 0; b < n * P * (int64_t)sizeof(T); b += 64) prefetch((const char*)(w.prev + i) + kAhead + b);
      for (int p = 0; p < n; ++p) load2(w.prev + i + p * P, v[2 * p], v[2 * p + 1]);
    }
    apply(w.result, v, i);
    for (int p = 0; p < n; ++p) put2<kStore>(y + p * P, v[2 * p], v[2 * p + 1]);
  }
  if constexpr (kExp) {
    if constexpr (!kMax)
      for (int64_t b = 0; b < n * P * (int64_t)sizeof(T); b += 64) prefetch((const char*)(w.cur + i) + kAhead + b);
    for (int p = 0; p < n; ++p) load2(w.cur + i + p * P, v[2 * p], v[2 * p + 1]);
    if constexpr (kTop == Top::peak)
      for (int p = 0; p < n; ++p) m0 = peak(m0, v[2 * p]), m1 = peak(m1, v[2 * p + 1]);
    apply(w.exp, v, i);
    if constexpr (kKeep)
      for (int k = 0; k < 2 * n; ++k) store(w.keep + i + k * V::W, v[k]);
    V s = add(v[0], v[1]);
    for (int p = 1; p < n; ++p) s = add(s, add(v[2 * p], v[2 * p + 1]));
    sum = s;
  }
}

struct Swept {
  double max, sum;
};

template <class T, class E, class R, Top kTop, bool kExp, bool kKeep, Write kWrite, Store kStore>
Swept sweep(const Sweep<T, E, R>& given, int64_t cols, char* space) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  constexpr int64_t P = pair_of<T>(), G = kTogether;
  constexpr bool kMax = kTop == Top::next;
  // Lines are met either by starting the pairs of the written row where its first line starts, or, where the kept
  // exponentials are in split order (bfloat16), through a buffer.
  constexpr bool kWrites = kWrite != Write::none, kSplit = kWrite == Write::scaled && place_of<T>(1) != 1;
  constexpr bool kBuffer = kWrites && kStore == Store::lines && kSplit,
                 kShift = kWrites && kStore == Store::lines && !kSplit;
  constexpr Store kPut = kShift ? Store::stream : kStore;
  Sweep<T, E, R> w = given;  // by value: a store through y might change what a reference shows
  S lowest;
  put_neg_inf(lowest);
  V m0 = V::set(lowest), m1 = m0, group = V::set(0), v[2];
  Total<V> total;
  [[maybe_unused]] Lines<T> lines;
  if constexpr (kBuffer) lines.begin(w.y, space);

  const auto write_some = [&](int64_t from, int64_t n, T* y) OSM_LAMBDA_INLINE {  // 0 < n < P elements
    if constexpr (kWrite == Write::scaled)
      v[0] = V::load(w.kept + from), v[1] = V::load(w.kept + from + V::W);
    else
      load_some(w.prev + from, n, v[0], v[1]);
    apply(w.result, v, from);
    store_some(y, n, v[0], v[1]);
  };
  int64_t head = 0;
  if constexpr (kShift) {
    head = (int64_t)(-(uintptr_t)w.y & 63) / (int64_t)sizeof(T);
    if (head > cols) head = cols;
    for (int64_t i = 0; i < head; i += P - 1) write_some(i, head - i < P ? head - i : P - 1, w.y + i);
    w.kept += head, w.prev += head, w.y += head;
    if constexpr (requires { w.result.shift(head); }) w.result.shift(head);
  }

  // Pairs are grouped by their own places alone, so that sums never depend on where the written row's lines start. The
  // written row has its whole pairs in [0, joint); what it has beyond goes out before exponentials take its place.
  const int64_t pairs = cols / P, joint = kWrites ? (cols - head) / P : 0;
  int64_t written = 0;
  const auto write_up_to_end = [&](T* y) OSM_LAMBDA_INLINE {
    const int64_t from = written, rest = cols - head - joint * P;
    for (; written < joint; ++written)
      sweep_pairs<1, T, E, R, Top::none, false, false, kWrite, kPut>(w, written * P, y + (written - from) * P, m0, m1,
                                                                     group);
    if (rest) write_some(joint * P, rest, y + (joint - from) * P);
    written = joint + 1;
  };
  for (int64_t start = 0; start < pairs; start += kBlock) {
    const int64_t stop = start + kBlock < pairs ? start + kBlock : pairs;
    T* y = w.y + start * P;
    if constexpr (kBuffer) y = lines.place();
    int64_t j = start;
    V sum = V::set(0);
    for (; j + G <= stop; j += G) {
      if (kWrites && j + G <= joint) {
        sweep_pairs<G, T, E, R, kTop, kExp, kKeep, kWrite, kPut>(w, j * P, y + (j - start) * P, m0, m1, group);
        written = j + G;
      } else {
        if (kWrites && written <= joint) write_up_to_end(y + (written - start) * P);
        sweep_pairs<G, T, E, R, kTop, kExp, kKeep, Write::none, Store::plain>(w, j * P, nullptr, m0, m1, group);
      }
      if constexpr (kExp && E::kFoldEach) total.fold(group);
      if constexpr (kExp && !E::kFoldEach) sum = add(sum, group);
    }
    for (; j < stop; ++j) {
      if (kWrites && j < joint) {
        sweep_pairs<1, T, E, R, kTop, kExp, kKeep, kWrite, kPut>(w, j * P, y + (j - start) * P, m0, m1, group);
        written = j + 1;
      } else {
        if (kWrites && written <= joint) write_up_to_end(y + (written - start) * P);
        sweep_pairs<1, T, E, R, kTop, kExp, kKeep, Write::none, Store::plain>(w, j * P, nullptr, m0, m1, group);
      }
      if constexpr (kExp) sum = add(sum, group);
    }
    if constexpr (kExp) total.fold(sum);
    if constexpr (kBuffer) lines.advance((stop - start) * P * (int64_t)sizeof(T));
  }
  if constexpr (kWrites) {
    if (written <= joint) write_up_to_end(kBuffer ? lines.place() : w.y + written * P);
    if constexpr (kBuffer) {
      lines.advance((cols - joint * P) * (int64_t)sizeof(T));
      lines.end();
    }
  }
  const int64_t done = pairs * P, left = cols - done;
  if (left) {
    if constexpr (kMax) {
      load_some(w.next + done, left, v[0], v[1]);
      m0 = max(m0, v[0]), m1 = max(m1, v[1]);
    }
    if constexpr (kExp) {
      load_some(w.cur + done, left, v[0], v[1]);
      if constexpr (kTop == Top::peak) m0 = peak(m0, v[0]), m1 = peak(m1, v[1]);
      apply(w.exp, v, done);
      total.fold(add(v[0], v[1]));
      if constexpr (kKeep) store(w.keep + done, v[0]), store(w.keep + done + V::W, v[1]);
    }
  }
  return {kTop != Top::none ? (double)hmax(max(m0, m1)) : 0.0, kExp ? total.value() : 0.0};
}

// Stand-ins where a sweep does not use its exp or result.
struct NoExp {
  static constexpr bool kFoldEach = false;
  template <class V, int n>
  OSM_INLINE void operator()(V (&)[n]) const {}
};
constexpr NoExp kNoExp{};

template <class T>
double row_max(const T* x, int64_t n) {
  const Sweep<T, NoExp, NoExp> w{x, nullptr, nullptr, kNoExp, nullptr, nullptr, kNoExp, nullptr};
  return sweep<T, NoExp, NoExp, Top::next, false, false, Write::none, Store::plain>(w, n, nullptr).max;
}

// ---- special rows

OSM_INLINE double pivot(double m) { return m == kInf || m == -kInf ? 0.0 : m; }

// Repairs the state of a row whose maximum is infinite or whose sum is NaN: the maximum of a register may have dropped
// a NaN that came before it, and at +inf the sum says nothing.
template <class T>
__attribute__((noinline)) RowState special(const T* x, int64_t n, double m, double sum) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  if (sum != sum && m != kInf) return {__builtin_nan(""), __builtin_nan("")};
  if (m != m) return {m, m};
  if (m != kInf) return {-kInf, 0.0};
  int64_t infinite = 0;
  bool nan = false;
  const V top = V::set((S)kInf);
  const int64_t P = pair_of<T>();
  for (int64_t i = 0; i < n; i += P) {
    V a, b;
    if (i + P <= n)
      load2(x + i, a, b);
    else
      load_some(x + i, n - i, a, b);
    nan |= above(a, top) || above(b, top);
    infinite += count_equal(a, top) + count_equal(b, top);
  }
  if (nan) return {__builtin_nan(""), __builtin_nan("")};
  return {kInf, (double)infinite};
}

OSM_INLINE bool ordinary(double m, double s) { return m < kInf && m > -kInf && s == s; }

template <class T>
void fill_nan(T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) put_nan(y[i]);
}

// ---- state of a segment

// One block of a segment: the sum of its exponentials relative to m, and the maximum of the next block, of `there`
// elements.
template <class T, class E>
Swept block_of(const T* x, int64_t here, int64_t there, double m) {
  constexpr int64_t block = kBlock * pair_of<T>();
  const E e((typename Of<T>::S)pivot(m));
  const Sweep<T, E, NoExp> w{x + block, x, nullptr, e, nullptr, nullptr, kNoExp, nullptr};
  if (there == block) return sweep<T, E, NoExp, Top::next, true, false, Write::none, Store::plain>(w, block, nullptr);
  const Swept r = sweep<T, E, NoExp, Top::none, true, false, Write::none, Store::plain>(w, here, nullptr);
  return {there ? row_max(x + block, there) : -kInf, r.sum};
}

// One read: the maximum of block b + 1 is taken while the exponentials of block b are summed. m is the true maximum.
template <class T, class E>
RowState segment_by_maximum(const T* x, int64_t n) {
  constexpr int64_t block = kBlock * pair_of<T>();
  double m = -kInf, s = 0;
  double coming = row_max(x, n < block ? n : block);
  for (int64_t i = 0; i < n; i += block) {
    if (coming > m) {
      if (m != -kInf)
        s *= __builtin_exp(m - coming);
      else if (s == s)
        s = 0;  // only -inf so far
      m = coming;
    }
    const int64_t here = n - i < block ? n - i : block;
    const int64_t there = n - i - here < block ? n - i - here : block;
    const Swept r = block_of<T, E>(x + i, here, there, m);
    coming = r.max, s += r.sum;
  }
  if (!ordinary(m, s)) return special(x, n, m, s);
  return {m, s * unscale<T>()};
}

// The greatest of the first few elements: in most rows near enough to the maximum.
template <class T>
OSM_INLINE double first_pivot(const T* x, int64_t n) {
  constexpr int64_t P = pair_of<T>();
  if (n < 2 * P) return row_max(x, n);
  typename Of<T>::V v[4];
  load2(x, v[0], v[1]), load2(x + P, v[2], v[3]);
  return (double)hmax(max(max(v[0], v[1]), max(v[2], v[3])));
}

// The same for sums alone, in one sweep where the first pivot holds; m is then what the sum is relative to.
template <class T, class E>
RowState segment(const T* x, int64_t n) {
  using Far = ExpFar<typename Of<T>::V, Of<T>::kDegree>;
  if constexpr (sizeof(typename Of<T>::S) == 8) {
    return segment_by_maximum<T, Far>(x, n);
  } else {
    const double p = first_pivot(x, n);
    if (may_do<T>(p)) {
      const Sweep<T, E, NoExp> w{nullptr, x, nullptr, E((typename Of<T>::S)p), nullptr, nullptr, kNoExp, nullptr};
      const Swept r = sweep<T, E, NoExp, Top::peak, true, false, Write::none, Store::plain>(w, n, nullptr);
      if (r.max <= p + kAbove && usable(r.sum)) return {E::reference(p), r.sum * unscale<T>()};
    }
    return segment_by_maximum<T, Far>(x, n);
  }
}

// Merge of two states in double: the law of state.h, written here so that no foreign code enters this object.
OSM_INLINE RowState merged(RowState a, RowState b) {
  const double m = a.m > b.m || a.m != a.m ? a.m : b.m;
  const double p = pivot(m);
  if (m == kInf) {
    if (a.s != a.s || b.s != b.s) return {__builtin_nan(""), __builtin_nan("")};
    return {m, (a.m == m ? a.s : 0.0) + (b.m == m ? b.s : 0.0)};
  }
  const double s = a.s * __builtin_exp(a.m - p) + b.s * __builtin_exp(b.m - p);
  return {s != s ? s : m, s};
}

template <class T, class E>
RowState row_state(const T* x, int64_t n) {
  RowState state{-kInf, 0.0};
  for (int64_t i = 0; i < n; i += kSegment) {
    const int64_t here = n - i < kSegment ? n - i : kSegment;
    const RowState piece =
        __is_same(E, typename Of<T>::State) ? segment_by_maximum<T, E>(x + i, here) : segment<T, E>(x + i, here);
    state = i ? merged(state, piece) : piece;
  }
  return state;
}

// log(s) of a row whose state is known. Where one term dominates, 1 + r has rounded part of r away, and log(s) is all
// that is left of a log-probability near 0: then the other terms are summed by themselves, and log1p keeps their bits.
constexpr double kSharpen = 1.25;
OSM_INLINE bool blunt(RowState st) { return st.s < kSharpen && st.s >= 1.0 && st.m < kInf; }
template <class T>
RowState rest(const T* x, int64_t n, double m, int64_t* equal);
template <class T>
OSM_INLINE double log_sum(const T* x, int64_t n, RowState st) {
  if (!blunt(st)) {
    double l[F64::W];
    store(l, log_of(F64::set(st.s)));
    return l[0];
  }
  int64_t equal = 0;
  const RowState r = rest(x, n, st.m, &equal);
  return __builtin_log((double)equal) + __builtin_log1p(r.s / (double)equal);
}

template <class T, class E>
RowState rest_by(const T* x, int64_t n, double m, int64_t* equal) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const E e((S)m);
  const V top = V::set((S)m);
  Total<V> total;
  int64_t count = 0;
  const int64_t P = pair_of<T>();
  for (int64_t i = 0; i < n; i += P) {
    V a, b;
    if (i + P <= n)
      load2(x + i, a, b);
    else
      load_some(x + i, n - i, a, b);
    count += count_equal(a, top) + count_equal(b, top);
    V v[2] = {a, b};
    e(v);
    total.fold(add(keep_unequal(v[0], a, top), keep_unequal(v[1], b, top)));
  }
  *equal = count;
  // Terms at the floor stand for 0: n of them are nothing, not n times something.
  const double sum = total.value() * unscale<T>(), nothing = 1.01 * (double)n * __builtin_exp((double)Log2e<V>::floor);
  return {m, sum <= nothing ? 0.0 : sum};
}
template <class T>
RowState rest(const T* x, int64_t n, double m, int64_t* equal) {
  using V = typename Of<T>::V;
  constexpr int degree = sizeof(typename Of<T>::S) == 8 ? 11 : 6;
  if (__builtin_fabs(m) < Log2e<V>::limit) return rest_by<T, ExpExact<V, degree>>(x, n, m, equal);
  return rest_by<T, ExpFar<V, degree>>(x, n, m, equal);
}
