// Attention for scalar. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <stddef.h>
#include <stdint.h>

#include "../attention_table.h"

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
// Accumulators of the small matrix products: kTileRows x kTileVectors registers, with room for the factors beside them.
constexpr int kTileRows = 2, kTileVectors = 4;
template <class V>
OSM_INLINE void transpose(V (&)[1]) {}
// W elements from c on of each of W rows, as columns.
template <class V>
OSM_INLINE void load_turned(const typename V::Scalar* const* rows, int64_t c, V (&block)[V::W]) {
  _Pragma("GCC unroll 16") for (int i = 0; i < V::W; ++i) block[i] = V::load(rows[i] + c);
  transpose(block);
}
#include "../attention_pack.inl.h"
#include "../tanh.inl.h"
#include "../attention_scores.inl.h"
#include "../attention_gradient.inl.h"
#include "../attention.inl.h"
// clang-format on

}  // namespace

extern const AttentionKernels attention[kDtypes];
const AttentionKernels attention[kDtypes] = {attention_kernels<float>(), attention_kernels<double>(),
                                             attention_kernels<f16>(), attention_kernels<bf16>()};

}  // namespace osm::isa_scalar
