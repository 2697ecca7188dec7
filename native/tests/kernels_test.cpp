// The table of each instruction set, kernel by kernel: every operation, format, algorithm and kind of store, at sizes
// around the widths of the vectors, with x, y, states and scratch each of the exact size.
#include <algorithm>
#include <cstdio>
#include <map>

#include "memory_under_test.h"
#include "truth.h"

namespace tests {
namespace {

using osm::ColsJob;
using osm::Kernels;
using osm::RowsJob;
using osm::RowState;

// One below, at and one above the widths (4 to 32 lanes, pairs of them, rows kept in registers), odd ones, and a page.
constexpr int64_t kLengths[] = {1,  2,  3,  5,   7,   8,   9,   15,  16,  17,  31,  32,  33,  47,   63,   64,
                                65, 95, 97, 127, 128, 129, 191, 255, 256, 257, 511, 512, 513, 1000, 1027, 4101};

struct Variant {
  const Isa* isa;
  Dtype dtype;
  Op op;
  int algorithm;
  bool fast, stream;
  Where where;

  const Kernels& kernels() const { return osm::kernels_of(*isa, dtype, fast); }
  int64_t size() const { return (int64_t)osm::dtype_size(dtype); }
  std::string id() const {
    return std::string(name_of(op)) + "." + short_name(dtype) + "." + isa->name + "." + name_of(algorithm) +
           (fast ? " fast" : "") + (stream ? " stream" : "") +
           (where == Where::heap     ? ""
            : where == Where::before ? " before a wall"
                                     : " after a wall");
  }
};

std::string place(const Variant& v, const char* what, int64_t rows, int64_t cols, int64_t r, int64_t c, double got,
                  double want) {
  char text[200];
  std::snprintf(text, sizeof text, " %s %lldx%lld at (%lld, %lld): %.17g, expected %.17g", what, (long long)rows,
                (long long)cols, (long long)r, (long long)c, got, want);
  return v.id() + text;
}

void check_states(const Variant& v, const Table& t, const Truth& truth, const RowState* states, const char* what) {
  const Tolerance tolerance{v.dtype, v.fast};
  for (int64_t r = 0; r < t.rows; ++r) {
    const Row& want = truth.rows[(size_t)r];
    double lse = 0;
    v.isa->finish(&states[r], &lse, 1);
    tally.check(tolerance.logarithm(lse, want.lse), place(v, what, t.rows, t.cols, r, 0, lse, want.lse));
    if (v.algorithm == (int)Algorithm::naive) continue;  // its states have no maximum
    if (v.op != Op::state) {                             // relative to a number near the maximum
      const double s = std::isfinite(want.m) ? states[r].s * std::exp(states[r].m - want.m) : states[r].s;
      tally.check(tolerance.sum(s, want.s), place(v, what, t.rows, t.cols, r, -2, s, want.s));
      continue;
    }
    const bool exact = std::isnan(want.m) ? std::isnan(states[r].s) : states[r].m == want.m;
    tally.check(exact, place(v, what, t.rows, t.cols, r, -1, states[r].m, want.m));
    tally.check(tolerance.sum(states[r].s, want.s), place(v, what, t.rows, t.cols, r, -2, states[r].s, want.s));
  }
}

// `step`, `lane`: bytes from one element of a row to the next and from one row to the next.
void check_values(const Variant& v, const Table& t, const Truth& truth, const char* y, int64_t step, int64_t lane,
                  const char* what) {
  const Tolerance tolerance{v.dtype, v.fast};
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.cols; ++c) {
      const double got = load(v.dtype, y + r * lane + c * step), want = truth.value(v.op, (size_t)(r * t.cols + c));
      const bool good = v.op == Op::softmax ? tolerance.softmax(got, want) : tolerance.log_softmax(got, want);
      if (good) continue;
      tally.check(false, place(v, what, t.rows, t.cols, r, c, got, want));
      return;
    }
  tally.check(true, "");
}

// A row's bits depend on the row, the format, the instruction set and the algorithm alone: the results of every kind of
// store and memory are kept here by what may matter, and each is held against the first.
using Bits = std::map<std::string, std::string>;

void check_bits(const Variant& v, const Table& t, Bits& seen, const std::string& bits, const char* what) {
  const std::string key = std::string(name_of(v.op)) + name_of(v.algorithm) + (v.fast ? "fast" : "");
  const auto& first = seen.emplace(key, bits).first->second;
  tally.check(first == bits,
              v.id() + " " + what + " at length " + std::to_string(t.cols) + ": other bits than in other memory");
}

void rows_case(const Variant& v, const Table& t, const Truth& truth, int64_t gap, bool in_place, Bits& seen) {
  const int64_t size = v.size(), stride = (t.cols + gap) * size, bytes = (t.rows - 1) * stride + t.cols * size;
  const Buffer x(bytes, v.where), y(maps(v.op) ? bytes : 0, v.where);
  const Buffer states(maps(v.op) ? 0 : t.rows * (int64_t)sizeof(RowState), v.where);
  const bool cached = v.algorithm == (int)Algorithm::cached;
  const Buffer scratch(osm::rows_scratch(v.dtype, cached ? t.cols : 0), Where::heap, 64);
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.cols; ++c) store(v.dtype, x.data() + r * stride + c * size, t.at(r, c));
  char* target = in_place ? x.data() : y.data();
  RowsJob job{};
  job.op = v.op, job.algorithm = (Algorithm)v.algorithm, job.fast = v.fast, job.stream = v.stream;
  job.x = x.data(), job.y = maps(v.op) ? target : nullptr, job.states = maps(v.op) ? nullptr : states.as<RowState>();
  job.rows = t.rows, job.cols = t.cols, job.x_stride = job.y_stride = stride;
  job.scratch = scratch.data();
  v.kernels().rows(job);
  const char* what = in_place ? "rows in place" : gap ? "rows with gaps" : "rows";
  if (!maps(v.op)) return check_states(v, t, truth, states.as<RowState>(), what);
  check_values(v, t, truth, target, size, stride, what);
  std::string bits;
  for (int64_t r = 0; r < t.rows; ++r) bits.append(target + r * stride, (size_t)(t.cols * size));
  check_bits(v, t, seen, bits, what);
  bool kept = true;
  if (!in_place)
    for (int64_t r = 0; r + 1 < t.rows; ++r)
      for (int64_t b = t.cols * size; b < stride; ++b) kept &= y.data()[r * stride + b] == 0x55;
  tally.check(kept, v.id() + " wrote between two rows");
}

void cols_case(const Variant& v, const Table& t, const Truth& truth, int64_t gap) {
  const int64_t size = v.size(), step = (t.rows + gap) * size, bytes = (t.cols - 1) * step + t.rows * size;
  const Buffer x(bytes, v.where), y(maps(v.op) ? bytes : 0, v.where);
  const Buffer states(maps(v.op) ? 0 : t.rows * (int64_t)sizeof(RowState), v.where);
  const bool cached = v.algorithm == (int)Algorithm::cached;
  const Buffer scratch(osm::cols_scratch(v.dtype, cached ? t.cols : 0), Where::heap, 64);
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.cols; ++c) store(v.dtype, x.data() + r * size + c * step, t.at(r, c));
  ColsJob job{};
  job.op = v.op, job.algorithm = (Algorithm)v.algorithm, job.stream = v.stream;
  job.x = x.data(), job.y = maps(v.op) ? y.data() : nullptr, job.states = maps(v.op) ? nullptr : states.as<RowState>();
  job.length = t.cols, job.count = t.rows, job.x_step = job.y_step = step;
  job.scratch = scratch.data();
  v.kernels().cols(job);
  if (maps(v.op))
    check_values(v, t, truth, y.data(), step, size, "columns");
  else
    check_states(v, t, truth, states.as<RowState>(), "columns");
}

// Calls f(variant) for every algorithm, kind of store, memory and precision of one operation, format and fill.
template <class F>
void each_variant(const Isa* isa, Dtype dtype, Fill fill, bool columns, const F& f) {
  for (Op op : kOps)
    for (int algorithm : kAlgorithms) {
      const bool naive = algorithm == (int)Algorithm::naive;
      if (algorithm == osm::kAuto || (naive && fill != Fill::near)) continue;  // it has no shift to save it
      if (columns && algorithm != (int)Algorithm::online && algorithm != (int)Algorithm::cached) continue;
      for (bool stream : {false, true})
        for (bool fast : {false, true})
          for (Where where : wheres) {
            const bool narrow = dtype == Dtype::f16 || dtype == Dtype::bf16;
            if ((stream && !maps(op)) || (fast && (op != Op::softmax || !narrow || columns))) continue;
            f(Variant{isa, dtype, op, algorithm, fast, stream, where});
          }
    }
}

void test_rows(const Isa* isa, Dtype dtype) {
  unsigned seed = 1;
  for (int64_t cols : kLengths)
    for (Fill fill : {Fill::near, Fill::wide, Fill::special}) {
      // Some kernels take eight rows of up to 256 elements at a time: twice that, and some that are left.
      const int64_t rows = cols <= 257 && seed % 4 == 0 ? 19 : fill == Fill::special ? 6 : 3;
      const Table t = table_of(dtype, rows, cols, fill, false, ++seed);
      const Truth truth = truth_of(t);
      Bits seen;
      each_variant(isa, dtype, fill, false, [&](const Variant& v) {
        rows_case(v, t, truth, 0, false, seen);
        rows_case(v, t, truth, 3, false, seen);
        if (maps(v.op) && !v.stream) rows_case(v, t, truth, 0, true, seen);
      });
    }
}

void test_cols(const Isa* isa, Dtype dtype) {
  unsigned seed = 1000;
  for (int64_t length : {1, 2, 3, 8, 17, 100})
    for (int64_t count : {8, 9, 15, 16, 31, 33, 64, 65, 127, 129, 300})
      for (Fill fill : {Fill::near, Fill::wide, Fill::special}) {
        const Table t = table_of(dtype, count, length, fill, false, ++seed);
        const Truth truth = truth_of(t);
        each_variant(isa, dtype, fill, true, [&](const Variant& v) { cols_case(v, t, truth, seed % 2 ? 0 : 5); });
      }
}

// segment, rest, write and exps on n adjacent elements.
void test_pieces(const Isa* isa, Dtype dtype) {
  const Kernels& k = isa->kernels[(int)dtype];
  const int64_t size = (int64_t)osm::dtype_size(dtype);
  const Tolerance tolerance{dtype, false};
  for (int64_t n : {(int64_t)1, (int64_t)7, (int64_t)16, (int64_t)33, (int64_t)129, (int64_t)1027, osm::kSegment - 1,
                    osm::kSegment})
    for (Where where : wheres) {
      const Table t = table_of(dtype, 1, n, Fill::near, false, (unsigned)n);
      const Truth truth = truth_of(t);
      const Row& row = truth.rows[0];
      const Variant v{isa, dtype, Op::softmax, (int)Algorithm::online, false, false, where};
      const Buffer x(n * size, where), y(n * size, where), e(n * 8, where);
      for (int64_t c = 0; c < n; ++c) store(dtype, x.data() + c * size, t.at(0, c));
      const RowState piece = k.segment(x.data(), n), main = k.softmax_state(x.data(), n), st = k.state(x.data(), n);
      check_states(v, t, truth, &piece, "segment");
      check_states(v, t, truth, &main, "softmax_state");
      Variant of_state = v;
      of_state.op = Op::state;
      check_states(of_state, t, truth, &st, "state");
      tally.check(k.maximum(x.data(), n) == row.m, v.id() + " maximum");
      int64_t equal = 0;
      const RowState rest = k.rest(x.data(), n, row.m, &equal);
      const int64_t want = std::count(t.x.begin(), t.x.end(), row.m);
      tally.check(equal == want, v.id() + " rest: wrong count of maxima");
      tally.check(std::fabs(rest.s - (row.s - (double)want)) <= tolerance.work() * row.s, v.id() + " rest: wrong sum");
      const double log_s = k.log_sum(x.data(), n, st);
      tally.check(tolerance.logarithm(log_s, std::log(row.s)), v.id() + " log_sum");
      for (bool stream : {false, true}) {
        for (Op op : {Op::softmax, Op::log_softmax}) {
          Variant of_op = v;
          of_op.op = op;
          k.write(op, x.data(), y.data(), n, st, log_s, stream);
          check_values(of_op, t, truth, y.data(), size, n * size, "write");
        }
      }
      k.exps(x.data(), e.as<double>(), n, row.m);
      bool good = true;
      for (int64_t c = 0; c < n; ++c) {
        const double exact = std::exp(t.at(0, c) - row.m);
        good &= std::fabs(e.as<double>()[c] - exact) <= tolerance.work() * exact;
      }
      tally.check(good, v.id() + " exps");
    }
}

void test_exp_f32(const Isa* isa) {
  for (int64_t n : kLengths)
    for (Where where : wheres) {
      const Buffer x(n * 4, where), y(n * 4, where);
      for (int64_t i = 0; i < n; ++i) x.as<float>()[i] = -87.0f * (float)i / (float)n - 0.37f;
      isa->exp_f32(x.as<float>(), y.as<float>(), n);
      bool good = true;
      for (int64_t i = 0; i < n; ++i) {
        const double want = std::exp((double)x.as<float>()[i]);
        good &= std::fabs(y.as<float>()[i] - want) <= std::ldexp(want, -22) + 1e-38;
      }
      tally.check(good, std::string("exp_f32.") + isa->name + " at length " + std::to_string(n));
    }
}

void test_probes(const Isa* isa) {
  for (int64_t bytes : {(int64_t)256, (int64_t)4096, (int64_t)65536})
    for (bool stream : {false, true}) {
      const Buffer source(bytes, end_of_memory(), 64), target(bytes, end_of_memory(), 64);
      for (int64_t i = 0; i < bytes; ++i) source.data()[i] = (char)(i * 7);
      isa->probe_read(source.data(), bytes);
      isa->probe_copy(source.data(), target.data(), bytes, stream);
      tally.check(!std::memcmp(source.data(), target.data(), (size_t)bytes), std::string("probe_copy.") + isa->name);
    }
}

}  // namespace

void test_kernels() {
  for (const Isa* isa : usable_isas()) {
    for (Dtype dtype : kDtypes) {
      test_rows(isa, dtype);
      test_cols(isa, dtype);
      test_pieces(isa, dtype);
    }
    test_exp_f32(isa);
    test_probes(isa);
  }
}

}  // namespace tests
