// Registers of the matrix products on neon: how many keep sums, and square blocks turned. Included inside the namespace
// of the instruction set, after its vectors.

// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 6, kTileVectors = 4;
// A float multiply-add that rounds once.
using Fused32 = F32;
// Square blocks of registers, rows to columns.
OSM_INLINE void transpose(F64 (&r)[2]) {
  const float64x2_t a = vtrn1q_f64(r[0].v, r[1].v), b = vtrn2q_f64(r[0].v, r[1].v);
  r[0].v = a, r[1].v = b;
}
OSM_INLINE void transpose(F32 (&r)[4]) {
  const float32x4_t a = vtrn1q_f32(r[0].v, r[1].v), b = vtrn2q_f32(r[0].v, r[1].v);
  const float32x4_t c = vtrn1q_f32(r[2].v, r[3].v), d = vtrn2q_f32(r[2].v, r[3].v);
  const auto low = [](float32x4_t x, float32x4_t y) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  };
  const auto high = [](float32x4_t x, float32x4_t y) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  };
  r[0].v = low(a, c), r[1].v = low(b, d), r[2].v = high(a, c), r[3].v = high(b, d);
}
// W elements from c on of each of W rows, as columns.
template <class V>
OSM_INLINE void load_turned(const typename V::Scalar* const* rows, int64_t c, V (&block)[V::W]) {
  _Pragma("GCC unroll 16") for (int i = 0; i < V::W; ++i) block[i] = V::load(rows[i] + c);
  transpose(block);
}
