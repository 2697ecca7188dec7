// Batches of rows by the sweeps of exact.inl.h. Included inside the namespace of an instruction set, after it.

OSM_INLINE void put_neg_inf(Half& x) { x.bits = 0xfc00; }
OSM_INLINE void put_neg_inf(Brain& x) { x.bits = 0xff80; }
OSM_INLINE void put_nan(Half& x) { x.bits = 0x7e00; }
OSM_INLINE void put_nan(Brain& x) { x.bits = 0x7fc0; }

constexpr int64_t kPiece = 4096;  // elements of a long row between two looks at its maximum

template <class T>
constexpr int64_t padded_to_pairs(int64_t n) {
  return (n + pair_of<T>() - 1) / pair_of<T>() * pair_of<T>();
}

template <class S>
ExactWide wide_of(const ExactState<S>& st) {
  ExactWide w{(double)st.m, {0, 0, 0, 0}};
  for (int k = 0; k < Law<S>::slices; ++k) w.a[k] = st.a[k];
  return w;
}
template <class S>
ExactState<S> state_from(const ExactWide& w) {
  ExactState<S> st{};
  st.m = (S)w.m;
  for (int k = 0; k < Law<S>::slices; ++k) st.a[k] = w.a[k];
  return st;
}
template <class S>
OSM_INLINE bool is_near(S m) {  // false for NaN
  return __builtin_fabs((double)m) < (double)Law<S>::near;
}

// ---- element by element: maxima far out, infinities, NaN

template <class T, class F>
OSM_INLINE void each_pair(const T* x, int64_t n, const F& f) {
  constexpr int64_t P = pair_of<T>();
  typename Of<T>::S wide[P];
  typename Of<T>::V a, b;
  for (int64_t i = 0; i < n; i += P) {
    if (i + P <= n)
      load2(x + i, a, b);
    else
      load_some(x + i, n - i, a, b);
    store(wide, a), store(wide + Of<T>::V::W, b);
    f(i, wide);
  }
}

template <class T>
__attribute__((noinline)) ExactState<typename Of<T>::S> slow_state(const T* x, int64_t n) {
  using S = typename Of<T>::S;
  ExactState<S> st = empty_state<S>();
  bool nan = false;
  each_pair(x, n, [&](int64_t, const S* wide) {
    for (int64_t k = 0; k < pair_of<T>(); ++k) nan |= is_nan(wide[k]), st.m = wide[k] > st.m ? wide[k] : st.m;
  });
  st.m = canonical(nan ? (S)__builtin_nan("") : st.m);
  if (nan || st.m == -(S)kInf) return st;
  const bool plain = is_plain(st.m);
  const int64_t b = top_of(st.m);
  each_pair(x, n, [&](int64_t, const S* wide) {
    for (int64_t k = 0; k < pair_of<T>(); ++k) add_element(st, plain, b, wide[k]);
  });
  return st;
}

template <class T, class S>
__attribute__((noinline)) void slow_write(Op op, const T* x, T* y, int64_t n, const Divisor<S>& d) {
  constexpr int64_t P = pair_of<T>();
  using V = typename Of<T>::V;
  S result[P];
  each_pair(x, n, [&](int64_t i, const S* wide) {
    for (int64_t k = 0; k < P; ++k) result[k] = op == Op::softmax ? value_of(d, wide[k]) : log_value_of(d, wide[k]);
    const V a = V::load(result), b = V::load(result + V::W);
    if (i + P <= n)
      store2(y + i, a, b);
    else
      store_some(y + i, n - i, a, b);
  });
}

template <class T>
void write_nan(T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) put_nan(y[i]);
}

// ---- states

// The greatest of the first few elements.
template <class T>
OSM_INLINE typename Of<T>::S first_of(const T* x, int64_t n) {
  constexpr int64_t P = pair_of<T>();
  typename Of<T>::V a, b, c, d;
  if (n < P) {
    load_some(x, n, a, b);
    return hmax(max(a, b));
  }
  load2(x, a, b), load2(n < 2 * P ? x + n - P : x + P, c, d);
  return hmax(max(max(a, b), max(c, d)));
}

// Greatest and least, and whether there is a NaN.
template <class T>
__attribute__((noinline)) Found<typename Of<T>::S> look_at(const T* x, int64_t n) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  constexpr int64_t P = pair_of<T>();
  V most = V::set(-(S)kInf), least = V::set((S)kInf), marks = V::set(1);
  for (int64_t i = 0; i < n; i += P) {
    V a, b;
    if (i + P <= n) {
      load2(x + i, a, b);
      least = min(least, min(a, b));
    } else {
      T some[P];
      for (int64_t k = 0; k < P; ++k) some[k] = x[i + k < n ? i + k : n - 1];
      load2(some, a, b);
      least = min(least, min(a, b));
    }
    most = max(most, max(a, b));
    // NaN stays one; finite numbers and infinities become 1.
    const V top = V::set((S)kInf);
    marks = either(marks, V::set(above(a, top) || above(b, top) ? (S)__builtin_nan("") : (S)1));
  }
  Found<S> found{};
  found.most = hmax(most), found.least = -hmax(sub(V::set(0), least));
  found.sure = above(marks, V::set((S)kInf)) == 0;
  return found;
}

// The guess of a row's top bin, from its first elements and the row before.
struct Guess {
  int64_t bin = 0;
  int doubt = 0;
  bool any = false;  // `bin` says something
};
template <class T>
OSM_INLINE int64_t guessed(const Guess& g, const T* x, int64_t n) {
  const auto first = first_of(x, n);
  if (!is_near(first)) return g.bin;
  const int64_t b = top_of(first);
  return g.any && g.bin > b ? g.bin : b;
}

template <class T, Now kNow, Past kPast, Store kStore, class R>
OSM_INLINE Found<typename Of<T>::S> swept(const Pass<T, R>& w, int64_t n, char* space) {
  Found<typename Of<T>::S> found;
  pass<kNow, kPast, kStore>(w, n, space, &found);
  return found;
}
template <class T>
Pass<T, NoResult> alone(const T* x, typename Of<T>::S* keep, int64_t b) {
  return {x, keep, Grid<typename Of<T>::V>(b), nullptr, nullptr, NoResult{}, nullptr};
}

template <class S>
OSM_INLINE ExactState<S> state_of_found(const Found<S>& f) {
  ExactState<S> st;
  st.m = canonical(f.most);
  for (int k = 0; k < Law<S>::slices; ++k) st.a[k] = f.a[k];
  return st;
}
// Whether what was swept with top bin b is right.
template <class S>
OSM_INLINE bool right(const Found<S>& f, int64_t b) {
  return f.sure && is_near(f.most) && top_of(f.most) == b;
}

// The state of n elements, however long the row; `least` is the least of them where it is wanted.
template <class T, Now kNow>
ExactState<typename Of<T>::S> state_of(const T* x, int64_t n, Guess& guess, typename Of<T>::S* least) {
  using S = typename Of<T>::S;
  ExactState<S> st = empty_state<S>();
  int64_t b = n <= kPiece ? guessed(guess, x, n) : guessed(Guess{}, x, n);
  bool summed = false;  // st is of top bin b
  *least = (S)kInf;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t here = n - i < kPiece ? n - i : kPiece;
    Found<S> f = swept<T, kNow, Past::none, Store::plain>(alone<T>(x + i, nullptr, b), here, nullptr);
    if (kNow != Now::sums) *least = f.least < *least ? f.least : *least;
    if (f.sure && f.most == -(S)kInf) continue;
    if (f.sure && is_near(f.most) && (summed ? top_of(f.most) <= b : top_of(f.most) == b)) {
      if (!summed) {
        st = merged(st, state_of_found(f)), summed = is_near(st.m) && top_of(st.m) == b;
        continue;
      }
      for (int k = 0; k < Law<S>::slices; ++k) add_to(st.a[k], f.a[k]);
      st.m = f.most > st.m ? canonical(f.most) : st.m;
      continue;
    }
    f = look_at(x + i, here);
    if (!f.sure) return slow_state(x + i, here);  // NaN
    if (is_near(f.most)) {
      f = swept<T, kNow, Past::none, Store::plain>(alone<T>(x + i, nullptr, top_of(f.most)), here, nullptr);
      st = merged(st, state_of_found(f));
    } else if (f.most != -(S)kInf) {
      st = merged(st, slow_state(x + i, here));
    }
    summed = is_near(st.m);
    if (summed) b = top_of(st.m);
  }
  guess.any = summed;
  if (summed) guess.bin = b;
  return st;
}

// ---- results of rows whose states are known

template <class T, class R>
OSM_INLINE void map_by(const T* x, T* y, int64_t n, const R& result, Store how, char* space) {
  using V = typename Of<T>::V;
  const Pass<T, R> w{nullptr, nullptr, Grid<V>(0), nullptr, x, result, y};
  if constexpr (kStreams) {
    if (how == Store::stream) return pass<Now::none, Past::mapped, Store::stream>(w, n, space, nullptr);
    if (how == Store::lines) return pass<Now::none, Past::mapped, Store::lines>(w, n, space, nullptr);
  }
  pass<Now::none, Past::mapped, Store::plain>(w, n, space, nullptr);
}

// No element is beyond the maximum, nor NaN; `least` is no greater than any of them.
template <class T, class S>
void write_known(Op op, const T* x, T* y, int64_t n, const Divisor<S>& d, S least, Store how, char* space) {
  using V = typename Of<T>::V;
  if (!d.finite) return write_nan(y, n);
  if (op == Op::log_softmax) {
    if (!logs_in_vectors(d)) return slow_write(op, x, y, n, d);
    return map_by(x, y, n, log_result(d), how, space);
  }
  if (!terms_in_vectors<V>(d)) return slow_write(op, x, y, n, d);
  const Grid<V> grid(d.b);
  if (none_small<V>(d, least))
    map_by(x, y, n, FromElements<V, FromTerms<V>>{grid, from_terms<V>(d)}, how, space);
  else
    map_by(x, y, n, FromElements<V, FromSmallTerms<V>>{grid, from_small_terms<V>(d)}, how, space);
}

// Elements of a row whose state was made elsewhere: anything.
template <class T, class S>
void write_given(Op op, const T* x, T* y, int64_t n, const Divisor<S>& d, Store how, char* space) {
  if (!d.finite) return write_nan(y, n);
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t here = n - i < kPiece ? n - i : kPiece;
    const Found<S> f = look_at(x + i, here);
    if (f.sure && f.most <= d.m)
      write_known(op, x + i, y + i, here, d, f.least, how == Store::stream ? how : Store::plain, space);
    else
      slow_write(op, x + i, y + i, here, d);
  }
}

// ---- rows that keep their terms, or are read again from the cache

template <class T>
struct ExactPipeline {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const ExactRows& job;
  Store how;
  S* keep;  // terms of one row: each result is made just before the next row's term takes its place
  char* space;
  Divisor<S> before{};  // of the row before
  bool waits = false;   // the row before is to be written,
  bool small = false;   // and has small results
  Guess guess;

  explicit ExactPipeline(const ExactRows& j) : job(j) {
    how = store_kind<T>(job.stream, job.y, job.y_stride, job.cols);
    keep = (S*)job.scratch;
    space = (char*)(keep + padded_to_pairs<T>(job.cols));
  }
  const T* x_row(int64_t r) const { return (const T*)(job.x + r * job.x_stride); }
  T* y_row(int64_t r) const { return (T*)(job.y + r * job.y_stride); }

  template <Now kNow, Past kPast, class R>
  Found<S> stored(int64_t r, int64_t b, const R& result) {
    const T* cur = kNow == Now::none ? nullptr : x_row(r);
    const Pass<T, R> w{cur, keep, Grid<V>(b), keep, x_row(r - 1), result, y_row(r - 1)};
    if constexpr (kStreams) {
      if (how == Store::stream) return swept<T, kNow, kPast, Store::stream>(w, job.cols, space);
      if (how == Store::lines) return swept<T, kNow, kPast, Store::lines>(w, job.cols, space);
    }
    return swept<T, kNow, kPast, Store::plain>(w, job.cols, space);
  }
  // Row r swept for top bin b beside the results of the row before, if it waits.
  Found<S> advance(int64_t r, int64_t b) {
    const bool write = waits;
    waits = false;
    if (job.op == Op::softmax) {
      if (!write) return swept<T, Now::terms, Past::none, Store::plain>(alone<T>(x_row(r), keep, b), job.cols, nullptr);
      if (small) return stored<Now::terms, Past::kept>(r, b, from_small_terms<V>(before));
      return stored<Now::terms, Past::kept>(r, b, from_terms<V>(before));
    }
    if (!write) return swept<T, Now::sums, Past::none, Store::plain>(alone<T>(x_row(r), keep, b), job.cols, nullptr);
    return stored<Now::sums, Past::mapped>(r, b, log_result(before));
  }
  // The row before r, alone.
  void last(int64_t r) {
    if (!waits) return;
    waits = false;
    if (job.op == Op::log_softmax)
      stored<Now::none, Past::mapped>(r, 0, log_result(before));
    else if (small)
      stored<Now::none, Past::kept>(r, 0, from_small_terms<V>(before));
    else
      stored<Now::none, Past::kept>(r, 0, from_terms<V>(before));
  }
  void done(int64_t r, const Found<S>& f) {
    before = divisor_of(state_of_found(f), job.op == Op::log_softmax);
    guess.any = true, guess.bin = before.b;
    if (job.op == Op::log_softmax && !logs_in_vectors(before))
      return slow_write(job.op, x_row(r), y_row(r), job.cols, before);
    waits = true, small = job.op == Op::softmax && !none_small<V>(before, f.least);
  }
  void row(int64_t r) {
    const T* x = x_row(r);
    Found<S> f;
    if (guess.doubt < 8) {
      const int64_t b = guessed(guess, x, job.cols);
      f = advance(r, b);
      if (right(f, b)) {
        guess.doubt -= guess.doubt > 0;
        return done(r, f);
      }
      guess.doubt = guess.doubt + 4 > 16 ? 16 : guess.doubt + 4;
    } else {
      --guess.doubt;
    }
    f = look_at(x, job.cols);
    if (f.sure && is_near(f.most)) return done(r, advance(r, top_of(f.most)));
    last(r);
    if (!f.sure || f.most == -(S)kInf) return write_nan(y_row(r), job.cols);
    slow_write(job.op, x, y_row(r), job.cols, divisor_of(slow_state(x, job.cols), true));
  }
  void run() {
    for (int64_t r = 0; r < job.rows; ++r) row(r);
    last(job.rows);
  }
};

template <class T>
void exact_rows(const ExactRows& job) {
  using S = typename Of<T>::S;
  if (job.rows == 0 || job.cols == 0) return;
  const bool writes = job.op != Op::state, logs = job.op == Op::log_softmax;
  if (writes && !job.given && job.cols <= kExactKept) {
    ExactPipeline<T>(job).run();
    if (job.stream) fence();
    return;
  }
  Guess guess;
  const Store how = writes ? store_kind<T>(job.stream, job.y, job.y_stride, job.cols) : Store::plain;
  for (int64_t r = 0; r < job.rows; ++r) {
    const T* x = (const T*)(job.x + r * job.x_stride);
    T* y = (T*)(job.y + r * job.y_stride);
    S least;
    if (job.given) {
      write_given(job.op, x, y, job.cols, divisor_of(state_from<S>(job.states[r]), logs), how, job.scratch);
    } else if (!writes) {
      job.states[r] = wide_of(state_of<T, Now::sums>(x, job.cols, guess, &least));
    } else {
      const ExactState<S> st = state_of<T, Now::least>(x, job.cols, guess, &least);
      write_known(job.op, x, y, job.cols, divisor_of(st, logs), least, how, job.scratch);
    }
  }
  if (writes && job.stream) fence();
}

template <class T>
constexpr ExactKernels exact_kernels() {
  using S = typename Of<T>::S;
  return {exact_rows<T>, exact_merge<S>, exact_lse<S>, exact_log_sum<S>};
}
