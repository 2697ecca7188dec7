// Sums whose bits depend on the elements alone, for avx2. No header of the standard library but the C ones: an inline
// template kept from this object would carry its instructions to CPUs that lack them.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../exact_table.h"

namespace osm::isa_avx2 {
namespace {

#define OSM_TOGETHER 3  // 1, 2, 3 and 4 pairs tried: 3 by a little
#ifdef OSM_OUTLINED     // under a sanitizer, whose checks make the inlined kernels take minutes to compile
#define OSM_INLINE inline
#define OSM_LAMBDA_INLINE
#else
#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
#endif
// clang-format off: each builds on the ones before it
#include "../simd/avx2.h"
#include "../simd/avx2_exact.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
#include "../exact.inl.h"
#include "../exact_states.inl.h"
#include "../exact_rows.inl.h"
// clang-format on

}  // namespace

extern const ExactKernels exact[kDtypes];
const ExactKernels exact[kDtypes] = {exact_kernels<float>(), exact_kernels<double>(), exact_kernels<Half>(),
                                     exact_kernels<Brain>()};

}  // namespace osm::isa_avx2
