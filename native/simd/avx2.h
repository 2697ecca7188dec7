// AVX2 with FMA and F16C: 8 floats or 4 doubles a register. Included inside the namespace of the instruction set.

struct F64 {
  using Scalar = double;
  static constexpr int W = 4;
  __m256d v;
  static F64 set(double x) { return {_mm256_set1_pd(x)}; }
  static F64 load(const double* p) { return {_mm256_loadu_pd(p)}; }
};
OSM_INLINE void store(double* p, F64 a) { _mm256_storeu_pd(p, a.v); }
OSM_INLINE void stream(double* p, F64 a) { _mm256_stream_pd(p, a.v); }
OSM_INLINE F64 add(F64 a, F64 b) { return {_mm256_add_pd(a.v, b.v)}; }
OSM_INLINE F64 sub(F64 a, F64 b) { return {_mm256_sub_pd(a.v, b.v)}; }
OSM_INLINE F64 mul(F64 a, F64 b) { return {_mm256_mul_pd(a.v, b.v)}; }
OSM_INLINE F64 div(F64 a, F64 b) { return {_mm256_div_pd(a.v, b.v)}; }
OSM_INLINE F64 fma(F64 a, F64 b, F64 c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
OSM_INLINE F64 fms(F64 a, F64 b, F64 c) { return {_mm256_fmsub_pd(a.v, b.v, c.v)}; }
OSM_INLINE F64 max(F64 a, F64 b) { return {_mm256_max_pd(a.v, b.v)}; }  // b where either is NaN
// 2^n, where the low bits of z hold n and the bias of the exponent.
OSM_INLINE F64 power(F64 z) { return {_mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(z.v), 52))}; }
OSM_INLINE F64 keep_unequal(F64 a, F64 x, F64 m) { return {_mm256_and_pd(a.v, _mm256_cmp_pd(x.v, m.v, _CMP_NEQ_UQ))}; }
OSM_INLINE int count_equal(F64 x, F64 m) {
  return __builtin_popcount((unsigned)_mm256_movemask_pd(_mm256_cmp_pd(x.v, m.v, _CMP_EQ_OQ)));
}
OSM_INLINE uint32_t above(F64 x, F64 t) { return (uint32_t)_mm256_movemask_pd(_mm256_cmp_pd(x.v, t.v, _CMP_NLE_UQ)); }
OSM_INLINE F64 select(uint32_t mask, F64 a, F64 b) {
  __m256i bit = _mm256_set_epi64x(8, 4, 2, 1);
  __m256i on = _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x((long long)mask), bit), bit);
  return {_mm256_blendv_pd(b.v, a.v, _mm256_castsi256_pd(on))};
}
OSM_INLINE double hmax(F64 a) {
  __m128d h = _mm_max_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
}
OSM_INLINE double hsum(F64 a) {
  __m128d h = _mm_add_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
}
OSM_INLINE F64 exponent_of(F64 a) {  // floor(log2(a)) of positive normal numbers
  const __m256i biased = _mm256_srli_epi64(_mm256_castpd_si256(a.v), 52);
  const __m256d magic = _mm256_set1_pd(0x1p52);
  return {_mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(biased, _mm256_castpd_si256(magic))),
                        _mm256_set1_pd(0x1p52 + 1023))};
}

struct F32 {
  using Scalar = float;
  static constexpr int W = 8;
  __m256 v;
  static F32 set(float x) { return {_mm256_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
};
OSM_INLINE void store(float* p, F32 a) { _mm256_storeu_ps(p, a.v); }
OSM_INLINE void stream(float* p, F32 a) { _mm256_stream_ps(p, a.v); }
OSM_INLINE F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
OSM_INLINE F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
OSM_INLINE F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
OSM_INLINE F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
OSM_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
OSM_INLINE F32 fms(F32 a, F32 b, F32 c) { return {_mm256_fmsub_ps(a.v, b.v, c.v)}; }
OSM_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
// The greater as integers: of numbers one of which is positive the greater, of negative ones the lesser.
OSM_INLINE F32 peak(F32 a, F32 b) {
  return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v)))};
}
OSM_INLINE F32 power(F32 z) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(z.v), 23))}; }
OSM_INLINE F32 keep_unequal(F32 a, F32 x, F32 m) { return {_mm256_and_ps(a.v, _mm256_cmp_ps(x.v, m.v, _CMP_NEQ_UQ))}; }
OSM_INLINE int count_equal(F32 x, F32 m) {
  return __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x.v, m.v, _CMP_EQ_OQ)));
}
OSM_INLINE uint32_t above(F32 x, F32 t) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.v, t.v, _CMP_NLE_UQ)); }
OSM_INLINE F32 select(uint32_t mask, F32 a, F32 b) {
  __m256i bit = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  __m256i on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)mask), bit), bit);
  return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(on))};
}
OSM_INLINE float hmax(F32 a) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
OSM_INLINE F64 low_half(F32 a) { return {_mm256_cvtps_pd(_mm256_castps256_ps128(a.v))}; }
OSM_INLINE F64 high_half(F32 a) { return {_mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1))}; }
OSM_INLINE F32 narrow(F64 lo, F64 hi) {
  return {_mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(lo.v)), _mm256_cvtpd_ps(hi.v), 1)};
}

// 2W elements of a 16-bit format a time; bfloat16 is split into even and odd places (see avx512.h).
OSM_INLINE void load2(const bf16* p, F32& a, F32& b) {
  __m256i u = _mm256_loadu_si256((const __m256i*)p);
  a.v = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
  b.v = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000u)));
}
OSM_INLINE __m256i round_bf16(__m256 a) { return _mm256_add_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(0x8000)); }
OSM_INLINE __m256i pack2(F32 a, F32 b, bf16) {
  __m256i lo = _mm256_srli_epi32(round_bf16(a.v), 16), hi = round_bf16(b.v);
  return _mm256_blend_epi16(lo, hi, 0xaa);
}
OSM_INLINE void load2(const f16* p, F32& a, F32& b) {
  a.v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
  b.v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
}
OSM_INLINE __m256i pack2(F32 a, F32 b, f16) {
  __m128i lo = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m128i hi = _mm256_cvtps_ph(b.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}
template <class T16>
OSM_INLINE void store2(T16* p, F32 a, F32 b) {
  _mm256_storeu_si256((__m256i*)p, pack2(a, b, T16{}));
}
template <class T16>
OSM_INLINE void stream2(T16* p, F32 a, F32 b) {
  _mm256_stream_si256((__m256i*)p, pack2(a, b, T16{}));
}
OSM_INLINE void fence() { _mm_sfence(); }
OSM_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
constexpr int kStreamAlign = 32;
constexpr bool kStreams = true;
OSM_INLINE void copy_line(const char* s, char* d, bool nt) {
  for (int i = 0; i < 64; i += 32) {
    __m256i v = _mm256_loadu_si256((const __m256i*)(s + i));
    if (nt)
      _mm256_stream_si256((__m256i*)(d + i), v);
    else
      _mm256_storeu_si256((__m256i*)(d + i), v);
  }
}
OSM_INLINE uint64_t read_line(const char* s) {
  __m256i v = _mm256_or_si256(_mm256_loadu_si256((const __m256i*)s), _mm256_loadu_si256((const __m256i*)(s + 32)));
  return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(v));
}
