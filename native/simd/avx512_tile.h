// Registers of the matrix products on avx512: how many keep sums, and square blocks turned. Included inside the
// namespace of the instruction set, after its vectors.

// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 6, kTileVectors = 4;
// A float multiply-add that rounds once.
using Fused32 = F32;
// Square blocks of registers, rows to columns: at each step what lies off the diagonal of blocks is exchanged.
OSM_INLINE void transpose(F64 (&r)[8]) {
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) if (!(i & 1)) {
    const __m512d a = r[i].v, b = r[i + 1].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
    r[i + 1].v = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) if (!(i & 2)) {
    const __m512d a = r[i].v, b = r[i + 2].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 2].v = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) if (!(i & 4)) {
    const __m512d a = r[i].v, b = r[i + 4].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4].v = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
OSM_INLINE void transpose(F32 (&r)[16]) {
  _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) if (!(i & 1)) {
    const __m512 a = r[i].v, b = r[i + 1].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    r[i + 1].v = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
  _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) if (!(i & 2)) {
    const __m512 a = r[i].v, b = r[i + 2].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    r[i + 2].v = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) if (!(i & 4)) {
    const __m512 a = r[i].v, b = r[i + 4].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    r[i + 4].v = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) if (!(i & 8)) {
    const __m512 a = r[i].v, b = r[i + 8].v;
    r[i].v = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    r[i + 8].v = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}
// W elements from c on of each of W rows, as columns.
template <class V>
OSM_INLINE void load_turned(const typename V::Scalar* const* rows, int64_t c, V (&block)[V::W]) {
  _Pragma("GCC unroll 16") for (int i = 0; i < V::W; ++i) block[i] = V::load(rows[i] + c);
  transpose(block);
}
