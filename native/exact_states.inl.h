// States in arrays. Included inside the namespace of an instruction set, before exact_rows.inl.h.

constexpr int kMerged = 128;  // states at once

// How many slots the sums of the lesser of m and `other` move down: of up to `slices`, in doubles. Numbers beyond
// `large` lie so far apart that their bins tell it too.
template <class S>
OSM_INLINE F64 down_in_doubles(F64 m, F64 other) {
  using L = Law<S>;
  const F64 magic = F64::set(0x1.8p52), width = F64::set(1.0 / L::width), less = F64::set((L::width - 1) / 2.0 - 1);
  F64 v[2] = {m, other};
  for (F64& x : v) {
    const F64 n = sub(fused(x, F64::set((double)L::log2e), magic), magic);
    x = sub(fused(sub(n, less), width, magic), magic);  // within 1/2 of floor((n + 1) / width), which is whole
  }
  return min(max(sub(v[0], v[1]), F64::set(0)), F64::set(L::slices));  // of equal infinities 0
}
// The same of many; false where it does not hold: of NaN, and of doubles far out.
OSM_INLINE bool downs(const float* x, const float* y, float* most, double* down) {
  uint32_t nan = 0;
  for (int i = 0; i < kMerged; i += F32::W) {
    const F32 a = F32::load(x + i), b = F32::load(y + i), m = max(a, b), other = min(a, b), inf = F32::set((float)kInf);
    nan |= above(a, inf) | above(b, inf);
    store(most + i, m);
    store(down + i, down_in_doubles<float>(low_half(m), low_half(other)));
    if constexpr (F32::W > F64::W) store(down + i + F64::W, down_in_doubles<float>(high_half(m), high_half(other)));
  }
  return !nan;
}
OSM_INLINE bool downs(const double* x, const double* y, double* most, double* down) {
  uint32_t far = 0;
  const F64 limit = F64::set(Law<double>::far / 2);
  for (int i = 0; i < kMerged; i += F64::W) {
    const F64 a = F64::load(x + i), b = F64::load(y + i), m = max(a, b), other = min(a, b);
    far |= above(a, limit) | above(b, limit) | above(sub(F64::set(0), other), limit);
    store(most + i, m);
    store(down + i, down_in_doubles<double>(m, other));
  }
  return !far;
}

// What is left of sums that move down so many slots: those of slot j go to slot j + d where lower[d] is set.
template <int K>
struct Ways {
  uint64_t lower[K + 1][K] = {};
  constexpr Ways() {
    for (int way = 0; way < K; ++way) lower[way][way] = ~uint64_t{0};
  }
};
template <int K>
constexpr Ways<K> kWays{};

// As merged(): first the maxima, in vectors.
template <class S>
void exact_merge(const void* m_a, const int64_t* a, const void* m_b, const int64_t* b, void* m, int64_t* sums,
                 int64_t n) {
  constexpr int K = Law<S>::slices;
  for (int64_t from = 0; from < n; from += kMerged, a += K * kMerged, b += K * kMerged, sums += K * kMerged) {
    const int count = n - from < kMerged ? (int)(n - from) : kMerged;
    S x[kMerged] = {}, y[kMerged] = {}, most[kMerged];
    double down[kMerged];
    __builtin_memcpy(x, (const S*)m_a + from, (size_t)count * sizeof(S));
    __builtin_memcpy(y, (const S*)m_b + from, (size_t)count * sizeof(S));
    if (downs(x, y, most, down)) {
      for (int i = 0; i < count; ++i) {
        const int64_t *first = a + i * K, *second = b + i * K;
        // No branch: it could not be foreseen.
        const uintptr_t apart = ((uintptr_t)second - (uintptr_t)first) & -(uintptr_t)(x[i] < y[i]);
        const auto *upper = (const int64_t*)((uintptr_t)first + apart),
                   *lower = (const int64_t*)((uintptr_t)second - apart);
        const uint64_t* move = kWays<K>.lower[(int)down[i]];
        uint64_t sum[K];
        for (int k = 0; k < K; ++k) {
          sum[k] = (uint64_t)upper[k];
          for (int d = 0; d <= k; ++d) sum[k] += (uint64_t)lower[k - d] & move[d];
        }
        __builtin_memcpy(sums + i * K, sum, sizeof sum);
        ((S*)m)[from + i] = canonical(most[i]);
      }
    } else {
      for (int i = 0; i < count; ++i) {
        ExactState<S> left, right;
        left.m = x[i], right.m = y[i];
        __builtin_memcpy(left.a, a + i * K, sizeof left.a);
        __builtin_memcpy(right.a, b + i * K, sizeof right.a);
        const ExactState<S> st = merged(left, right);
        __builtin_memcpy(sums + i * K, st.a, sizeof st.a);
        ((S*)m)[from + i] = st.m;
      }
    }
  }
}
template <class S>
OSM_INLINE ExactState<S> state_at(const void* m, const int64_t* a, int64_t i) {
  ExactState<S> st;
  st.m = ((const S*)m)[i];
  for (int k = 0; k < Law<S>::slices; ++k) st.a[k] = a[i * Law<S>::slices + k];
  return st;
}
template <class S>
void exact_lse(const void* m, const int64_t* a, void* lse, int64_t n) {
  for (int64_t i = 0; i < n; ++i) ((S*)lse)[i] = lse_of(state_at<S>(m, a, i));
}
template <class S>
void exact_log_sum(const void* m, const int64_t* a, double* log_sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) log_sum[i] = log_sum_of(state_at<S>(m, a, i));
}
