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

template <class S>
struct Extent {
  S most, least;
  bool nan;  // where it was looked for
};
// The maximum of n elements; with kAll the least of them too, and whether there is a NaN.
template <class T, bool kAll>
Extent<typename Of<T>::S> extent_of(const T* x, int64_t n) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  constexpr int64_t P = pair_of<T>();
  V most[4], least = V::set((S)kInf), a, b;
  for (V& m : most) m = V::set(-(S)kInf);
  uint32_t nan = 0;
  int64_t i = 0;
  const auto look = [&](V& m0, V& m1) OSM_LAMBDA_INLINE {
    m0 = max(a, m0), m1 = max(b, m1);  // in this order NaN is passed over
    if constexpr (kAll) {
      least = min(least, min(a, b));
      nan |= above(a, V::set((S)kInf)) | above(b, V::set((S)kInf));
    }
  };
  for (; i + 2 * P <= n; i += 2 * P) {
    load2(x + i, a, b), look(most[0], most[1]);
    load2(x + i + P, a, b), look(most[2], most[3]);
  }
  for (; i < n; i += P) {
    if (i + P <= n) {
      load2(x + i, a, b);
    } else {  // past the end what is there already
      T some[P];
      for (int64_t k = 0; k < P; ++k) some[k] = x[i + k < n ? i + k : i];
      load2(some, a, b);
    }
    look(most[0], most[1]);
  }
  return {hmax(max(max(most[0], most[1]), max(most[2], most[3]))), -hmax(sub(V::set(0), least)), nan != 0};
}
template <class T>
OSM_INLINE typename Of<T>::S maximum_of(const T* x, int64_t n) {
  return extent_of<T, false>(x, n).most;
}

template <class T, Now kNow, Past kPast, Store kStore, class R>
OSM_INLINE Found<typename Of<T>::S> swept(const Pass<T, R>& w, int64_t n, char* space) {
  Found<typename Of<T>::S> found;
  pass<kNow, kPast, kStore>(w, n, space, &found);
  return found;
}
template <class T>
Pass<T, NoResult> alone(const T* next, const T* x, typename Of<T>::S* keep, int64_t b) {
  return {next, x, keep, Grid<typename Of<T>::V>(b), nullptr, nullptr, NoResult{}, nullptr};
}

// Rows one after the other, in pieces: while a piece is summed the maximum of the next one is found.
template <class T>
struct ExactStream {
  using S = typename Of<T>::S;
  const ExactRows& job;
  int64_t piece;  // of a row
  S coming;       // maximum of the piece to come

  explicit ExactStream(const ExactRows& j) : job(j) {
    const int64_t pieces = (j.cols + kPiece - 1) / kPiece;
    piece = padded_to_pairs<T>((j.cols + pieces - 1) / pieces);
    coming = maximum_of((const T*)j.x, length(0));
  }
  int64_t length(int64_t from) const { return job.cols - from < piece ? job.cols - from : piece; }

  // The state of row r, the next one; its least element too, where it is wanted.
  template <Now kNow>
  ExactState<S> row(int64_t r, S* least) {
    const T* x = (const T*)(job.x + r * job.x_stride);
    ExactState<S> st = empty_state<S>();
    *least = (S)kInf;
    for (int64_t i = 0; i < job.cols; i += piece) {
      const int64_t here = length(i), after = i + here < job.cols ? i + here : 0;
      const T* next = after ? x + after : (const T*)(job.x + (r + 1) * job.x_stride);
      const bool more = after || r + 1 < job.rows, beside = more && length(after) == here;
      const S most = canonical(coming);
      ExactState<S> sums = empty_state<S>();
      if (is_near(most)) {
        sums.m = most;
        // What came before moves to the top bin of both, and the piece is added to it.
        const bool joins = is_near(st.m) || st.m == -(S)kInf;
        if (joins) sums = merged(st, sums), st = empty_state<S>();
        const Found<S> f = swept<T, kNow, Past::none, Store::plain>(
            alone<T>(beside ? next : x + i, x + i, nullptr, top_of(sums.m)), here, nullptr);
        for (int k = 0; k < Law<S>::slices; ++k) add_to(sums.a[k], f.a[k]);
        if (!f.sure) sums.m = (S)__builtin_nan("");
        if (kNow != Now::sums) *least = f.least < *least ? f.least : *least;
        if (beside) coming = f.coming;
      } else {
        sums = slow_state(x + i, here);
        *least = -(S)kInf;
      }
      st = merged(st, sums);
      if (more && !(beside && is_near(most))) coming = maximum_of(next, length(after));
    }
    return st;
  }
};

// ---- results of rows whose states are known

template <class T, class R>
OSM_INLINE void map_by(const T* x, T* y, int64_t n, const R& result, Store how, char* space) {
  using V = typename Of<T>::V;
  const Pass<T, R> w{nullptr, nullptr, nullptr, Grid<V>(0), nullptr, x, result, y};
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
    const Extent<S> f = extent_of<T, true>(x + i, here);
    if (!f.nan && f.most <= d.m)
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
  S coming;             // maximum of the row to come
  Divisor<S> before{};  // of the row before
  bool waits = false;   // the row before is to be written,
  bool small = false;   // and has small results

  explicit ExactPipeline(const ExactRows& j) : job(j) {
    how = store_kind<T>(job.stream, job.y, job.y_stride, job.cols);
    keep = (S*)job.scratch;
    space = (char*)(keep + padded_to_pairs<T>(job.cols));
    coming = maximum_of(x_row(0), job.cols);
  }
  const T* x_row(int64_t r) const { return (const T*)(job.x + r * job.x_stride); }
  T* y_row(int64_t r) const { return (T*)(job.y + r * job.y_stride); }
  const T* after(int64_t r) const { return x_row(r + 1 < job.rows ? r + 1 : r); }

  template <Now kNow, Past kPast, class R>
  Found<S> stored(int64_t r, int64_t b, const R& result) {
    const T *cur = nullptr, *next = nullptr;
    if (kNow != Now::none) cur = x_row(r), next = after(r);
    const Pass<T, R> w{next, cur, keep, Grid<V>(b), keep, x_row(r - 1), result, y_row(r - 1)};
    if constexpr (kStreams) {
      if (how == Store::stream) return swept<T, kNow, kPast, Store::stream>(w, job.cols, space);
      if (how == Store::lines) return swept<T, kNow, kPast, Store::lines>(w, job.cols, space);
    }
    return swept<T, kNow, kPast, Store::plain>(w, job.cols, space);
  }
  template <Now kNow>
  Found<S> first(int64_t r, int64_t b) {
    return swept<T, kNow, Past::none, Store::plain>(alone<T>(after(r), x_row(r), keep, b), job.cols, nullptr);
  }
  // Row r with top bin b, beside the results of the row before, if it waits, and the maximum of the next.
  Found<S> advance(int64_t r, int64_t b) {
    const bool write = waits;
    waits = false;
    if (job.op == Op::softmax) {
      if (!write) return first<Now::terms>(r, b);
      if (small) return stored<Now::terms, Past::kept>(r, b, from_small_terms<V>(before));
      return stored<Now::terms, Past::kept>(r, b, from_terms<V>(before));
    }
    if (!write) return first<Now::sums>(r, b);
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
  void row(int64_t r) {
    ExactState<S> st = empty_state<S>();
    st.m = canonical(coming);
    if (!is_near(st.m)) {
      last(r);
      write_known(job.op, x_row(r), y_row(r), job.cols, divisor_of(slow_state(x_row(r), job.cols), true), -(S)kInf,
                  Store::plain, space);
      coming = maximum_of(after(r), job.cols);
      return;
    }
    const Found<S> f = advance(r, top_of(st.m));
    coming = f.coming;
    if (!f.sure) return write_nan(y_row(r), job.cols);
    for (int k = 0; k < Law<S>::slices; ++k) st.a[k] = f.a[k];
    before = divisor_of(st, job.op == Op::log_softmax);
    if (job.op == Op::log_softmax && !logs_in_vectors(before))
      return slow_write(job.op, x_row(r), y_row(r), job.cols, before);
    waits = true, small = job.op == Op::softmax && !none_small<V>(before, f.least);
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
  const Store how = writes ? store_kind<T>(job.stream, job.y, job.y_stride, job.cols) : Store::plain;
  const auto x_row = [&](int64_t r) { return (const T*)(job.x + r * job.x_stride); };
  const auto y_row = [&](int64_t r) { return (T*)(job.y + r * job.y_stride); };
  if (job.given) {
    for (int64_t r = 0; r < job.rows; ++r)
      write_given(job.op, x_row(r), y_row(r), job.cols, divisor_of(state_from<S>(job.states[r]), logs), how,
                  job.scratch);
  } else {
    ExactStream<T> stream(job);
    for (int64_t r = 0; r < job.rows; ++r) {
      S least;
      if (!writes) {
        job.states[r] = wide_of(stream.template row<Now::sums>(r, &least));
        continue;
      }
      const ExactState<S> st = stream.template row<Now::least>(r, &least);
      write_known(job.op, x_row(r), y_row(r), job.cols, divisor_of(st, logs), least, how, job.scratch);
    }
  }
  if (writes && job.stream) fence();
}

template <class T>
constexpr ExactKernels exact_kernels() {
  using S = typename Of<T>::S;
  return {exact_rows<T>, exact_merge<S>, exact_lse<S>, exact_log_sum<S>};
}
