// One lane, plain C++: the fallback, and the place to read what the others do. Included inside a namespace.
//
// The float multiply-add goes through double: the product of two floats is exact there and the sum is rounded once more
// than a true fused operation would (a double rounding that changes nothing but ties). Doubles use libm's fma.

struct F64 {
  using Scalar = double;
  static constexpr int W = 1;
  double v;
  static F64 set(double x) { return {x}; }
  static F64 load(const double* p) { return {*p}; }
};
OSM_INLINE void store(double* p, F64 a) { *p = a.v; }
OSM_INLINE void stream(double* p, F64 a) { *p = a.v; }
OSM_INLINE F64 add(F64 a, F64 b) { return {a.v + b.v}; }
OSM_INLINE F64 sub(F64 a, F64 b) { return {a.v - b.v}; }
OSM_INLINE F64 mul(F64 a, F64 b) { return {a.v * b.v}; }
OSM_INLINE F64 div(F64 a, F64 b) { return {a.v / b.v}; }
OSM_INLINE F64 fma(F64 a, F64 b, F64 c) { return {__builtin_fma(a.v, b.v, c.v)}; }
OSM_INLINE F64 fms(F64 a, F64 b, F64 c) { return {__builtin_fma(a.v, b.v, -c.v)}; }
OSM_INLINE F64 max(F64 a, F64 b) { return {a.v > b.v ? a.v : b.v}; }  // b where either is NaN
// 2^n, where the low bits of z hold n and the bias of the exponent.
OSM_INLINE F64 power(F64 z) {
  uint64_t bits;
  __builtin_memcpy(&bits, &z.v, 8);
  bits <<= 52;
  __builtin_memcpy(&z.v, &bits, 8);
  return z;
}
OSM_INLINE F64 keep_unequal(F64 a, F64 x, F64 m) { return {x.v == m.v ? 0.0 : a.v}; }
OSM_INLINE int count_equal(F64 x, F64 m) { return x.v == m.v; }
OSM_INLINE uint32_t above(F64 x, F64 t) { return !(x.v <= t.v); }
OSM_INLINE F64 select(uint32_t mask, F64 a, F64 b) { return mask & 1 ? a : b; }
OSM_INLINE double hmax(F64 a) { return a.v; }
OSM_INLINE double hsum(F64 a) { return a.v; }
OSM_INLINE F64 exponent_of(F64 a) {
  uint64_t p;
  __builtin_memcpy(&p, &a.v, 8);
  return {(double)((int64_t)(p >> 52) - 1023)};
}

struct F32 {
  using Scalar = float;
  static constexpr int W = 1;
  float v;
  static F32 set(float x) { return {x}; }
  static F32 load(const float* p) { return {*p}; }
};
OSM_INLINE void store(float* p, F32 a) { *p = a.v; }
OSM_INLINE void stream(float* p, F32 a) { *p = a.v; }
OSM_INLINE F32 add(F32 a, F32 b) { return {a.v + b.v}; }
OSM_INLINE F32 sub(F32 a, F32 b) { return {a.v - b.v}; }
OSM_INLINE F32 mul(F32 a, F32 b) { return {a.v * b.v}; }
OSM_INLINE F32 div(F32 a, F32 b) { return {a.v / b.v}; }
OSM_INLINE F32 fma(F32 a, F32 b, F32 c) { return {(float)((double)a.v * (double)b.v + (double)c.v)}; }
OSM_INLINE F32 fms(F32 a, F32 b, F32 c) { return {(float)((double)a.v * (double)b.v - (double)c.v)}; }
OSM_INLINE F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
// The greater as integers: of numbers one of which is positive the greater, of negative ones the lesser.
OSM_INLINE F32 peak(F32 a, F32 b) {
  int32_t i, k;
  __builtin_memcpy(&i, &a.v, 4), __builtin_memcpy(&k, &b.v, 4);
  return i > k ? a : b;
}
OSM_INLINE F32 power(F32 z) {
  uint32_t bits;
  __builtin_memcpy(&bits, &z.v, 4);
  bits <<= 23;
  __builtin_memcpy(&z.v, &bits, 4);
  return z;
}
OSM_INLINE F32 keep_unequal(F32 a, F32 x, F32 m) { return {x.v == m.v ? 0.0f : a.v}; }
OSM_INLINE int count_equal(F32 x, F32 m) { return x.v == m.v; }
OSM_INLINE uint32_t above(F32 x, F32 t) { return !(x.v <= t.v); }
OSM_INLINE F32 select(uint32_t mask, F32 a, F32 b) { return mask & 1 ? a : b; }
OSM_INLINE float hmax(F32 a) { return a.v; }
// One float is one double: the upper half is empty.
OSM_INLINE F64 low_half(F32 a) { return {(double)a.v}; }
OSM_INLINE F64 high_half(F32) { return {0.0}; }
OSM_INLINE F32 narrow(F64 lo, F64) { return {(float)lo.v}; }

OSM_INLINE float from_bits(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
OSM_INLINE uint32_t to_bits(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
OSM_INLINE float widen(bf16 h) { return from_bits((uint32_t)h.bits << 16); }
OSM_INLINE float widen(f16 h) {
  uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, magnitude = h.bits & 0x7fff;
  if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  // A power of two brings normal and subnormal halves to their place alike.
  return from_bits(sign | to_bits(from_bits(magnitude << 13) * 0x1p112f));
}
OSM_INLINE bf16 round_to(float f, bf16) { return {(uint16_t)((to_bits(f) + 0x8000) >> 16)}; }
OSM_INLINE f16 round_to(float f, f16) {
  uint32_t u = to_bits(f), sign = u >> 16 & 0x8000;
  float a = from_bits(u & 0x7fffffff);
  if (a != a) return {(uint16_t)(sign | 0x7e00)};
  if (a >= 65520.0f) return {(uint16_t)(sign | 0x7c00)};
  if (a < 0x1p-14f) return {(uint16_t)(sign | (to_bits(a + 0.5f) - 0x3f000000u))};  // the sum rounds at 2^-24
  uint32_t r = to_bits(a) - 0x38000000u;
  return {(uint16_t)(sign | (r + 0xfff + (r >> 13 & 1)) >> 13)};
}
template <class T16>
OSM_INLINE void load2(const T16* p, F32& a, F32& b) {
  a.v = widen(p[0]);
  b.v = widen(p[1]);
}
template <class T16>
OSM_INLINE void store2(T16* p, F32 a, F32 b) {
  p[0] = round_to(a.v, T16{});
  p[1] = round_to(b.v, T16{});
}
template <class T16>
OSM_INLINE void stream2(T16* p, F32 a, F32 b) {
  store2(p, a, b);
}
OSM_INLINE void fence() {}
OSM_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
constexpr int kStreamAlign = 8;
constexpr bool kStreams = false;  // stream() is store(): no kernel of its own for it
OSM_INLINE void copy_line(const char* s, char* d, bool) { __builtin_memcpy(d, s, 64); }
OSM_INLINE uint64_t read_line(const char* s) {
  uint64_t total = 0;
  for (int i = 0; i < 64; i += 8) {
    uint64_t w;
    __builtin_memcpy(&w, s + i, 8);
    total += w;
  }
  return total;
}
