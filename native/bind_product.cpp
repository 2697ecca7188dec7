// The matrix products' part of the Python module. Whoever calls keeps the arrays alive and has checked what they hold.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind.h"
#include "product.h"

namespace nb = nanobind;

namespace {

using Longs = std::vector<int64_t>;

osm::Matrix matrix(uintptr_t address, int dtype, const Longs& strides) {
  if (strides.size() != 2) throw nb::value_error("two strides");
  return {(const char*)address, strides[0], strides[1], (osm::Dtype)dtype};
}

void product_array(const Plan& plan, const Longs& shape, uintptr_t a, int a_dtype, const Longs& a_strides, uintptr_t b,
                   int b_dtype, const Longs& b_strides, uintptr_t c, int c_dtype, const Longs& c_strides, bool add,
                   bool fused, uintptr_t bias) {
  if (shape.size() != 3) throw nb::value_error("m, n and k");
  osm::ProductProblem p;
  p.isa = &isa_of(plan.isa), p.threads = plan.threads;
  p.m = shape[0], p.n = shape[1], p.k = shape[2];
  p.a = matrix(a, a_dtype, a_strides), p.b = matrix(b, b_dtype, b_strides), p.c = matrix(c, c_dtype, c_strides);
  p.add = add, p.fused = fused, p.bias = (const void*)bias;
  OutsidePython free;
  osm::run_product(p);
}

}  // namespace

void bind_product(nb::module_& m) { m.def("product_array", &product_array); }
