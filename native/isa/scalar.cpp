// The kernels for scalar. No header of the standard library but the C ones: an inline template kept from this object
// would carry its instructions to CPUs that lack them.
#include <stddef.h>
#include <stdint.h>

#include "../table.h"

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
#include "../rows.inl.h"
#include "../batch.inl.h"
#include "../short.inl.h"
#include "../lanes.inl.h"
#include "../cols.inl.h"
#include "../extra.inl.h"
// clang-format on

bool usable() { return true; }

}  // namespace

extern const Isa table;
const Isa table = {
    "scalar",   usable,     {kernels<float>(), kernels<double>(), kernels<f16>(), kernels<bf16>()}, finish, exp_f32,
    probe_read, probe_copy,
};

}  // namespace osm::isa_scalar
