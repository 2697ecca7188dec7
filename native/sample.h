// Drawing one token a row: what a caller asks for.
#pragma once
#include <cstdint>

#include "driver.h"
#include "sample_table.h"

namespace osm {

struct SampleProblem {
  Problem rows;  // op, first, second unused; one axis reduced
  // One number a row, row-major over the axes that are left.
  const double* temperature = nullptr;  // 0: the greatest logit
  const int64_t* top_k = nullptr;       // 0: all; or null for none in any row, as the next two
  const double* top_p = nullptr;        // 1: all
  const double* min_p = nullptr;        // 0: all
  uint64_t seed = 0, draw = 0;
  bool same = false;                       // noise of the same bits on every machine
  int64_t first_row = 0, first_token = 0;  // their numbers in a whole
  // Results, one a row: the token (-1: nothing to draw from) and its log-probability, or with `keys` the parts of a
  // state that merges: the key and what rounding left out of it, the token's logit over the temperature, and the law's
  // m and s.
  int64_t* tokens = nullptr;
  double* log_probabilities = nullptr;
  double *keys = nullptr, *rests = nullptr, *logits = nullptr, *m = nullptr, *s = nullptr;
};
void run_sample(const SampleProblem& problem);

}  // namespace osm
