// The algorithms over a batch of rows, made of the sweeps of rows.inl.h. Included inside an instruction set's
// namespace.

constexpr int kRegisterPairs = 8;  // rows of up to this many pairs stay in registers: 256 floats with AVX-512

template <class T>
constexpr int64_t padded(int64_t cols) {
  const int64_t P = pair_of<T>();
  return (cols + P - 1) / P * P;
}

// x -> exp(x - m)/s
template <class E, class R>
struct Softmaxed {
  E exp;
  R scale;
  template <class V, int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    exp(x);
    scale(x);
  }
};
template <class V, int degree>
struct Unshifted {
  static constexpr bool kFoldEach = true;
  template <int n>
  OSM_INLINE void operator()(V (&x)[n]) const {
    exp_unshifted<V, degree>(x);
  }
};

template <class T, class R>
void map_row(const T* x, T* y, int64_t n, const R& result, Store how, char* space) {
  const Sweep<T, NoExp, R> w{nullptr, nullptr, nullptr, kNoExp, nullptr, x, result, y};
  if (how == Store::stream)
    sweep<T, NoExp, R, false, false, false, Write::mapped, Store::stream>(w, n, space);
  else if (how == Store::lines)
    sweep<T, NoExp, R, false, false, false, Write::mapped, Store::lines>(w, n, space);
  else
    sweep<T, NoExp, R, false, false, false, Write::mapped, Store::plain>(w, n, space);
}

// The write pass, given the state; log_s is log(s), for log_softmax.
template <class T>
void write_row(Op op, const T* x, T* y, int64_t n, RowState st, double log_s, Store how, char* space) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using R = typename ScaleOf<T>::type;
  if (!ordinary(st.m, st.s)) return fill_nan(y, n);
  if (op == Op::log_softmax)
    map_row(x, y, n, LogShift<T>(st.m, log_s), how, space);
  else if (__builtin_fabs(st.m) >= Log2e<V>::limit)
    map_row(x, y, n,
            Softmaxed<ExpFar<V, Of<T>::kDegree>, R>{ExpFar<V, Of<T>::kDegree>((S)st.m), R(st.s / unscale<T>())}, how,
            space);
  else {
    using E = typename Of<T>::Main;
    map_row(x, y, n, Softmaxed<E, R>{E((S)st.m), R(st.s / unscale<T>() * E::top(st.m))}, how, space);
  }
}

template <class T>
OSM_INLINE const T* x_row(const RowsJob& job, int64_t r) {
  return (const T*)(job.x + r * job.x_stride);
}
template <class T>
OSM_INLINE T* y_row(const RowsJob& job, int64_t r) {
  return (T*)(job.y + r * job.y_stride);
}
template <class T>
Store row_store(const RowsJob& job) {
  return store_kind<T>(job.stream, job.y, job.y_stride, job.cols);
}
template <class T>
OSM_INLINE double log_if(const RowsJob& job, const T* x, RowState st) {
  return job.op == Op::log_softmax && ordinary(st.m, st.s) ? log_sum(x, job.cols, st) : 0.0;
}
OSM_INLINE bool writes(const RowsJob& job) { return job.op == Op::softmax || job.op == Op::log_softmax; }

// ---- online: statistics in one read, then the write pass
// -------------------------------------------------------------

template <class T>
void online_rows(const RowsJob& job) {
  const Store how = row_store<T>(job);
  for (int64_t r = 0; r < job.rows; ++r) {
    const T* x = x_row<T>(job, r);
    const RowState st = job.op == Op::state     ? row_state<T, typename Of<T>::State>(x, job.cols)
                        : job.op == Op::softmax ? row_state<T, typename Of<T>::Main>(x, job.cols)
                                                : row_state<T, typename Of<T>::Sum>(x, job.cols);
    if (writes(job))
      write_row(job.op, x, y_row<T>(job, r), job.cols, st, log_if(job, x, st), how, job.scratch);
    else
      job.states[r] = st;
  }
}

// ---- three_pass and naive
// ----------------------------------------------------------------------------------------------

template <class T, class E>
double sum_pass(const T* x, int64_t n, const E& e) {
  const Sweep<T, E, NoExp> w{nullptr, x, nullptr, e, nullptr, nullptr, kNoExp, nullptr};
  return sweep<T, E, NoExp, false, true, false, Write::none, Store::plain>(w, n, nullptr).sum;
}

template <class T>
void three_pass_rows(const RowsJob& job) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const Store how = row_store<T>(job);
  for (int64_t r = 0; r < job.rows; ++r) {
    const T* x = x_row<T>(job, r);
    const double m = row_max(x, job.cols);
    const S p = (S)pivot(m);
    const bool near = __builtin_fabs(pivot(m)) < Log2e<V>::limit;
    double s;
    if (job.op == Op::softmax)
      s = near ? sum_pass(x, job.cols, typename Of<T>::Main(p)) / Of<T>::Main::top((double)p)
               : sum_pass(x, job.cols, ExpFar<V, Of<T>::kDegree>(p));
    else
      s = job.op == Op::state ? sum_pass(x, job.cols, typename Of<T>::State(p))
                              : sum_pass(x, job.cols, typename Of<T>::Sum(p));
    const RowState st = ordinary(m, s) ? RowState{m, s * unscale<T>()} : special(x, job.cols, m, s);
    if (writes(job))
      write_row(job.op, x, y_row<T>(job, r), job.cols, st, log_if(job, x, st), how, job.scratch);
    else
      job.states[r] = st;
  }
}

template <class T>
void naive_rows(const RowsJob& job) {
  using V = typename Of<T>::V;
  using E = Unshifted<V, Of<T>::kDegree>;
  const Store how = row_store<T>(job);
  for (int64_t r = 0; r < job.rows; ++r) {
    const T* x = x_row<T>(job, r);
    double s = sum_pass(x, job.cols, E{});
    if (job.op == Op::softmax)
      map_row(x, y_row<T>(job, r), job.cols, Softmaxed<E, ScaleLight<V>>{E{}, ScaleLight<V>(s)}, how, job.scratch);
    else if (job.op == Op::log_softmax)
      map_row(x, y_row<T>(job, r), job.cols, LogShift<T>(0.0, __builtin_log(s)), how, job.scratch);
    else
      job.states[r] = {0.0, s};
  }
}

// ---- cached: the row is read from memory once
// ---------------------------------------------------------------------------

// Three rows in flight: maximum of row r + 1, exponentials of row r, results of row r - 1.
template <class T>
struct Pipeline {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using R = typename ScaleOf<T>::type;
  const RowsJob& job;
  Store how;
  S* keep;  // exponentials of one row: each is written out just before the next row's takes its place
  char* space;
  double before_log = 0;  // log(s) of the row before, for log_softmax

  explicit Pipeline(const RowsJob& j) : job(j), how(row_store<T>(j)) {
    keep = (S*)job.scratch;
    space = (char*)(keep + padded<T>(job.cols));
  }

  template <class E, class Q, bool kKeep, Write kWrite, Store kStore>
  Swept step(int64_t r, const E& e, const Q& result) {
    const int64_t ahead = r + 1 < job.rows ? r + 1 : r;
    T* y = kWrite == Write::none ? nullptr : y_row<T>(job, r - 1);
    const T* prev = kWrite == Write::none ? nullptr : x_row<T>(job, r - 1);
    const Sweep<T, E, Q> w{x_row<T>(job, ahead), x_row<T>(job, r), keep, e, keep, prev, result, y};
    return sweep<T, E, Q, true, true, kKeep, kWrite, kStore>(w, job.cols, space);
  }
  template <class E, class Q, bool kKeep, Write kWrite>
  Swept stored(int64_t r, const E& e, const Q& result) {
    if (how == Store::stream) return step<E, Q, kKeep, kWrite, Store::stream>(r, e, result);
    if (how == Store::lines) return step<E, Q, kKeep, kWrite, Store::lines>(r, e, result);
    return step<E, Q, kKeep, kWrite, Store::plain>(r, e, result);
  }

  // The exponentials of row r with, or without, the results of the row before.
  template <class E>
  Swept advance(int64_t r, double m, bool write, RowState before) {
    const E e((S)pivot(m));
    if (job.op == Op::softmax) {
      if (!write) return step<E, NoExp, true, Write::none, Store::plain>(r, e, kNoExp);
      return stored<E, R, true, Write::scaled>(r, e, R(before.s / unscale<T>()));
    }
    if (!write) return step<E, NoExp, false, Write::none, Store::plain>(r, e, kNoExp);
    return stored<E, LogShift<T>, false, Write::mapped>(r, e, LogShift<T>(before.m, before_log));
  }
  Swept choose(int64_t r, double m, bool write, RowState before) {
    if (job.op == Op::state) return advance<typename Of<T>::State>(r, m, write, before);
    if (job.op != Op::softmax) return advance<typename Of<T>::Sum>(r, m, write, before);
    if (__builtin_fabs(m) >= Log2e<V>::limit) return advance<ExpFar<V, Of<T>::kDegree>>(r, m, write, before);
    if (job.fast) return advance<typename Of<T>::Fast>(r, m, write, before);
    return advance<typename Of<T>::Main>(r, m, write, before);
  }

  void last(RowState st) {
    const int64_t r = job.rows - 1;
    if (!ordinary(st.m, st.s)) return fill_nan(y_row<T>(job, r), job.cols);
    if (job.op == Op::log_softmax)
      return write_row(job.op, x_row<T>(job, r), y_row<T>(job, r), job.cols, st, before_log, how, space);
    const R result(st.s / unscale<T>());
    const Sweep<T, NoExp, R> w{nullptr, nullptr, nullptr, kNoExp, keep, nullptr, result, y_row<T>(job, r)};
    if (how == Store::stream)
      sweep<T, NoExp, R, false, false, false, Write::scaled, Store::stream>(w, job.cols, space);
    else if (how == Store::lines)
      sweep<T, NoExp, R, false, false, false, Write::scaled, Store::lines>(w, job.cols, space);
    else
      sweep<T, NoExp, R, false, false, false, Write::scaled, Store::plain>(w, job.cols, space);
  }

  void run() {
    if (job.rows == 0) return;
    double m = row_max(x_row<T>(job, 0), job.cols);
    RowState before{0, 0};
    for (int64_t r = 0; r < job.rows; ++r) {
      const bool write = r > 0 && writes(job) && ordinary(before.m, before.s);
      if (r > 0 && writes(job) && !write) fill_nan(y_row<T>(job, r - 1), job.cols);
      const Swept swept = choose(r, m, write, before);
      before = ordinary(m, swept.sum) ? RowState{m, swept.sum * unscale<T>()}
                                      : special(x_row<T>(job, r), job.cols, m, swept.sum);
      before_log = log_if(job, x_row<T>(job, r), before);
      if (!writes(job)) job.states[r] = before;
      m = swept.max;
    }
    if (writes(job)) last(before);
  }
};

// ---- short rows, held in registers
// --------------------------------------------------------------------------------------

template <class T>
struct Short {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using R = typename ScaleOf<T>::type;

  template <int NP>
  static OSM_INLINE void load_row(const T* x, int64_t cols, V (&v)[2 * NP]) {
    constexpr int64_t P = pair_of<T>();
    for (int p = 0; p < NP - 1; ++p) load2(x + p * P, v[2 * p], v[2 * p + 1]);
    if (cols == NP * P)
      load2(x + (NP - 1) * P, v[2 * NP - 2], v[2 * NP - 1]);
    else
      load_some(x + (NP - 1) * P, cols - (NP - 1) * P, v[2 * NP - 2], v[2 * NP - 1]);
  }
  template <int N>
  static OSM_INLINE V tree_max(const V* v) {
    if constexpr (N == 1)
      return v[0];
    else
      return max(tree_max<N / 2>(v), tree_max<N - N / 2>(v + N / 2));
  }
  template <int N>
  static OSM_INLINE V tree_sum(const V* v) {
    if constexpr (N == 1)
      return v[0];
    else
      return add(tree_sum<N / 2>(v), tree_sum<N - N / 2>(v + N / 2));
  }
  template <int NP>
  static OSM_INLINE void store_row(T* y, int64_t cols, const V (&v)[2 * NP], bool nt) {
    constexpr int64_t P = pair_of<T>();
    if (nt) {
      for (int p = 0; p < NP; ++p) stream2(y + p * P, v[2 * p], v[2 * p + 1]);
      return;
    }
    for (int p = 0; p < NP - 1; ++p) store2(y + p * P, v[2 * p], v[2 * p + 1]);
    if (cols == NP * P)
      store2(y + (NP - 1) * P, v[2 * NP - 2], v[2 * NP - 1]);
    else
      store_some(y + (NP - 1) * P, cols - (NP - 1) * P, v[2 * NP - 2], v[2 * NP - 1]);
  }

  // f over all registers, four at a time: more would not leave room for the constants.
  template <int N, class F>
  static OSM_INLINE void apply(V* v, const F& f) {
    if constexpr (N >= 4) {
      f(*(V(*)[4])v);
      apply<N - 4>(v + 4, f);
    } else if constexpr (N > 0) {
      f(*(V(*)[2])v);
      apply<N - 2>(v + 2, f);
    }
  }
  template <int NP, class Exp>
  static OSM_INLINE double sum_of(V (&v)[2 * NP], const Exp& e) {
    apply<2 * NP>(v, e);
    if constexpr (!Exp::kFoldEach) return hsum(widen_sum(tree_sum<2 * NP>(v)));
    Total<V> total;
    fold<2 * NP>(v, total);
    return total.value();
  }
  template <int N>
  static OSM_INLINE void fold(const V* v, Total<V>& total) {
    if constexpr (N >= 4) {
      total.fold(tree_sum<4>(v));
      fold<N - 4>(v + 4, total);
    } else if constexpr (N > 0) {
      total.fold(tree_sum<2>(v));
    }
  }

  template <int NP>
  static OSM_INLINE S max_of(const T* x, int64_t cols) {
    V v[2 * NP];
    load_row<NP>(x, cols, v);
    return hmax(tree_max<2 * NP>(v));
  }
  // Exponentials of a row into keep, and their sum.
  template <int NP>
  static OSM_INLINE double exps_of(Op op, bool fast, const T* x, int64_t cols, S m, V (&keep)[2 * NP]) {
    V e[2 * NP];  // registers: `keep` is memory, indexed by the row
    load_row<NP>(x, cols, e);
    if (op == Op::state) return sum_of<NP>(e, typename Of<T>::State((S)pivot(m)));
    if (op != Op::softmax) return sum_of<NP>(e, typename Of<T>::Sum((S)pivot(m)));
    double s;
    if (!(__builtin_fabs((double)m) < Log2e<V>::limit))
      s = sum_of<NP>(e, ExpFar<V, Of<T>::kDegree>((S)pivot(m)));
    else if (fast)
      s = sum_of<NP>(e, typename Of<T>::Fast(m));
    else
      s = sum_of<NP>(e, typename Of<T>::Main(m));
    for (int i = 0; i < 2 * NP; ++i) keep[i] = e[i];
    return s;
  }
  template <int NP>
  static OSM_INLINE void write(Op op, const T* x, T* y, int64_t cols, const RowState& st, double log_s, V (&e)[2 * NP],
                               bool nt) {
    if (!ordinary(st.m, st.s)) return fill_nan(y, cols);
    V v[2 * NP];
    if (op == Op::softmax) {
      for (int i = 0; i < 2 * NP; ++i) v[i] = e[i];
      apply<2 * NP>(v, R(st.s / unscale<T>()));
    } else {
      load_row<NP>(x, cols, v);
      apply<2 * NP>(v, LogShift<T>(st.m, log_s));
    }
    store_row<NP>(y, cols, v, nt);
  }

  // Three rows in flight, as in Pipeline: the chain maximum - exponentials - sum - division of one row is some hundred
  // and fifty cycles long and must not hold up its neighbours.
  template <int NP, Op op>
  static void all(const RowsJob& job) {
    if (job.rows == 0) return;
    constexpr bool kWrites = op == Op::softmax || op == Op::log_softmax;
    // Lines are filled across the rows' borders where the rows lie end to end.
    const Store kind = row_store<T>(job);
    const int64_t bytes = job.cols * (int64_t)sizeof(T);
    const bool joined = kWrites && kind == Store::lines && job.y_stride == bytes, whole = kind == Store::stream;
    Lines<T> lines;
    if (joined) lines.begin((T*)job.y, job.scratch);
    V keep[2][2 * NP];
    RowState before{0, 0};
    double before_log = 0;
    const auto put = [&](int64_t r) OSM_LAMBDA_INLINE {
      T* y = joined ? lines.place() : y_row<T>(job, r);
      write<NP>(op, x_row<T>(job, r), y, job.cols, before, before_log, keep[r & 1], whole);
      if (joined) lines.advance(bytes);
    };
    S m = max_of<NP>(x_row<T>(job, 0), job.cols);
    for (int64_t r = 0; r < job.rows; ++r) {
      const T* x = x_row<T>(job, r);
      for (int64_t b = 0; b < bytes; b += 64) prefetch((const char*)x + kAhead + b);
      const S coming = r + 1 < job.rows ? max_of<NP>(x_row<T>(job, r + 1), job.cols) : m;
      const double s = exps_of<NP>(op, job.fast, x, job.cols, m, keep[r & 1]);
      if (kWrites && r > 0) put(r - 1);
      before = ordinary((double)m, s) ? RowState{(double)m, s * unscale<T>()} : special(x, job.cols, (double)m, s);
      if (op == Op::log_softmax) before_log = log_if(job, x, before);
      if (!kWrites) job.states[r] = before;
      m = coming;
    }
    if (kWrites) put(job.rows - 1);
    if (joined) lines.end();
  }
  template <int NP>
  static void of(const RowsJob& job) {
    if (job.op == Op::softmax) return all<NP, Op::softmax>(job);
    if (job.op == Op::log_softmax) return all<NP, Op::log_softmax>(job);
    if (job.op == Op::lse) return all<NP, Op::lse>(job);
    return all<NP, Op::state>(job);
  }

  static void run(const RowsJob& job) {
    switch ((job.cols + pair_of<T>() - 1) / pair_of<T>()) {
      case 1:
        return of<1>(job);
      case 2:
        return of<2>(job);
      case 3:
        return of<3>(job);
      case 4:
        return of<4>(job);
      case 5:
        return of<5>(job);
      case 6:
        return of<6>(job);
      case 7:
        return of<7>(job);
      default:
        return of<8>(job);
    }
  }
};

template <class T>
void given_rows(const RowsJob& job) {
  const Store how = row_store<T>(job);
  for (int64_t r = 0; r < job.rows; ++r)
    write_row(job.op, x_row<T>(job, r), y_row<T>(job, r), job.cols, job.states[r], __builtin_log(job.states[r].s), how,
              job.scratch);
}

template <class T>
void rows(const RowsJob& job) {
  if (job.given) {
    given_rows<T>(job);
    if (job.stream) fence();
    return;
  }
  switch (job.algorithm) {
    case Algorithm::naive:
      naive_rows<T>(job);
      break;
    case Algorithm::three_pass:
      three_pass_rows<T>(job);
      break;
    case Algorithm::online:
      online_rows<T>(job);
      break;
    case Algorithm::cached:
      if (job.cols <= kRegisterPairs * pair_of<T>())
        Short<T>::run(job);
      else
        Pipeline<T>(job).run();
  }
  if (job.stream) fence();
}
