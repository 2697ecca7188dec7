// Drawing for scalar. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <stddef.h>
#include <stdint.h>

#include "../sample_table.h"

namespace osm::isa_scalar {
namespace {

#ifdef OSM_OUTLINED  // under a sanitizer, whose checks make the inlined kernels take minutes to compile
#define OSM_INLINE inline
#define OSM_LAMBDA_INLINE
#else
#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
#endif
// clang-format off: each builds on the ones before it
#include "../simd/scalar.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
template <class T>
OSM_INLINE void load_ordered(const T* p, F32& a) {
  a.v = widen(*p);
}
OSM_INLINE void load_ordered(const float* p, F32& a) { a.v = *p; }
OSM_INLINE void spread(const uint64_t (&words)[8], F32 (&v)[32]) {
  for (int t = 0; t < 32; ++t) v[t].v = from_bits(0x4b000000u | sample_leading(words, t));
}
template <int n>
OSM_INLINE bool any_less(const F32 (&a)[n], const F32 (&b)[n]) {
  int some = 0;
  for (int i = 0; i < n; ++i) some |= a[i].v < b[i].v;
  return some;
}
#include "../sample.inl.h"
// clang-format on

}  // namespace

extern const SampleKernels sample[kDtypes];
const SampleKernels sample[kDtypes] = {sample_kernels<float>(), sample_kernels<double>(), sample_kernels<f16>(),
                                       sample_kernels<bf16>()};

}  // namespace osm::isa_scalar
