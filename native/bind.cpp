// The module of the native core; with bind_attention.cpp the one place that knows Python. Arrays come as addresses,
// shapes and strides; online_softmax/cpu.py is the only caller.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "bind.h"
#include "driver.h"
#include "memory.h"
#include "pool.h"
#include "state.h"

namespace nb = nanobind;
using osm::Problem;

const osm::Isa& isa_of(const std::string& name) {
  const osm::Isa* isa = osm::find_isa(name.c_str());
  if (!isa) throw nb::value_error(("isa " + name + " is not to be had on this CPU").c_str());
  return *isa;
}

const osm::Isa* small_isa = nullptr;

namespace {

// Destroyed by the unwinding of its thread alone.
class Held {
 public:
  ~Held() {
    while (!let_go) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  bool let_go = false;
};

}  // namespace

void enter_python(PyThreadState* state) {
  Held held;
  PyEval_RestoreThread(state);
  held.let_go = true;
}

namespace {

using Longs = std::vector<int64_t>;

void set_strides(int64_t* to, const Longs& from, int ndim) {
  if ((int)from.size() != ndim) throw nb::value_error("strides and shape differ in length");
  for (int d = 0; d < ndim; ++d) to[d] = from[(size_t)d];
}

Problem make_problem(const Plan& plan, int op, int dtype, const Longs& shape, uint64_t reduced, uintptr_t x,
                     const Longs& xs) {
  if (shape.size() > osm::kMaxDims) throw nb::value_error("more than 64 axes");
  Problem p;
  p.op = (osm::Op)op, p.dtype = (osm::Dtype)dtype, p.isa = &isa_of(plan.isa);
  p.algorithm = plan.algorithm, p.fast = plan.fast, p.threads = plan.threads;
  p.ndim = (int)shape.size(), p.reduced = reduced;
  for (int d = 0; d < p.ndim; ++d) p.shape[d] = shape[(size_t)d];
  p.x = (const char*)x;
  set_strides(p.x_strides, xs, p.ndim);
  return p;
}

void map_array(const Plan& plan, int op, int dtype, const Longs& shape, uint64_t reduced, uintptr_t x, const Longs& xs,
               uintptr_t y, const Longs& ys, uintptr_t where, const Longs& ws) {
  Problem p = make_problem(plan, op, dtype, shape, reduced, x, xs);
  p.y = (char*)y;
  set_strides(p.y_strides, ys, p.ndim);
  if (where) p.where = (const char*)where, set_strides(p.where_strides, ws, p.ndim);
  OutsidePython free;
  osm::run(p);
}

void reduce_array(const Plan& plan, int op, int dtype, const Longs& shape, uint64_t reduced, uintptr_t x,
                  const Longs& xs, uintptr_t first, uintptr_t second, bool single, uintptr_t where, const Longs& ws,
                  uintptr_t weights, const Longs& bs) {
  Problem p = make_problem(plan, op, dtype, shape, reduced, x, xs);
  p.first = (void*)first, p.second = (void*)second, p.single = single;
  if (where) p.where = (const char*)where, set_strides(p.where_strides, ws, p.ndim);
  if (weights) p.weights = (const char*)weights, set_strides(p.weights_strides, bs, p.ndim);
  OutsidePython free;
  osm::run(p);
}

void topk_array(const Plan& plan, int dtype, const Longs& shape, int axis, uintptr_t x, const Longs& xs, int64_t k,
                uintptr_t values, uintptr_t places, uintptr_t lse) {
  osm::TopkProblem p;
  p.rows = make_problem(plan, (int)osm::Op::state, dtype, shape, uint64_t{1} << axis, x, xs);
  p.k = k, p.values = (double*)values, p.places = (int64_t*)places, p.lse = (double*)lse;
  OutsidePython free;
  osm::run_topk(p);
}

// The write pass alone, from states (double, row-major over the axes that are left).
void normalize_array(const Plan& plan, int op, int dtype, const Longs& shape, uint64_t reduced, uintptr_t x,
                     const Longs& xs, uintptr_t y, const Longs& ys, uintptr_t m, uintptr_t s) {
  Problem p = make_problem(plan, op, dtype, shape, reduced, x, xs);
  p.y = (char*)y;
  set_strides(p.y_strides, ys, p.ndim);
  p.given = true, p.first = (void*)m, p.second = (void*)s;
  OutsidePython free;
  osm::run(p);
}

void exp_array(const std::string& isa, uintptr_t x, uintptr_t y, int64_t n) {
  const osm::Isa& i = isa_of(isa);
  OutsidePython free;
  i.exp_f32((const float*)x, (float*)y, n);
}

// Seconds for one pass over nbytes by the threads together.
double probe(const std::string& kind, uintptr_t src, uintptr_t dst, int64_t nbytes, int threads) {
  int count = 0;
  const osm::Isa* best = nullptr;
  for (const osm::Isa* const* isas = osm::all_isas(&count); !best; ++isas)
    if ((*isas)->usable()) best = *isas;
  if (kind != "read" && kind != "copy" && kind != "copy_nt") throw nb::value_error("kind: one of read, copy, copy_nt");
  OutsidePython free;
  constexpr int64_t piece = 1 << 20;
  const auto start = std::chrono::steady_clock::now();
  osm::parallel_for((nbytes + piece - 1) / piece, threads, [&](int64_t i) {
    const int64_t at = i * piece, n = nbytes - at < piece ? nbytes - at : piece;
    if (kind == "read") {
      volatile uint64_t sink = best->probe_read((const char*)src + at, n);
      (void)sink;
    } else {
      best->probe_copy((const char*)src + at, (char*)dst + at, n, kind == "copy_nt");
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

nb::object buffer(int64_t nbytes) {
  if (nbytes < 1) throw nb::value_error("nbytes: at least 1");
  void* memory = osm::result_alloc(nbytes);
  if (!memory) throw std::bad_alloc();
  struct Held {
    void* memory;
    int64_t nbytes;
  };
  auto* held = new Held{memory, nbytes};
  nb::capsule owner(held, [](void* p) noexcept {
    auto* h = (Held*)p;
    osm::result_free(h->memory, h->nbytes);
    delete h;
  });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(memory, {(size_t)nbytes}, owner));
}

nb::tuple isas(bool usable_only) {
  int count = 0;
  const osm::Isa* const* all = osm::all_isas(&count);
  nb::list names;
  for (int i = 0; i < count; ++i)
    if (!usable_only || all[i]->usable()) names.append(all[i]->name);
  return nb::tuple(names);
}

// ---- calls on a few thousand elements: no Python between the arguments and the kernel
// -------------------------------------

PyObject* numpy_empty_like = nullptr;
PyObject* numpy_scalar[4] = {};

struct View {
  Py_buffer b{};
  bool held = false;
  explicit View(PyObject* o, bool writable = false) {
    held = PyObject_GetBuffer(o, &b, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) == 0;
    if (!held) PyErr_Clear();
  }
  ~View() {
    if (held) PyBuffer_Release(&b);
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  int dtype() const {
    if (!b.format || !b.format[0] || b.format[1]) return -1;
    switch (b.format[0]) {
      case 'f':
        return (int)osm::Dtype::f32;
      case 'd':
        return (int)osm::Dtype::f64;
      case 'e':
        return (int)osm::Dtype::f16;
      default:
        return -1;
    }
  }
  bool simple() const {
    return small_isa && held && b.ndim >= 1 && b.len > 0 && b.len <= kSmall * b.itemsize && dtype() >= 0 &&
           b.shape[b.ndim - 1] > 0;
  }
};

bool small_map(const View& x, const View& y, osm::Op op) {
  const int64_t cols = x.b.shape[x.b.ndim - 1];
  osm::small_rows(*small_isa, op, (osm::Dtype)x.dtype(), (const char*)x.b.buf, (char*)y.b.buf,
                  x.b.len / x.b.itemsize / cols, cols);
  return true;
}

PyObject* map_small(PyObject* array, osm::Op op) {
  const View x(array);
  if (!x.simple()) Py_RETURN_NONE;
  PyObject* result = PyObject_CallFunctionObjArgs(numpy_empty_like, array, nullptr);
  if (!result) return nullptr;
  const View y(result, true);
  if (!y.held) {
    Py_DECREF(result);
    Py_RETURN_NONE;
  }
  small_map(x, y, op);
  return result;
}

PyObject* map_small_out(PyObject* const* args, Py_ssize_t count, osm::Op op) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "two arguments: x, out");
    return nullptr;
  }
  const View x(args[0]);
  if (!x.simple()) Py_RETURN_FALSE;
  const View y(args[1], true);
  if (!y.held || y.dtype() != x.dtype() || y.b.ndim != x.b.ndim || y.b.len != x.b.len) Py_RETURN_FALSE;
  for (int d = 0; d < x.b.ndim; ++d)
    if (x.b.shape[d] != y.b.shape[d]) Py_RETURN_FALSE;
  const char *a = (const char*)x.b.buf, *b = (const char*)y.b.buf;
  if (a != b && a < b + y.b.len && b < a + x.b.len) Py_RETURN_FALSE;
  if (small_map(x, y, op)) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

PyObject* softmax_small(PyObject*, PyObject* x) { return map_small(x, osm::Op::softmax); }
PyObject* log_softmax_small(PyObject*, PyObject* x) { return map_small(x, osm::Op::log_softmax); }
PyObject* softmax_small_out(PyObject*, PyObject* const* a, Py_ssize_t n) {
  return map_small_out(a, n, osm::Op::softmax);
}
PyObject* log_softmax_small_out(PyObject*, PyObject* const* a, Py_ssize_t n) {
  return map_small_out(a, n, osm::Op::log_softmax);
}

PyObject* logsumexp_small(PyObject*, PyObject* array) {
  const View x(array);
  if (!x.simple() || x.b.ndim != 1) Py_RETURN_NONE;
  const auto dtype = (osm::Dtype)x.dtype();
  double lse;
  osm::small_lse(*small_isa, dtype, (const char*)x.b.buf, 1, x.b.shape[0], &lse);
  // Formats below double are rounded by way of float, as larger calls round them.
  PyObject* value = PyFloat_FromDouble(dtype == osm::Dtype::f64 ? lse : (double)(float)lse);
  if (!value) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(numpy_scalar[x.dtype()], value, nullptr);
  Py_DECREF(value);
  return result;
}

PyMethodDef small_calls[] = {
    {"softmax_small", softmax_small, METH_O, nullptr},
    {"log_softmax_small", log_softmax_small, METH_O, nullptr},
    {"logsumexp_small", logsumexp_small, METH_O, nullptr},
    {"softmax_small_out", (PyCFunction)(void (*)())softmax_small_out, METH_FASTCALL, nullptr},
    {"log_softmax_small_out", (PyCFunction)(void (*)())log_softmax_small_out, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

NB_MODULE(_core, m) {
  // A thread that is in a call at exit keeps what the call was given. Under python -X dev a leak is told.
  nb::set_leak_warnings(nb::cast<bool>(nb::module_::import_("sys").attr("flags").attr("dev_mode")));
  nb::module_ numpy = nb::module_::import_("numpy");
  numpy_empty_like = nb::object(numpy.attr("empty_like")).release().ptr();
  numpy_scalar[0] = nb::object(numpy.attr("float32")).release().ptr();
  numpy_scalar[1] = nb::object(numpy.attr("float64")).release().ptr();
  numpy_scalar[2] = nb::object(numpy.attr("float16")).release().ptr();
  if (PyModule_AddFunctions(m.ptr(), small_calls)) throw nb::python_error();

  nb::class_<Plan>(m, "Plan").def(nb::init<std::string, int, bool, int>());
  m.def("isas", [] { return isas(true); });
  m.def("compiled", [] { return isas(false); });
  // The instruction set of the small calls; an empty name turns them off (they answer "not simple").
  m.def("set_default_isa", [](const std::string& name) { small_isa = name.empty() ? nullptr : &isa_of(name); });
  m.def("usable_cores", &osm::usable_cores);
  m.def("choose_algorithm", [](int op, int dtype, int64_t cols) {
    return (int)osm::choose_algorithm((osm::Op)op, (osm::Dtype)dtype, cols);
  });
  m.def("map_array", &map_array);
  m.def("reduce_array", &reduce_array);
  m.def("topk_array", &topk_array);
  bind_attention(m);
  bind_exact(m);
  bind_losses(m);
  bind_product(m);
  bind_scans(m);
  bind_sample(m);
  bind_jax(m);
  bind_tensor(m);
  bind_tensor_attention(m);
  bind_tensor_losses(m);
  m.def("normalize_array", &normalize_array);
  m.def("exp_array", &exp_array);
  m.def("set_cached_limit",
        [](int op, int dtype, int64_t cols) { osm::set_cached_limit((osm::Op)op, (osm::Dtype)dtype, cols); });
  m.def("set_cached_column", &osm::set_cached_column);
  m.def("probe", &probe);
  m.def("buffer", &buffer);
  m.def("pool_kept", &osm::result_kept);
  m.def("pool_limit", &osm::result_limit);
  m.def("set_pool_limit", &osm::result_set_limit);
  m.def("law_merge", [](double ma, double sa, double mb, double sb) {
    const osm::State r = osm::merge({ma, sa}, {mb, sb});
    return nb::make_tuple(r.m, r.s);
  });
  m.def("law_push", [](double mm, double s, double x) {
    const osm::State r = osm::push({mm, s}, x);
    return nb::make_tuple(r.m, r.s);
  });
}
