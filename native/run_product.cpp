// Matrix products: which block of C is made by whom. An item of work is a block of C over all of k: its thread packs a
// cut of B for the block's columns and then, some rows at a time, of A. Blocks may lie anywhere and go to any thread:
// an element's bits come from its row, its column and k alone.
#include "product.h"

#include <algorithm>
#include <cstring>

#include "attention_plan.h"
#include "pool.h"

namespace osm {
namespace isa_scalar {
extern const ProductKernels product[2];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const ProductKernels product[2];
}
namespace isa_avx512 {
extern const ProductKernels product[2];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const ProductKernels product[2];
}
#endif

const ProductKernels& product_kernels_of(const Isa& isa, Dtype dtype) {
  const ProductKernels* all = isa_scalar::product;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::product;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::product;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::product;
#endif
  return all[dtype == Dtype::f64];
}

namespace {

constexpr int64_t kBlockBytes = 256 << 10;  // of A, packed: half of a second-level cache
constexpr int64_t kMostCols = 768;          // of an item: with a cut of k some MiB of B, packed
constexpr int64_t kMostRows = 1536;
constexpr int64_t kRoundedRows = 384;  // of an item whose sums are rounded to 16 bits, and so kept apart
constexpr int64_t kLeastCols = 192;

int64_t pieces_of(int64_t n, int64_t most) { return std::max<int64_t>(1, (n + most - 1) / most); }

struct Plan {
  const ProductProblem& p;
  const ProductKernels& kernels;
  const bool rounded;
  int64_t cut;         // steps of k at a time
  int64_t rows, cols;  // of an item
  int64_t block;       // rows of A packed at a time

  explicit Plan(const ProductProblem& problem)
      : p(problem), kernels(product_kernels_of(*problem.isa, problem.c.dtype)), rounded(dtype_size(p.c.dtype) == 2) {
    const int64_t most = kMostSteps * 4 / kernels.size;
    cut = std::max<int64_t>(1, round_up((p.k + pieces_of(p.k, most) - 1) / pieces_of(p.k, most), 8));
    int64_t down = pieces_of(p.m, rounded ? kRoundedRows : kMostRows), across = pieces_of(p.n, kMostCols);
    // A few items for each thread, so that none waits long for the last.
    if (p.threads > 1 && down * across < 4 * p.threads)
      across = std::clamp<int64_t>((4 * p.threads + down - 1) / down, across, pieces_of(p.n, kLeastCols));
    rows = round_up((p.m + down - 1) / down, kernels.rows);
    cols = round_up((p.n + across - 1) / across, kernels.cols);
    block = std::max(kernels.rows, kBlockBytes / (cut * kernels.size) / kernels.rows * kernels.rows);
  }
  int64_t down() const { return pieces_of(p.m, rows); }
  int64_t across() const { return pieces_of(p.n, cols); }
};

void item(const Plan& plan, int64_t i0, int64_t j0) {
  const ProductProblem& p = plan.p;
  const ProductKernels& kernels = plan.kernels;
  const int64_t rows = std::min(plan.rows, p.m - i0), cols = std::min(plan.cols, p.n - j0), size = kernels.size;
  const int64_t block = std::min(plan.block, round_up(rows, kernels.rows));
  constexpr int64_t spare = 64;  // a vector is stored past the last strip
  const int64_t a_bytes = block * plan.cut * size + spare, b_bytes = plan.cols * plan.cut * size + spare;
  const int64_t c_bytes = plan.rounded ? rows * cols * size : 0;
  Carved scratch{thread_scratch(round_up(a_bytes, 64) + round_up(b_bytes, 64) + round_up(c_bytes, 64))};
  char *a = scratch.take(a_bytes), *b = scratch.take(b_bytes), *apart = scratch.take(c_bytes);
  char* const result = (char*)p.c.p + i0 * p.c.row + j0 * p.c.col;
  char* c = plan.rounded ? apart : result;
  const int64_t stride = plan.rounded ? cols : p.c.row / size;
  if (p.bias)
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(c + i * stride * size, (const char*)p.bias + j0 * size, (size_t)(cols * size));
  // Once without steps too: then C is 0, or what it was.
  for (int64_t l = 0; l < std::max<int64_t>(1, p.k); l += plan.cut) {
    const int64_t steps = std::min(plan.cut, p.k - l);
    kernels.pack_b[(int)p.b.dtype](p.b.p + j0 * p.b.col + l * p.b.row, p.b.col, p.b.row, cols, steps, b);
    for (int64_t i = 0; i < rows; i += block) {
      const int64_t here = std::min(block, rows - i);
      kernels.pack_a[(int)p.a.dtype](p.a.p + (i0 + i) * p.a.row + l * p.a.col, p.a.row, p.a.col, here, steps, a);
      (p.fused ? kernels.fused
               : kernels.block)({here, cols, steps, a, b, c + i * stride * size, stride, l > 0 || p.add || p.bias});
    }
  }
  if (plan.rounded)
    for (int64_t i = 0; i < rows; ++i)
      kernels.narrow[(int)p.c.dtype](c + i * stride * size, cols, result + i * p.c.row);
}

}  // namespace

void run_product(const ProductProblem& problem) {
  if (problem.m <= 0 || problem.n <= 0) return;
  const Plan plan(problem);
  const int64_t down = plan.down();
  parallel_for(down * plan.across(), problem.threads,
               [&](int64_t i) { item(plan, i % down * plan.rows, i / down * plan.cols); });
}

}  // namespace osm
