// States in arrays. Included inside the namespace of an instruction set, before exact_rows.inl.h.

template <class S>
void exact_merge(const void* m_a, const int64_t* a, const void* m_b, const int64_t* b, void* m, int64_t* sums,
                 int64_t n) {
  constexpr int K = Law<S>::slices;
  for (int64_t i = 0; i < n; ++i) {
    ExactState<S> left, right;
    left.m = ((const S*)m_a)[i], right.m = ((const S*)m_b)[i];
    for (int k = 0; k < K; ++k) left.a[k] = a[i * K + k], right.a[k] = b[i * K + k];
    const ExactState<S> st = merged(left, right);
    ((S*)m)[i] = st.m;
    for (int k = 0; k < K; ++k) sums[i * K + k] = st.a[k];
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
