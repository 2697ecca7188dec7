// What sums of slices need beside the vectors of neon.h. Included inside the namespace of the instruction set.

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
OSM_INLINE F32 min(F32 a, F32 b) { return {vminq_f32(a.v, b.v)}; }
OSM_INLINE F64 min(F64 a, F64 b) { return {vminq_f64(a.v, b.v)}; }
// y where y >= t, else 0
OSM_INLINE F32 at_least(F32 y, F32 t) { return {vbslq_f32(vcgeq_f32(y.v, t.v), y.v, vdupq_n_f32(0))}; }
OSM_INLINE F64 at_least(F64 y, F64 t) { return {vbslq_f64(vcgeq_f64(y.v, t.v), y.v, vdupq_n_f64(0))}; }
OSM_INLINE F32 either(F32 a, F32 b) {
  return {vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(a.v), vreinterpretq_u32_f32(b.v)))};
}
OSM_INLINE F64 either(F64 a, F64 b) {
  return {vreinterpretq_f64_u64(vorrq_u64(vreinterpretq_u64_f64(a.v), vreinterpretq_u64_f64(b.v)))};
}

// Sums of the bits of numbers, lane by lane.
template <class V>
struct BitSum;
template <>
struct BitSum<F32> {
  uint32x4_t v = vdupq_n_u32(0);
  OSM_INLINE void add(F32 a) { v = vaddq_u32(v, vreinterpretq_u32_f32(a.v)); }
  OSM_INLINE void less(uint32_t b) { v = vsubq_u32(v, vdupq_n_u32(b)); }
  OSM_INLINE F32 bits() const { return {vreinterpretq_f32_u32(v)}; }
  // The sum of what the lanes have beyond `less`, which is what counts modulo 2^32 or 2^64.
  OSM_INLINE int64_t beyond(uint32_t less) const {
    return vaddlvq_s32(vreinterpretq_s32_u32(vsubq_u32(v, vdupq_n_u32(less))));
  }
};
template <>
struct BitSum<F64> {
  uint64x2_t v = vdupq_n_u64(0);
  OSM_INLINE void add(F64 a) { v = vaddq_u64(v, vreinterpretq_u64_f64(a.v)); }
  OSM_INLINE void less(uint64_t b) { v = vsubq_u64(v, vdupq_n_u64(b)); }
  OSM_INLINE F64 bits() const { return {vreinterpretq_f64_u64(v)}; }
  OSM_INLINE int64_t beyond(uint64_t less) const { return (int64_t)vaddvq_u64(vsubq_u64(v, vdupq_n_u64(less))); }
};

// 16-bit formats rounded to nearest, ties to even.
OSM_INLINE void load2(const Half* p, F32& a, F32& b) { load2((const f16*)p, a, b); }
OSM_INLINE void load2(const Brain* p, F32& a, F32& b) { load2((const bf16*)p, a, b); }
OSM_INLINE void store2(Half* p, F32 a, F32 b) { store2((f16*)p, a, b); }
OSM_INLINE uint32x4_t even_bf16(float32x4_t a) {
  const uint32x4_t u = vreinterpretq_u32_f32(a);
  return vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1)));
}
OSM_INLINE void store2(Brain* p, F32 a, F32 b) {
  const uint32x4_t lo = vshrq_n_u32(even_bf16(a.v), 16), hi = vandq_u32(even_bf16(b.v), vdupq_n_u32(0xffff0000u));
  vst1q_u16((uint16_t*)p, vreinterpretq_u16_u32(vorrq_u32(lo, hi)));
}
