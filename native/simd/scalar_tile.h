// Registers of the matrix products on scalar: how many keep sums, and square blocks turned. Included inside the
// namespace of the instruction set, after its vectors.

// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 2, kTileVectors = 4;
// A float multiply-add that rounds once: the exact product and c in double, whose sum is rounded to odd, so that
// rounding to float afterwards is as if there had been no rounding before.
struct Fused32 {
  using Scalar = float;
  static constexpr int W = 1;
  float v;
  static Fused32 set(float x) { return {x}; }
  static Fused32 load(const float* p) { return {*p}; }
};
OSM_INLINE void store(float* p, Fused32 a) { *p = a.v; }
OSM_INLINE Fused32 add(Fused32 a, Fused32 b) { return {a.v + b.v}; }
OSM_INLINE Fused32 fma(Fused32 a, Fused32 b, Fused32 c) {
  const double p = (double)a.v * (double)b.v, q = (double)c.v, sum = p + q, back = sum - p;
  const double rest = (p - (sum - back)) + (q - back);
  int64_t bits;
  __builtin_memcpy(&bits, &sum, 8);
  // NaN where the sum is no number: nothing to mend.
  if (!(rest != 0) || rest != rest || bits & 1) return {(float)sum};
  bits += (rest < 0) == (bits < 0) ? 1 : -1;
  double odd;
  __builtin_memcpy(&odd, &bits, 8);
  return {(float)odd};
}
template <class V>
OSM_INLINE void transpose(V (&)[1]) {}
// W elements from c on of each of W rows, as columns.
template <class V>
OSM_INLINE void load_turned(const typename V::Scalar* const* rows, int64_t c, V (&block)[V::W]) {
  _Pragma("GCC unroll 16") for (int i = 0; i < V::W; ++i) block[i] = V::load(rows[i] + c);
  transpose(block);
}
