// Attention for avx512. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../attention_table.h"

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
#include "../simd/avx512_tile.h"

#include "../tile.inl.h"
#include "../attention_pack.inl.h"
#include "../tanh.inl.h"
#include "../attention_scores.inl.h"
#include "../attention_gradient.inl.h"
#include "../attention_sums.inl.h"
#include "../attention.inl.h"
// clang-format on

}  // namespace

extern const AttentionKernels attention[kDtypes];
const AttentionKernels attention[kDtypes] = {attention_kernels<float>(), attention_kernels<double>(),
                                             attention_kernels<f16>(), attention_kernels<bf16>()};

}  // namespace osm::isa_avx512
