// Attention of every instruction set and format on buffers of the exact size, against sums in double.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../attention.h"
#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

using osm::AttentionArray;
using osm::AttentionProblem;

struct Sizes {
  int64_t batch, heads, groups, queries, keys, d, dv;
  bool causal, mask, bias;
};
constexpr Sizes kSizes[] = {
    {1, 1, 1, 1, 1, 1, 1, false, false, false},    {2, 2, 1, 3, 5, 7, 9, true, false, false},
    {1, 4, 2, 49, 17, 16, 15, false, true, false}, {1, 2, 2, 7, 65, 33, 40, true, false, true},
    {1, 1, 1, 2, 130, 128, 1, false, true, true},  {1, 2, 1, 5, 0, 4, 4, false, false, false},
    {1, 1, 1, 800, 9, 5, 6, true, false, false},   {1, 2, 1, 1, 4200, 3, 8, false, false, false},
};

// An array (batch, heads, length, features) with nothing after its last element.
struct Four {
  int64_t shape[4];
  Dtype dtype;
  int64_t size;
  Buffer buffer;

  Four(int64_t a, int64_t b, int64_t c, int64_t e, Dtype dtype, Where where)
      : shape{a, b, c, e}, dtype(dtype), size((int64_t)osm::dtype_size(dtype)), buffer(a * b * c * e * size, where) {}
  void fill(std::mt19937& random) {
    std::normal_distribution<double> values;
    for (int64_t i = 0; i < buffer.bytes() / size; ++i) store(dtype, buffer.data() + i * size, values(random));
  }
  double at(int64_t a, int64_t b, int64_t c, int64_t e) const {
    return load(dtype, buffer.data() + (((a * shape[1] + b) * shape[2] + c) * shape[3] + e) * size);
  }
  AttentionArray seen() const {
    AttentionArray array;
    array.p = buffer.data();
    array.strides[3] = size;
    for (int d = 2; d >= 0; --d) array.strides[d] = array.strides[d + 1] * shape[d + 1];
    return array;
  }
};

void one(const Isa& isa, Dtype dtype, const Sizes& s, Where where, int threads) {
  std::mt19937 random(7);
  const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  Four q(s.batch, s.heads, s.queries, s.d, dtype, where), k(s.batch, s.groups, s.keys, s.d, dtype, where);
  Four v(s.batch, s.groups, s.keys, s.dv, dtype, where), o(s.batch, s.heads, s.queries, s.dv, dtype, where);
  Four bias(s.batch, s.heads, s.queries, s.keys, wide, where);
  for (Four* array : {&q, &k, &v, &bias}) array->fill(random);
  const int64_t scores = s.batch * s.heads * s.queries * s.keys;
  Buffer mask(scores, where), lse(s.batch * s.heads * s.queries * 8, where, 16);
  for (int64_t i = 0; i < scores; ++i) mask.data()[i] = random() % 3 != 0;

  AttentionProblem p;
  p.dtype = dtype, p.isa = &isa, p.threads = threads;
  p.batch = s.batch, p.heads = s.heads, p.groups = s.groups, p.queries = s.queries, p.keys = s.keys;
  p.d = s.d, p.dv = s.dv, p.scale = 1 / std::sqrt((double)s.d), p.diagonal = s.keys - s.queries;
  p.q = q.seen(), p.k = k.seen(), p.v = v.seen(), p.o = o.seen();
  if (s.causal) p.right = 0;
  if (s.mask) p.mask.p = mask.data(), p.mask.strides[3] = 1, p.mask.strides[2] = s.keys;
  if (s.mask) p.mask.strides[1] = s.queries * s.keys, p.mask.strides[0] = s.heads * s.queries * s.keys;
  if (s.bias) p.bias = bias.seen();
  p.lse = lse.data();
  osm::run_attention(p);

  // Scores of a few units, float32 sums of a few hundred terms; one rounding of the result.
  const double computed = (double)(s.d + 64) * 16 * unit(wide), exp16 = osm::dtype_size(dtype) == 2 ? 6e-6 : 0.0;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.queries; ++i) {
        const int64_t g = h / (s.heads / s.groups), end = s.causal ? i + s.keys - s.queries + 1 : s.keys;
        std::vector<double> score((size_t)std::max<int64_t>(0, s.keys), -HUGE_VAL);
        double m = -HUGE_VAL, sum = 0;
        for (int64_t j = 0; j < std::min(end, s.keys); ++j) {
          if (s.mask && !mask.data()[((b * s.heads + h) * s.queries + i) * s.keys + j]) continue;
          double dot = 0;
          for (int64_t c = 0; c < s.d; ++c) dot += q.at(b, h, i, c) * k.at(b, g, j, c);
          score[(size_t)j] = dot * p.scale + (s.bias ? bias.at(b, h, i, j) : 0.0);
          m = std::max(m, score[(size_t)j]);
        }
        for (const double x : score) sum += x == -HUGE_VAL ? 0 : std::exp(x - m);
        const double found = lse.as<double>()[(b * s.heads + h) * s.queries + i];
        const std::string what = std::string("attention.") + short_name(dtype) + "." + isa.name + " query " +
                                 std::to_string(i) + " of " + std::to_string(s.queries) + " x " +
                                 std::to_string(s.keys);
        tally.check(sum == 0 ? found == -HUGE_VAL : std::fabs(found - (m + std::log(sum))) <= computed + exp16, what);
        for (int64_t c = 0; c < s.dv; ++c) {
          double value = 0, size = 0;
          for (int64_t j = 0; j < s.keys; ++j) {
            const double w = score[(size_t)j] == -HUGE_VAL ? 0 : std::exp(score[(size_t)j] - m) / sum;
            if (w > 0) value += w * v.at(b, g, j, c), size += w * std::fabs(v.at(b, g, j, c));
          }
          const double allowed = (computed + exp16) * size + unit(dtype) * std::fabs(value) + least_normal(dtype);
          tally.check(std::fabs(o.at(b, h, i, c) - value) <= allowed, what);
        }
      }
}

}  // namespace

void test_attention() {
  for (const Isa* isa : usable_isas())
    for (const Dtype dtype : kDtypes)
      for (const Sizes& sizes : kSizes)
        for (const Where where : wheres)
          for (const int threads : {1, 3}) one(*isa, dtype, sizes, where, threads);
}

}  // namespace tests
