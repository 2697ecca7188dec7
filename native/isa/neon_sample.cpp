// Drawing for neon. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "../sample_table.h"

namespace osm::isa_neon {
namespace {

#ifdef OSM_OUTLINED  // under a sanitizer, whose checks make the inlined kernels take minutes to compile
#define OSM_INLINE inline
#define OSM_LAMBDA_INLINE
#else
#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
#endif
// clang-format off: each builds on the ones before it
#include "../simd/neon.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
OSM_INLINE void load_ordered(const float* p, F32& a) { a = F32::load(p); }
OSM_INLINE void load_ordered(const bf16* p, F32& a) {
  a.v = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t*)p), 16));
}
OSM_INLINE void load_ordered(const f16* p, F32& a) {
  a.v = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p)));
}
OSM_INLINE void spread(const uint64_t (&w)[8], F32 (&v)[8]) {
  const uint32x4_t top = vdupq_n_u32(0x4b000000u);
  for (int i = 0; i < 4; ++i) {
    const uint64x2_t pair = {w[2 * i], w[2 * i + 1]};
    const uint32x4_t both = vreinterpretq_u32_u64(pair);
    v[i].v = vreinterpretq_f32_u32(vorrq_u32(vandq_u32(both, vdupq_n_u32(0xffff)), top));
    v[i + 4].v = vreinterpretq_f32_u32(vorrq_u32(vshrq_n_u32(both, 16), top));
  }
}
OSM_INLINE bool any_less(const F32 (&a)[8], const F32 (&b)[8]) {
  uint32x4_t some = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) some = vorrq_u32(some, vcltq_f32(a[i].v, b[i].v));
  return vmaxvq_u32(some) != 0;
}
#include "../sample.inl.h"
// clang-format on

}  // namespace

extern const SampleKernels sample[kDtypes];
const SampleKernels sample[kDtypes] = {sample_kernels<float>(), sample_kernels<double>(), sample_kernels<f16>(),
                                       sample_kernels<bf16>()};

}  // namespace osm::isa_neon
