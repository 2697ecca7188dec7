// float16 and bfloat16 as tables over their 65536 codes: values, exponentials, and the exponentials of the midpoints
// between neighbours, by which a log-sum-exp is judged without a logarithm.
#pragma once
#include <cstdint>
#include <vector>

#include "../table.h"

namespace exhaustive {

constexpr int kCodes = 65536;
constexpr int kNegative = 0x8000;  // the code of -0
// Exponentials are tabled up to this argument; kMiddle is the largest |a| whose pairs are judged by the tables. For
// |a| <= kMiddle and |b| > kTabled the smaller of the two weighs less than exp(-400) of the other: nothing, in any
// result.
constexpr double kTabled = 700, kMiddle = 300;

struct Format {
  const char* name;
  osm::Dtype dtype;
  int fraction;                      // explicit bits of the mantissa
  int shift;                         // a code moved left by this is a float, up to the factor `scale`
  float scale;                       // a power of two
  int infinity;                      // code of +inf
  int one;                           // code of 1
  int tabled;                        // code of the first value above kTabled
  std::vector<double> value, e, e1;  // value, exp(value), expm1(value), by code; |value| taken as kTabled at most
  // exp and expm1 of the midpoints below and above each value, NaN around the values that are not tabled.
  std::vector<double> below, above, below1, above1;

  static const Format& f16();
  static const Format& bf16();
  static const Format& of(osm::Dtype dtype) { return dtype == osm::Dtype::f16 ? f16() : bf16(); }

  bool is_nan(int code) const { return (code & 0x7fff) > infinity; }
  bool is_special(int code) const { return (code & 0x7fff) >= infinity; }
  // The midpoint between a finite value and the neighbour above it: the step beyond the largest value is as long as
  // the one before it.
  double midpoint_above(int code) const;
  double midpoint_below(int code) const { return -midpoint_above(code ^ kNegative); }
  // Distance between neighbours on the side of y where the exact value lies.
  double spacing(int code, bool exact_is_above) const;
  // To nearest, ties to even.
  uint16_t rounded(double v) const;
};

}  // namespace exhaustive
