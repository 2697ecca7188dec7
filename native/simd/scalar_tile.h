// Registers of the matrix products on scalar: how many keep sums, and square blocks turned. Included inside the
// namespace of the instruction set, after its vectors.

// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 2, kTileVectors = 4;
template <class V>
OSM_INLINE void transpose(V (&)[1]) {}
// W elements from c on of each of W rows, as columns.
template <class V>
OSM_INLINE void load_turned(const typename V::Scalar* const* rows, int64_t c, V (&block)[V::W]) {
  _Pragma("GCC unroll 16") for (int i = 0; i < V::W; ++i) block[i] = V::load(rows[i] + c);
  transpose(block);
}
