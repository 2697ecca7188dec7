// What every kernel is held against: rows in double, by the definitions, with the special values of the public API.
#pragma once
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../driver.h"
#include "formats.h"

namespace tests {

using osm::Algorithm;
using osm::Isa;
using osm::Op;

constexpr Op kOps[] = {Op::softmax, Op::log_softmax, Op::lse, Op::state};
constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16};
constexpr int kAlgorithms[] = {osm::kAuto, (int)Algorithm::naive, (int)Algorithm::three_pass, (int)Algorithm::online,
                               (int)Algorithm::cached};

inline const char* name_of(Op op) {
  constexpr const char* names[] = {"softmax", "log_softmax", "logsumexp", "state"};
  return names[(int)op];
}
inline const char* name_of(int algorithm) {
  constexpr const char* names[] = {"auto", "naive", "three_pass", "online", "cached"};
  return names[algorithm + 1];
}
inline bool maps(Op op) { return op == Op::softmax || op == Op::log_softmax; }

// A table of logits, already values of the format, with the mask (1: takes part).
struct Table {
  int64_t rows, cols;
  std::vector<double> x;
  std::vector<uint8_t> live;

  double at(int64_t r, int64_t c) const { return x[(size_t)(r * cols + c)]; }
  bool takes(int64_t r, int64_t c) const { return live.empty() || live[(size_t)(r * cols + c)]; }
};

enum class Fill { near, wide, special };  // within 6 of zero; over 160; with infinities and NaN in some rows

inline double rounded(Dtype d, double v) {
  char p[8];
  store(d, p, v);
  return load(d, p);
}

inline Table table_of(Dtype d, int64_t rows, int64_t cols, Fill fill, bool mask, unsigned seed) {
  Table t{rows, cols, std::vector<double>((size_t)(rows * cols)), {}};
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(fill == Fill::wide ? -80.0 : -6.0, fill == Fill::wide ? 80.0 : 6.0);
  for (double& v : t.x) v = rounded(d, values(random));
  if (mask) {
    t.live.resize(t.x.size());
    for (size_t i = 0; i < t.live.size(); ++i)
      t.live[i] = random() % 3 != 0 && (int64_t)i / cols != 1;  // row 1: nothing left
  }
  if (fill != Fill::special || cols == 0) return t;
  for (int64_t r = 0; r < rows; ++r) {
    double* row = &t.x[(size_t)(r * cols)];
    double& one = row[random() % (size_t)cols];
    switch (r % 6) {
      case 0:
        one = NAN;
        break;
      case 1:
        one = HUGE_VAL;
        break;
      case 2:
        std::fill(row, row + cols, -HUGE_VAL);
        break;
      case 3:
        one = -HUGE_VAL;
        break;
      case 4:
        row[0] = HUGE_VAL, row[cols - 1] = NAN;
        break;
      default:
        break;
    }
  }
  return t;
}

struct Row {
  double m, s, lse;
};

// The truth about a table: its rows' states, and the value of every element of softmax and log_softmax. In long double:
// the difference of two doubles is not a double, and exp multiplies what is lost by its size.
struct Truth {
  std::vector<Row> rows;
  std::vector<double> softmax, log_softmax;

  double value(Op op, size_t i) const { return op == Op::softmax ? softmax[i] : log_softmax[i]; }
};

inline Row row_of(const Table& t, int64_t r) {
  double m = -HUGE_VAL;
  bool nan = false;
  for (int64_t c = 0; c < t.cols; ++c) {
    if (!t.takes(r, c)) continue;
    nan |= std::isnan(t.at(r, c));
    m = std::max(m, t.at(r, c));
  }
  if (nan) return {NAN, NAN, NAN};
  long double s = 0;
  for (int64_t c = 0; c < t.cols; ++c) {
    if (!t.takes(r, c)) continue;
    if (m == HUGE_VAL)
      s += t.at(r, c) == HUGE_VAL;
    else if (m != -HUGE_VAL)
      s += std::exp((long double)t.at(r, c) - m);
  }
  return {m, (double)s, std::isinf(m) ? m : (double)(m + std::log(s))};
}

inline Truth truth_of(const Table& t) {
  Truth truth;
  for (int64_t r = 0; r < t.rows; ++r) {
    const Row row = row_of(t, r);
    truth.rows.push_back(row);
    const bool special = std::isnan(row.lse) || std::isinf(row.lse);
    for (int64_t c = 0; c < t.cols; ++c) {
      const long double x = special ? NAN : (long double)t.at(r, c) - row.m, s = row.s;
      truth.softmax.push_back(t.takes(r, c) ? (double)(std::exp(x) / s) : 0.0);
      truth.log_softmax.push_back(t.takes(r, c) ? (double)(x - std::log(s)) : -HUGE_VAL);
    }
  }
  return truth;
}

// How far a result may be off. `work`: error of the arithmetic before the one rounding into the format: exp and a few
// roundings of float (of double for float64). Formats of 16 bits have a shorter polynomial, some 1.6e-6 off, a
// hundredth of their own rounding; rescaling a running sum by it adds a few times as much (older errors shrink with the
// sum).
struct Tolerance {
  Dtype dtype;
  bool fast;

  double work() const { return dtype == Dtype::f64 ? 1e-14 : std::ldexp(1.0, dtype == Dtype::f32 ? -21 : -17); }
  bool softmax(double got, double want) const {
    // precision="fast": a unit in the last place; bfloat16 2^-6 and no subnormal results (avx512_log16.cpp).
    const double one_unit = !fast || dtype == Dtype::f32 || dtype == Dtype::f64 ? 0.0
                            : dtype == Dtype::bf16                              ? 0x1p-6
                                                                                : 2 * unit(dtype);
    const double spacing = unit(dtype) * least_normal(dtype) * 2;  // of the subnormal numbers
    return same(got, want,
                (unit(dtype) + work() + one_unit) * std::fabs(want) + spacing * (fast ? 1.5 : 0.51) + flush());
  }
  bool log_softmax(double got, double want) const {
    return same(got, want, unit(dtype) * std::fabs(want) + work() * (1.0 + std::fabs(want)));
  }
  bool logarithm(double got, double want) const { return same(got, want, work() * (1.0 + std::fabs(want))); }
  bool sum(double got, double want) const { return same(got, want, work() * std::fabs(want)); }

 private:
  // exp is 0 where it would be subnormal in the working format, which only float32 and bfloat16 results could show.
  double flush() const { return dtype == Dtype::f16 ? 0.0 : least_normal(dtype) * 2; }
  static bool same(double got, double want, double tolerance) {
    if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
    return std::fabs(got - want) <= tolerance;
  }
};

// ---- the tally
// -------------------------------------------------------------------------------------------------------------

struct Tally {
  int64_t passed = 0, failed = 0;
  std::set<std::string> shown;
  // `what` begins with the id of the variant.
  void check(bool good, const std::string& what);
};
extern Tally tally;

std::vector<const Isa*> usable_isas();  // best first

void test_kernels();
void test_driver();
void test_attention();
void test_attention_sums();
void test_product();
void test_exact();
void test_scans();
void test_sample();
void test_losses();

}  // namespace tests
