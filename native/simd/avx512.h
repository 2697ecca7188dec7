// AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles a register. Included inside the namespace of the instruction set.

struct F64 {
  using Scalar = double;
  static constexpr int W = 8;
  __m512d v;
  static F64 set(double x) { return {_mm512_set1_pd(x)}; }
  static F64 load(const double* p) { return {_mm512_loadu_pd(p)}; }
};
OSM_INLINE void store(double* p, F64 a) { _mm512_storeu_pd(p, a.v); }
OSM_INLINE void stream(double* p, F64 a) { _mm512_stream_pd(p, a.v); }
OSM_INLINE F64 add(F64 a, F64 b) { return {_mm512_add_pd(a.v, b.v)}; }
OSM_INLINE F64 sub(F64 a, F64 b) { return {_mm512_sub_pd(a.v, b.v)}; }
OSM_INLINE F64 mul(F64 a, F64 b) { return {_mm512_mul_pd(a.v, b.v)}; }
OSM_INLINE F64 div(F64 a, F64 b) { return {_mm512_div_pd(a.v, b.v)}; }
OSM_INLINE F64 fma(F64 a, F64 b, F64 c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
OSM_INLINE F64 fms(F64 a, F64 b, F64 c) { return {_mm512_fmsub_pd(a.v, b.v, c.v)}; }
OSM_INLINE F64 max(F64 a, F64 b) { return {_mm512_max_pd(a.v, b.v)}; }  // b where either is NaN
// 2^n, where the low bits of z hold n and the bias of the exponent.
OSM_INLINE F64 power(F64 z) { return {_mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(z.v), 52))}; }
// a where x != m, else 0
OSM_INLINE F64 keep_unequal(F64 a, F64 x, F64 m) {
  return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x.v, m.v, _CMP_NEQ_UQ), a.v)};
}
OSM_INLINE int count_equal(F64 x, F64 m) { return __builtin_popcount(_mm512_cmp_pd_mask(x.v, m.v, _CMP_EQ_OQ)); }
// bits of the lanes that are not <= t, so NaN counts
OSM_INLINE uint32_t above(F64 x, F64 t) { return _mm512_cmp_pd_mask(x.v, t.v, _CMP_NLE_UQ); }
OSM_INLINE F64 select(uint32_t mask, F64 a, F64 b) { return {_mm512_mask_mov_pd(b.v, (__mmask8)mask, a.v)}; }
OSM_INLINE double hmax(F64 a) { return _mm512_reduce_max_pd(a.v); }
OSM_INLINE double hsum(F64 a) {
  __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(a.v), _mm512_extractf64x4_pd(a.v, 1));
  __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
  return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}
OSM_INLINE F64 exponent_of(F64 a) {  // floor(log2(a)) of positive normal numbers
  return {_mm512_getexp_pd(a.v)};
}

struct F32 {
  using Scalar = float;
  static constexpr int W = 16;
  __m512 v;
  static F32 set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
};
OSM_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
OSM_INLINE void stream(float* p, F32 a) { _mm512_stream_ps(p, a.v); }
OSM_INLINE F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
OSM_INLINE F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OSM_INLINE F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OSM_INLINE F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
OSM_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OSM_INLINE F32 fms(F32 a, F32 b, F32 c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
OSM_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
// The greater as integers: of numbers one of which is positive the greater, of negative ones the lesser. On another,
// wider pipe than max().
OSM_INLINE F32 peak(F32 a, F32 b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
OSM_INLINE F32 power(F32 z) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(z.v), 23))}; }
OSM_INLINE F32 keep_unequal(F32 a, F32 x, F32 m) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, m.v, _CMP_NEQ_UQ), a.v)};
}
OSM_INLINE int count_equal(F32 x, F32 m) { return __builtin_popcount(_mm512_cmp_ps_mask(x.v, m.v, _CMP_EQ_OQ)); }
OSM_INLINE uint32_t above(F32 x, F32 t) { return _mm512_cmp_ps_mask(x.v, t.v, _CMP_NLE_UQ); }
OSM_INLINE F32 select(uint32_t mask, F32 a, F32 b) { return {_mm512_mask_mov_ps(b.v, (__mmask16)mask, a.v)}; }
OSM_INLINE float hmax(F32 a) { return _mm512_reduce_max_ps(a.v); }
OSM_INLINE F64 low_half(F32 a) { return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v))}; }
OSM_INLINE F64 high_half(F32 a) { return {_mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))}; }
OSM_INLINE F32 narrow(F64 lo, F64 hi) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(lo.v)), _mm512_cvtpd_ps(hi.v), 1)};
}

// 2W elements of a 16-bit format a time. bfloat16 is split into even and odd places: a shift and a mask, no permute;
// the order inside a pair does not matter to sums and is undone on the way out.
OSM_INLINE void load2(const bf16* p, F32& a, F32& b) {
  __m512i u = _mm512_loadu_si512(p);
  a.v = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
  b.v = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}
// To nearest, ties away from zero: one addition, whose carry into the exponent is what rounding asks for. A tie needs
// the sixteen low bits of a float to be 0x8000, and either neighbour is half a unit away.
OSM_INLINE __m512i round_bf16(__m512 a) { return _mm512_add_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(0x8000)); }
OSM_INLINE __m512i pack2(F32 a, F32 b, bf16) {
  __m512i lo = _mm512_srli_epi32(round_bf16(a.v), 16), hi = round_bf16(b.v);
  return _mm512_mask_blend_epi16(0xaaaaaaaau, lo, hi);
}
OSM_INLINE void load2(const f16* p, F32& a, F32& b) {
  a.v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  b.v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(p + 16)));
}
OSM_INLINE __m512i pack2(F32 a, F32 b, f16) {
  __m256i lo = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i hi = _mm512_cvtps_ph(b.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}
template <class T16>
OSM_INLINE void store2(T16* p, F32 a, F32 b) {
  _mm512_storeu_si512(p, pack2(a, b, T16{}));
}
template <class T16>
OSM_INLINE void stream2(T16* p, F32 a, F32 b) {
  _mm512_stream_si512((__m512i*)p, pack2(a, b, T16{}));
}
OSM_INLINE void fence() { _mm_sfence(); }
OSM_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
constexpr int kStreamAlign = 64;
constexpr bool kStreams = true;
OSM_INLINE void copy_line(const char* s, char* d, bool nt) {
  __m512i v = _mm512_loadu_si512(s);
  if (nt)
    _mm512_stream_si512((__m512i*)d, v);
  else
    _mm512_storeu_si512(d, v);
}
OSM_INLINE uint64_t read_line(const char* s) {
  return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_loadu_si512(s)));
}
