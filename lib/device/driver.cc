#include "device/driver.h"

#include "base/symbols.h"

namespace mc::device::driver {
namespace {

Code code_of(Status status) {
  switch (status) {
    case kInvalidValue: return Code::kInvalid;
    case kOutOfMemory: return Code::kNoSpace;
    case kDeviceUnavailable:
    case kSystemNotReady: return Code::kBusy;
    case kNotPermitted: return Code::kDenied;
    case kStubLibrary:
    case kNeedsNewerDriver:
    case kNoDevice:
    case kNoBinaryForGpu:
    case kNotFound:  // a kernel that the image does not have
    case kPeerUnsupported:
    case kUnsupportedPtx:
    case kNotSupported:
    case kDriverMismatch:
    case kCompatNotSupported: return Code::kUnsupported;
    // These errors end the context: its memory is lost.
    case kNotInitialized:
    case kDeinitialized:
    case kEccUncorrectable:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextDestroyed:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kLaunchFailed:
    case kUnknown: return Code::kUnavailable;
    default: return Code::kInternal;
  }
}

void look_up_memory(Symbols& l, Driver& d) {
  l.need(d.memory_info, "cuMemGetInfo_v2");
  l.need(d.memory_alloc, "cuMemAlloc_v2");
  l.need(d.memory_free, "cuMemFree_v2");
  l.need(d.host_alloc, "cuMemHostAlloc");
  l.need(d.host_free, "cuMemFreeHost");
  l.need(d.host_register, "cuMemHostRegister_v2");
  l.need(d.host_unregister, "cuMemHostUnregister");
  l.need(d.pointer_attribute, "cuPointerGetAttribute");
  l.need(d.address_range, "cuMemGetAddressRange_v2");
  l.need(d.ipc_get, "cuIpcGetMemHandle");
  l.need(d.ipc_open, "cuIpcOpenMemHandle_v2");
  l.need(d.ipc_close, "cuIpcCloseMemHandle");
  l.optional(d.handle_for_range, "cuMemGetHandleForAddressRange");
  l.optional(d.flush_nic_writes, "cuFlushGPUDirectRDMAWrites");
}

void look_up_work(Symbols& l, Driver& d) {
  l.need(d.copy_async, "cuMemcpyAsync");
  l.need(d.stream_create, "cuStreamCreate");
  l.need(d.stream_synchronize, "cuStreamSynchronize");
  l.need(d.stream_destroy, "cuStreamDestroy_v2");
  l.need(d.stream_wait_event, "cuStreamWaitEvent");
  l.need(d.event_create, "cuEventCreate");
  l.need(d.event_destroy, "cuEventDestroy_v2");
  l.need(d.event_record, "cuEventRecord");
  l.need(d.event_query, "cuEventQuery");
  l.need(d.event_synchronize, "cuEventSynchronize");
  l.need(d.module_load, "cuModuleLoadData");
  l.need(d.module_unload, "cuModuleUnload");
  l.need(d.module_function, "cuModuleGetFunction");
  l.need(d.launch, "cuLaunchKernel");
  l.optional(d.capture_begin, "cuStreamBeginCapture_v2");
  l.optional(d.capture_end, "cuStreamEndCapture");
  l.optional(d.graph_instantiate, "cuGraphInstantiateWithFlags");
  l.optional(d.graph_destroy, "cuGraphDestroy");
  l.optional(d.graph_exec_destroy, "cuGraphExecDestroy");
  l.optional(d.graph_launch, "cuGraphLaunch");
}

}  // namespace

Failure Driver::failure(Status status, const char* what) const {
  const char* text = nullptr;
  if (error_string == nullptr || error_string(status, &text) != kOk || text == nullptr)
    text = "an error that the driver does not name";
  return fail(code_of(status), "%s: %s (CUDA error %d)", what, text, status);
}

Result<Driver> load_driver(const char* library) {
  MC_TRY(Symbols l, Symbols::open(library, "CUDA driver"));
  Driver d{};
  l.need(d.init, "cuInit");
  l.need(d.driver_version, "cuDriverGetVersion");
  l.need(d.error_string, "cuGetErrorString");
  l.need(d.device_count, "cuDeviceGetCount");
  l.need(d.device_get, "cuDeviceGet");
  l.need(d.device_name, "cuDeviceGetName");
  l.need(d.device_total, "cuDeviceTotalMem_v2");
  l.need(d.device_attribute, "cuDeviceGetAttribute");
  l.need(d.device_pci, "cuDeviceGetPCIBusId");
  l.need(d.can_access_peer, "cuDeviceCanAccessPeer");
  l.need(d.context_retain, "cuDevicePrimaryCtxRetain");
  l.need(d.context_release, "cuDevicePrimaryCtxRelease_v2");
  l.need(d.context_push, "cuCtxPushCurrent_v2");
  l.need(d.context_pop, "cuCtxPopCurrent_v2");
  l.need(d.enable_peer, "cuCtxEnablePeerAccess");
  look_up_memory(l, d);
  look_up_work(l, d);
  if (l.missing().empty()) return d;  // it stays loaded
  l.close();
  return fail(Code::kUnsupported, "%s has no %s: it is too old, or no CUDA driver", library,
              l.missing().c_str());
}

}  // namespace mc::device::driver
