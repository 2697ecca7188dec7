// Calls on a few thousand elements of a tensor: no Python between the tensor and the kernel. The tensor's framework has
// to offer DLPack's C exchange API; anything else, and anything not simple, is answered with None.
#include <nanobind/nanobind.h>

#include <cmath>
#include <cstring>

#include "bind.h"
#include "driver.h"
#include "look.h"

namespace nb = nanobind;

const dlpack::ExchangeApi* tensor_api = nullptr;
PyTypeObject* tensor_type = nullptr;
PyObject *tensor_empty_like = nullptr, *tensor_new_empty = nullptr;

namespace {

constexpr int64_t kFewRows = 1024;

// A look at a tensor whose elements lie end to end, or nothing.
struct Look : TensorLook {
  using TensorLook::TensorLook;
  int64_t elements = 1;
  int64_t cols() const { return t.shape[t.ndim - 1]; }
  bool simple() {
    if (!small_isa || !lies() || t.ndim < 1 || dtype() < 0) return false;
    for (int d = t.ndim - 1; d >= 0; --d) {
      if (t.shape[d] != 1 && t.strides && t.strides[d] != elements) return false;
      elements *= t.shape[d];
      if (elements < 1 || elements > kSmall) return false;
    }
    return true;
  }
};

PyObject* map_small(PyObject* tensor, osm::Op op) {
  Look x(tensor);
  if (!x.simple()) Py_RETURN_NONE;
  PyObject* result = PyObject_CallFunctionObjArgs(tensor_empty_like, tensor, nullptr);
  if (!result) return nullptr;
  Look y(result);
  if (!y.simple() || y.elements != x.elements) {
    Py_DECREF(result);
    Py_RETURN_NONE;
  }
  osm::small_rows(*small_isa, op, (osm::Dtype)x.dtype(), x.data(), y.data(), x.elements / x.cols(), x.cols());
  return result;
}

PyObject* softmax_small_tensor(PyObject*, PyObject* x) { return map_small(x, osm::Op::softmax); }
PyObject* log_softmax_small_tensor(PyObject*, PyObject* x) { return map_small(x, osm::Op::log_softmax); }

// To nearest, ties to even; NaN stays one.
uint16_t bfloat16_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if (f != f) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

uint16_t float16_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint32_t sign = u >> 16 & 0x8000;
  const float a = std::fabs(f);
  if (f != f) return (uint16_t)(sign | 0x7e00);
  if (a >= 65520.0f) return (uint16_t)(sign | 0x7c00);
  if (a < 0x1p-14f) return (uint16_t)(sign | (uint32_t)std::nearbyint(a * 0x1p24f));  // whole numbers of 2^-24
  std::memcpy(&u, &a, 4);
  u -= 0x38000000u;  // the exponents' biases apart
  return (uint16_t)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
}

void put_lse(char* to, osm::Dtype dtype, const double* lse, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto f = (float)lse[r];
    switch (dtype) {
      case osm::Dtype::f64:
        ((double*)to)[r] = lse[r];
        break;
      case osm::Dtype::f32:
        ((float*)to)[r] = f;
        break;
      case osm::Dtype::f16:
        ((uint16_t*)to)[r] = float16_of(f);
        break;
      case osm::Dtype::bf16:
        ((uint16_t*)to)[r] = bfloat16_of(f);
        break;
    }
  }
}

PyObject* logsumexp_small_tensor(PyObject*, PyObject* tensor) {
  Look x(tensor);
  if (!x.simple()) Py_RETURN_NONE;
  const int64_t cols = x.cols(), rows = x.elements / cols;
  if (rows > kFewRows) Py_RETURN_NONE;
  PyObject* shape = PyTuple_New(x.t.ndim - 1);
  for (int d = 0; shape && d + 1 < x.t.ndim; ++d) {
    PyObject* n = PyLong_FromLongLong(x.t.shape[d]);
    if (!n || PyTuple_SetItem(shape, d, n)) Py_CLEAR(shape);
  }
  if (!shape) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(tensor_new_empty, tensor, shape, nullptr);
  Py_DECREF(shape);
  if (!result) return nullptr;
  Look y(result);
  if (!y.held || y.dtype() != x.dtype() || !y.t.data) {
    Py_DECREF(result);
    Py_RETURN_NONE;
  }
  double lse[kFewRows];
  osm::small_lse(*small_isa, (osm::Dtype)x.dtype(), x.data(), rows, cols, lse);
  put_lse(y.data(), (osm::Dtype)x.dtype(), lse, rows);
  return result;
}

PyMethodDef small_calls[] = {
    {"softmax_small_tensor", softmax_small_tensor, METH_O, nullptr},
    {"log_softmax_small_tensor", log_softmax_small_tensor, METH_O, nullptr},
    {"logsumexp_small_tensor", logsumexp_small_tensor, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

// The type of tensors that small calls take from now on, and its framework's empty_like. False where the type has no
// exchange API of a version that is known here: all calls are then answered with None.
bool use_tensors(const nb::object& type, const nb::object& like) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  auto* found = (const dlpack::ExchangeApi*)PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  while (found && found->version.major != dlpack::kMajor) found = found->previous;
  if (!found || !found->borrow) return false;
  nb::object fresh = type.attr("new_empty");
  tensor_type = (PyTypeObject*)nb::object(type).release().ptr();
  tensor_api = found;
  tensor_empty_like = nb::object(like).release().ptr(), tensor_new_empty = fresh.release().ptr();
  return true;
}

void bind_tensor(nb::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), small_calls)) throw nb::python_error();
  m.def("use_tensors", &use_tensors);
}
