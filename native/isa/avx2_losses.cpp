// Losses for avx2. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../losses_table.h"

namespace osm::isa_avx2 {
namespace {

#ifdef OSM_OUTLINED  // under a sanitizer, whose checks make the inlined kernels take minutes to compile
#define OSM_INLINE inline
#define OSM_LAMBDA_INLINE
#else
#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
#endif
// Six registers side by side hide more of the exponential's latency than four do, eight no longer fit.
#define OSM_TOGETHER 3
// clang-format off: each builds on the ones before it
#include "../simd/avx2.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
#include "../rows.inl.h"
#include "../tanh.inl.h"
#include "../losses.inl.h"
// clang-format on

}  // namespace

extern const LossKernels losses[kDtypes];
const LossKernels losses[kDtypes] = {loss_kernels<float>(), loss_kernels<double>(), loss_kernels<f16>(),
                                     loss_kernels<bf16>()};

}  // namespace osm::isa_avx2
