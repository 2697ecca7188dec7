// Top-k, plain exponentials, the final logarithm and the memory probes. Included inside an instruction set's namespace.

// Order of logits: NaN is the largest.
OSM_INLINE bool beats(double a, double b) { return a > b || (a != a && b == b); }

// Up to this many the best are kept in order; more are kept as a heap, the one to go first on top: log(k) steps each.
constexpr int64_t kSorted = 32;
OSM_INLINE bool goes_first(double a, int64_t a_at, double b,
                           int64_t b_at) {  // before b: smaller, or as large and later
  return beats(b, a) || (!beats(a, b) && a_at > b_at);
}
OSM_INLINE void sift_up(const TopkJob& job, int64_t i, double v, int64_t at) {
  for (; i > 0; i = (i - 1) / 2) {
    const int64_t up = (i - 1) / 2;
    if (!goes_first(v, at, job.best[up], job.index[up])) break;
    job.best[i] = job.best[up], job.index[i] = job.index[up];
  }
  job.best[i] = v, job.index[i] = at;
}
OSM_INLINE void sift_down(const TopkJob& job, int64_t i, int64_t n, double v, int64_t at) {
  for (int64_t next; (next = 2 * i + 1) < n; i = next) {
    if (next + 1 < n && goes_first(job.best[next + 1], job.index[next + 1], job.best[next], job.index[next])) ++next;
    if (!goes_first(job.best[next], job.index[next], v, at)) break;
    job.best[i] = job.best[next], job.index[i] = job.index[next];
  }
  job.best[i] = v, job.index[i] = at;
}

template <class T>
void topk(const TopkJob& job) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  constexpr int64_t P = pair_of<T>();
  const T* x = (const T*)job.x;
  int64_t held = 0;
  const bool heap = job.k > kSorted;
  const auto least_held = [&] { return job.best[heap ? 0 : held - 1]; };
  const auto insert = [&](double v, int64_t at) {
    if (held == job.k && !beats(v, least_held())) return;
    if (heap) return held < job.k ? sift_up(job, held++, v, at) : sift_down(job, 0, held, v, at);
    int64_t i = held < job.k ? held++ : held - 1;
    for (; i > 0 && beats(v, job.best[i - 1]); --i) job.best[i] = job.best[i - 1], job.index[i] = job.index[i - 1];
    job.best[i] = v, job.index[i] = at;
  };
  for (int64_t i = 0; i < job.cols; i += P) {
    const int64_t n = job.cols - i < P ? job.cols - i : P;
    if (n == P && held == job.k) {
      V a, b;
      load2(x + i, a, b);
      const V least = V::set((S)least_held());
      if (!(above(a, least) | above(b, least))) continue;
    }
    for (int64_t q = 0; q < n; ++q) insert(as_double(x[i + q]), i + q);
  }
  if (!heap) return;
  for (int64_t n = held - 1; n > 0; --n) {  // the last of those left goes to the end
    const double v = job.best[n];
    const int64_t at = job.index[n];
    job.best[n] = job.best[0], job.index[n] = job.index[0];
    sift_down(job, 0, n, v, at);
  }
}

template <class T>
void exps(const T* x, double* e, int64_t n, double m) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  constexpr int64_t P = pair_of<T>();
  for (int64_t i = 0; i < n; i += P) {
    const int64_t here = n - i < P ? n - i : P;
    V a, b;
    if (here == P)
      load2(x + i, a, b);
    else
      load_some(x + i, here, a, b);
    constexpr int degree = Of<T>::kDegree == 4 ? 6 : Of<T>::kDegree;
    V v[2] = {a, b};
    if (__builtin_fabs(m) >= Log2e<V>::limit)
      ExpFar<V, degree>((S)m)(v);
    else
      ExpExact<V, degree>((S)m)(v);
    S out[P];
    store(out, v[0]), store(out + V::W, v[1]);
    for (int64_t q = 0; q < P; ++q)
      if (place_of<T>(q) < here) e[i + place_of<T>(q)] = (double)out[q] * unscale<T>();
  }
}

// The polynomial and reduction of the kernels over the whole range, rounded into the subnormals and to infinity.
void exp_f32(const float* x, float* y, int64_t n) {
  constexpr int64_t P = pair_of<float>();
  for (int64_t i = 0; i < n; i += P) {
    F32 v[2];
    if (n - i >= P)
      load2(x + i, v[0], v[1]);
    else
      load_some(x + i, n - i, v[0], v[1]);
    exp_unshifted<F32, 6>(v);
    if (n - i >= P)
      store2(y + i, v[0], v[1]);
    else
      store_some(y + i, n - i, v[0], v[1]);
  }
}

double finish_one(RowState st) {
  if (st.s != st.s || st.m != st.m) return __builtin_nan("");
  return st.m + __builtin_log(st.s);
}
void finish(const RowState* states, double* lse, int64_t n) {
  constexpr int64_t kChunk = 64;
  double m[kChunk], s[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t here = n - i < kChunk ? n - i : kChunk;
    int odd = 0;
    for (int64_t k = 0; k < here; ++k) {
      m[k] = states[i + k].m, s[k] = states[i + k].s;
      odd |= !((s[k] >= 0x1p-1000) & (s[k] < kInf) & (m[k] < kInf) & (m[k] > -kInf));
    }
    if (odd) {
      for (int64_t k = 0; k < here; ++k) lse[i + k] = finish_one(states[i + k]);
      continue;
    }
    int64_t k = 0;
    for (; k + F64::W <= here; k += F64::W) store(lse + i + k, add(F64::load(m + k), log_of(F64::load(s + k))));
    if (k == here) continue;
    double some[F64::W];
    for (int64_t q = 0; q < F64::W; ++q) some[q] = k + q < here ? s[k + q] : 1.0;
    store(some, log_of(F64::load(some)));
    for (int64_t q = 0; k + q < here; ++q) lse[i + k + q] = m[k + q] + some[q];
  }
}

uint64_t probe_read(const char* src, int64_t bytes) {
  uint64_t t0 = 0, t1 = 0, t2 = 0, t3 = 0;
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    prefetch(src + i + 4 * kAhead), prefetch(src + i + 4 * kAhead + 64);
    prefetch(src + i + 4 * kAhead + 128), prefetch(src + i + 4 * kAhead + 192);
    t0 += read_line(src + i), t1 += read_line(src + i + 64), t2 += read_line(src + i + 128),
        t3 += read_line(src + i + 192);
  }
  return t0 + t1 + t2 + t3;
}
void probe_copy(const char* src, char* dst, int64_t bytes, bool nt) {
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    prefetch(src + i + 4 * kAhead);
    copy_line(src + i, dst + i, nt);
  }
  fence();
}

template <class T>
constexpr Kernels kernels() {
  return {
      rows<T>,
      cols<T>,
      [](const char* x, int64_t n) { return segment<T, typename Of<T>::Sum>((const T*)x, n); },
      [](const char* x, int64_t n) { return segment_by_maximum<T, typename Of<T>::State>((const T*)x, n); },
      [](const char* x, int64_t n) { return segment<T, typename Of<T>::Main>((const T*)x, n); },
      [](const char* x, int64_t n) { return row_max((const T*)x, n); },
      [](const char* x, int64_t n, double m, int64_t* equal) { return rest((const T*)x, n, m, equal); },
      [](const char* x, int64_t n, RowState st) { return ordinary(st.m, st.s) ? log_sum((const T*)x, n, st) : 0.0; },
      [](Op op, const char* x, char* y, int64_t n, RowState st, double log_s, bool nt) {
        alignas(64) char space[lines_bytes<T>()];
        write_row(op, (const T*)x, (T*)y, n, st, log_s, store_kind<T>(nt, y, 0, n), space);
        if (nt) fence();
      },
      [](const char* x, double* e, int64_t n, double m) { exps((const T*)x, e, n, m); },
      [](const char* x, double* to, int64_t n) {
        for (int64_t i = 0; i < n; ++i) to[i] = as_double(((const T*)x)[i]);
      },
      topk<T>,
  };
}
