// The algorithms over a batch of rows, made of the sweeps of rows.inl.h. Included inside an instruction set's
// namespace.

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
  if constexpr (kStreams) {
    if (how == Store::stream)
      return (void)sweep<T, NoExp, R, Top::none, false, false, Write::mapped, Store::stream>(w, n, space);
    if (how == Store::lines)
      return (void)sweep<T, NoExp, R, Top::none, false, false, Write::mapped, Store::lines>(w, n, space);
  }
  sweep<T, NoExp, R, Top::none, false, false, Write::mapped, Store::plain>(w, n, space);
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
  else if (!near<T>(st.m))
    map_row(x, y, n,
            Softmaxed<ExpFar<V, Of<T>::kDegree>, R>{ExpFar<V, Of<T>::kDegree>((S)st.m), R(st.s / unscale<T>())}, how,
            space);
  else {
    using E = typename Of<T>::Main;
    const double apart = st.m - E::reference(st.m);
    const double s = st.s / unscale<T>() * (apart == 0 ? 1.0 : __builtin_exp(apart));
    map_row(x, y, n, Softmaxed<E, R>{E((S)st.m), R(s)}, how, space);
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

template <class T>
void online_rows(const RowsJob& job) {
  const Store how = row_store<T>(job);
  for (int64_t r = 0; r < job.rows; ++r) {
    const T* x = x_row<T>(job, r);
    const RowState st = job.op == Op::softmax ? row_state<T, typename Of<T>::Main>(x, job.cols)
                        : job.op == Op::lse   ? row_state<T, typename Of<T>::Sum>(x, job.cols)
                                              : row_state<T, typename Of<T>::State>(x, job.cols);
    if (writes(job))
      write_row(job.op, x, y_row<T>(job, r), job.cols, st, log_if(job, x, st), how, job.scratch);
    else
      job.states[r] = st;
  }
}

// ---- three_pass and naive

template <class T, class E>
double sum_pass(const T* x, int64_t n, const E& e) {
  const Sweep<T, E, NoExp> w{nullptr, x, nullptr, e, nullptr, nullptr, kNoExp, nullptr};
  return sweep<T, E, NoExp, Top::none, true, false, Write::none, Store::plain>(w, n, nullptr).sum;
}

template <class T>
void three_pass_rows(const RowsJob& job) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const Store how = row_store<T>(job);
  for (int64_t r = 0; r < job.rows; ++r) {
    const T* x = x_row<T>(job, r);
    const double m = row_max(x, job.cols);
    using Main = typename Of<T>::Main;
    const S p = (S)pivot(m);
    const bool main = job.op == Op::softmax && near<T>((double)p);
    const double s = main                    ? sum_pass(x, job.cols, Main(p))
                     : job.op == Op::softmax ? sum_pass(x, job.cols, ExpFar<V, Of<T>::kDegree>(p))
                                             : sum_pass(x, job.cols, typename Of<T>::State(p));
    const RowState st =
        ordinary(m, s) ? RowState{main ? Main::reference(m) : m, s * unscale<T>()} : special(x, job.cols, m, s);
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

// Two rows in flight, exponentials of row r and results of row r - 1; where the pivot must be the maximum a third, the
// next row, whose maximum is found.
template <class T>
struct Pipeline {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using R = typename ScaleOf<T>::type;
  using Far = ExpFar<V, Of<T>::kDegree>;
  const RowsJob& job;
  Store how;
  S* keep;  // exponentials of one row: each is written out just before the next row's takes its place
  char* space;
  RowState before{0, 0};  // of the row before
  double before_log = 0;  // log(s) of the row before, for log_softmax
  bool waits = false;     // the row before is to be written

  explicit Pipeline(const RowsJob& j) : job(j), how(row_store<T>(j)) {
    keep = (S*)job.scratch;
    space = (char*)(keep + padded<T>(job.cols));
  }

  template <class E, class Q, Top kTop, bool kKeep, Write kWrite, Store kStore>
  Swept step(int64_t r, const E& e, const Q& result) {
    const int64_t ahead = r + 1 < job.rows ? r + 1 : r;
    T* y = kWrite == Write::none ? nullptr : y_row<T>(job, r - 1);
    const T* prev = kWrite == Write::none ? nullptr : x_row<T>(job, r - 1);
    const Sweep<T, E, Q> w{x_row<T>(job, ahead), x_row<T>(job, r), keep, e, keep, prev, result, y};
    return sweep<T, E, Q, kTop, true, kKeep, kWrite, kStore>(w, job.cols, space);
  }
  template <class E, class Q, Top kTop, bool kKeep, Write kWrite>
  Swept stored(int64_t r, const E& e, const Q& result) {
    if constexpr (kStreams) {
      if (how == Store::stream) return step<E, Q, kTop, kKeep, kWrite, Store::stream>(r, e, result);
      if (how == Store::lines) return step<E, Q, kTop, kKeep, kWrite, Store::lines>(r, e, result);
    }
    return step<E, Q, kTop, kKeep, kWrite, Store::plain>(r, e, result);
  }
  // The exponentials of row r and, if it waits, the results of the row before.
  template <class E, Top kTop>
  Swept advance(int64_t r, double m) {
    const E e((S)pivot(m));
    const bool write = waits;
    waits = false;
    if (job.op == Op::softmax) {
      if (!write) return step<E, NoExp, kTop, true, Write::none, Store::plain>(r, e, kNoExp);
      return stored<E, R, kTop, true, Write::scaled>(r, e, R(before.s / unscale<T>()));
    }
    if (!write) return step<E, NoExp, kTop, false, Write::none, Store::plain>(r, e, kNoExp);
    return stored<E, LogShift<T>, kTop, false, Write::mapped>(r, e, LogShift<T>(before.m, before_log));
  }

  // The row before, alone.
  void last(int64_t r) {
    if (!waits) return;
    waits = false;
    if (job.op == Op::log_softmax)
      return write_row(job.op, x_row<T>(job, r), y_row<T>(job, r), job.cols, before, before_log, how, space);
    const R result(before.s / unscale<T>());
    const Sweep<T, NoExp, R> w{nullptr, nullptr, nullptr, kNoExp, keep, nullptr, result, y_row<T>(job, r)};
    if constexpr (kStreams) {
      if (how == Store::stream)
        return (void)sweep<T, NoExp, R, Top::none, false, false, Write::scaled, Store::stream>(w, job.cols, space);
      if (how == Store::lines)
        return (void)sweep<T, NoExp, R, Top::none, false, false, Write::scaled, Store::lines>(w, job.cols, space);
    }
    sweep<T, NoExp, R, Top::none, false, false, Write::scaled, Store::plain>(w, job.cols, space);
  }

  void done(int64_t r, RowState st) {
    before = st;
    if (!writes(job)) {
      job.states[r] = st;
    } else if (ordinary(st.m, st.s)) {
      before_log = log_if(job, x_row<T>(job, r), st), waits = true;
    } else {
      fill_nan(y_row<T>(job, r), job.cols);
    }
  }
  // By its maximum m, near 0 or not. The maximum of the row after, if wanted.
  template <class E, Top kTop>
  double by_maximum(int64_t r, double m) {
    const bool main = !__is_same(E, Far) && (job.op != Op::softmax || near<T>(pivot(m)));
    const Swept swept = main ? advance<E, kTop>(r, m) : advance<Far, kTop>(r, m);
    done(r, ordinary(m, swept.sum) ? RowState{main ? E::reference(m) : m, swept.sum * unscale<T>()}
                                   : special(x_row<T>(job, r), job.cols, m, swept.sum));
    return swept.max;
  }
  template <class E>
  void by_any() {
    for (int64_t r = 0; r < job.rows; ++r) {
      const T* x = x_row<T>(job, r);
      const double p = first_pivot(x, job.cols);
      if (may_do<T>(p)) {
        const Swept swept = advance<E, Top::peak>(r, p);
        if (swept.max <= p + kAbove && usable(swept.sum)) {
          done(r, {E::reference(p), swept.sum * unscale<T>()});
          continue;
        }
      } else {
        last(r - 1);
      }
      const double m = row_max(x, job.cols);
      if (near<T>(m))
        by_maximum<E, Top::none>(r, m);
      else
        by_maximum<Far, Top::none>(r, m);
    }
  }
  template <class E>
  void by_maxima() {
    double m = row_max(x_row<T>(job, 0), job.cols);
    for (int64_t r = 0; r < job.rows; ++r) m = by_maximum<E, Top::next>(r, m);
  }

  void run() {
    if (job.rows == 0) return;
    if constexpr (kAnyPivot<T>) {
      if (job.op == Op::softmax)
        job.fast ? by_any<typename Of<T>::Fast>() : by_any<typename Of<T>::Main>();
      else if (job.op == Op::lse)
        by_any<typename Of<T>::Sum>();
      else
        by_maxima<typename Of<T>::State>();
    } else {
      job.op == Op::softmax ? by_maxima<typename Of<T>::Main>() : by_maxima<typename Of<T>::State>();
    }
    last(job.rows - 1);
  }
};
