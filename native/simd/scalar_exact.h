// What sums of slices need beside the vectors of scalar.h. Included inside the namespace of the instruction set.
//
// Here multiply-adds are fused in float too, where scalar.h rounds twice.

// float16 and bfloat16 as this family loads and rounds them.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

constexpr bool kExactPrefetch = true;  // of the row that is summed

OSM_INLINE F32 fused(F32 a, F32 b, F32 c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
OSM_INLINE F64 fused(F64 a, F64 b, F64 c) { return {__builtin_fma(a.v, b.v, c.v)}; }
OSM_INLINE F32 fused_less(F32 a, F32 b, F32 c) { return {__builtin_fmaf(a.v, b.v, -c.v)}; }
OSM_INLINE F64 fused_less(F64 a, F64 b, F64 c) { return {__builtin_fma(a.v, b.v, -c.v)}; }
OSM_INLINE F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
OSM_INLINE F64 min(F64 a, F64 b) { return {a.v < b.v ? a.v : b.v}; }
// y where y >= t, else 0
OSM_INLINE F32 at_least(F32 y, F32 t) { return {y.v >= t.v ? y.v : 0.0f}; }
OSM_INLINE F64 at_least(F64 y, F64 t) { return {y.v >= t.v ? y.v : 0.0}; }
OSM_INLINE F32 either(F32 a, F32 b) { return {number_of(bits_of(a.v) | bits_of(b.v))}; }
OSM_INLINE F64 either(F64 a, F64 b) { return {number_of(bits_of(a.v) | bits_of(b.v))}; }

// Sums of the bits of numbers.
template <class V>
struct BitSum {
  typename Law<typename V::Scalar>::Bits v = 0;
  OSM_INLINE void add(V a) { v += bits_of(a.v); }
  OSM_INLINE void less(typename Law<typename V::Scalar>::Bits b) { v -= b; }
  OSM_INLINE V bits() const { return {number_of(v)}; }
  // What the sum has beyond `less`, which is what counts modulo 2^32 or 2^64.
  OSM_INLINE int64_t beyond(uint32_t less) const { return (int32_t)((uint32_t)v - less); }
  OSM_INLINE int64_t beyond(uint64_t less) const { return (int64_t)((uint64_t)v - less); }
};

// 16-bit formats, rounded to nearest, ties to even; without floats that a machine may flush.
OSM_INLINE float widen(Brain h) { return widen(bf16{h.bits}); }
OSM_INLINE float widen(Half h) {
  const int magnitude = h.bits & 0x7fff;
  if (magnitude >= 0x400) return widen(f16{h.bits});
  return h.bits >> 15 ? -(float)magnitude * 0x1p-24f : (float)magnitude * 0x1p-24f;
}
OSM_INLINE Half round_to(float x, Half) { return {round_to(x, f16{}).bits}; }
OSM_INLINE Brain round_to(float x, Brain) { return {(uint16_t)((to_bits(x) + 0x7fff + (to_bits(x) >> 16 & 1)) >> 16)}; }
