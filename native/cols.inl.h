// Kernels for a reduced axis whose elements are not adjacent but whose neighbours across the axis are: every lane is a
// row of its own, no transposed copy, no horizontal step. Included inside an instruction set's namespace.

template <class T>
struct Cols {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using Main = typename LaneMain<T>::type;
  using State = typename Of<T>::State;
  using Light = typename Of<T>::Light;
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

  // f(first element, registers of the left, registers of the right) for elements [c0, c1) of the pair at j, four at a
  // time: side by side, as in exp.inl.h.
  template <class F>
  OSM_INLINE void each(int64_t c0, int64_t c1, int64_t j, int64_t n, const F& f) const {
    int64_t c = c0;
    for (; c + 4 <= c1; c += 4) {
      V a[4], b[4];
      for (int i = 0; i < 4; ++i) load(c + i, j, n, a[i], b[i]);
      f(c, a, b);
    }
    for (; c < c1; ++c) {
      V a[1], b[1];
      load(c, j, n, a[0], b[0]);
      f(c, a, b);
    }
  }
  template <int k>
  OSM_INLINE void put_all(int64_t c, int64_t j, int64_t n, const V (&a)[k], const V (&b)[k]) const {
    for (int i = 0; i < k; ++i) put(c + i, j, n, a[i], b[i]);
  }

  // Results of elements [c0, c1) of the pair at j from x itself.
  template <class E>
  void map(int64_t c0, int64_t c1, int64_t j, int64_t n, const Lanes<T>& k) const {
    const E e0(guarded(V::load(k.m))), e1(guarded(V::load(k.m + V::W)));
    const Scale<V> r0(V::load(k.high), V::load(k.low)), r1(V::load(k.high + V::W), V::load(k.low + V::W));
    each(c0, c1, j, n, [&](int64_t c, auto& a, auto& b) OSM_LAMBDA_INLINE {
      e0(a), r0(a);
      e1(b), r1(b);
      put_all(c, j, n, a, b);
    });
  }
  void logs(int64_t c0, int64_t c1, int64_t j, int64_t n, const Lanes<T>& k) const {
    const LaneLog<T> r0(k.m, k.log_s), r1(k.m + V::W, k.log_s + V::W);
    each(c0, c1, j, n, [&](int64_t c, auto& a, auto& b) OSM_LAMBDA_INLINE {
      r0(a), r1(b);
      put_all(c, j, n, a, b);
    });
  }

  // ---- cached: a strip of columns is read from memory once, line by line, into adjacent elements. Left where they
  // lie, the elements of a column share a few sets of the cache (their stride is often a power of two) and drive each
  // other out.
  template <class E, bool kKeep>
  void sums(S* kept, Lanes<T>& k) const {
    const E e0(guarded(V::load(k.m))), e1(guarded(V::load(k.m + V::W)));
    LaneSum<V> t0, t1;
    for (int64_t from = 0; from < job.length; from += kColsBlock) {
      const int64_t stop = from + kColsBlock < job.length ? from + kColsBlock : job.length;
      V s0 = V::set(0), s1 = s0;
      each_kept(kept, from, stop, [&](int64_t c, auto& a, auto& b) OSM_LAMBDA_INLINE {
        e0(a), e1(b);
        s0 = add(s0, sum_all(a)), s1 = add(s1, sum_all(b));
        if constexpr (kKeep) keep_all(kept + c * P, a, b);
      });
      t0.add_in(s0), t1.add_in(s1);
    }
    t0.put(k.s), t1.put(k.s + V::W);
  }
  template <class F>
  static OSM_INLINE void each_kept(const S* kept, int64_t c0, int64_t c1, const F& f) {
    int64_t c = c0;
    for (; c + 4 <= c1; c += 4) {
      V a[4], b[4];
      for (int i = 0; i < 4; ++i) a[i] = V::load(kept + (c + i) * P), b[i] = V::load(kept + (c + i) * P + V::W);
      f(c, a, b);
    }
    for (; c < c1; ++c) {
      V a[1] = {V::load(kept + c * P)}, b[1] = {V::load(kept + c * P + V::W)};
      f(c, a, b);
    }
  }
  static OSM_INLINE V sum_all(const V (&a)[1]) { return a[0]; }
  static OSM_INLINE V sum_all(const V (&a)[4]) { return add(add(a[0], a[1]), add(a[2], a[3])); }
  template <int k>
  static OSM_INLINE void keep_all(S* keep, const V (&a)[k], const V (&b)[k]) {
    for (int i = 0; i < k; ++i) store(keep + i * P, a[i]), store(keep + i * P + V::W, b[i]);
  }
  OSM_INLINE int64_t live(int64_t j) const { return job.count - j < P ? job.count - j : P; }

  void gather(int64_t j0, int64_t pairs, Lanes<T>* strip, S* keep) const {
    S lowest;
    put_neg_inf(lowest);
    for (int64_t p = 0; p < pairs; ++p) store(strip[p].m, V::set(lowest)), store(strip[p].m + V::W, V::set(lowest));
    for (int64_t c = 0; c < job.length; ++c)
      for (int64_t p = 0; p < pairs; ++p) {
        V a, b;
        load(c, j0 + p * P, live(j0 + p * P), a, b);
        S* kept = keep + (p * job.length + c) * P;
        store(kept, a), store(kept + V::W, b);
        store(strip[p].m, max(V::load(strip[p].m), a)), store(strip[p].m + V::W, max(V::load(strip[p].m + V::W), b));
      }
  }
  template <class R>
  static OSM_INLINE R lane_result(const Lanes<T>& k, int64_t from) {
    if constexpr (__is_same(R, Scale<V>))
      return R(V::load(k.high + from), V::load(k.low + from));
    else
      return R(k.m + from, k.log_s + from);
  }
  void sum_pair(S* kept, Lanes<T>& k) const {
    if (job.op == Op::softmax)
      sums<Main, true>(kept, k);
    else if (job.op == Op::state)
      sums<State, false>(kept, k);
    else
      sums<Light, false>(kept, k);
  }
  // Results line by line of memory, as wide as the strip: short pieces far apart cost the memory its open pages.
  template <class R>
  void scatter(int64_t j0, int64_t pairs, const Lanes<T>* strip, const S* keep) const {
    for (int64_t c = 0; c < job.length; ++c)
      for (int64_t p = 0; p < pairs; ++p) {
        const S* kept = keep + (p * job.length + c) * P;
        V a[1] = {V::load(kept)}, b[1] = {V::load(kept + V::W)};
        lane_result<R>(strip[p], 0)(a), lane_result<R>(strip[p], V::W)(b);
        put(c, j0 + p * P, live(j0 + p * P), a[0], b[0]);
      }
  }
  void cached() const {
    constexpr int64_t kStripPairs = 8;  // 1 KiB of each line of memory with AVX-512
    Lanes<T>* strip = (Lanes<T>*)job.scratch;
    S* keep = (S*)(job.scratch + (kStripPairs * sizeof(Lanes<T>) + 63) / 64 * 64);
    const int64_t fit = kColsKeep / (job.length * P * (int64_t)sizeof(S));
    const int64_t most = fit < 1 ? 1 : fit < kStripPairs ? fit : kStripPairs;
    for (int64_t j = 0; j < job.count; j += most * P) {
      const int64_t left = (job.count - j + P - 1) / P, pairs = left < most ? left : most;
      gather(j, pairs, strip, keep);
      for (int64_t p = 0; p < pairs; ++p) {
        // The strip after this one comes in while these exponentials are made.
        if (const int64_t next = j + (most + p) * P; next + P <= job.count)
          for (int64_t c = 0; c < job.length; ++c) prefetch_line(c, next);
        sum_pair(keep + p * job.length * P, strip[p]);
        if (writes())
          settle(strip[p], j + p * P, live(j + p * P));
        else
          put_states(strip[p], j + p * P, live(j + p * P));
      }
      if (job.op == Op::softmax)
        scatter<Scale<V>>(j, pairs, strip, keep);
      else if (job.op == Op::log_softmax)
        scatter<LaneLog<T>>(j, pairs, strip, keep);
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
    alignas(64) S kept[kColsBlock * P];  // adjacent, for the second look: see cached()
    for (int64_t c = c0; c < c1; ++c) {
      load(c, j, n, a, b);
      store(kept + (c - c0) * P, a), store(kept + (c - c0) * P + V::W, b);
      m0 = max(m0, a), m1 = max(m1, b);
    }
    const V p0 = guarded(m0), p1 = guarded(m1);
    const E e0(p0), e1(p1);
    V s0 = V::set(0), s1 = s0;
    each_kept(kept, 0, c1 - c0, [&](int64_t, auto& a, auto& b) OSM_LAMBDA_INLINE {
      e0(a), e1(b);
      s0 = add(s0, sum_all(a)), s1 = add(s1, sum_all(b));
    });
    // The old sum under the new maximum: the law's rescale factor, for lanes where nothing rose exactly 1.
    LaneSum<V> t0, t1;
    const V back = V::set(Log2e<V>::unscale);
    t0.get(k.s), t1.get(k.s + V::W);
    V f0[1] = {before0}, f1[1] = {before1};
    e0(f0), e1(f1);
    t0.rescale(mul(f0[0], back)), t1.rescale(mul(f1[0], back));
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
      const auto pushes = [&](int64_t c0, int64_t c1, int64_t p, int64_t j, int64_t n) {
        if (job.op == Op::state)
          push<State>(c0, c1, j, n, strip[p]);
        else
          push<Light>(c0, c1, j, n, strip[p]);
      };
      each_block<kColsBlock>(j0, pairs, pushes);
      for (int64_t p = 0; p < pairs; ++p) {
        const int64_t j = j0 + p * P, n = job.count - j < P ? job.count - j : P;
        // Lanes of -inf alone have summed nothing but the floor.
        if (writes())
          settle(strip[p], j, n);
        else
          put_states(strip[p], j, n);
      }
      if (!writes()) continue;
      // Few rows at a time: as many streams to memory as it keeps open.
      each_block<kColsWrite>(j0, pairs, [&](int64_t c0, int64_t c1, int64_t p, int64_t j, int64_t n) {
        if (job.op == Op::softmax)
          map<Main>(c0, c1, j, n, strip[p]);
        else
          logs(c0, c1, j, n, strip[p]);
      });
    }
  }
  template <int64_t rows, class F>
  void each_block(int64_t j0, int64_t pairs, const F& f) const {
    for (int64_t c = 0; c < job.length; c += rows) {
      const int64_t stop = c + rows < job.length ? c + rows : job.length;
      for (int64_t p = 0; p < pairs; ++p) {
        const int64_t j = j0 + p * P;
        // The lines of this pair one block on are fetched while this block is worked on.
        for (int64_t i = c + rows; i < stop + rows && i < job.length; ++i) prefetch_line(i, j);
        f(c, stop, p, j, live(j));
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
