// Attention and its gradient, of every instruction set and format, on buffers of the exact size, against sums in
// double.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../attention.h"
#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

using osm::AttentionArray;

struct Sizes {
  int64_t batch, heads, groups, queries, keys, d, dv;
  bool causal, mask, bias, dropout;
};
// Tiles with rows left over, few rows (packed on the way), several items, two segments of keys forward and five
// backward, no keys at all.
constexpr Sizes kSizes[] = {
    {1, 1, 1, 1, 1, 1, 1, false, false, false, false},    {2, 2, 1, 3, 5, 7, 9, true, false, false, true},
    {1, 4, 2, 49, 17, 16, 15, false, true, false, false}, {1, 2, 2, 7, 65, 33, 40, true, false, true, false},
    {1, 1, 1, 2, 130, 128, 1, false, true, true, true},   {1, 2, 1, 5, 0, 4, 4, false, false, false, false},
    {1, 1, 1, 800, 9, 5, 6, true, false, false, true},    {1, 2, 1, 1, 4200, 3, 8, false, false, false, false},
    {1, 2, 1, 60, 200, 20, 70, true, false, true, false},
};

// An array (batch, heads, length, features) with nothing after its last element.
struct Four {
  int64_t shape[4];
  Dtype dtype;
  int64_t size;
  Buffer buffer;

  Four(int64_t a, int64_t b, int64_t c, int64_t e, Dtype dtype, Where where)
      : shape{a, b, c, e},
        dtype(dtype),
        size((int64_t)osm::dtype_size(dtype)),
        buffer(a * b * c * e * size, where, 16) {}
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

// Sums in double beside the sums of sizes, which errors go with.
struct Sum {
  double value = 0, size = 0;
  void add(double x) { value += x, size += std::fabs(x); }
};

struct Arrays {
  Sizes s;
  Four q, k, v, o, bias, d_out, dq, dk, dv, d_bias;
  Buffer mask, lse;

  Arrays(const Sizes& s, Dtype dtype, Dtype wide, Where where)
      : s(s),
        q(s.batch, s.heads, s.queries, s.d, dtype, where),
        k(s.batch, s.groups, s.keys, s.d, dtype, where),
        v(s.batch, s.groups, s.keys, s.dv, dtype, where),
        o(s.batch, s.heads, s.queries, s.dv, dtype, where),
        bias(s.batch, s.heads, s.queries, s.keys, wide, where),
        d_out(s.batch, s.heads, s.queries, s.dv, dtype, where),
        dq(s.batch, s.heads, s.queries, s.d, dtype, where),
        dk(s.batch, s.groups, s.keys, s.d, dtype, where),
        dv(s.batch, s.groups, s.keys, s.dv, dtype, where),
        d_bias(s.batch, s.heads, s.queries, s.keys, wide, where),
        mask(s.batch * s.heads * s.queries * s.keys, where),
        lse(s.batch * s.heads * s.queries * 8, where, 16) {
    std::mt19937 random(7);
    for (Four* array : {&q, &k, &v, &bias, &d_out}) array->fill(random);
    for (int64_t i = 0; i < mask.bytes(); ++i) mask.data()[i] = random() % 3 != 0;
    std::memset(d_bias.buffer.data(), 0, (size_t)d_bias.buffer.bytes());
  }
  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (s.causal && j > i + s.keys - s.queries) return false;
    return !s.mask || mask.data()[((b * s.heads + h) * s.queries + i) * s.keys + j];
  }
};

constexpr double kDrop = 0.25;
constexpr uint64_t kSeed = 77;

// One query row in double: scores, weights, and what dropout makes of these.
struct Row {
  std::vector<double> p, factor;
  double lse = -HUGE_VAL;

  Row(const Arrays& a, double scale, int64_t b, int64_t h, int64_t i) {
    const Sizes& s = a.s;
    const int64_t g = h / (s.heads / s.groups);
    std::vector<uint8_t> keep((size_t)s.keys, 1);
    if (s.dropout) osm::attention_keep(kDrop, kSeed, b, h, i, 0, s.keys, keep.data());
    double m = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < s.keys; ++j) {
      double dot = 0;
      for (int64_t c = 0; c < s.d; ++c) dot += a.q.at(b, h, i, c) * a.k.at(b, g, j, c);
      p.push_back(a.sees(b, h, i, j) ? dot * scale + (s.bias ? a.bias.at(b, h, i, j) : 0.0) : -HUGE_VAL);
      factor.push_back(s.dropout ? keep[(size_t)j] / (1 - kDrop) : 1);
      m = std::max(m, p.back());
    }
    if (m == -HUGE_VAL) {
      std::fill(p.begin(), p.end(), 0.0);
      return;
    }
    for (double& x : p) x = std::exp(x - m), sum += x;
    for (double& x : p) x /= sum;
    lse = m + std::log(sum);
  }
};

void one(const Isa& isa, Dtype dtype, const Sizes& s, Where where, int threads, bool any_order) {
  const Dtype wide = dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  const Arrays a(s, dtype, wide, where);
  std::vector<osm::AttentionSequence> sequences((size_t)s.batch, {0, s.queries, 0, s.keys});
  osm::AttentionGradientProblem p;
  p.dtype = dtype, p.stored = (osm::Stored)dtype, p.isa = &isa, p.threads = threads;
  p.batch = s.batch, p.heads = s.heads, p.groups = s.groups, p.d = s.d, p.dv = s.dv;
  p.sequences = sequences.data(), p.scale = 1 / std::sqrt((double)s.d);
  p.q = a.q.seen(), p.k = a.k.seen(), p.v = a.v.seen(), p.o = a.o.seen();
  if (s.causal) p.right = 0;
  if (s.mask) {
    p.mask.p = a.mask.data(), p.mask.strides[3] = 1, p.mask.strides[2] = s.keys;
    p.mask.strides[1] = s.queries * s.keys, p.mask.strides[0] = s.heads * s.queries * s.keys;
  }
  if (s.bias) p.bias = a.bias.seen(), p.bias_grad = a.d_bias.seen(), p.bias_grad_double = wide == Dtype::f64;
  if (s.dropout) p.drop = kDrop, p.seed = kSeed;
  p.lse.p = a.lse.data(), p.lse.strides[2] = 8, p.lse.strides[1] = 8 * s.queries;
  p.lse.strides[0] = 8 * s.queries * s.heads;
  p.any_order = any_order;
  osm::run_attention(p);
  p.any_order = false;
  p.d_out = a.d_out.seen(), p.q_grad = a.dq.seen(), p.k_grad = a.dk.seen(), p.v_grad = a.dv.seen();
  osm::run_attention_gradient(p);

  // Scores of a few units, float32 sums of a few hundred terms; one rounding of the result. A gradient goes through
  // twice as many products, and through the output, rounded to the format.
  const double forward = (double)(s.d + 64) * 16 * unit(wide), exp16 = osm::dtype_size(dtype) == 2 ? 6e-6 : 0.0;
  const double computed = forward + exp16;
  const auto close = [&](double found, const Sum& right, double error, const char* name) {
    const std::string what = std::string("attention.") + short_name(dtype) + "." + isa.name + " " + name + " of " +
                             std::to_string(s.queries) + " x " + std::to_string(s.keys);
    tally.check(std::fabs(found - right.value) <=
                    error * right.size + unit(dtype) * std::fabs(right.value) + least_normal(dtype),
                what);
  };
  const auto index = [](const Four& x, int64_t b, int64_t h, int64_t i) {
    return (size_t)(((b * x.shape[1] + h) * x.shape[2] + i) * x.shape[3]);
  };
  std::vector<Sum> dk((size_t)(s.batch * s.groups * s.keys * s.d)), dv((size_t)(s.batch * s.groups * s.keys * s.dv));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.queries; ++i) {
        const int64_t g = h / (s.heads / s.groups);
        const Row row(a, p.scale, b, h, i);
        const double found = a.lse.as<double>()[(b * s.heads + h) * s.queries + i];
        tally.check(row.lse == -HUGE_VAL ? found == -HUGE_VAL : std::fabs(found - row.lse) <= computed,
                    "attention lse");
        std::vector<Sum> dq((size_t)s.d);
        double mean = 0, through = 0;  // of p * dp, and of its size
        std::vector<double> dp((size_t)s.keys);
        for (int64_t j = 0; j < s.keys; ++j) {
          for (int64_t c = 0; c < s.dv; ++c) {
            const double one = a.v.at(b, g, j, c) * a.d_out.at(b, h, i, c) * row.factor[(size_t)j];
            dp[(size_t)j] += one, through += row.p[(size_t)j] * std::fabs(one);
          }
          mean += row.p[(size_t)j] * dp[(size_t)j];
        }
        for (int64_t c = 0; c < s.dv; ++c) {
          Sum value;
          for (int64_t j = 0; j < s.keys; ++j) value.add(row.p[(size_t)j] * row.factor[(size_t)j] * a.v.at(b, g, j, c));
          close(a.o.at(b, h, i, c), value, computed, "output");
        }
        for (int64_t j = 0; j < s.keys; ++j) {
          const double w = row.p[(size_t)j], ds = w * (dp[(size_t)j] - mean);
          // What a gradient's error is relative to: the weight by all that its difference is made of.
          const double size = w * (std::fabs(dp[(size_t)j]) + through);
          for (int64_t c = 0; c < s.d; ++c) {
            const double of_k = a.k.at(b, g, j, c) * p.scale, of_q = a.q.at(b, h, i, c) * p.scale;
            Sum& key = dk[index(a.dk, b, g, j) + (size_t)c];
            dq[(size_t)c].value += ds * of_k, dq[(size_t)c].size += size * std::fabs(of_k);
            key.value += ds * of_q, key.size += size * std::fabs(of_q);
          }
          for (int64_t c = 0; c < s.dv; ++c)
            dv[index(a.dv, b, g, j) + (size_t)c].add(w * row.factor[(size_t)j] * a.d_out.at(b, h, i, c));
          if (s.bias) close(a.d_bias.at(b, h, i, j), {ds, size}, 2 * computed + unit(dtype), "bias gradient");
        }
        for (int64_t c = 0; c < s.d; ++c)
          close(a.dq.at(b, h, i, c), dq[(size_t)c], 2 * computed + unit(dtype), "query gradient");
      }
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t g = 0; g < s.groups; ++g)
      for (int64_t j = 0; j < s.keys; ++j) {
        for (int64_t c = 0; c < s.d; ++c)
          close(a.dk.at(b, g, j, c), dk[index(a.dk, b, g, j) + (size_t)c], 2 * computed + unit(dtype), "key gradient");
        for (int64_t c = 0; c < s.dv; ++c)
          close(a.dv.at(b, g, j, c), dv[index(a.dv, b, g, j) + (size_t)c], 2 * computed, "value gradient");
      }
}

}  // namespace

void test_attention() {
  for (const Isa* isa : usable_isas())
    for (const Dtype dtype : kDtypes)
      for (const Sizes& sizes : kSizes)
        for (const Where where : wheres)
          for (const int threads : {1, 3}) {
            one(*isa, dtype, sizes, where, threads, false);
            one(*isa, dtype, sizes, where, threads, true);
          }
}

}  // namespace tests
