// The scans' part of the Python module: arrays as addresses, shapes and strides.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind.h"
#include "scans.h"

namespace nb = nanobind;

namespace {

using Longs = std::vector<int64_t>;

void put(int64_t* to, const Longs& from, size_t ndim) {
  if (from.size() != ndim || ndim > (size_t)osm::kMaxDims) throw nb::value_error("at most 64 axes, of all the same");
  for (size_t d = 0; d < ndim; ++d) to[d] = from[d];
}

osm::ScanProblem problem_of(const Plan& plan, int dtype, const Longs& shape, uintptr_t x, const Longs& xs, uintptr_t y,
                            const Longs& ys) {
  osm::ScanProblem p;
  p.dtype = (osm::Dtype)dtype, p.isa = &isa_of(plan.isa), p.threads = plan.threads, p.ndim = (int)shape.size();
  put(p.shape, shape, shape.size());
  p.x = (const char*)x, put(p.x_strides, xs, shape.size());
  p.y = (char*)y, put(p.y_strides, ys, shape.size());
  return p;
}

void add_array(const Plan& plan, int dtype, const Longs& shape, uintptr_t a, const Longs& as, uintptr_t b,
               const Longs& bs, uintptr_t y, const Longs& ys) {
  osm::ScanProblem p = problem_of(plan, dtype, shape, a, as, y, ys);
  p.b = (const char*)b, put(p.b_strides, bs, shape.size());
  OutsidePython free;
  osm::run_add(p);
}

void scan_array(const Plan& plan, int dtype, const Longs& shape, int axis, bool exclusive, uintptr_t x, const Longs& xs,
                uintptr_t y, const Longs& ys) {
  const osm::ScanProblem p = problem_of(plan, dtype, shape, x, xs, y, ys);
  OutsidePython free;
  osm::run_scan(p, axis, exclusive);
}

osm::RowsProblem rows_of(const Plan& plan, int dtype, int64_t rows, int64_t n, uintptr_t x, uintptr_t y) {
  osm::RowsProblem p;
  p.dtype = (osm::Dtype)dtype, p.isa = &isa_of(plan.isa), p.threads = plan.threads;
  p.rows = rows, p.n = n, p.x = (const char*)x, p.y = (char*)y;
  return p;
}

void window_array(const Plan& plan, int dtype, int64_t rows, int64_t n, int64_t window, uintptr_t x, uintptr_t y) {
  const osm::RowsProblem p = rows_of(plan, dtype, rows, n, x, y);
  OutsidePython free;
  osm::run_window(p, window);
}

void scan_gradient_array(const Plan& plan, int dtype, int64_t rows, int64_t n, uintptr_t x, uintptr_t dy,
                         uintptr_t dx) {
  osm::RowsProblem p = rows_of(plan, dtype, rows, n, x, dx);
  p.dy = (const char*)dy;
  OutsidePython free;
  osm::run_scan_gradient(p);
}

void groups_array(const Plan& plan, int op, int dtype, const Longs& shape, int axis, uintptr_t offsets, int64_t groups,
                  uintptr_t x, const Longs& xs, uintptr_t y, const Longs& ys, uintptr_t first, bool single) {
  osm::Problem p;
  p.op = (osm::Op)op, p.dtype = (osm::Dtype)dtype, p.isa = &isa_of(plan.isa);
  p.algorithm = plan.algorithm, p.threads = plan.threads, p.ndim = (int)shape.size();
  put(p.shape, shape, shape.size());
  p.x = (const char*)x, put(p.x_strides, xs, shape.size());
  if (y) p.y = (char*)y, put(p.y_strides, ys, shape.size());
  p.first = (void*)first, p.single = single;
  OutsidePython free;
  osm::run_groups(p, axis, (const int64_t*)offsets, groups);
}

}  // namespace

void bind_scans(nb::module_& m) {
  m.def("add_array", &add_array);
  m.def("scan_array", &scan_array);
  m.def("window_array", &window_array);
  m.def("scan_gradient_array", &scan_gradient_array);
  m.def("groups_array", &groups_array);
}
