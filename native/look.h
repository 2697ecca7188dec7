// A borrowed look at a tensor of the framework that use_tensors() was told of.
#pragma once
#include <nanobind/nanobind.h>

#include "dlpack.h"
#include "table.h"

extern const dlpack::ExchangeApi* tensor_api;
extern PyTypeObject* tensor_type;
extern PyObject *tensor_empty_like, *tensor_new_empty;

// No reference is held, and nothing is said of lazy operations such as a negation: whoever calls has asked.
struct TensorLook {
  dlpack::Tensor t{};
  bool held = false;
  explicit TensorLook(PyObject* tensor) {
    if (!tensor_api || !PyObject_TypeCheck(tensor, tensor_type)) return;
    held = tensor_api->borrow(tensor, &t) == 0;
    if (!held) PyErr_Clear();
  }
  // Code of the format of floating point, -1 for others.
  int dtype() const {
    if (t.dtype.lanes != 1) return -1;
    if (t.dtype.code == dlpack::kBfloat) return t.dtype.bits == 16 ? (int)osm::Dtype::bf16 : -1;
    if (t.dtype.code != dlpack::kFloat) return -1;
    switch (t.dtype.bits) {
      case 32:
        return (int)osm::Dtype::f32;
      case 64:
        return (int)osm::Dtype::f64;
      case 16:
        return (int)osm::Dtype::f16;
      default:
        return -1;
    }
  }
  int64_t bytes() const { return t.dtype.bits / 8; }
  bool is(uint8_t code, uint8_t bits) const {
    return t.dtype.code == code && t.dtype.bits == bits && t.dtype.lanes == 1;
  }
  // In CPU memory, at an aligned place.
  bool lies() const {
    return held && t.device.type == dlpack::kCpu && t.data && t.dtype.bits >= 8 && (uintptr_t)data() % bytes() == 0;
  }
  char* data() const { return (char*)t.data + t.byte_offset; }
  // Whether elements lie end to end.
  bool whole() const {
    int64_t n = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
      if (t.shape[d] != 1 && t.strides && t.strides[d] != n) return false;
      n *= t.shape[d];
    }
    return true;
  }
  // In elements; a missing array of strides means end to end.
  int64_t stride(int d) const {
    if (t.strides) return t.strides[d];
    int64_t n = 1;
    for (int i = t.ndim - 1; i > d; --i) n *= t.shape[i];
    return n;
  }
};
