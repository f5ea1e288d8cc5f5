// Loads the CUDA driver, libcuda.so.1, as one table of functions. The library is loaded on first
// use: programs start and work without it, and the build needs nothing of CUDA. The declarations
// are our own, of the few functions that are used, named as the driver's are. Private to the cuda
// device; tests fill a table of their own.
//
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace mc::device::driver {

using Status = int;  // CUresult
using Pointer = uint64_t;
using Context = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using GraphHandle = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
struct IpcHandle {
  char reserved[64];
};

// The numbers of cuda.h.
inline constexpr Status kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                        kDeinitialized = 4, kStubLibrary = 34, kNeedsNewerDriver = 36,
                        kDeviceUnavailable = 46, kNoDevice = 100, kNoBinaryForGpu = 209,
                        kEccUncorrectable = 214, kPeerUnsupported = 217, kUnsupportedPtx = 222,
                        kMapFailed = 205, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700,
                        kLaunchTimeout = 702, kPeerAlreadyEnabled = 704, kContextDestroyed = 709,
                        kAssert = 710, kHostAlreadyRegistered = 712, kHardwareStackError = 714,
                        kIllegalInstruction = 715, kLaunchFailed = 719, kNotPermitted = 800,
                        kNotSupported = 801, kSystemNotReady = 802, kDriverMismatch = 803,
                        kCompatNotSupported = 804, kUnknown = 999;
inline constexpr int kMemoryType = 2, kDeviceOrdinal = 9;  // of pointer_attribute
inline constexpr unsigned kMemoryOfHost = 1, kMemoryOfDevice = 2;
inline constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76, kProcessors = 16;
inline constexpr unsigned kNonBlocking = 1;    // a stream
inline constexpr unsigned kDisableTiming = 2;  // an event
inline constexpr unsigned kHostPortable = 1;   // pinned memory
inline constexpr unsigned kIpcLazyPeer = 1;    // a handle opened
inline constexpr unsigned long long kDmaBufFd = 1;
// What NICs write to a device is seen by its work: an attribute, the least value that says so, and
// the arguments of the flush where it does not.
inline constexpr int kNicWritesOrdering = 118, kOrderedForOwner = 100;
inline constexpr int kFlushOfContext = 0, kFlushToOwner = 100;
// Relaxed: calls of other threads and late loading of a kernel do not fail a capture.
inline constexpr int kCaptureRelaxed = 2;

struct Driver {
  Status (*init)(unsigned);
  Status (*driver_version)(int*);
  Status (*error_string)(Status, const char**);
  Status (*device_count)(int*);
  Status (*device_get)(int* device, int ordinal);
  Status (*device_name)(char*, int length, int device);
  Status (*device_total)(size_t*, int device);
  Status (*device_attribute)(int*, int attribute, int device);
  Status (*device_pci)(char*, int length, int device);
  Status (*can_access_peer)(int*, int device, int peer);
  Status (*context_retain)(Context*, int device);
  Status (*context_release)(int device);
  Status (*context_push)(Context), (*context_pop)(Context*);
  Status (*enable_peer)(Context, unsigned);
  Status (*memory_info)(size_t* free, size_t* total);
  Status (*memory_alloc)(Pointer*, size_t);
  Status (*memory_free)(Pointer);
  Status (*host_alloc)(void**, size_t, unsigned);
  Status (*host_free)(void*);
  Status (*host_register)(void*, size_t, unsigned);
  Status (*host_unregister)(void*);
  Status (*pointer_attribute)(void*, int attribute, Pointer);
  Status (*address_range)(Pointer* base, size_t*, Pointer);
  Status (*copy_async)(Pointer to, Pointer from, size_t, StreamHandle);
  Status (*stream_create)(StreamHandle*, unsigned);
  Status (*stream_synchronize)(StreamHandle), (*stream_destroy)(StreamHandle);
  Status (*stream_wait_event)(StreamHandle, EventHandle, unsigned);
  Status (*event_create)(EventHandle*, unsigned);
  Status (*event_destroy)(EventHandle);
  Status (*event_record)(EventHandle, StreamHandle);
  Status (*event_query)(EventHandle);
  Status (*event_synchronize)(EventHandle);
  Status (*ipc_get)(IpcHandle*, Pointer);
  Status (*ipc_open)(Pointer*, IpcHandle, unsigned);
  Status (*ipc_close)(Pointer);
  Status (*module_load)(Module*, const void* image);
  Status (*module_unload)(Module);
  Status (*module_function)(Function*, Module, const char*);
  Status (*launch)(Function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, StreamHandle, void** arguments, void** extra);
  // Not in every version: null.
  Status (*flush_nic_writes)(int target, int scope),
      (*handle_for_range)(void* fd, Pointer, size_t, int type, unsigned long long flags);
  Status (*capture_begin)(StreamHandle, int mode);
  Status (*capture_end)(StreamHandle, GraphHandle*);
  Status (*graph_instantiate)(GraphExec*, GraphHandle, unsigned long long flags);
  Status (*graph_destroy)(GraphHandle);
  Status (*graph_exec_destroy)(GraphExec);
  Status (*graph_launch)(GraphExec, StreamHandle);

  bool has_graphs() const {
    return capture_begin != nullptr && capture_end != nullptr && graph_instantiate != nullptr &&
           graph_destroy != nullptr && graph_exec_destroy != nullptr && graph_launch != nullptr;
  }

  // "cuMemAlloc: out of memory", with the code for what the caller can do.
  Failure failure(Status status, const char* what) const;
};

// `library` is "libcuda.so.1", but for tests. kUnsupported says what is missing.
Result<Driver> load_driver(const char* library);

}  // namespace mc::device::driver
