// The reference where a double cannot decide: unevaluated sums of two doubles, some 100 bits, on every platform alike.
#pragma once

namespace exhaustive {

struct DD {
  double hi, lo;
};

// Relative error of the functions below, with a margin of some thousand: each is a few dozen operations of relative
// error 2^-104 whose errors the squarings of exp_of double eight times. tests/test_exhaustive.py holds them to mpmath.
constexpr double kExactError = 0x1p-84;

double to_double(DD a);
DD difference(double a, double b);  // a - b, exact
DD plus(DD a, DD b);
DD exp_of(DD x);    // |x| <= 720
DD expm1_of(DD x);  // relative to itself, however small
DD log1p_of(DD x);  // x in [0, 1]; relative to itself

// 1/(1 + exp(b - a)): the weight of a among the two. Differences past 600 count as 600.
DD share_of(double a, double b);
// The logarithm of exp(a) + exp(b), off by kExactError*(max|a|,|b| + 1).
DD logaddexp_of(double a, double b);

}  // namespace exhaustive
