// A device with memory of its own (a GPU): the interface that mc needs. It has memory, copies on
// streams whose end is an event, gathers and scatters of many blocks in one launch, and memory
// shared with other processes. Implementations: the CUDA driver (device/cuda.h), and a stand-in on
// host memory into which tests and drills inject faults (device/stand_in.h).
//
// Addresses are one space: a copy's ends may each lie in host memory, in this device, or in a
// device that it was given access to. A copy whose host end is not pinned works, but blocks its
// caller.
//
// Errors: kInvalid: the address is no memory of this device (freed, or another device's). kNoSpace:
// its memory is full. kBusy: another process holds it. kUnavailable: the device was lost, and all
// it held. kUnsupported: not on this device. Thread: a Device from any; a Stream and an Event one
// at a time. No call waits for the whole device. Source: TENT paper 3.2 (GPU memory is one more end
// of a transfer).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/result.h"
#include "io/fd.h"

namespace mc::device {

struct Info {
  std::string name;         // "NVIDIA H200"
  std::string kind;         // "cuda", "stand-in": what locations begin with
  int ordinal = 0;          // "cuda:1" is 1
  std::string pci;          // "0000:4f:00.0"; "": none
  uint64_t bytes = 0;       // of its memory
  uint32_t capability = 0;  // 90: sm_90; 0: none
  std::string note;         // what of it does not work here, and why; "": all does
  std::string location() const { return kind + ":" + std::to_string(ordinal); }
};

// Memory of a device, pinned memory of the host, or another process's memory opened here. The last
// copy frees it. It keeps its device open.
struct Memory {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> owner;
  std::byte* data() const { return bytes.data(); }
  size_t size() const { return bytes.size(); }
};

// One piece of a gather or a scatter. Pieces of a call do not overlap where they are written.
struct Block {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// `rows` pieces of the same size, at even distances on both sides.
struct Rows {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t to_stride = 0, from_stride = 0;
  uint64_t bytes = 0;  // of a row
  uint64_t rows = 1;
};

// An argument of a kernel: a number, or an address of this device or of pinned host memory (null:
// none).
struct Argument {
  template <class T>
  Argument(T value) : address(std::is_pointer_v<T>) {
    if constexpr (std::is_pointer_v<T>) {
      bits = reinterpret_cast<uint64_t>(value);
    } else {
      static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(bits));
      std::memcpy(&bits, &value, sizeof(T));
    }
  }
  uint64_t bits = 0;  // the value, from its first byte on
  bool address = false;
};

// A kernel of this build over a grid of groups, each of mc_group_threads (kernels/model_kernels.h).
struct Launch {
  const char* kernel = nullptr;
  uint32_t x = 1, y = 1, z = 1;
  std::span<const Argument> arguments{};
};

// y[row][o] = sum over k of x[row][k] w[o][k] (+ y[row][o], if `add`), sums in f32. w and x are
// dense, of one format, y is f32; all are memory of the device, aligned to 256 bytes, which
// libraries choose their algorithms for.
struct Product {
  enum class Type : uint8_t { kF32, kF16, kBf16 };
  Type type = Type::kF32;
  const std::byte *w = nullptr, *x = nullptr;
  std::byte* y = nullptr;
  uint32_t outputs = 0, k = 0, rows = 0;
  bool add = false;
  // The library's algorithm: the `choice`-th best, from 0, for `tuned_rows` rows; 0: for many.
  uint32_t tuned_rows = 0, choice = 0;
};

// A point in a stream's work. It may outlive its stream.
class Event {
 public:
  virtual ~Event() = default;
  // Whether all work before it is done. Errors: that of the first work that failed.
  virtual Result<bool> done() = 0;
  virtual Result<> wait() = 0;
};

// Work of a stream, captured once and launched many times as one. It owns no memory: the memory it
// touches must live whenever it runs, and is read anew.
class Graph {
 public:
  virtual ~Graph() = default;
};

// Work that runs in order; work of different streams runs in parallel. Events recorded after failed
// work return its error. A stream that is closed finishes its work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Result<> copy(std::byte* to, const std::byte* from, uint64_t bytes) = 0;
  // In as few launches as the device allows, not one for each row or block.
  virtual Result<> copy_rows(const Rows& rows) = 0;
  virtual Result<> copy_blocks(std::span<const Block> blocks) = 0;
  // kUnsupported: no such kernel here.
  virtual Result<> launch(const Launch& launch) = 0;
  // By the device's library of matrix products. kUnsupported: it has none, or none of this shape.
  virtual Result<> multiply(const Product& product) = 0;
  virtual Result<std::unique_ptr<Event>> record() = 0;
  // Later work of the stream waits for the event; the caller does not.
  virtual Result<> after(Event& event) = 0;

  // Until end_capture(), copy(), launch() and multiply() add to a graph and run nothing. Requires:
  // copies' host ends are pinned. Errors: kUnsupported: no graphs on this device.
  virtual Result<> begin_capture() = 0;
  // Errors: that of the work that could not be captured. In both cases the stream runs work again.
  virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
  virtual Result<> launch(Graph& graph) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const Info& info() const = 0;
  virtual Result<uint64_t> free_bytes() = 0;
  virtual Result<Memory> allocate(uint64_t bytes) = 0;
  virtual Result<Memory> allocate_host(uint64_t bytes) = 0;  // pinned
  // Pins host memory while the result lives.
  virtual Result<Memory> pin(std::span<std::byte> host) = 0;
  // The allocation of this device that holds the address.
  virtual Result<std::span<std::byte>> query(const std::byte* address) = 0;
  virtual Result<std::unique_ptr<Stream>> open_stream() = 0;
  // The library of matrix products: "cuBLASLt 13.1.0". kUnsupported: why there is none.
  virtual Result<std::string> products() = 0;

  // ---- other devices, other processes
  // Copies of this device may touch the other's memory. kUnsupported: no path between them.
  virtual Result<> reach(Device& other) = 0;
  // A handle of the memory for other processes of this host: at most kHandleBytesMax bytes.
  // Requires: the range lies in one allocation.
  virtual Result<std::string> share(std::span<const std::byte> memory) = 0;
  // kUnavailable: the process that shared it is gone; kCorrupt: no such handle; kInvalid: another
  // kind of device, or this process's own.
  virtual Result<Memory> open(std::string_view handle) = 0;
  // Lets NICs reach the memory without a copy: a descriptor, and the offset of the range in it.
  struct DmaBuf {
    io::Fd fd;
    uint64_t offset = 0;
  };
  virtual Result<DmaBuf> dma_buf(std::span<const std::byte> memory) = 0;
  // When it returns, work that begins sees what NICs have written into the memory. kUnsupported:
  // neither the device nor its driver sees to that.
  virtual Result<> see_nic_writes() { return {}; }
};
using DevicePtr = std::shared_ptr<Device>;

inline constexpr size_t kHandleBytesMax = 256;
inline Error within_capture() { return {Code::kInvalid, "this cannot be part of a graph"}; }

}  // namespace mc::device
