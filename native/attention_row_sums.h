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

// Sums of some rows.
class SumsBlock {
 public:
  // Of `count` rows that saw nothing.
  void reset(const AttentionKernels& kernels, int64_t count, int64_t dv) {
    n_ = 1 + dv, size_ = kernels.size, slices_ = kernels.slices;
    levels_.resize((size_t)(count * size_));
    bins_.assign((size_t)(count * n_), kNoBin);
    a_.assign((size_t)(count * n_ * slices_), 0);
    odd_.assign((size_t)(count * n_), 0);
    const auto nothing = (float)kEmpty;
    for (int64_t r = 0; r < count; ++r)
      std::memcpy(&levels_[(size_t)(r * size_)], size_ == 4 ? (const void*)&nothing : &kEmpty, (size_t)size_);
  }
  AttentionSums at(int64_t r) {
    return {&levels_[(size_t)(r * size_)], &bins_[(size_t)(r * n_)], &a_[(size_t)(r * n_ * slices_)],
            &odd_[(size_t)(r * n_)]};
  }

 private:
  int64_t n_ = 0, size_ = 0, slices_ = 0;
  std::vector<char> levels_;
  std::vector<int32_t> bins_;
  std::vector<int64_t> a_;
  std::vector<uint8_t> odd_;
};

}  // namespace osm
