// The part of the Python module on results whose bits depend on the elements alone: arrays as addresses, shapes and
// strides.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind.h"
#include "run_exact.h"

namespace nb = nanobind;

namespace {

using Longs = std::vector<int64_t>;

void put(int64_t* to, const Longs& from, size_t ndim) {
  if (from.size() != ndim || ndim > (size_t)osm::kMaxDims) throw nb::value_error("at most 64 axes, of all the same");
  for (size_t d = 0; d < ndim; ++d) to[d] = from[d];
}

// op: of native/table.h. y: softmax and log_softmax; lse: of that op; m and sums: results, or with `given` the states.
void exact_array(const Plan& plan, int op, bool given, int dtype, const Longs& shape, uint64_t reduced, uintptr_t x,
                 const Longs& xs, uintptr_t y, const Longs& ys, uintptr_t where, const Longs& ws, uintptr_t m,
                 uintptr_t sums, uintptr_t lse) {
  osm::ExactProblem e;
  osm::Problem& p = e.rows;
  p.op = (osm::Op)op, p.dtype = (osm::Dtype)dtype, p.isa = &isa_of(plan.isa), p.threads = plan.threads;
  p.ndim = (int)shape.size(), p.reduced = reduced, p.given = given;
  put(p.shape, shape, shape.size());
  p.x = (const char*)x, put(p.x_strides, xs, shape.size());
  if (y) p.y = (char*)y, put(p.y_strides, ys, shape.size());
  if (where) p.where = (const char*)where, put(p.where_strides, ws, shape.size());
  e.m = (void*)m, e.sums = (int64_t*)sums, e.lse = (void*)lse;
  OutsidePython free;
  osm::run_exact(e);
}

void exact_merge(const Plan& plan, int dtype, int64_t n, uintptr_t m_a, uintptr_t a, uintptr_t m_b, uintptr_t b,
                 uintptr_t m, uintptr_t sums) {
  const osm::Isa& isa = isa_of(plan.isa);
  OutsidePython free;
  osm::run_exact_merge(isa, (osm::Dtype)dtype, plan.threads, (const void*)m_a, (const int64_t*)a, (const void*)m_b,
                       (const int64_t*)b, (void*)m, (int64_t*)sums, n);
}

void exact_lse(const Plan& plan, int dtype, int64_t n, uintptr_t m, uintptr_t a, uintptr_t lse) {
  const osm::Isa& isa = isa_of(plan.isa);
  OutsidePython free;
  osm::run_exact_lse(isa, (osm::Dtype)dtype, plan.threads, (const void*)m, (const int64_t*)a, (void*)lse, n);
}

void exact_log_sum(const Plan& plan, int dtype, int64_t n, uintptr_t m, uintptr_t a, uintptr_t log_sum) {
  const osm::Isa& isa = isa_of(plan.isa);
  OutsidePython free;
  osm::run_exact_log_sum(isa, (osm::Dtype)dtype, plan.threads, (const void*)m, (const int64_t*)a, (double*)log_sum, n);
}

}  // namespace

void bind_exact(nb::module_& m) {
  m.def("exact_array", &exact_array);
  m.def("exact_merge", &exact_merge);
  m.def("exact_lse", &exact_lse);
  m.def("exact_log_sum", &exact_log_sum);
}
