// Drawing for avx512. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../sample_table.h"

namespace osm::isa_avx512 {
namespace {

#ifdef OSM_OUTLINED  // under a sanitizer, whose checks make the inlined kernels take minutes to compile
#define OSM_INLINE inline
#define OSM_LAMBDA_INLINE
#else
#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
#endif
// clang-format off: each builds on the ones before it
#include "../simd/avx512.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
OSM_INLINE void load_ordered(const float* p, F32& a) { a = F32::load(p); }
OSM_INLINE void load_ordered(const bf16* p, F32& a) {
  a.v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
OSM_INLINE void load_ordered(const f16* p, F32& a) { a.v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
OSM_INLINE void spread(const uint64_t (&w)[8], F32 (&v)[2]) {
  const __m512i top = _mm512_set1_epi32(0x4b000000), both = _mm512_loadu_si512(w);
  v[0].v = _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, both, top));
  v[1].v = _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(both, 16), top));
}
OSM_INLINE bool any_less(const F32 (&a)[2], const F32 (&b)[2]) {
  const __mmask16 low = _mm512_cmplt_epi32_mask(_mm512_castps_si512(a[0].v), _mm512_castps_si512(b[0].v));
  return (low | _mm512_cmplt_epi32_mask(_mm512_castps_si512(a[1].v), _mm512_castps_si512(b[1].v))) != 0;
}
#include "../sample.inl.h"
// clang-format on

}  // namespace

extern const SampleKernels sample[kDtypes];
const SampleKernels sample[kDtypes] = {sample_kernels<float>(), sample_kernels<double>(), sample_kernels<f16>(),
                                       sample_kernels<bf16>()};

}  // namespace osm::isa_avx512
