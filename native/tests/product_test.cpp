// Matrix products of every instruction set and mix of formats, on buffers of the exact size, against sums in double.
#include <cmath>

#include "../product.h"
#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

// A matrix as it may lie: rows, columns or neither adjacent, and nothing after its last element.
enum class Lies { rows, cols, apart };

struct Given {
  int64_t rows, cols;
  osm::Matrix matrix;
  Buffer buffer;

  Given(int64_t rows, int64_t cols, Dtype dtype, Lies lies, Where where, unsigned seed)
      : rows(rows), cols(cols), buffer(bytes(rows, cols, dtype, lies), where, 16) {
    const int64_t size = (int64_t)osm::dtype_size(dtype);
    matrix.p = buffer.data(), matrix.dtype = dtype;
    matrix.row = lies == Lies::rows ? cols * size : lies == Lies::cols ? size : 3 * cols * size;
    matrix.col = lies == Lies::rows ? size : lies == Lies::cols ? rows * size : 3 * size;
    std::mt19937 random(seed);
    std::normal_distribution<double> values;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) store(dtype, at(i, j), values(random));
  }
  static int64_t bytes(int64_t rows, int64_t cols, Dtype dtype, Lies lies) {
    const int64_t n = rows * cols, size = (int64_t)osm::dtype_size(dtype);
    return n == 0 ? 0 : lies == Lies::apart ? (3 * n - 2) * size : n * size;
  }
  char* at(int64_t i, int64_t j) const { return (char*)matrix.p + i * matrix.row + j * matrix.col; }
  double value(int64_t i, int64_t j) const { return load(matrix.dtype, at(i, j)); }
};

struct Formats {
  Dtype a, b, c;
};
constexpr Formats kFormats[] = {{Dtype::f32, Dtype::f32, Dtype::f32},
                                {Dtype::f64, Dtype::f64, Dtype::f64},
                                {Dtype::bf16, Dtype::f32, Dtype::f32},
                                {Dtype::f32, Dtype::f16, Dtype::bf16},
                                {Dtype::f16, Dtype::bf16, Dtype::f16}};
struct Sizes {
  int64_t m, n, k;
};
// Less than a tile, tiles with edges, two cuts of k, several items, no steps at all.
constexpr Sizes kSizes[] = {{1, 1, 1},   {6, 16, 8}, {7, 33, 19}, {13, 70, 400}, {100, 17, 33},
                            {3, 800, 9}, {9, 5, 0},  {450, 9, 2}, {2, 40, 801}};

void one(const Isa& isa, const Formats& f, const Sizes& s, Lies a_lies, Lies b_lies, Where where) {
  const Given a(s.m, s.k, f.a, a_lies, where, 1), b(s.k, s.n, f.b, b_lies, where, 2);
  const Dtype wide = f.c == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  Buffer bias(s.n * (int64_t)osm::dtype_size(wide), where, 16);
  for (int64_t j = 0; j < s.n; ++j) store(wide, bias.data() + j * (int64_t)osm::dtype_size(wide), (double)(j % 7) - 3);
  for (const int mode : {0, 1, 2}) {  // alone, with a bias, added
    if (mode == 2 && osm::dtype_size(f.c) == 2) continue;
    const Given c(s.m, s.n, f.c, Lies::rows, where, 3), before(s.m, s.n, f.c, Lies::rows, Where::heap, 3);
    osm::ProductProblem p;
    p.isa = &isa, p.threads = 1 + mode;
    p.m = s.m, p.n = s.n, p.k = s.k, p.a = a.matrix, p.b = b.matrix, p.c = c.matrix;
    p.add = mode == 2, p.bias = mode == 1 ? bias.data() : nullptr;
    osm::run_product(p);
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        double sum = mode == 1 ? (double)(j % 7) - 3 : mode == 2 ? before.value(i, j) : 0;
        double size = std::fabs(sum);
        for (int64_t l = 0; l < s.k; ++l)
          sum += a.value(i, l) * b.value(l, j), size += std::fabs(a.value(i, l) * b.value(l, j));
        const double error = (double)(s.k + 3) * unit(wide) * size + least_normal(f.c) +
                             (f.c == wide ? 0 : unit(f.c) * (std::fabs(sum) + size * unit(wide)));
        tally.check(std::fabs(c.value(i, j) - sum) <= error, std::string("product.") + short_name(f.a) + "." +
                                                                 short_name(f.b) + "." + short_name(f.c) + "." +
                                                                 isa.name + " of " + std::to_string(s.m) + " x " +
                                                                 std::to_string(s.n) + " x " + std::to_string(s.k));
      }
  }
}

// A fused product has the bits of its definition on every instruction set: chains of multiply-adds that round once,
// over equal cuts of k, and the cuts added from left to right.
void fused(const Isa& isa, int64_t k) {
  constexpr int64_t m = 7, n = 33;
  const Given a(m, k, Dtype::f32, Lies::rows, Where::heap, 4), b(k, n, Dtype::bf16, Lies::cols, Where::heap, 5),
      c(m, n, Dtype::f32, Lies::rows, Where::heap, 6);
  osm::ProductProblem p;
  p.isa = &isa, p.threads = 2, p.fused = true;
  p.m = m, p.n = n, p.k = k, p.a = a.matrix, p.b = b.matrix, p.c = c.matrix;
  osm::run_product(p);
  const int64_t cuts = (k + 383) / 384, cut = ((k + cuts - 1) / cuts + 7) / 8 * 8;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; l += cut) {
        float chain = 0;
        for (int64_t s = l; s < k && s < l + cut; ++s)
          chain = std::fmaf((float)a.value(i, s), (float)b.value(s, j), chain);
        sum = l ? sum + chain : chain;
      }
      tally.check((float)c.value(i, j) == sum, std::string("product fused.") + isa.name + " of " + std::to_string(k));
    }
}

}  // namespace

void test_product() {
  for (const Isa* isa : usable_isas())
    for (const int64_t k : {1, 50, 384, 801}) fused(*isa, k);
  for (const Isa* isa : usable_isas())
    for (const Formats& formats : kFormats)
      for (const Sizes& sizes : kSizes)
        for (const Lies a : {Lies::rows, Lies::cols, Lies::apart})
          for (const Lies b : {Lies::rows, Lies::cols, Lies::apart})
            for (const Where where : wheres) one(*isa, formats, sizes, a, b, where);
}

}  // namespace tests
