// DLPack's public C layout, as far as this package reads it: what a tensor library hands out
// through __dlpack__ and, much faster, through the function table __dlpack_c_exchange_api__
// (DLPack 1.2; PyTorch 2.10 and later). The layout is fixed by https://github.com/dmlc/dlpack; only
// members that come before or among those used are declared.
#pragma once

#include <cstdint>

namespace greenfast::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4m3fn = 10
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
struct Device {
  std::int32_t type;
  std::int32_t index;
};
struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous, C order
  std::uint64_t byte_offset;
};

// What a capsule named "dltensor" points at, and one named "dltensor_versioned".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
constexpr std::uint64_t kReadOnly = 1;

// What a capsule named "dlpack_exchange_api" points at. Functions return 0, or -1 with a Python
// error.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, Tensor* out);  // borrows from the object; may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** stream);
};

}  // namespace greenfast::dlpack
