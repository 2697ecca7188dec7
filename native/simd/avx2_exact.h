// What sums of slices need beside the vectors of avx2.h. Included inside the namespace of the instruction set.

// float16 and bfloat16 as this family loads and rounds them.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

constexpr bool kExactPrefetch = false;  // arithmetic takes longer than memory: prefetches are in its way

OSM_INLINE F32 fused(F32 a, F32 b, F32 c) { return fma(a, b, c); }
OSM_INLINE F64 fused(F64 a, F64 b, F64 c) { return fma(a, b, c); }
OSM_INLINE F32 fused_less(F32 a, F32 b, F32 c) { return fms(a, b, c); }
OSM_INLINE F64 fused_less(F64 a, F64 b, F64 c) { return fms(a, b, c); }
OSM_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
OSM_INLINE F64 min(F64 a, F64 b) { return {_mm256_min_pd(a.v, b.v)}; }
// y where y >= t, else 0
OSM_INLINE F32 at_least(F32 y, F32 t) { return {_mm256_and_ps(y.v, _mm256_cmp_ps(y.v, t.v, _CMP_GE_OQ))}; }
OSM_INLINE F64 at_least(F64 y, F64 t) { return {_mm256_and_pd(y.v, _mm256_cmp_pd(y.v, t.v, _CMP_GE_OQ))}; }
OSM_INLINE F32 either(F32 a, F32 b) { return {_mm256_or_ps(a.v, b.v)}; }
OSM_INLINE F64 either(F64 a, F64 b) { return {_mm256_or_pd(a.v, b.v)}; }

// Sums of the bits of numbers, lane by lane.
template <class V>
struct BitSum {
  __m256i v = _mm256_setzero_si256();
  OSM_INLINE void add(F32 a) { v = _mm256_add_epi32(v, _mm256_castps_si256(a.v)); }
  OSM_INLINE void add(F64 a) { v = _mm256_add_epi64(v, _mm256_castpd_si256(a.v)); }
  OSM_INLINE void less(uint32_t b) { v = _mm256_sub_epi32(v, _mm256_set1_epi32((int)b)); }
  OSM_INLINE void less(uint64_t b) { v = _mm256_sub_epi64(v, _mm256_set1_epi64x((long long)b)); }
  OSM_INLINE V bits() const {
    if constexpr (sizeof(typename V::Scalar) == 4)
      return {_mm256_castsi256_ps(v)};
    else
      return {_mm256_castsi256_pd(v)};
  }
  // The sum of what the lanes have beyond `less`, which is what counts modulo 2^32 or 2^64.
  OSM_INLINE int64_t beyond(uint32_t less) const {
    const __m256i s = _mm256_sub_epi32(v, _mm256_set1_epi32((int)less));
    const __m256i lo = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(s));
    return across(_mm256_add_epi64(lo, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(s, 1))));
  }
  OSM_INLINE int64_t beyond(uint64_t less) const {
    return across(_mm256_sub_epi64(v, _mm256_set1_epi64x((long long)less)));
  }
  static OSM_INLINE int64_t across(__m256i s) {
    const __m128i h = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    return _mm_cvtsi128_si64(_mm_add_epi64(h, _mm_unpackhi_epi64(h, h)));
  }
};

// 16-bit formats rounded to nearest, ties to even.
OSM_INLINE void load2(const Half* p, F32& a, F32& b) { load2((const f16*)p, a, b); }
OSM_INLINE void load2(const Brain* p, F32& a, F32& b) { load2((const bf16*)p, a, b); }
OSM_INLINE __m256i pack2(F32 a, F32 b, Half) { return pack2(a, b, f16{}); }
OSM_INLINE __m256i even_bf16(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), last);
}
OSM_INLINE __m256i pack2(F32 a, F32 b, Brain) {
  return _mm256_blend_epi16(_mm256_srli_epi32(even_bf16(a.v), 16), even_bf16(b.v), 0xaa);
}
