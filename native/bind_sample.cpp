// The part of the Python module that draws. Whoever calls keeps the arrays alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind.h"
#include "sample.h"

namespace nb = nanobind;

namespace {

using Longs = std::vector<int64_t>;
using Addresses = std::vector<uintptr_t>;

// options: temperature, top_k, top_p, min_p, one number a row each. at: first row, first token. results: tokens and
// log-probabilities, or tokens, keys, rests, logits, m and s.
void sample_array(const Plan& plan, int dtype, const Longs& shape, int axis, uintptr_t x, const Longs& strides,
                  const Addresses& options, uint64_t seed, uint64_t draw, bool same, const Longs& at,
                  const Addresses& results) {
  if (shape.size() > osm::kMaxDims || strides.size() != shape.size() || options.size() != 4 || at.size() != 2 ||
      (results.size() != 2 && results.size() != 6))
    throw nb::value_error("strides as long as the shape, four options, two places, two or six results");
  osm::SampleProblem p;
  p.rows.dtype = (osm::Dtype)dtype, p.rows.isa = &isa_of(plan.isa), p.rows.threads = plan.threads;
  p.rows.ndim = (int)shape.size(), p.rows.reduced = uint64_t{1} << axis, p.rows.x = (const char*)x;
  for (size_t d = 0; d < shape.size(); ++d) p.rows.shape[d] = shape[d], p.rows.x_strides[d] = strides[d];
  p.temperature = (const double*)options[0], p.top_k = (const int64_t*)options[1];
  p.top_p = (const double*)options[2], p.min_p = (const double*)options[3];
  p.seed = seed, p.draw = draw, p.same = same, p.first_row = at[0], p.first_token = at[1];
  p.tokens = (int64_t*)results[0];
  if (results.size() == 2) {
    p.log_probabilities = (double*)results[1];
  } else {
    p.keys = (double*)results[1], p.rests = (double*)results[2], p.logits = (double*)results[3];
    p.m = (double*)results[4], p.s = (double*)results[5];
  }
  OutsidePython free;
  osm::run_sample(p);
}

}  // namespace

void bind_sample(nb::module_& m) { m.def("sample_array", &sample_array); }
