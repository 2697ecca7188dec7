// Exact sums of attention's rows that lie one after another: merged, and read.
#include "attention.h"
#include "pool.h"

namespace osm {
namespace {

AttentionSums row_of(const AttentionKernels& kernels, const AttentionSums& first, int64_t r, int64_t dv) {
  return {(char*)first.level + r * kernels.size, first.bins + r * (1 + dv), first.a + r * (1 + dv) * kernels.slices,
          first.odd + r * dv};
}

// Calls work(row) for all rows, some at a time: of a few it is not worth waking a thread.
template <class Work>
void each_row(int64_t rows, int64_t dv, int threads, const Work& work) {
  const int64_t piece = 1 + 8192 / (1 + dv);
  parallel_for((rows + piece - 1) / piece, threads, [&](int64_t i) {
    const int64_t end = (i + 1) * piece < rows ? (i + 1) * piece : rows;
    for (int64_t r = i * piece; r < end; ++r) work(r);
  });
}

}  // namespace

void run_sums_merge(const Isa& isa, Dtype dtype, int threads, int64_t rows, int64_t dv, const AttentionSums& to,
                    const AttentionSums& from) {
  const AttentionKernels& kernels = attention_kernels_of(isa, dtype);
  each_row(rows, dv, threads,
           [&](int64_t r) { kernels.sums_merge(row_of(kernels, to, r, dv), row_of(kernels, from, r, dv), dv); });
}

void run_sums_read(const Isa& isa, Dtype dtype, int threads, int64_t rows, int64_t dv, const AttentionSums& from,
                   char* o, double* lse) {
  const AttentionKernels& kernels = attention_kernels_of(isa, dtype);
  each_row(rows, dv, threads,
           [&](int64_t r) { kernels.sums_read(row_of(kernels, from, r, dv), dv, o + r * dv * kernels.size, lse + r); });
}

}  // namespace osm
