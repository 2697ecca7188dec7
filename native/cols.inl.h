// Kernels for a reduced axis whose elements are not adjacent but whose neighbours across the axis are: every lane is a
// row of its own, no transposed copy, no horizontal step. Included inside an instruction set's namespace.

template <class T>
struct Cols {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using Main = typename LaneMain<T>::type;
  using Sum = Alone<typename Of<T>::Sum, V>;
  using State = Alone<typename Of<T>::State, V>;
  static constexpr int64_t P = pair_of<T>();
  static constexpr int64_t kLine = P * (int64_t)sizeof(T);
  const ColsJob& job;
  bool nt;

  explicit Cols(const ColsJob& j) : job(j) {
    nt = job.stream && (uintptr_t)job.y % 64 == 0 && job.y_step % 64 == 0 && kLine % kStreamAlign == 0;
  }
  bool writes() const { return job.op == Op::softmax || job.op == Op::log_softmax; }

  OSM_INLINE void load(int64_t c, int64_t j, int64_t n, V& a, V& b) const {
    const T* p = (const T*)(job.x + c * job.x_step) + j;
    if (n == P)
      load2(p, a, b);
    else
      load_some(p, n, a, b);
  }
  OSM_INLINE void put(int64_t c, int64_t j, int64_t n, V a, V b) const {
    T* p = (T*)(job.y + c * job.y_step) + j;
    if (n != P)
      store_some(p, n, a, b);
    else if (nt)
      stream2(p, a, b);
    else
      store2(p, a, b);
  }
  OSM_INLINE void prefetch_line(int64_t c, int64_t j) const {
    const char* p = job.x + c * job.x_step + j * (int64_t)sizeof(T);
    for (int64_t b = 0; b < kLine; b += 64) prefetch(p + b);
  }

  void put_states(const Lanes<T>& k, int64_t j, int64_t n) const {
    for (int64_t i = 0; i < P; ++i) {
      const int64_t at = place_of<T>(i);
      if (at >= n) continue;
      const double m = (double)k.m[i], s = k.s[i];
      const char* x = job.x + (j + at) * (int64_t)sizeof(T);
      job.states[j + at] =
          ordinary(m, s) ? RowState{m, s * unscale<T>()} : special_column<T>(x, job.x_step, job.length, m, s);
    }
  }

  void settle(Lanes<T>& k, int64_t j, int64_t n) const {
    k.settle(job.op == Op::log_softmax);
    if (job.op != Op::log_softmax) return;
    for (int64_t i = 0; i < P; ++i) {
      const int64_t at = place_of<T>(i);
      const RowState st{(double)k.m[i], k.s[i] * unscale<T>()};
      if (at < n && blunt(st))
        k.log_s[i] = log_sum_column<T>(job.x + (j + at) * (int64_t)sizeof(T), job.x_step, job.length, st.m);
    }
  }

  // Results of elements [c0, c1) of the pair at j from x itself.
  template <class E>
  void map(int64_t c0, int64_t c1, int64_t j, int64_t n, const Lanes<T>& k) const {
    const E e0(guarded(V::load(k.m))), e1(guarded(V::load(k.m + V::W)));
    const V h0 = V::load(k.high), h1 = V::load(k.high + V::W), l0 = V::load(k.low), l1 = V::load(k.low + V::W);
    for (int64_t c = c0; c < c1; ++c) {
      V a, b;
      load(c, j, n, a, b);
      a = e0(a), b = e1(b);
      put(c, j, n, fma(a, h0, mul(a, l0)), fma(b, h1, mul(b, l1)));
    }
  }
  void logs(int64_t c0, int64_t c1, int64_t j, int64_t n, const Lanes<T>& k) const {
    const LaneLog<T> r0(k.m, k.log_s), r1(k.m + V::W, k.log_s + V::W);
    for (int64_t c = c0; c < c1; ++c) {
      V a, b;
      load(c, j, n, a, b);
      put(c, j, n, r0(a), r1(b));
    }
  }

  // ---- cached: a pair of registers wide, all of the column at once; x is read from memory once
  template <class E, bool kKeep>
  void sums(int64_t j, int64_t n, Lanes<T>& k, S* keep) const {
    const E e0(guarded(V::load(k.m))), e1(guarded(V::load(k.m + V::W)));
    LaneSum<V> t0, t1;
    for (int64_t c = 0; c < job.length; c += kColsBlock) {
      const int64_t stop = c + kColsBlock < job.length ? c + kColsBlock : job.length;
      V s0 = V::set(0), s1 = s0;
      for (int64_t i = c; i < stop; ++i) {
        V a, b;
        load(i, j, n, a, b);
        a = e0(a), b = e1(b);
        if constexpr (kKeep) store(keep + i * P, a), store(keep + i * P + V::W, b);
        s0 = add(s0, a), s1 = add(s1, b);
      }
      t0.add_in(s0), t1.add_in(s1);
    }
    t0.put(k.s), t1.put(k.s + V::W);
  }
  void cached() const {
    S* keep = (S*)job.scratch;
    Lanes<T> k;
    S lowest;
    put_neg_inf(lowest);
    for (int64_t j = 0; j < job.count; j += P) {
      const int64_t n = job.count - j < P ? job.count - j : P;
      V m0 = V::set(lowest), m1 = m0, a, b;
      for (int64_t c = 0; c < job.length; ++c) {
        load(c, j, n, a, b);
        prefetch_line(c, j + P);
        m0 = max(m0, a), m1 = max(m1, b);
      }
      store(k.m, m0), store(k.m + V::W, m1);
      if (job.op == Op::softmax)
        sums<Main, true>(j, n, k, keep);
      else if (job.op == Op::state)
        sums<State, false>(j, n, k, nullptr);
      else
        sums<Sum, false>(j, n, k, nullptr);
      if (!writes()) {
        put_states(k, j, n);
        continue;
      }
      settle(k, j, n);
      if (job.op == Op::log_softmax) {
        logs(0, job.length, j, n, k);
        continue;
      }
      const V h0 = V::load(k.high), h1 = V::load(k.high + V::W), l0 = V::load(k.low), l1 = V::load(k.low + V::W);
      for (int64_t c = 0; c < job.length; ++c) {
        a = V::load(keep + c * P), b = V::load(keep + c * P + V::W);
        put(c, j, n, fma(a, h0, mul(a, l0)), fma(b, h1, mul(b, l1)));
      }
    }
  }

  // ---- states known: the write pass alone
  void given() const {
    Lanes<T> k;
    for (int64_t j = 0; j < job.count; j += P) {
      const int64_t n = job.count - j < P ? job.count - j : P;
      for (int64_t i = 0; i < P; ++i) {
        const int64_t at = place_of<T>(i);
        const RowState st = at < n ? job.states[j + at] : RowState{0, 1};
        k.m[i] = (S)st.m, k.s[i] = st.s / unscale<T>();
      }
      k.settle(job.op == Op::log_softmax);
      if (job.op == Op::log_softmax)
        logs(0, job.length, j, n, k);
      else
        map<Main>(0, job.length, j, n, k);
    }
  }

  // ---- online: a strip of columns, block after block of their elements; memory is read along its lines
  template <class E>
  void push(int64_t c0, int64_t c1, int64_t j, int64_t n, Lanes<T>& k) const {
    V before0 = V::load(k.m), before1 = V::load(k.m + V::W), m0 = before0, m1 = before1, a, b;
    for (int64_t c = c0; c < c1; ++c) {
      load(c, j, n, a, b);
      m0 = max(m0, a), m1 = max(m1, b);
    }
    const V p0 = guarded(m0), p1 = guarded(m1);
    const E e0(p0), e1(p1);
    V s0 = V::set(0), s1 = s0;
    for (int64_t c = c0; c < c1; ++c) {
      load(c, j, n, a, b);
      s0 = add(s0, e0(a)), s1 = add(s1, e1(b));
    }
    // The old sum under the new maximum: the law's rescale factor, for lanes where nothing rose exactly 1.
    LaneSum<V> t0, t1;
    const V back = V::set(Log2e<V>::unscale);
    t0.get(k.s), t1.get(k.s + V::W);
    t0.rescale(mul(e0(before0), back)), t1.rescale(mul(e1(before1), back));
    t0.add_in(s0), t1.add_in(s1);
    t0.put(k.s), t1.put(k.s + V::W);
    store(k.m, m0), store(k.m + V::W, m1);
  }
  void online() const {
    Lanes<T>* strip = (Lanes<T>*)job.scratch;
    S lowest;
    put_neg_inf(lowest);
    for (int64_t j0 = 0; j0 < job.count; j0 += kColsStrip) {
      const int64_t wide = job.count - j0 < kColsStrip ? job.count - j0 : kColsStrip;
      const int64_t pairs = (wide + P - 1) / P;
      for (int64_t p = 0; p < pairs; ++p)
        for (int64_t i = 0; i < P; ++i) strip[p].m[i] = lowest, strip[p].s[i] = 0;
      if (job.op == Op::state)
        each_block(
            [&](int64_t c0, int64_t c1, int64_t p, int64_t j, int64_t n) { push<State>(c0, c1, j, n, strip[p]); }, j0,
            pairs);
      else
        each_block([&](int64_t c0, int64_t c1, int64_t p, int64_t j, int64_t n) { push<Sum>(c0, c1, j, n, strip[p]); },
                   j0, pairs);
      for (int64_t p = 0; p < pairs; ++p) {
        const int64_t j = j0 + p * P, n = job.count - j < P ? job.count - j : P;
        // Lanes of -inf alone have summed nothing but the floor.
        if (writes())
          settle(strip[p], j, n);
        else
          put_states(strip[p], j, n);
      }
      if (job.op == Op::softmax)
        each_block([&](int64_t c0, int64_t c1, int64_t p, int64_t j, int64_t n) { map<Main>(c0, c1, j, n, strip[p]); },
                   j0, pairs);
      else if (job.op == Op::log_softmax)
        each_block([&](int64_t c0, int64_t c1, int64_t p, int64_t j, int64_t n) { logs(c0, c1, j, n, strip[p]); }, j0,
                   pairs);
    }
  }
  template <class F>
  void each_block(const F& f, int64_t j0, int64_t pairs) const {
    for (int64_t c = 0; c < job.length; c += kColsBlock) {
      const int64_t stop = c + kColsBlock < job.length ? c + kColsBlock : job.length;
      for (int64_t p = 0; p < pairs; ++p) {
        const int64_t j = j0 + p * P;
        // The lines of this pair one block on are fetched while this block is worked on.
        for (int64_t i = c + kColsBlock; i < stop + kColsBlock && i < job.length; ++i) prefetch_line(i, j);
        f(c, stop, p, j, job.count - j < P ? job.count - j : P);
      }
    }
  }
};

template <class T>
void cols(const ColsJob& job) {
  const Cols<T> c(job);
  if (job.given)
    c.given();
  else if (job.algorithm == Algorithm::cached)
    c.cached();
  else
    c.online();
  if (job.stream) fence();
}
