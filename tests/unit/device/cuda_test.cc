// The CUDA device over a driver in host memory: what it calls, what it gives back, what errors
// become; and the loader on machines without a driver.
#include "device/cuda.h"

#include "tests/unit/device/kinds.h"

#if __has_include(<cuda.h>)
#include <cuda.h>  // ours are the numbers of the real one
static_assert(CUDA_ERROR_OUT_OF_MEMORY == mc::device::driver::kOutOfMemory &&
              CUDA_ERROR_NOT_FOUND == mc::device::driver::kNotFound &&
              CUDA_ERROR_NOT_READY == mc::device::driver::kNotReady &&
              CUDA_ERROR_DEVICE_UNAVAILABLE == mc::device::driver::kDeviceUnavailable &&
              CUDA_ERROR_ILLEGAL_ADDRESS == mc::device::driver::kIllegalAddress &&
              CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED == mc::device::driver::kPeerAlreadyEnabled &&
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ==
                  mc::device::driver::kHostAlreadyRegistered &&
              CUDA_ERROR_MAP_FAILED == mc::device::driver::kMapFailed &&
              CUDA_ERROR_UNSUPPORTED_PTX_VERSION == mc::device::driver::kUnsupportedPtx &&
              CUDA_ERROR_LAUNCH_FAILED == mc::device::driver::kLaunchFailed);
static_assert(int(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == mc::device::driver::kMemoryType &&
              int(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == mc::device::driver::kDeviceOrdinal &&
              int(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) ==
                  mc::device::driver::kCapabilityMajor &&
              int(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) ==
                  mc::device::driver::kCapabilityMinor &&
              unsigned(CU_MEMORYTYPE_DEVICE) == mc::device::driver::kMemoryOfDevice &&
              unsigned(CU_STREAM_NON_BLOCKING) == mc::device::driver::kNonBlocking &&
              unsigned(CU_EVENT_DISABLE_TIMING) == mc::device::driver::kDisableTiming &&
              unsigned(CU_MEMHOSTALLOC_PORTABLE) == mc::device::driver::kHostPortable &&
              unsigned(CU_MEMHOSTREGISTER_PORTABLE) == mc::device::driver::kHostPortable &&
              unsigned(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == mc::device::driver::kIpcLazyPeer &&
              unsigned(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) == mc::device::driver::kDmaBufFd &&
              sizeof(CUipcMemHandle) == sizeof(mc::device::driver::IpcHandle) &&
              sizeof(CUdeviceptr) == sizeof(mc::device::driver::Pointer));
#endif

using namespace mc;
using namespace mc::device;

namespace cuda_test {
namespace {

template <class T>
Error error_of(const Result<T>& result) {
  REQUIRE_FALSE(result.has_value());
  return result.error();
}
DevicePtr fake_device(const void* kernels = "an image") {
  return must(open_cuda(fake::driver(), 0, kernels));
}

}  // namespace

TEST_SUITE("device/cuda") {
  TEST_CASE("a missing driver, or another library of its name, is reported") {
    const Error none = error_of(driver::load_driver("libcuda-of-nobody.so.1"));
    CHECK(none.code == Code::kUnsupported);
    CHECK(none.what.find("libcuda-of-nobody.so.1") != std::string::npos);
    const Error other = error_of(driver::load_driver("libm.so.6"));
    CHECK(other.code == Code::kUnsupported);
    CHECK(other.what.find("has no cuInit") != std::string::npos);
    CHECK(cuda_summary().starts_with("CUDA: "));
  }

  TEST_CASE("find_cuda reports names and PCI addresses, or why there is no device") {
    fake::Scene scene;
    const Found found = find_cuda(fake::driver());
    CHECK(found.driver == "13.0");
    REQUIRE(found.devices.size() == 2);
    CHECK(found.devices[1].location() == "cuda:1");
    CHECK(found.devices[1].pci == "0000:4f:00.0");
    CHECK(found.devices[1].capability == 90);
    CHECK(error_of(open_cuda(fake::driver(), 2, nullptr)).code == Code::kNotFound);
    fake::state().count = 0;
    CHECK(find_cuda(fake::driver()).why.what.find("no device") != std::string::npos);
    scene.fails("device_count", driver::kDriverMismatch);
    CHECK(find_cuda(fake::driver()).why.code == Code::kUnsupported);
    CHECK(error_of(open_cuda(fake::driver(), 0, nullptr)).code == Code::kUnsupported);
  }

  TEST_CASE("busy, full and lost devices return their codes, and nothing leaks") {
    {
      fake::Scene scene;
      scene.fails("context_retain", driver::kDeviceUnavailable);
      CHECK(error_of(open_cuda(fake::driver(), 0, nullptr)).code == Code::kBusy);
    }
    for (const auto& [call, status, code] :
         {std::tuple{"memory_alloc", driver::kOutOfMemory, Code::kNoSpace},
          std::tuple{"memory_alloc", driver::kIllegalAddress, Code::kUnavailable},
          std::tuple{"memory_alloc", driver::kNotPermitted, Code::kDenied}}) {
      fake::Scene scene;
      const DevicePtr device = fake_device();
      scene.fails(call, status);
      const Error e = error_of(device->allocate(4096));
      CHECK(e.code == code);
      CHECK(e.what.find("cuda:0: cuMemAlloc") != std::string::npos);
    }
    CHECK(fake::state().clean());
  }

  TEST_CASE("an event returns the error of its stream, and waits for that stream only") {
    fake::Scene scene;
    const DevicePtr device = fake_device();
    const Memory memory = must(device->allocate(64));
    const auto stream = must(device->open_stream());
    fake::state().pending = true;
    const auto event = must(stream->record());
    CHECK_FALSE(must(event->done()));
    fake::state().pending = false;
    CHECK(must(event->done()));
    scene.fails("event_synchronize", driver::kLaunchFailed);
    scene.fails("event_query", driver::kEccUncorrectable);
    CHECK(event->wait().error().code == Code::kUnavailable);
    CHECK(event->done().error().code == Code::kUnavailable);
    scene.fails("copy_async", driver::kInvalidValue);
    CHECK(stream->copy(memory.data(), memory.data() + 32, 32).error().code == Code::kInvalid);
  }

  TEST_CASE("where the kernels do not load, blocks and rows are copied one by one") {
    for (const driver::Status why : {driver::kUnsupportedPtx, driver::kNoBinaryForGpu}) {
      fake::Scene scene;
      scene.fails("module_load", why);
      const DevicePtr device = fake_device();
      CHECK(device->info().note.find("one by one: cuda:0: loading") != std::string::npos);
      const Memory memory = must(device->allocate(4096));
      const auto stream = must(device->open_stream());
      const auto want = noise(1024, 1);
      put(*stream, memory.data(), want);
      const Block blocks[] = {{memory.data() + 2048, memory.data(), 512},
                              {memory.data() + 2560, memory.data() + 512, 512}};
      must(stream->copy_blocks(blocks));
      CHECK(get(*stream, memory.data() + 2048, 1024) == want);
      must(stream->copy_rows({memory.data() + 3072, memory.data(), 256, 512, 256, 2}));
      CHECK(scene.calls("launch") == 0);
    }
    CHECK(fake::state().clean());
  }

  TEST_CASE("a launch that fails says which kernel's device, and the stream can be closed") {
    {
      fake::Scene scene;
      const DevicePtr device = fake_device();
      const Memory memory = must(device->allocate(4096));
      const auto stream = must(device->open_stream());
      scene.fails("launch", driver::kLaunchFailed);
      const Block blocks[] = {{memory.data() + 2048, memory.data(), 512},
                              {memory.data() + 2560, memory.data() + 512, 512}};
      CHECK(stream->copy_blocks(blocks).error().what.find("cuda:0") != std::string::npos);
      CHECK_FALSE(stream->copy_rows({memory.data() + 3072, memory.data(), 256, 512, 256, 2}));
      scene.fails("memory_alloc", driver::kOutOfMemory);
      const auto fresh = must(device->open_stream());
      CHECK(fresh->copy_blocks(blocks).error().code == Code::kNoSpace);
    }
    CHECK(fake::state().clean());
  }

  TEST_CASE("a stream that is closed after an error has finished its work first (F37)") {
    fake::Scene scene;
    {
      const DevicePtr device = fake_device(nullptr);
      const Memory memory = must(device->allocate(4096));
      fake::state().later = true;
      auto stream = must(device->open_stream());
      const auto want = noise(1024, 1);
      std::vector<std::byte> got(1024);
      must(stream->copy(memory.data(), want.data(), 1024));
      must(stream->copy(got.data(), memory.data(), 1024));
      CHECK(got != want);  // queued
      scene.fails("copy_async", driver::kInvalidValue);
      CHECK_FALSE(stream->copy(memory.data(), want.data(), 1024));
      stream.reset();  // `got` may be freed from here on
      CHECK(got == want);
      CHECK(fake::state().closed_busy == 0);
    }
    CHECK(fake::state().clean());
  }

  TEST_CASE("the CUDA context of the caller is the same after each call (F38)") {
    fake::Scene scene;
    constexpr int kCallers = 77;
    fake::State::current = kCallers;
    const auto same = [&] { return std::exchange(fake::State::current, kCallers) == kCallers; };
    {
      const DevicePtr device = fake_device(), other = must(open_cuda(fake::driver(), 1, nullptr));
      CHECK(same());
      (void)must(device->free_bytes());
      CHECK(same());
      Memory memory = must(device->allocate(4096)), host = must(device->allocate_host(4096));
      CHECK(same());
      std::vector<std::byte> bytes(4096);
      Memory pinned = must(device->pin(bytes));
      CHECK(same());
      (void)must(device->query(memory.data()));
      CHECK_FALSE(device->query(bytes.data()));
      CHECK(same());
      must(device->reach(*other));
      (void)must(device->share(memory.bytes));
      CHECK(same());
      auto stream = must(device->open_stream());
      must(stream->copy(memory.data(), host.data(), 100));
      must(stream->copy_rows({memory.data(), memory.data() + 2048, 100, 100, 50, 4}));
      CHECK(same());
      auto event = must(stream->record());
      must(event->wait());
      must(stream->after(*event));
      CHECK(same());
      must(stream->begin_capture());
      auto graph = must(stream->end_capture());
      must(stream->launch(*graph));
      CHECK(same());
      scene.fails("memory_alloc", driver::kOutOfMemory);
      CHECK_FALSE(device->allocate(1));
      CHECK(same());
      graph.reset();
      event.reset();
      stream.reset();
      CHECK(same());
      memory = host = pinned = Memory();
      CHECK(same());
    }
    CHECK(same());
    CHECK(fake::State::below.empty());
    fake::State::current = -1;
    CHECK(fake::state().clean());
  }

  TEST_CASE("peers are reached where the driver says so") {
    fake::Scene scene;
    const DevicePtr device = fake_device(), other = must(open_cuda(fake::driver(), 1, nullptr));
    must(device->reach(*other));
    scene.fails("enable_peer", driver::kPeerAlreadyEnabled);
    must(device->reach(*other));
    fake::state().peers = 0;
    CHECK(device->reach(*other).error().code == Code::kUnsupported);
    const auto stand_in = StandIn::make(kClock, {});
    CHECK(device->reach(*stand_in).error().code == Code::kUnsupported);
  }

  TEST_CASE("what NICs wrote is flushed by the driver, unless the device orders it itself (F50)") {
    fake::Scene scene;
    const DevicePtr device = fake_device();
    must(device->see_nic_writes());
    CHECK(scene.calls("flush_nic_writes") == 1);
    fake::state().nic_ordering = driver::kOrderedForOwner;
    must(device->see_nic_writes());
    CHECK(scene.calls("flush_nic_writes") == 1);
    fake::state().nic_ordering = 0;
    scene.fails("flush_nic_writes", driver::kNotSupported);
    CHECK(device->see_nic_writes().error().code == Code::kUnsupported);
    driver::Driver old = fake::driver();
    old.flush_nic_writes = nullptr;
    CHECK(must(open_cuda(old, 0, nullptr))->see_nic_writes().error().code == Code::kUnsupported);
  }

  TEST_CASE("pinning twice succeeds, and a driver without dma-bufs is reported") {
    fake::Scene scene;
    const DevicePtr device = fake_device();
    std::vector<std::byte> host(4096);
    must(device->pin(host));
    CHECK(scene.calls("host_unregister") == 1);
    scene.fails("host_register", driver::kHostAlreadyRegistered);
    must(device->pin(host));
    CHECK(scene.calls("host_unregister") == 1);
    const Memory memory = must(device->allocate(64));
    CHECK(error_of(device->dma_buf(memory.bytes)).code == Code::kUnsupported);
  }
}

}  // namespace cuda_test
