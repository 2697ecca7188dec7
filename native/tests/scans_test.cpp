// Scans of every instruction set and format on buffers of the exact size, against the definitions in long double.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../scans.h"
#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

using Row = std::vector<double>;

struct Case {
  const Isa* isa;
  Dtype dtype;
  Where where;

  const osm::ScanKernels& kernels() const { return osm::scan_kernels_of(*isa, dtype); }
  int64_t size() const { return (int64_t)osm::dtype_size(dtype); }
  std::string id(const char* what) const {
    return std::string(what) + "." + short_name(dtype) + "." + isa->name +
           (where == Where::heap     ? ""
            : where == Where::before ? " before a wall"
                                     : " after a wall");
  }
};

// log(sum(exp)) of row[from, to), by the maximum; NaN, +inf and -inf as the public functions have them.
long double lse_of(const Row& row, int64_t from, int64_t to) {
  long double m = -HUGE_VALL, sum = 0;
  for (int64_t i = from; i < to; ++i) {
    if (std::isnan(row[(size_t)i])) return NAN;
    m = std::max(m, (long double)row[(size_t)i]);
  }
  if (std::isinf(m)) return m;
  for (int64_t i = from; i < to; ++i) sum += std::exp((long double)row[(size_t)i] - m);
  return m + std::log(sum);
}

// Within two roundings of the format, and some of double of terms of size 100.
void check_near(const Case& c, const char* what, int64_t n, int64_t i, double got, long double want,
                long double size = 100) {
  const bool good = std::isnan(want)
                        ? std::isnan(got)
                        : got == (double)want || std::fabs(got - want) <= 2 * unit(c.dtype) * std::fabs(want) +
                                                                              least_normal(c.dtype) + size * 1e-15L;
  char text[160];
  std::snprintf(text, sizeof text, " n %lld at %lld: %.17g, expected %.17Lg", (long long)n, (long long)i, got, want);
  tally.check(good, c.id(what) + text);
}

Row make_row(Dtype d, int64_t n, int kind, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> values(0, kind == 1 ? 300 : 3);
  Row row((size_t)n);
  for (double& v : row) v = rounded(d, values(random));
  if (kind == 2)
    for (int64_t i = 0; i < n; ++i) {
      if (i % 7 == 3) row[(size_t)i] = -HUGE_VAL;
      if (i == n / 2) row[(size_t)i] = HUGE_VAL;
      if (i == n - n / 4) row[(size_t)i] = NAN;
      if (i < n / 8) row[(size_t)i] = -HUGE_VAL;
    }
  return row;
}
// The row in memory of its own.
struct Filled : Buffer {
  Filled(const Case& c, const Row& row) : Buffer((int64_t)row.size() * c.size(), c.where) {
    for (size_t i = 0; i < row.size(); ++i) store(c.dtype, data() + (int64_t)i * c.size(), row[i]);
  }
};

void add_case(const Case& c, int64_t n, int kind) {
  const Row left = make_row(c.dtype, n, kind, 1), right = make_row(c.dtype, n, kind == 2 ? 0 : kind, 2);
  const Filled a(c, left), b(c, right);
  const Buffer y(n * c.size(), c.where);
  c.kernels().add(a.data(), b.data(), y.data(), n);
  for (int64_t i = 0; i < n; ++i)
    check_near(c, "add", n, i, load(c.dtype, y.data() + i * c.size()),
               lse_of({left[(size_t)i], right[(size_t)i]}, 0, 2));
  c.kernels().add(a.data(), b.data(), a.data(), n);
  tally.check(!std::memcmp(a.data(), y.data(), (size_t)(n * c.size())), c.id("add") + " other bits in place");
}

void prefix_case(const Case& c, int64_t n, int kind) {
  const Row row = make_row(c.dtype, n, kind, 3);
  const Filled x(c, row);
  const Buffer y(n * c.size(), c.where);
  for (const bool exclusive : {false, true}) {
    osm::ScanChain chain;
    // In two calls, cut anywhere: the state goes from one to the other.
    const int64_t cut = n / 3;
    c.kernels().row({x.data(), y.data(), cut, exclusive, &chain});
    c.kernels().row({x.data() + cut * c.size(), y.data() + cut * c.size(), n - cut, exclusive, &chain});
    for (int64_t i = 0; i < n; ++i)
      check_near(c, "prefix", n, i, load(c.dtype, y.data() + i * c.size()), lse_of(row, 0, exclusive ? i : i + 1));
    const Filled held(c, row);
    osm::ScanChain whole;
    c.kernels().row({held.data(), held.data(), n, exclusive, &whole});
    tally.check(!std::memcmp(held.data(), y.data(), (size_t)(n * c.size())),
                c.id("prefix") + " other bits in one call and in place");
  }
}

void columns_case(const Case& c, int64_t n, int64_t count, int kind) {
  const int64_t line = count * c.size();
  const Buffer x(n * line, c.where), y(n * line, c.where), one(n * c.size(), c.where), scanned(n * c.size(), c.where);
  std::vector<Row> rows;
  for (int64_t k = 0; k < count; ++k) {
    rows.push_back(make_row(c.dtype, n, k % 2 ? kind : 0, (unsigned)(10 + k)));
    for (int64_t i = 0; i < n; ++i) store(c.dtype, x.data() + i * line + k * c.size(), rows.back()[(size_t)i]);
  }
  osm::ScanLanesState lanes;
  const osm::ScanChain start;
  for (int64_t k = 0; k < osm::kScanLanes; ++k) {
    lanes.m[k] = start.m, lanes.pivot[k] = start.pivot, lanes.high[k] = start.high, lanes.low[k] = start.low;
    lanes.factor[k] = start.factor, lanes.over[k] = start.over, lanes.before[k] = start.before;
  }
  c.kernels().cols({x.data(), y.data(), n, count, line, line, false, &lanes});
  for (int64_t k = 0; k < count; ++k) {
    // A column has the bits of a row.
    for (int64_t i = 0; i < n; ++i) store(c.dtype, one.data() + i * c.size(), rows[(size_t)k][(size_t)i]);
    osm::ScanChain chain;
    c.kernels().row({one.data(), scanned.data(), n, false, &chain});
    bool same = true;
    for (int64_t i = 0; i < n; ++i) {
      const char *p = y.data() + i * line + k * c.size(), *q = scanned.data() + i * c.size();
      same &= !std::memcmp(p, q, (size_t)c.size()) || std::isnan(load(c.dtype, p)) == std::isnan(load(c.dtype, q));
    }
    tally.check(same, c.id("columns") + " other bits than a row");
  }
}

void window_case(const Case& c, int64_t n, int64_t window, int kind) {
  const Row row = make_row(c.dtype, n, kind, 4);
  const Filled x(c, row);
  const Buffer y(n * c.size(), c.where);
  osm::RowsProblem p;
  p.dtype = c.dtype, p.isa = c.isa, p.rows = 1, p.n = n, p.x = x.data(), p.y = y.data();
  osm::run_window(p, window);
  for (int64_t i = 0; i < n; ++i)
    check_near(c, "window", n, i, load(c.dtype, y.data() + i * c.size()),
               lse_of(row, std::max<int64_t>(0, i - window + 1), i + 1), kind == 1 ? 1000 : 100);
}

void gradient_case(const Case& c, int64_t n, int kind) {
  const Row row = make_row(c.dtype, n, kind, 5), up = make_row(c.dtype, n, 0, 6);
  const Filled x(c, row), dy(c, up);
  const Buffer dx(n * c.size(), c.where), scratch(n * 8, c.where);
  c.kernels().gradient({x.data(), dy.data(), dx.data(), n, scratch.as<double>()});
  std::vector<long double> lse((size_t)n);
  for (int64_t i = 0; i < n; ++i) lse[(size_t)i] = lse_of(row, 0, i + 1);
  for (int64_t j = 0; j < n; ++j) {
    long double want = 0, size = 0;
    for (int64_t i = j; i < n; ++i) {
      if (lse[(size_t)i] == -HUGE_VALL) continue;
      const long double term = up[(size_t)i] * std::exp((long double)row[(size_t)j] - lse[(size_t)i]);
      want += term, size += std::fabs(term);
    }
    if (!(lse[(size_t)(n - 1)] < HUGE_VALL)) want = NAN;
    check_near(c, "gradient", n, j, load(c.dtype, dx.data() + j * c.size()), want, 1000 * size);
  }
}

void groups_case(const Case& c, int kind) {
  const int64_t sizes[] = {0, 1, 3, 7, 8, 0, 16, 16, 15, 17, 40, 2, 0};
  std::vector<int64_t> offsets = {0};
  for (const int64_t n : sizes) offsets.push_back(offsets.back() + n);
  const int64_t total = offsets.back(), count = (int64_t)offsets.size() - 1;
  const Row row = make_row(c.dtype, total, kind, 7);
  const Filled x(c, row);
  const Buffer y(total * c.size(), c.where), lse(count * 8, c.where);
  c.kernels().groups({x.data(), y.data(), lse.as<double>(), offsets.data(), count});
  for (int64_t g = 0; g < count; ++g) {
    const int64_t from = offsets[(size_t)g], to = offsets[(size_t)g + 1];
    const long double want = lse_of(row, from, to);
    check_near(c, "groups", to - from, g, lse.as<double>()[g], want);
    for (int64_t i = from; i < to; ++i)
      check_near(c, "groups softmax", to - from, i, load(c.dtype, y.data() + i * c.size()),
                 std::isfinite(want) ? std::exp((long double)row[(size_t)i] - want) : NAN, kind == 1 ? 1000 : 100);
  }
}

}  // namespace

void test_scans() {
  for (const Isa* isa : usable_isas())
    for (const Dtype dtype : kDtypes)
      for (const Where where : wheres) {
        const Case c{isa, dtype, where};
        for (const int kind : {0, 1, 2}) {
          for (const int64_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 255, 256, 257, 515}) {
            add_case(c, n, kind);
            prefix_case(c, n, kind);
            if (n < 100) gradient_case(c, n, kind);
          }
          for (const int64_t count : {1, 5, 16, 33, 64}) columns_case(c, 67, count, kind);
          for (const int64_t window : {1, 2, 3, 16, 100, 260})
            for (const int64_t n : {1, 50, 300, 1100})
              if (n > window) window_case(c, n, window, kind);
          groups_case(c, kind);
        }
      }
}

}  // namespace tests
