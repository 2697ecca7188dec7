// The driver: strided arrays, masks, weights, segments shared by threads, top-k, the pools. Exact-size buffers again.
#include "../driver.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <thread>

#include "../memory.h"
#include "../pool.h"
#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

using osm::Problem;

// How a table of rows lies in memory: strides in elements, as factors of what a compact array would have.
struct Shape {
  const char* name;
  int64_t row_gap;   // extra elements between rows
  int64_t step;      // between elements of a row; negative: backwards
  bool rows_inside;  // rows side by side: the reduced axis is the first
};
constexpr Shape kShapes[] = {
    {"compact", 0, 1, false},    {"gaps", 3, 1, false},      {"every second", 1, 2, false},
    {"backwards", 0, -1, false}, {"first axis", 0, 1, true}, {"first axis with gaps", 5, 1, true},
};

// An array in memory of exactly the bytes it spans.
struct Strided {
  int64_t row, element;  // strides in bytes
  Buffer buffer;
  char* origin;

  Strided(const Shape& s, int64_t rows, int64_t cols, int64_t size, Where where)
      : row((s.rows_inside ? 1 : cols * std::abs(s.step) + s.row_gap) * size),
        element((s.rows_inside ? (rows + s.row_gap) : s.step) * size),
        buffer(std::max<int64_t>(0, rows && cols ? (rows - 1) * row + (cols - 1) * std::abs(element) + size : 0),
               where),
        origin(buffer.data() + (element < 0 ? (cols - 1) * -element : 0)) {}
  char* at(int64_t r, int64_t c) const { return origin + r * row + c * element; }
};

struct Setting {
  const Isa* isa;
  Dtype dtype;
  Op op;
  int algorithm, threads;
  const Shape* shape;
  Where where;

  std::string id(int64_t rows, int64_t cols) const {
    return std::string(name_of(op)) + "." + short_name(dtype) + "." + isa->name + "." + name_of(algorithm) + " " +
           shape->name + " " + std::to_string(rows) + "x" + std::to_string(cols) + " threads " +
           std::to_string(threads);
  }
};

Problem problem_of(const Setting& s, const Table& t, const Strided& x) {
  Problem p;
  p.op = s.op, p.dtype = s.dtype, p.isa = s.isa, p.algorithm = s.algorithm, p.threads = s.threads;
  p.ndim = 2, p.shape[0] = t.rows, p.shape[1] = t.cols, p.reduced = 2;
  p.x = x.origin, p.x_strides[0] = x.row, p.x_strides[1] = x.element;
  return p;
}

void fill(const Strided& a, Dtype d, const Table& t) {
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.cols; ++c) store(d, a.at(r, c), t.at(r, c));
}

// Empty, or the first element of the row that is off.
std::string fault(const Setting& s, const Table& t, const Truth& truth, int64_t r, const Strided& y) {
  const Tolerance tolerance{s.dtype, false};
  for (int64_t c = 0; c < t.cols; ++c) {
    const double got = load(s.dtype, y.at(r, c)), want = truth.value(s.op, (size_t)(r * t.cols + c));
    if (s.op == Op::softmax ? tolerance.softmax(got, want) : tolerance.log_softmax(got, want)) continue;
    char text[120];
    std::snprintf(text, sizeof text, " column %lld: %.17g, expected %.17g", (long long)c, got, want);
    return text;
  }
  return "";
}

// One number of a result array.
double number(const Problem& p, const void* array, int64_t at) {
  return p.single ? ((const float*)array)[at] : ((const double*)array)[at];
}

void check_mapped(const Setting& s, const Table& t, const Truth& truth, const Strided& y, const std::string& what) {
  for (int64_t r = 0; r < t.rows; ++r) {
    const std::string detail = fault(s, t, truth, r, y);
    tally.check(detail.empty(), s.id(t.rows, t.cols) + what + " row " + std::to_string(r) + detail);
  }
}

void check_reduced(const Setting& s, const Table& t, const Truth& truth, const Problem& p, const std::string& what) {
  const Tolerance tolerance{s.dtype, false};
  for (int64_t r = 0; r < t.rows; ++r) {
    const Row& want = truth.rows[(size_t)r];
    const double first = number(p, p.first, r), second = s.op == Op::state ? number(p, p.second, r) : 0.0;
    const bool top = std::isnan(want.m) ? std::isnan(second) : first == want.m;
    const bool good = s.op == Op::lse ? tolerance.logarithm(first, want.lse) : top && tolerance.sum(second, want.s);
    tally.check(good, s.id(t.rows, t.cols) + what + (p.single ? " single" : "") + " row " + std::to_string(r));
  }
}

void run_case(const Setting& s, const Table& t, const Truth& truth) {
  const int64_t size = (int64_t)osm::dtype_size(s.dtype);
  const Strided x(*s.shape, t.rows, t.cols, size, s.where), y(*s.shape, t.rows, t.cols, size, s.where);
  const Buffer mask((int64_t)t.live.size(), s.where), first(t.rows * 8, s.where), second(t.rows * 8, s.where);
  const Buffer first_float(t.rows * 4, s.where), second_float(t.rows * 4, s.where);
  const std::string what = t.live.empty() ? "" : " masked";
  fill(x, s.dtype, t);
  Problem p = problem_of(s, t, x);
  if (!t.live.empty()) {
    std::memcpy(mask.data(), t.live.data(), t.live.size());
    p.where = mask.data(), p.where_strides[0] = t.cols, p.where_strides[1] = 1;
  }
  if (!maps(s.op)) {
    p.first = first.data(), p.second = second.data();
    osm::run(p);
    check_reduced(s, t, truth, p, what);
    p.first = first_float.data(), p.second = second_float.data(), p.single = true;
    osm::run(p);
    if (s.dtype != Dtype::f64) check_reduced(s, t, truth, p, what);
    return;
  }
  p.y = y.origin, p.y_strides[0] = y.row, p.y_strides[1] = y.element;
  osm::run(p);
  check_mapped(s, t, truth, y, what);
  if (s.algorithm != osm::kAuto) return;
  // The write pass alone, from the true states.
  std::memset(y.buffer.data(), 0x55, (size_t)y.buffer.bytes());
  for (int64_t r = 0; r < t.rows; ++r)
    first.as<double>()[r] = truth.rows[(size_t)r].m, second.as<double>()[r] = truth.rows[(size_t)r].s;
  p.given = true, p.first = first.data(), p.second = second.data();
  osm::run(p);
  check_mapped(s, t, truth, y, what + " from given states");
}

// Rows that lie end to end, as a call on a few thousand elements takes them.
void test_small(const Isa* isa, Dtype dtype) {
  for (int64_t cols : {1, 2, 16, 33, 128, 129, 1000})
    for (Fill how : {Fill::near, Fill::wide, Fill::special})
      for (Op op : {Op::softmax, Op::log_softmax})
        for (Where where : wheres) {
          const Table t = table_of(dtype, 6, cols, how, false, (unsigned)cols);
          const Setting s{isa, dtype, op, osm::kAuto, 1, &kShapes[0], where};
          const int64_t size = (int64_t)osm::dtype_size(dtype);
          const Strided x(kShapes[0], t.rows, cols, size, where), y(kShapes[0], t.rows, cols, size, where);
          fill(x, dtype, t);
          osm::small_rows(*isa, op, dtype, x.origin, y.origin, t.rows, cols);
          check_mapped(s, t, truth_of(t), y, " small");
        }
}

void run_all(const Isa* isa, Dtype dtype, int64_t rows, int64_t cols, Fill how, bool mask, int threads,
             bool every_shape) {
  const Table t = table_of(dtype, rows, cols, how, mask, (unsigned)(rows * 131 + cols));
  const Truth truth = truth_of(t);
  size_t turn = 0;
  for (const Shape& shape : kShapes)
    for (Op op : kOps)
      for (int algorithm : kAlgorithms) {
        const bool naive = algorithm == (int)Algorithm::naive;
        if (naive && (how != Fill::near || op == Op::state)) continue;  // no maximum, so no state
        if (!every_shape && &shape != &kShapes[0] && &shape != &kShapes[2]) continue;
        run_case({isa, dtype, op, algorithm, threads, &shape, wheres[turn++ % wheres.size()]}, t, truth);
      }
}

// log |sum w exp(x)| and its sign; weights of 0 drop out, whatever stands there.
void test_weights(const Isa* isa, Dtype dtype) {
  for (int64_t cols : {1, 5, 64, 257}) {
    Table t = table_of(dtype, 3, cols, Fill::near, false, (unsigned)cols);
    const Buffer weights(3 * cols * 8, end_of_memory()), first(24, end_of_memory()), second(24, end_of_memory());
    double* w = weights.as<double>();
    for (int64_t i = 0; i < 3 * cols; ++i) w[i] = (double)(i % 5) - 1.0;
    for (int64_t i = 1; i < 3 * cols; i += 5) t.x[(size_t)i] = i % 2 ? NAN : HUGE_VAL;  // there the weight is 0
    const Setting s{isa, dtype, Op::lse, osm::kAuto, 1, &kShapes[0], end_of_memory()};
    const Strided x(kShapes[0], 3, cols, (int64_t)osm::dtype_size(dtype), end_of_memory());
    fill(x, dtype, t);
    Problem p = problem_of(s, t, x);
    p.weights = weights.data(), p.weights_strides[0] = cols * 8, p.weights_strides[1] = 8;
    p.first = first.data(), p.second = second.data();
    osm::run(p);
    for (int64_t r = 0; r < 3; ++r) {
      double sum = 0, size = 0;
      for (int64_t c = 0; c < cols; ++c)
        if (w[r * cols + c] != 0)
          sum += w[r * cols + c] * std::exp(t.at(r, c)), size += std::fabs(w[r * cols + c]) * std::exp(t.at(r, c));
      // The sum may cancel: its error is relative to the sum of the sizes.
      const double off = std::fabs(second.as<double>()[r] * std::exp(first.as<double>()[r]) - sum);
      tally.check(off <= Tolerance{dtype, false}.work() * size, s.id(3, cols) + " weighted row " + std::to_string(r));
    }
  }
}

void test_topk(const Isa* isa, Dtype dtype) {
  for (int64_t cols : {(int64_t)1, (int64_t)17, (int64_t)300, osm::kSegment + 9})
    for (const Shape& shape : kShapes) {
      const Table t = table_of(dtype, 2, cols, Fill::near, false, (unsigned)cols);
      const int64_t k = std::min<int64_t>(cols, 7);
      const Strided x(shape, 2, cols, (int64_t)osm::dtype_size(dtype), end_of_memory());
      const Buffer values(2 * k * 8, end_of_memory()), places(2 * k * 8, end_of_memory()), lse(16, end_of_memory());
      fill(x, dtype, t);
      const Setting s{isa, dtype, Op::state, osm::kAuto, 2, &shape, end_of_memory()};
      osm::TopkProblem p;
      p.rows = problem_of(s, t, x);
      p.k = k, p.values = values.as<double>(), p.places = places.as<int64_t>(), p.lse = lse.as<double>();
      osm::run_topk(p);
      const Tolerance tolerance{dtype, false};
      const Truth truth = truth_of(t);
      for (int64_t r = 0; r < 2; ++r) {
        std::vector<int64_t> order((size_t)cols);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return t.at(r, a) > t.at(r, b); });
        bool good = tolerance.logarithm(p.lse[r], truth.rows[(size_t)r].lse);
        for (int64_t i = 0; i < k; ++i) {
          good &= p.places[r * k + i] == order[(size_t)i];
          good &= tolerance.softmax(p.values[r * k + i], truth.softmax[(size_t)(r * cols + order[(size_t)i])]);
        }
        tally.check(good, "topk " + s.id(2, cols) + " row " + std::to_string(r));
      }
    }
}

void test_pools() {
  std::vector<int64_t> seen(10007, 0);
  osm::parallel_for((int64_t)seen.size(), 4, [&](int64_t i) { ++seen[(size_t)i]; });
  tally.check(std::count(seen.begin(), seen.end(), 1) == (int64_t)seen.size(), "parallel_for: each item once");

  // Many callers at once: one gets the threads, the others work alone, and all of them finish.
  std::vector<int64_t> sums(8, 0);
  std::vector<std::thread> callers;
  for (size_t c = 0; c < sums.size(); ++c)
    callers.emplace_back([&sums, c] {
      for (int round = 0; round < 50; ++round) {
        std::vector<int64_t> part(64, 0);
        osm::parallel_for(64, 4, [&](int64_t i) { part[(size_t)i] = i; });
        sums[c] += std::accumulate(part.begin(), part.end(), (int64_t)0);
      }
    });
  for (std::thread& caller : callers) caller.join();
  for (int64_t sum : sums) tally.check(sum == 50 * 64 * 63 / 2, "parallel_for from many threads");

  const int64_t bytes = (3 << 20) + 5, kept = osm::result_kept(), limit = osm::result_limit();
  void* memory = osm::result_alloc(bytes);
  std::memset(memory, 1, (size_t)bytes);
  osm::result_free(memory, bytes);
  tally.check(osm::result_kept() > kept, "a released result is kept");
  void* again = osm::result_alloc(bytes);
  tally.check(again == memory, "a kept result is used again");
  osm::result_free(again, bytes);
  osm::result_set_limit(0);
  tally.check(osm::result_kept() == 0, "nothing is kept over the limit");
  osm::result_set_limit(limit);
}

}  // namespace

void test_driver() {
  for (const Isa* isa : usable_isas())
    for (Dtype dtype : kDtypes) {
      for (int64_t cols : {0, 1, 3, 16, 33, 129, 260, 1027})
        for (int64_t rows : {1, 9}) {
          run_all(isa, dtype, rows, cols, Fill::near, false, 1, true);
          run_all(isa, dtype, rows, cols, Fill::wide, false, 1, true);
          run_all(isa, dtype, rows, cols, Fill::special, false, 1, true);
          run_all(isa, dtype, rows, cols, Fill::near, true, 1, true);
        }
      // Segments; enough work for threads.
      run_all(isa, dtype, 1, osm::kSegment + 1, Fill::near, true, 2, false);
      run_all(isa, dtype, 2, 3 * osm::kSegment + 17, Fill::wide, false, 2, false);
      run_all(isa, dtype, 301, 701, Fill::special, false, 2, false);
      test_weights(isa, dtype);
      test_topk(isa, dtype);
      test_small(isa, dtype);
    }
  test_pools();
}

}  // namespace tests
