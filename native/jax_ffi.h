// What the handlers share that XLA calls: buffers as the core sees arrays, errors as XLA sees them. Needs jaxlib's
// headers.
#pragma once
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver.h"
#include "xla/ffi/api/ffi.h"

namespace osm_jax {

namespace ffi = xla::ffi;

using Buffer = ffi::AnyBuffer;

// How calls are carried out, but for the threads, which each call says: set when the handlers are registered.
inline const osm::Isa* chosen_isa = nullptr;
inline int chosen_algorithm = osm::kAuto;

inline std::optional<osm::Dtype> dtype_of(const Buffer& b) {
  switch (b.element_type()) {
    case ffi::F32:
      return osm::Dtype::f32;
    case ffi::F64:
      return osm::Dtype::f64;
    case ffi::F16:
      return osm::Dtype::f16;
    case ffi::BF16:
      return osm::Dtype::bf16;
    default:
      return std::nullopt;
  }
}

inline osm::Dtype dtype_or_throw(const Buffer& b) {
  const auto dtype = dtype_of(b);
  if (!dtype) throw std::invalid_argument("an operand of float64, float32, float16 or bfloat16 would do");
  return *dtype;
}

inline bool wide(const Buffer& b) { return b.element_type() == ffi::F64; }
inline const char* data(const Buffer& b) { return (const char*)b.untyped_data(); }
inline int64_t rank(const Buffer& b) { return (int64_t)b.dimensions().size(); }
inline int64_t count(const Buffer& b) { return (int64_t)b.element_count(); }

// Strides of a dense array, in bytes; 0 along axes of length 1, which is what broadcasting asks for.
inline void dense_strides(const Buffer& b, int64_t* to) {
  const auto dims = b.dimensions();
  int64_t stride = (int64_t)ffi::ByteWidth(b.element_type());
  for (int64_t d = rank(b); d-- > 0;) {
    to[d] = dims[d] == 1 ? 0 : stride;
    stride *= dims[d];
  }
}

inline std::vector<double> doubles(const Buffer& b) {
  std::vector<double> made((size_t)count(b));
  for (size_t i = 0; i < made.size(); ++i)
    made[i] = wide(b) ? ((const double*)data(b))[i] : (double)((const float*)data(b))[i];
  return made;
}

// Numbers as doubles: those that already are stay where they lie.
struct Doubles {
  std::vector<double> made;
  const double* p = nullptr;
  Doubles() = default;
  explicit Doubles(const Buffer& b) {
    if (wide(b)) {
      p = (const double*)data(b);
    } else {
      made = doubles(b);
      p = made.data();
    }
  }
};

inline void narrow(const std::vector<double>& from, const Buffer& to) {
  for (size_t i = 0; i < from.size(); ++i)
    if (wide(to))
      ((double*)to.untyped_data())[i] = from[i];
    else
      ((float*)to.untyped_data())[i] = (float)from[i];
}

template <class F>
ffi::Error guarded(const F& work) {
  try {
    work();
    return ffi::Error::Success();
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(std::string("online_softmax: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("online_softmax: ") + error.what());
  }
}

inline Buffer argument(const ffi::RemainingArgs& all, size_t i) {
  const auto found = all.get<Buffer>(i);
  if (!found) throw std::invalid_argument("an operand is missing");
  return *found;
}

inline Buffer result(const ffi::RemainingRets& all, size_t i) {
  auto found = all.get<Buffer>(i);
  if (!found) throw std::invalid_argument("a result is missing");
  return **found;
}

// native/jax_attention.cpp
XLA_FFI_Handler* attention_handler();
XLA_FFI_Handler* attention_grad_handler();

}  // namespace osm_jax
