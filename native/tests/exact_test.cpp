// Sums whose bits depend on the elements alone: every instruction set and format on buffers of the exact size, against
// the law of exact.h element by element.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../run_exact.h"
#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

using Row = std::vector<double>;

struct Case {
  const Isa* isa;
  Dtype dtype;
  Where where;

  const osm::ExactKernels& kernels() const { return osm::exact_kernels_of(*isa, dtype); }
  int64_t size() const { return (int64_t)osm::dtype_size(dtype); }
  std::string id(const char* what) const {
    return std::string(what) + "." + short_name(dtype) + "." + isa->name +
           (where == Where::heap     ? ""
            : where == Where::before ? " before a wall"
                                     : " after a wall");
  }
};

void check(const Case& c, const char* what, int64_t n, int kind, bool good) {
  tally.check(good, c.id(what) + " n " + std::to_string(n) + " kind " + std::to_string(kind));
}

Row make_row(Dtype d, int64_t n, int kind) {
  std::mt19937 random((unsigned)(n * 16 + kind));
  std::normal_distribution<double> values(0, 1);
  const double spread[] = {1, 6, 60, 4, 4, 4, 4}, middle[] = {0, 20, -500, 1 << 20, 0, 0, 0};
  Row row((size_t)n);
  for (double& v : row) v = rounded(d, middle[kind] + spread[kind] * values(random));
  const auto at = (size_t)(random() % (unsigned)n);
  if (kind == 4) row[at] = NAN;
  if (kind == 5) row[at] = HUGE_VAL;
  if (kind == 6)
    for (double& v : row) v = v > 1 ? v : -HUGE_VAL;
  return row;
}

template <class S>
bool same(S a, S b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0;
}

// The state of a row by the definition.
template <class S>
osm::ExactState<S> state_of(const Row& row) {
  osm::ExactState<S> st = osm::empty_state<S>();
  for (const double v : row) {
    const S x = (S)v;
    osm::ExactState<S> one = osm::empty_state<S>();
    one.m = osm::canonical(x);
    if (!osm::is_nan(x)) osm::add_element(one, osm::is_plain(x), osm::top_of(one.m), x);
    st = osm::merged(st, one);
  }
  return st;
}

template <class S>
bool same_state(const osm::ExactWide& got, const osm::ExactState<S>& want) {
  return same((S)got.m, want.m) && std::memcmp(got.a, want.a, sizeof want.a) == 0;
}

template <class S>
void rows_case(const Case& c, int64_t n, int kind) {
  const Row row = make_row(c.dtype, n, kind);
  const Buffer x(n * c.size(), c.where);
  for (int64_t i = 0; i < n; ++i) store(c.dtype, x.data() + i * c.size(), row[(size_t)i]);
  const osm::ExactState<S> want = state_of<S>(row);
  const Buffer y(n * c.size(), c.where), scratch(osm::exact_scratch(c.dtype, n), Where::heap, 64);
  osm::ExactWide state{};
  osm::ExactRows job{};
  job.op = Op::state, job.x = x.data(), job.states = &state, job.rows = 1, job.cols = n, job.scratch = scratch.data();
  c.kernels().rows(job);
  check(c, "state", n, kind, same_state(state, want));
  job.y = y.data(), job.x_stride = job.y_stride = n * c.size();
  const osm::Divisor<S> d = osm::divisor_of(want, true);
  for (const bool stream : {false, true})
    for (const bool given : {false, true})
      for (const Op op : {Op::softmax, Op::log_softmax}) {
        job.op = op, job.given = given, job.stream = stream;
        c.kernels().rows(job);
        bool good = true;
        for (int64_t i = 0; i < n; ++i) {
          const S r = op == Op::softmax ? osm::value_of(d, (S)row[(size_t)i]) : osm::log_value_of(d, (S)row[(size_t)i]);
          const double got = load(c.dtype, y.data() + i * c.size()), expected = rounded(c.dtype, (double)r);
          good &= same(got, expected);
        }
        check(c, given ? "given" : op == Op::softmax ? "softmax" : "log_softmax", n, kind, good);
      }
}

}  // namespace

void test_exact() {
  for (const Isa* isa : usable_isas())
    for (const Dtype dtype : kDtypes)
      for (const Where where : wheres)
        for (const int64_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 65, 97, 255, 515, 4096, 4099})
          for (int kind = 0; kind < 7; ++kind) {
            if (n > 1000 && where != Where::heap) continue;
            const Case c{isa, dtype, where};
            if (dtype == Dtype::f64)
              rows_case<double>(c, n, kind);
            else
              rows_case<float>(c, n, kind);
          }
}

}  // namespace tests
