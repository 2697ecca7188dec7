// Attention for avx2. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../attention_table.h"

namespace osm::isa_avx2 {
namespace {

#ifdef OSM_OUTLINED  // under a sanitizer, whose checks make the inlined kernels take minutes to compile
#define OSM_INLINE inline
#define OSM_LAMBDA_INLINE
#else
#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
#endif
// clang-format off: each builds on the ones before it
#include "../simd/avx2.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 6, kTileVectors = 2;
OSM_INLINE F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
// Square blocks of registers, rows to columns.
OSM_INLINE void transpose(F64 (&r)[4]) {
  const __m256d a = _mm256_unpacklo_pd(r[0].v, r[1].v), b = _mm256_unpackhi_pd(r[0].v, r[1].v);
  const __m256d c = _mm256_unpacklo_pd(r[2].v, r[3].v), d = _mm256_unpackhi_pd(r[2].v, r[3].v);
  r[0].v = _mm256_permute2f128_pd(a, c, 0x20), r[1].v = _mm256_permute2f128_pd(b, d, 0x20);
  r[2].v = _mm256_permute2f128_pd(a, c, 0x31), r[3].v = _mm256_permute2f128_pd(b, d, 0x31);
}
OSM_INLINE void transpose(F32 (&r)[8]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2)
    a[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v), a[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44), b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44), b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}
#include "../attention_pack.inl.h"
#include "../attention_scores.inl.h"
#include "../attention_gradient.inl.h"
#include "../attention.inl.h"
// clang-format on

}  // namespace

extern const AttentionKernels attention[kDtypes];
const AttentionKernels attention[kDtypes] = {attention_kernels<float>(), attention_kernels<double>(),
                                             attention_kernels<f16>(), attention_kernels<bf16>()};

}  // namespace osm::isa_avx2
