// What sums of slices need beside the vectors of avx512.h. Included inside the namespace of the instruction set.

// float16 and bfloat16 as this family loads and rounds them.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

constexpr bool kExactPrefetch = true;  // of the row that is summed

OSM_INLINE F32 fused(F32 a, F32 b, F32 c) { return fma(a, b, c); }
OSM_INLINE F64 fused(F64 a, F64 b, F64 c) { return fma(a, b, c); }
OSM_INLINE F32 fused_less(F32 a, F32 b, F32 c) { return fms(a, b, c); }
OSM_INLINE F64 fused_less(F64 a, F64 b, F64 c) { return fms(a, b, c); }
OSM_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
OSM_INLINE F64 min(F64 a, F64 b) { return {_mm512_min_pd(a.v, b.v)}; }
// y where y >= t, else 0
OSM_INLINE F32 at_least(F32 y, F32 t) { return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y.v, t.v, _CMP_GE_OQ), y.v)}; }
OSM_INLINE F64 at_least(F64 y, F64 t) { return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(y.v, t.v, _CMP_GE_OQ), y.v)}; }
OSM_INLINE F32 either(F32 a, F32 b) { return {_mm512_or_ps(a.v, b.v)}; }
OSM_INLINE F64 either(F64 a, F64 b) { return {_mm512_or_pd(a.v, b.v)}; }

// Sums of the bits of numbers, lane by lane.
template <class V>
struct BitSum {
  __m512i v = _mm512_setzero_si512();
  OSM_INLINE void add(F32 a) { v = _mm512_add_epi32(v, _mm512_castps_si512(a.v)); }
  OSM_INLINE void add(F64 a) { v = _mm512_add_epi64(v, _mm512_castpd_si512(a.v)); }
  OSM_INLINE void less(uint32_t b) { v = _mm512_sub_epi32(v, _mm512_set1_epi32((int)b)); }
  OSM_INLINE void less(uint64_t b) { v = _mm512_sub_epi64(v, _mm512_set1_epi64((long long)b)); }
  OSM_INLINE V bits() const {
    if constexpr (sizeof(typename V::Scalar) == 4)
      return {_mm512_castsi512_ps(v)};
    else
      return {_mm512_castsi512_pd(v)};
  }
  // The sum of what the lanes have beyond `less`, which is what counts modulo 2^32 or 2^64.
  OSM_INLINE int64_t beyond(uint32_t less) const {
    const __m512i s = _mm512_sub_epi32(v, _mm512_set1_epi32((int)less));
    const __m512i lo = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(s));
    return _mm512_reduce_add_epi64(_mm512_add_epi64(lo, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(s, 1))));
  }
  OSM_INLINE int64_t beyond(uint64_t less) const {
    return _mm512_reduce_add_epi64(_mm512_sub_epi64(v, _mm512_set1_epi64((long long)less)));
  }
};

// 16-bit formats rounded to nearest, ties to even.
OSM_INLINE void load2(const Half* p, F32& a, F32& b) { load2((const f16*)p, a, b); }
OSM_INLINE void load2(const Brain* p, F32& a, F32& b) { load2((const bf16*)p, a, b); }
OSM_INLINE __m512i pack2(F32 a, F32 b, Half) { return pack2(a, b, f16{}); }
OSM_INLINE __m512i even_bf16(__m512 a) {
  const __m512i u = _mm512_castps_si512(a);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), last);
}
OSM_INLINE __m512i pack2(F32 a, F32 b, Brain) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even_bf16(a.v), 16), even_bf16(b.v));
}
