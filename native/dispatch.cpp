#include <cstring>

#include "table.h"

namespace osm {
namespace isa_scalar {
extern const Isa table;
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const Isa table;
}
namespace isa_avx512 {
extern const Isa table;
}
static const Isa* const kAll[] = {&isa_avx512::table, &isa_avx2::table, &isa_scalar::table};
#elif defined(OSM_ARM)
namespace isa_neon {
extern const Isa table;
}
static const Isa* const kAll[] = {&isa_neon::table, &isa_scalar::table};
#else
static const Isa* const kAll[] = {&isa_scalar::table};
#endif

const Isa* const* all_isas(int* count) {
  *count = (int)(sizeof(kAll) / sizeof(kAll[0]));
  return kAll;
}

const Isa* find_isa(const char* name) {
  for (const Isa* isa : kAll)
    if (!std::strcmp(isa->name, name)) return isa->usable() ? isa : nullptr;
  return nullptr;
}

}  // namespace osm
