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

// Sums that move down d slots: what is left of them in each slot then.
template <int K>
struct Ways {
  uint64_t left[K + 1][K] = {};
  constexpr Ways() {
    for (int d = 0; d <= K; ++d)
      for (int k = d; k < K; ++k) left[d][k] = ~uint64_t{0};
  }
};
template <int K>
constexpr Ways<K> kWays{};

template <class S>
OSM_INLINE void merge_one(const S* m_a, const int64_t* a, const S* m_b, const int64_t* b, S* m, int64_t* sums) {
  ExactState<S> left, right;
  left.m = *m_a, right.m = *m_b;
  __builtin_memcpy(left.a, a, sizeof left.a);
  __builtin_memcpy(right.a, b, sizeof right.a);
  const ExactState<S> st = merged(left, right);
  __builtin_memcpy(sums, st.a, sizeof st.a);
  *m = st.m;
}
// As merged(): first the maxima, in vectors.
template <class S>
void exact_merge(const void* first_m, const int64_t* a, const void* second_m, const int64_t* b, void* result_m,
                 int64_t* sums, int64_t n) {
  constexpr int K = Law<S>::slices;
  const S *m_a = (const S*)first_m, *m_b = (const S*)second_m;
  S *m = (S*)result_m, most[kMerged];
  double down[kMerged];
  int64_t from = 0;
  for (; from + kMerged <= n; from += kMerged) {
    int64_t i = from;
    const bool all = downs(m_a + from, m_b + from, most, down);
    // The first state has none before it, see below.
    for (const int64_t to = !all ? from + kMerged : from + (from == 0); i < to; ++i)
      merge_one(m_a + i, a + i * K, m_b + i, b + i * K, m + i, sums + i * K);
    for (; i < from + kMerged; ++i) {
      const auto one = (uintptr_t)(a + i * K), other = (uintptr_t)(b + i * K);
      const uintptr_t swap = (one ^ other) & -(uintptr_t)(m_a[i] < m_b[i]);  // no branch: it could not be foreseen
      const auto* upper = (const int64_t*)(one ^ swap);
      const auto d = (int64_t)down[i - from];
      const auto* lower = (const int64_t*)(other ^ swap) - d;  // begins in the state before, which does not count
      const uint64_t* left = kWays<K>.left[d];
      uint64_t sum[K];
      for (int k = 0; k < K; ++k) sum[k] = (uint64_t)upper[k] + ((uint64_t)lower[k] & left[k]);
      __builtin_memcpy(sums + i * K, sum, sizeof sum);
      m[i] = canonical(most[i - from]);
    }
  }
  for (; from < n; ++from) merge_one(m_a + from, a + from * K, m_b + from, b + from * K, m + from, sums + from * K);
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
