// What we need of DLPack 1's C exchange API, by which a framework hands out and makes its tensors: a table of functions
// in a capsule called "dlpack_exchange_api" on the tensor's type. Declared from the standard's layout.
// Source: dmlc.github.io/dlpack, "C exchange API", version 1.2 and later.
#pragma once
#include <cstdint>

namespace dlpack {

constexpr uint32_t kMajor = 1;
constexpr int32_t kCpu = 1;
constexpr uint8_t kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6;

struct Version {
  uint32_t major, minor;
};
struct Device {
  int32_t type, id;
};
struct Format {
  uint8_t code, bits;
  uint16_t lanes;
};

// Strides count elements; data + byte_offset is the first of them.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  Format dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct Managed {
  Version version;
  void* context;
  void (*deleter)(Managed*);
  uint64_t flags;
  Tensor tensor;
};

using SetError = void (*)(void* context, const char* kind, const char* message);

// All functions but `allocate` need the interpreter's lock; they return 0, or -1 and have raised.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, Managed** out, void* error_context, SetError set_error);
  int (*to_managed)(void* object, Managed** out);
  int (*to_object)(Managed* stolen, void** out);
  int (*borrow)(void* object, Tensor* out);
  int (*stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace dlpack
