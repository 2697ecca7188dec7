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
bool log16_usable();
void log16_rows(const RowsJob&);
RowState log16_state(const char* x, int64_t n);
void log16_write(Op op, const char* x, char* y, int64_t n, RowState st, double log_s, bool stream);
}  // namespace isa_avx512
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

const Kernels& kernels_of(const Isa& isa, Dtype dtype, bool fast) {
#ifdef OSM_X86
  if (fast && dtype == Dtype::bf16 && &isa == &isa_avx512::table) {
    static const bool usable = isa_avx512::log16_usable();
    static const Kernels log16 = [] {
      Kernels kernels = isa_avx512::table.kernels[(int)Dtype::bf16];
      kernels.rows = isa_avx512::log16_rows;
      kernels.softmax_state = isa_avx512::log16_state;
      kernels.write = isa_avx512::log16_write;
      return kernels;
    }();
    if (usable) return log16;
  }
#else
  (void)fast;
#endif
  return isa.kernels[(int)dtype];
}

}  // namespace osm
