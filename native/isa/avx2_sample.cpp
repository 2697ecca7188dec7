// Drawing for avx2. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../sample_table.h"

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
OSM_INLINE void load_ordered(const float* p, F32& a) { a = F32::load(p); }
OSM_INLINE void load_ordered(const bf16* p, F32& a) {
  a.v = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
OSM_INLINE void load_ordered(const f16* p, F32& a) { a.v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
OSM_INLINE void spread(const uint64_t (&w)[8], F32 (&v)[4]) {
  const __m256i top = _mm256_set1_epi32(0x4b000000);
  for (int i = 0; i < 2; ++i) {
    const __m256i both = _mm256_load_si256((const __m256i*)(w + 4 * i));
    v[i].v = _mm256_castsi256_ps(_mm256_blend_epi16(both, top, 0xaa));
    v[i + 2].v = _mm256_castsi256_ps(_mm256_or_si256(_mm256_srli_epi32(both, 16), top));
  }
}
// By integers, on other ports than the arithmetic: a - b has its sign bit set where a is less.
OSM_INLINE bool any_less(const F32 (&a)[4], const F32 (&b)[4]) {
  __m256i d[4];
  for (int i = 0; i < 4; ++i) d[i] = _mm256_sub_epi32(_mm256_castps_si256(a[i].v), _mm256_castps_si256(b[i].v));
  const __m256i all = _mm256_or_si256(_mm256_or_si256(d[0], d[1]), _mm256_or_si256(d[2], d[3]));
  return _mm256_movemask_ps(_mm256_castsi256_ps(all)) != 0;
}
#include "../sample.inl.h"
// clang-format on

}  // namespace

extern const SampleKernels sample[kDtypes];
const SampleKernels sample[kDtypes] = {sample_kernels<float>(), sample_kernels<double>(), sample_kernels<f16>(),
                                       sample_kernels<bf16>()};

}  // namespace osm::isa_avx2
