// Registers of the matrix products on avx2: how many keep sums, and square blocks turned. Included inside the namespace
// of the instruction set, after its vectors.

// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 6, kTileVectors = 2;
// A float multiply-add that rounds once.
using Fused32 = F32;
// Square blocks of registers, rows to columns.
OSM_INLINE void transpose(F64 (&r)[4]) {
  const __m256d a = _mm256_unpacklo_pd(r[0].v, r[1].v), b = _mm256_unpackhi_pd(r[0].v, r[1].v);
  const __m256d c = _mm256_unpacklo_pd(r[2].v, r[3].v), d = _mm256_unpackhi_pd(r[2].v, r[3].v);
  r[0].v = _mm256_permute2f128_pd(a, c, 0x20), r[1].v = _mm256_permute2f128_pd(b, d, 0x20);
  r[2].v = _mm256_permute2f128_pd(a, c, 0x31), r[3].v = _mm256_permute2f128_pd(b, d, 0x31);
}
OSM_INLINE void load_turned(const double* const* rows, int64_t c, F64 (&block)[4]) {
  for (int i = 0; i < 4; ++i) block[i] = F64::load(rows[i] + c);
  transpose(block);
}
// Halves come together as they are loaded, so that nothing crosses the middle of a register afterwards.
OSM_INLINE void load_turned(const float* const* rows, int64_t c, F32 (&block)[8]) {
  const auto halves = [&](int i, int64_t at) OSM_LAMBDA_INLINE {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + at)), _mm_loadu_ps(rows[i + 4] + at), 1);
  };
  for (int h = 0; h < 2; ++h) {
    const __m256 r0 = halves(0, c + 4 * h), r1 = halves(1, c + 4 * h), r2 = halves(2, c + 4 * h),
                 r3 = halves(3, c + 4 * h);
    const __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
    const __m256 d = _mm256_unpacklo_ps(r2, r3), e = _mm256_unpackhi_ps(r2, r3);
    block[4 * h].v = _mm256_shuffle_ps(a, d, 0x44), block[4 * h + 1].v = _mm256_shuffle_ps(a, d, 0xee);
    block[4 * h + 2].v = _mm256_shuffle_ps(b, e, 0x44), block[4 * h + 3].v = _mm256_shuffle_ps(b, e, 0xee);
  }
}
