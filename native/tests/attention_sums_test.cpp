// Exact sums of attention: partials in two orders and over three states, by every instruction set; one digest of all
// that comes out, which is the law's whatever the machine.
#include <cmath>

#include "../attention_table.h"
#include "truth.h"

namespace tests {
namespace {

using osm::AttentionKernels;
using osm::AttentionSums;

constexpr int64_t kFeatures = 37, kEntries = 1 + kFeatures;
constexpr int kRows = 40, kParts = 30;

class Numbers {  // xorshift
 public:
  uint64_t next() {
    s_ ^= s_ << 13, s_ ^= s_ >> 7, s_ ^= s_ << 17;
    return s_;
  }
  double uniform() { return (double)(next() >> 11) * 0x1p-53; }

 private:
  uint64_t s_ = 88172645463325252u;
};

struct Digest {  // FNV-1a
  uint64_t value = 1469598103934665603u;
  void add(const void* p, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) value = (value ^ ((const uint8_t*)p)[i]) * 1099511628211u;
  }
};

template <class S>
struct Part {
  double pivot = 0, weight = 0;
  std::vector<S> o;

  // Some saw nothing, some lie past what has a grid, exponents are wide apart.
  Part(Numbers& random, int row) : o((size_t)kFeatures) {
    const uint64_t kind = random.next() % 12;
    const double spread = (random.uniform() - 0.5) * (kind == 2 ? 2000 : 60);
    pivot = kind == 0 ? -HUGE_VAL : kind == 1 ? (row % 3 ? 3 : 1e10) : (double)(S)spread;
    weight = kind == 0 ? 0 : 1 + 500 * random.uniform();
    for (S& x : o) {
      const double size = std::ldexp(1.0, (int)(random.next() % 120) - 60);
      x = (S)((random.uniform() - 0.5) * size);
      const uint64_t odd = random.next() % 400;
      if (odd == 0) x = (S)HUGE_VAL;
      if (odd % 50 == 1 || kind == 0) x = 0;
    }
  }
};

template <class S>
struct States {
  std::vector<S> level;
  std::vector<int32_t> bins;
  std::vector<int64_t> a;
  std::vector<uint8_t> odd;
  int slices;

  States(int count, int slices)
      : level((size_t)count, (S)-HUGE_VAL),
        bins((size_t)(count * kEntries), osm::kNoBin),
        a((size_t)(count * kEntries * slices)),
        odd((size_t)(count * kFeatures)),
        slices(slices) {}
  AttentionSums at(int i) {
    return {&level[(size_t)i], &bins[(size_t)(i * kEntries)], &a[(size_t)(i * kEntries * slices)],
            &odd[(size_t)(i * kFeatures)]};
  }
};

template <class S>
uint64_t digest(const AttentionKernels& kernels, bool apart) {
  Numbers random;
  Digest all;
  for (int row = 0; row < kRows; ++row) {
    std::vector<Part<S>> parts;
    for (int i = 0; i < kParts; ++i) parts.emplace_back(random, row);
    States<S> states(3, kernels.slices);
    for (int i = 0; i < kParts; ++i) {
      const Part<S>& part = parts[(size_t)(apart ? (i * 7 + 3) % kParts : i)];
      kernels.sums_add(states.at(apart ? i % 3 : 0), part.pivot, part.weight, part.o.data(), 1, kFeatures);
    }
    if (apart) {
      kernels.sums_merge(states.at(2), states.at(1), kFeatures);
      kernels.sums_merge(states.at(0), states.at(2), kFeatures);
    }
    std::vector<S> o((size_t)kFeatures);
    double lse = 0;
    kernels.sums_read(states.at(0), kFeatures, o.data(), &lse);
    all.add(states.level.data(), sizeof(S));
    all.add(states.bins.data(), (size_t)kEntries * 4);
    all.add(states.a.data(), (size_t)(kEntries * kernels.slices) * 8);
    all.add(states.odd.data(), (size_t)kFeatures);
    all.add(o.data(), o.size() * sizeof(S)), all.add(&lse, sizeof lse);
  }
  return all.value;
}

}  // namespace

void test_attention_sums() {
  constexpr uint64_t singles = 0x717d8f0726aa4483u, doubles = 0x0030cb324f533863u;
  for (const Isa* isa : usable_isas())
    for (const bool apart : {false, true}) {
      const std::string what = std::string("attention_sums.") + isa->name + (apart ? " apart" : " in order");
      tally.check(digest<float>(osm::attention_kernels_of(*isa, Dtype::f32), apart) == singles, what);
      tally.check(digest<double>(osm::attention_kernels_of(*isa, Dtype::f64), apart) == doubles, what);
    }
}

}  // namespace tests
