// Where the exact sums of attention's rows lie: in the caller's arrays, or in blocks of a thread's own.
#pragma once
#include <vector>

#include "attention_plan.h"

namespace osm {

// Where the sums of a row lie in the caller's arrays.
inline AttentionSums sums_of(const AttentionProblem& p, const HeadRows& rows, int64_t row) {
  return {(void*)rows.at(p.level, row), (int32_t*)rows.at(p.bins, row), (int64_t*)rows.at(p.a, row),
          (uint8_t*)rows.at(p.odd, row)};
}

// Sums of `count` rows that saw nothing.
class SumsBlock {
 public:
  SumsBlock(const AttentionKernels& kernels, int64_t count, int64_t dv)
      : n_(1 + dv),
        size_(kernels.size),
        slices_(kernels.slices),
        levels_((size_t)(count * size_)),
        bins_((size_t)(count * n_), kNoBin),
        a_((size_t)(count * n_ * slices_)),
        odd_((size_t)(count * n_)) {
    for (int64_t r = 0; r < count; ++r)
      if (size_ == 4)
        ((float*)levels_.data())[r] = (float)kEmpty;
      else
        ((double*)levels_.data())[r] = kEmpty;
  }
  AttentionSums at(int64_t r) const {
    return {(void*)(levels_.data() + r * size_), (int32_t*)bins_.data() + r * n_,
            (int64_t*)a_.data() + r * n_ * slices_, (uint8_t*)odd_.data() + r * n_};
  }

 private:
  int64_t n_, size_, slices_;
  std::vector<char> levels_;
  std::vector<int32_t> bins_;
  std::vector<int64_t> a_;
  std::vector<uint8_t> odd_;
};

}  // namespace osm
