// What all matrix products share: a tile of sums in registers, and rows of numbers from and to the formats they are
// stored in. Included inside the namespace of an instruction set, after simd/*_tile.h, which says how many registers
// keep sums (kTileRows x kTileVectors).

template <class V>
constexpr int kPanel = kTileVectors * V::W;

// C = A * B or C += A * B: rows x (vectors * W), B packed, n steps. A's rows lie `lda` apart; turned, its columns do.
template <class V, int rows, int vectors, bool more, bool turned>
OSM_INLINE void tile_product(const typename V::Scalar* a, int64_t lda, const typename V::Scalar* b, int64_t n,
                             typename V::Scalar* c, int64_t ldc) {
  V sum[rows][vectors];
  _Pragma("GCC unroll 16") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v)
      sum[r][v] = V::set(0);
  constexpr int64_t stride = (int64_t)kTileVectors * V::W;
  for (int64_t i = 0; i < n; ++i) {
    V bv[vectors];
    _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v) bv[v] = V::load(b + i * stride + v * V::W);
    _Pragma("GCC unroll 16") for (int r = 0; r < rows; ++r) {
      const auto av = V::set(turned ? a[i * lda + r] : a[r * lda + i]);
      _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v) sum[r][v] = fma(av, bv[v], sum[r][v]);
    }
  }
  _Pragma("GCC unroll 16") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v)
      store(c + r * ldc + v * V::W, more ? add(V::load(c + r * ldc + v * V::W), sum[r][v]) : sum[r][v]);
}

// ---- formats

OSM_INLINE float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

OSM_INLINE void widen_row(const float* p, int64_t n, float* to) { __builtin_memcpy(to, p, (size_t)n * 4); }
OSM_INLINE void widen_row(const double* p, int64_t n, double* to) { __builtin_memcpy(to, p, (size_t)n * 8); }
OSM_INLINE void widen_row(const bf16* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = as_float((uint32_t)p[i].bits << 16);
}
OSM_INLINE void widen_row(const f16* p, int64_t n, float* to) {
  F32 a, b;
  int64_t i = 0;
  for (; i + 2 * F32::W <= n; i += 2 * F32::W) load2(p + i, a, b), store2(to + i, a, b);
  if (i == n) return;
  float some[2 * F32::W];
  load_some(p + i, n - i, a, b), store2(some, a, b);
  for (int64_t j = i; j < n; ++j) to[j] = some[j - i];
}
OSM_INLINE void narrow_row(const float* p, int64_t n, float* to) { __builtin_memcpy(to, p, (size_t)n * 4); }
OSM_INLINE void narrow_row(const double* p, int64_t n, double* to) { __builtin_memcpy(to, p, (size_t)n * 8); }
OSM_INLINE void narrow_row(const float* p, int64_t n, bf16* to) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, p + i, 4);
    // To nearest, ties to even; a NaN keeps a bit.
    to[i].bits = p[i] != p[i] ? (uint16_t)0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
OSM_INLINE void narrow_row(const float* p, int64_t n, f16* to) {
  f16 some[2 * F32::W];
  float full[2 * F32::W] = {};
  for (int64_t i = 0; i < n; i += 2 * F32::W) {
    const int64_t here = n - i < 2 * F32::W ? n - i : 2 * F32::W;
    for (int64_t j = 0; j < here; ++j) full[j] = p[i + j];
    store2(some, F32::load(full), F32::load(full + F32::W));
    for (int64_t j = 0; j < here; ++j) to[i + j] = some[j];
  }
}
