// Every pair (a, b) of a format through one way of the kernels: which ways there are, and the walk over the pairs.
#pragma once
#include <string>
#include <vector>

#include "../driver.h"
#include "judge.h"

namespace exhaustive {

enum class Kind { softmax, lse, state, law };
// rows: elements of a pair adjacent. columns: the reduced axis is the first, a pair a lane. blocks: the same with a in
// the first block of a column and b in the next, so that the states (a, 1) and (b, 1) are merged in vectors.
enum class Layout { rows, columns, blocks, none };
enum class Inject { nothing, value, special };

struct Check {
  const char* name;
  Kind kind;
  Layout layout;
  int algorithm;
  double unit, bound;  // of the error: 1 for results of 16 bits, in ulps; else relative to the sum
  const char* unit_name;
};
const std::vector<Check>& checks();

struct Request {
  const osm::Isa* isa;
  int threads = 2;
  int stride = 1;  // every stride-th code of a, from 0 on; all codes of b
  Inject inject = Inject::nothing;
};

Tally check_pairs(const Check& check, const Format& format, const Request& request);

// exp of every code: the kernels' exp of a float, and those of weighted sums, relative to a maximum of 0. The first is
// also held to its promise in float; the greatest error in units in the last place of float32 goes to `float_ulps`.
constexpr double kExpBound = 1.01;  // tests/test_exp.py
Tally check_exp(const Format& format, const Request& request, double* float_ulps);
Tally check_exps(const Format& format, const Request& request);

}  // namespace exhaustive
