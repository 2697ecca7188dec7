// Short rows, held in registers, three in flight. Included inside an instruction set's namespace, after batch.inl.h.

constexpr int kRegisterPairs = 8;  // rows of up to this many pairs stay in registers: 256 floats with AVX-512

template <class T>
struct Short {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using R = typename ScaleOf<T>::type;
  using Far = ExpFar<V, Of<T>::kDegree>;

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
    if (op == Op::state || op == Op::log_softmax) return sum_of<NP>(e, typename Of<T>::State((S)pivot(m)));
    if (op == Op::lse) return sum_of<NP>(e, typename Of<T>::Light((S)pivot(m)));
    double s;
    if (!near<T>((double)m))
      s = sum_of<NP>(e, Far((S)pivot(m)));
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

  // Three rows in flight: the maximum of row r + 1, exponentials of row r, results of row r - 1. (Any pivot would do,
  // see kAnyPivot; but to see that it does takes as long here as the maximum, and eight rows at a time were slower.)
  // The chain maximum - exponentials - sum - division of one row is some hundred and fifty cycles long and must not
  // hold up its neighbours.
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

// ---- the choice

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
