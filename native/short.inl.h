// Short rows, held in registers, several at a time. Included inside an instruction set's namespace, after batch.inl.h.

constexpr int kRegisterPairs = 8;  // rows of up to this many pairs stay in registers: 256 floats with AVX-512

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
  static OSM_INLINE V tree_peak(const V* v) {
    if constexpr (N == 1)
      return v[0];
    else
      return peak(tree_peak<N / 2>(v), tree_peak<N - N / 2>(v + N / 2));
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
  // Exponentials of a row and the lanes of their sum: in double, or for doubles the sum itself in one lane of many.
  template <int NP, class Exp>
  static OSM_INLINE F64 lanes_of(V (&v)[2 * NP], const Exp& e) {
    apply<2 * NP>(v, e);
    if constexpr (sizeof(S) == 4 && !Exp::kFoldEach) return widen_sum(tree_sum<2 * NP>(v));
    Total<V> total;
    fold<2 * NP>(v, total);
    if constexpr (sizeof(S) == 4) {
      return total.sum;
    } else {
      double lanes[F64::W] = {total.value()};
      return F64::load(lanes);
    }
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

  // Exponentials of a row into keep, and the lanes of their sum. Where any pivot will do, one that is not near 0 gives
  // nonsense here, and alone() sees to the row, as it does for far rows.
  template <int NP, Op op, bool far>
  static OSM_INLINE F64 exps_of(bool fast, const T* x, int64_t cols, S m, V (&keep)[2 * NP], unsigned& high) {
    using Far = ExpFar<V, Of<T>::kDegree>;
    V e[2 * NP];  // registers: `keep` is memory, indexed by the row
    load_row<NP>(x, cols, e);
    if constexpr (any_pivot<T>(op)) high = above(tree_peak<2 * NP>(e), V::set(m + (S)kAbove));
    if constexpr (op == Op::state || op == Op::log_softmax || (op == Op::lse && !any_pivot<T>(op))) {
      return lanes_of<NP>(e, typename Of<T>::State((S)pivot(m)));
    } else if constexpr (op == Op::lse) {
      return far ? lanes_of<NP>(e, Far((S)pivot(m))) : lanes_of<NP>(e, typename Of<T>::Sum(m));
    } else {
      const F64 lanes = far    ? lanes_of<NP>(e, Far((S)pivot(m)))
                        : fast ? lanes_of<NP>(e, typename Of<T>::Fast(m))
                               : lanes_of<NP>(e, typename Of<T>::Main(m));
      for (int i = 0; i < 2 * NP; ++i) keep[i] = e[i];
      return lanes;
    }
  }

  // A row's pivot: its maximum, or where any will do, that of its first pair.
  template <int NP, bool kAny>
  static OSM_INLINE V top_of(const T* x, int64_t cols) {
    V v[2 * NP];
    if constexpr (kAny && NP > 1) {
      load2(x, v[0], v[1]);
      return max(v[0], v[1]);
    } else {
      load_row<NP>(x, cols, v);
      return tree_max<2 * NP>(v);
    }
  }

  // Rows at a time. Written ones: 2 to 8 were tried, and from 6 on non-temporal stores took a fifth longer.
  template <Op op>
  static constexpr int kRows = op == Op::softmax || op == Op::log_softmax ? 5 : kJoint;

  // Rows whose exponentials are kept. Arrays of whole registers.
  template <int G>
  struct Waiting {
    static constexpr int kRoom = (G + V::W - 1) / V::W * V::W;
    S m[kRoom], high[kRoom], low[kRoom];
    double sum[kRoom], log_sum[kRoom];
    unsigned high_lanes[G];  // lanes where an element may be too far above the pivot
    unsigned odd;            // bits of the rows that come out as NaN
  };

  template <int NP, Op op>
  static OSM_INLINE void write(const T* x, T* y, int64_t cols, const Waiting<kRows<op>>& rows, int i, V (&e)[2 * NP], bool nt) {
    if (rows.odd >> i & 1) return fill_nan(y, cols);
    V v[2 * NP];
    if constexpr (op == Op::softmax) {
      for (int k = 0; k < 2 * NP; ++k) v[k] = e[k];
      apply<2 * NP>(v, R(V::set(rows.high[i]), V::set(rows.low[i])));
    } else {
      load_row<NP>(x, cols, v);
      apply<2 * NP>(v, LogShift<T>((double)rows.m[i], rows.log_sum[i]));
    }
    store_row<NP>(y, cols, v, nt);
  }

  // Several rows at a time: their pivots, their sums and the divisions are found together, and the exponentials of each
  // go side by side with the results of one of the rows before. The chain maximum - exponentials - sum - division of one
  // row is some hundred and fifty cycles long, and a core looks ahead no further than two or three rows.
  template <int NP, Op op>
  static void all(const RowsJob& job) {
    constexpr bool kWrites = op == Op::softmax || op == Op::log_softmax, kAny = any_pivot<T>(op);
    constexpr int G = kRows<op>;
    if (job.rows == 0) return;
    // Lines are filled across the rows' borders where the rows lie end to end.
    const Store kind = row_store<T>(job);
    const int64_t bytes = job.cols * (int64_t)sizeof(T);
    const bool joined = kWrites && kind == Store::lines && job.y_stride == bytes, whole = kind == Store::stream;
    Lines<T> lines;
    if (joined) lines.begin((T*)job.y, job.scratch);
    V keep[G][2 * NP];
    Waiting<G> rows;
    S coming[Waiting<G>::kRoom] = {};
    const auto put = [&](int64_t r, int i) OSM_LAMBDA_INLINE {
      T* y = joined ? lines.place() : y_row<T>(job, r);
      write<NP, op>(x_row<T>(job, r), y, job.cols, rows, i, keep[i], whole);
      if (joined) lines.advance(bytes);
    };
    const auto find_tops = [&](int64_t r) OSM_LAMBDA_INLINE {
      V tops[G];
      for (int i = 0; i < G; ++i)
        tops[i] = top_of<NP, kAny>(x_row<T>(job, r + i < job.rows ? r + i : job.rows - 1), job.cols);
      if constexpr (G == kJoint)
        hmax_each(tops, coming);
      else
        for (int i = 0; i < G; ++i) coming[i] = hmax(tops[i]);
    };
    find_tops(0);
    for (int64_t r = 0; r < job.rows; r += G) {
      const int n = job.rows - r < G ? (int)(job.rows - r) : G;
      S m[Waiting<G>::kRoom];
      for (int i = 0; i < Waiting<G>::kRoom; ++i) m[i] = coming[i];
      if (r + G < job.rows) find_tops(r + G);
      F64 lanes[G] = {};
      for (int i = 0; i < G; ++i) {
        if (kWrites && r > 0) put(r - G + i, i);
        if (i >= n) continue;
        const T* x = x_row<T>(job, r + i);
        for (int64_t b = 0; b < bytes; b += 64) prefetch((const char*)x + kAhead + b);
        lanes[i] = kAny || near<T>((double)m[i])
                       ? exps_of<NP, op, false>(job.fast, x, job.cols, m[i], keep[i], rows.high_lanes[i])
                       : exps_of<NP, op, true>(job.fast, x, job.cols, m[i], keep[i], rows.high_lanes[i]);
      }
      for (int i = n; i < G; ++i) lanes[i] = lanes[0], m[i] = m[0], rows.high_lanes[i] = rows.high_lanes[0];
      for (int i = 0; i < Waiting<G>::kRoom; ++i) rows.m[i] = m[i];
      if constexpr (G == kJoint)
        hsum_each(lanes, rows.sum);
      else
        for (int i = 0; i < G; ++i) rows.sum[i] = hsum(lanes[i]);
      if constexpr (op == Op::softmax) divide<op>(rows);
      finish_rows<NP, op>(job, r, n, rows, keep);
    }
    if (kWrites) {
      const int64_t from = (job.rows - 1) / G * G;
      for (int64_t r = from; r < job.rows; ++r) put(r, (int)(r - from));
    }
    if (joined) lines.end();
  }
  // 1/s in two words, in registers throughout: GCC 12 rounds the same lines written for numbers otherwise where it makes
  // vectors of some of them.
  template <Op op>
  static OSM_INLINE void divide(Waiting<kRows<op>>& rows) {
    constexpr int room = Waiting<kRows<op>>::kRoom;
    const F64 one = F64::set(1.0);
    for (int i = kRows<op>; i < room; ++i) rows.sum[i] = 1.0;
    if constexpr (sizeof(S) == 8) {
      for (int i = 0; i < room; i += V::W) {
        const F64 s = F64::load(rows.sum + i), inverse = div(one, s);
        store(rows.high + i, inverse);
        store(rows.low + i, mul(inverse, fma(sub(F64::set(0), inverse), s, one)));
      }
    } else {
      for (int i = 0; i < room; i += V::W) {
        const F64 a = div(one, F64::load(rows.sum + i)), b = div(one, F64::load(rows.sum + i + V::W - F64::W));
        const F32 high = narrow(a, b);
        store(rows.high + i, high);
        store(rows.low + i, narrow(sub(a, low_half(high)), sub(b, high_half(high))));
      }
    }
  }
  // States of the rows, or what writing them takes. Odd ones are seen to one by one.
  template <int NP, Op op>
  static OSM_INLINE void finish_rows(const RowsJob& job, int64_t r, int n, Waiting<kRows<op>>& rows, V (&keep)[kRows<op>][2 * NP]) {
    constexpr bool kAny = any_pivot<T>(op);
    constexpr int G = kRows<op>;
    unsigned odd = 0;
    for (int i = 0; i < G; ++i) {
      const bool good = kAny ? may_do<T>((double)rows.m[i]) & !rows.high_lanes[i] & usable(rows.sum[i])
                             : ordinary((double)rows.m[i], rows.sum[i]);
      odd |= (unsigned)!good << i;
    }
    rows.odd = 0;
    if constexpr (op == Op::lse || op == Op::state) {
      double reference[G];
      if constexpr (op == Op::lse && kAny)
        Of<T>::Sum::template references<G>(rows.m, reference);
      else
        for (int i = 0; i < G; ++i) reference[i] = (double)rows.m[i];
      for (int i = 0; i < n; ++i) job.states[r + i] = {reference[i], rows.sum[i] * unscale<T>()};
    } else if constexpr (op == Op::log_softmax) {
      for (int i = 0; i < n; ++i)
        rows.log_sum[i] = log_if(job, x_row<T>(job, r + i), RowState{(double)rows.m[i], rows.sum[i] * unscale<T>()});
    }
    for (int i = 0; odd && i < n; ++i)
      if (odd >> i & 1) alone<NP, op>(job, r + i, rows, i, keep[i]);
  }
  // A row whose pivot did not do, or one that is not ordinary.
  template <int NP, Op op>
  static __attribute__((noinline)) void alone(const RowsJob& job, int64_t r, Waiting<kRows<op>>& rows, int i, V (&keep)[2 * NP]) {
    const T* x = x_row<T>(job, r);
    const double m = row_max(x, job.cols);
    unsigned none;
    const double sum = hsum(near<T>(m) ? exps_of<NP, op, false>(job.fast, x, job.cols, (S)m, keep, none)
                                       : exps_of<NP, op, true>(job.fast, x, job.cols, (S)m, keep, none));
    const bool good = ordinary(m, sum);
    if (op == Op::lse || op == Op::state) {
      const bool shifted = any_pivot<T>(op) && near<T>(m);
      job.states[r] = good ? RowState{shifted ? Of<T>::Sum::reference(m) : m, sum * unscale<T>()}
                           : special(x, job.cols, m, sum);
      return;
    }
    rows.sum[i] = sum;
    if constexpr (op == Op::softmax) divide<op>(rows);
    rows.odd |= (unsigned)!good << i;
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
