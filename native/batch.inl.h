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
