// NEON (AArch64): 4 floats or 2 doubles a register. Included inside the namespace of the instruction set.

struct F64 {
  using Scalar = double;
  static constexpr int W = 2;
  float64x2_t v;
  static F64 set(double x) { return {vdupq_n_f64(x)}; }
  static F64 load(const double* p) { return {vld1q_f64(p)}; }
};
OSM_INLINE void store(double* p, F64 a) { vst1q_f64(p, a.v); }
OSM_INLINE void stream(double* p, F64 a) { vst1q_f64(p, a.v); }
OSM_INLINE F64 add(F64 a, F64 b) { return {vaddq_f64(a.v, b.v)}; }
OSM_INLINE F64 sub(F64 a, F64 b) { return {vsubq_f64(a.v, b.v)}; }
OSM_INLINE F64 mul(F64 a, F64 b) { return {vmulq_f64(a.v, b.v)}; }
OSM_INLINE F64 div(F64 a, F64 b) { return {vdivq_f64(a.v, b.v)}; }
OSM_INLINE F64 fma(F64 a, F64 b, F64 c) { return {vfmaq_f64(c.v, a.v, b.v)}; }
OSM_INLINE F64 fms(F64 a, F64 b, F64 c) { return {vnegq_f64(vfmsq_f64(c.v, a.v, b.v))}; }
OSM_INLINE F64 max(F64 a, F64 b) { return {vbslq_f64(vcgtq_f64(a.v, b.v), a.v, b.v)}; }  // b where either is NaN
// 2^n, where the low bits of z hold n and the bias of the exponent.
OSM_INLINE F64 power(F64 z) { return {vreinterpretq_f64_s64(vshlq_n_s64(vreinterpretq_s64_f64(z.v), 52))}; }
OSM_INLINE F64 keep_unequal(F64 a, F64 x, F64 m) { return {vbslq_f64(vceqq_f64(x.v, m.v), vdupq_n_f64(0), a.v)}; }
OSM_INLINE int count_equal(F64 x, F64 m) {
  uint64x2_t e = vceqq_f64(x.v, m.v);
  return (int)((vgetq_lane_u64(e, 0) & 1) + (vgetq_lane_u64(e, 1) & 1));
}
OSM_INLINE uint32_t above(F64 x, F64 t) {
  uint64x2_t e = vcleq_f64(x.v, t.v);
  return (vgetq_lane_u64(e, 0) ? 0u : 1u) | (vgetq_lane_u64(e, 1) ? 0u : 2u);
}
OSM_INLINE F64 select(uint32_t mask, F64 a, F64 b) {
  const uint64x2_t on = {mask & 1 ? ~0ull : 0ull, mask & 2 ? ~0ull : 0ull};
  return {vbslq_f64(on, a.v, b.v)};
}
OSM_INLINE double hmax(F64 a) { return vmaxvq_f64(a.v); }
OSM_INLINE double hsum(F64 a) { return vaddvq_f64(a.v); }
OSM_INLINE F64 exponent_of(F64 a) {
  uint64x2_t biased = vshrq_n_u64(vreinterpretq_u64_f64(a.v), 52);
  return {vsubq_f64(vcvtq_f64_u64(biased), vdupq_n_f64(1023))};
}

struct F32 {
  using Scalar = float;
  static constexpr int W = 4;
  float32x4_t v;
  static F32 set(float x) { return {vdupq_n_f32(x)}; }
  static F32 load(const float* p) { return {vld1q_f32(p)}; }
};
OSM_INLINE void store(float* p, F32 a) { vst1q_f32(p, a.v); }
OSM_INLINE void stream(float* p, F32 a) { vst1q_f32(p, a.v); }
OSM_INLINE F32 add(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
OSM_INLINE F32 sub(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
OSM_INLINE F32 mul(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
OSM_INLINE F32 div(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
OSM_INLINE F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
OSM_INLINE F32 fms(F32 a, F32 b, F32 c) { return {vnegq_f32(vfmsq_f32(c.v, a.v, b.v))}; }
OSM_INLINE F32 max(F32 a, F32 b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
// The greater as integers: of numbers one of which is positive the greater, of negative ones the lesser.
OSM_INLINE F32 peak(F32 a, F32 b) {
  return {vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a.v), vreinterpretq_s32_f32(b.v)))};
}
OSM_INLINE F32 power(F32 z) { return {vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(z.v), 23))}; }
OSM_INLINE F32 keep_unequal(F32 a, F32 x, F32 m) { return {vbslq_f32(vceqq_f32(x.v, m.v), vdupq_n_f32(0), a.v)}; }
OSM_INLINE int count_equal(F32 x, F32 m) { return (int)vaddvq_u32(vshrq_n_u32(vceqq_f32(x.v, m.v), 31)); }
OSM_INLINE uint32_t above(F32 x, F32 t) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vaddvq_u32(vbicq_u32(bit, vcleq_f32(x.v, t.v)));
}
OSM_INLINE F32 select(uint32_t mask, F32 a, F32 b) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return {vbslq_f32(vtstq_u32(vdupq_n_u32(mask), bit), a.v, b.v)};
}
OSM_INLINE float hmax(F32 a) { return vmaxvq_f32(a.v); }
OSM_INLINE F64 low_half(F32 a) { return {vcvt_f64_f32(vget_low_f32(a.v))}; }
OSM_INLINE F64 high_half(F32 a) { return {vcvt_high_f64_f32(a.v)}; }
OSM_INLINE F32 narrow(F64 lo, F64 hi) { return {vcvt_high_f32_f64(vcvt_f32_f64(lo.v), hi.v)}; }

OSM_INLINE void load2(const bf16* p, F32& a, F32& b) {  // even and odd places, see avx512.h
  uint32x4_t u = vreinterpretq_u32_u16(vld1q_u16((const uint16_t*)p));
  a.v = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
  b.v = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)));
}
OSM_INLINE uint32x4_t round_bf16(float32x4_t a) { return vaddq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x8000)); }
OSM_INLINE void store2(bf16* p, F32 a, F32 b) {
  uint32x4_t lo = vshrq_n_u32(round_bf16(a.v), 16), hi = vandq_u32(round_bf16(b.v), vdupq_n_u32(0xffff0000u));
  vst1q_u16((uint16_t*)p, vreinterpretq_u16_u32(vorrq_u32(lo, hi)));
}
OSM_INLINE void load2(const f16* p, F32& a, F32& b) {
  float16x8_t h = vreinterpretq_f16_u16(vld1q_u16((const uint16_t*)p));
  a.v = vcvt_f32_f16(vget_low_f16(h));
  b.v = vcvt_high_f32_f16(h);
}
OSM_INLINE void store2(f16* p, F32 a, F32 b) {
  float16x8_t h = vcvt_high_f16_f32(vcvt_f16_f32(a.v), b.v);
  vst1q_u16((uint16_t*)p, vreinterpretq_u16_f16(h));
}
template <class T16>
OSM_INLINE void stream2(T16* p, F32 a, F32 b) {
  store2(p, a, b);
}
OSM_INLINE void fence() {}
OSM_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
constexpr int kStreamAlign = 16;
constexpr bool kStreams = true;
OSM_INLINE void copy_line(const char* s, char* d, bool) { __builtin_memcpy(d, s, 64); }
OSM_INLINE uint64_t read_line(const char* s) {
  uint64x2_t v = vld1q_u64((const uint64_t*)s);
  for (int i = 16; i < 64; i += 16) v = veorq_u64(v, vld1q_u64((const uint64_t*)(s + i)));
  return vgetq_lane_u64(v, 0);
}
