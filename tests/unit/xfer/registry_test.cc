#include "xfer/memory/registry.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "xfer/transports/shm/fd_server.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

TEST_SUITE("xfer/registry") {
  TEST_CASE("a range is found only where one buffer holds all of it") {
    Registry registry(Generation{7});
    std::vector<std::byte> a(5000), b(100);
    auto first = registry.add(a, true, "*");
    auto second = registry.add(b, false, "cpu:0");
    REQUIRE((first.has_value() && second.has_value()));
    CHECK((*second)->offset >= 5000);
    CHECK((*registry.pin((*first)->offset, 5000))->data == a.data());
    CHECK((*registry.pin((*second)->offset + 99, 1))->data == b.data());
    CHECK_FALSE(registry.pin((*first)->offset, 5001).has_value());
    CHECK_FALSE(registry.pin((*first)->offset + 5000, 1).has_value());
    CHECK_FALSE(registry.pin((*second)->offset + 50, 51).has_value());
    CHECK_FALSE(registry.pin(UINT64_MAX, 2).has_value());
    CHECK_FALSE(registry.pin((*first)->offset + 1, UINT64_MAX).has_value());
    CHECK(registry.describe().size() == 2);
    CHECK(registry.generation().n == 7);
  }

  TEST_CASE(
      "memory that no peer may map is whole, zeroed and begins on a huge page if it is large") {
    Registry registry(Generation{7});
    registry.allocate_unshared();
    for (const uint64_t bytes : {uint64_t{1}, 100 * kKiB, 2 * kMiB, 5 * kMiB + 1}) {
      CAPTURE(bytes);
      auto buffer = registry.allocate(bytes, true, "*");
      REQUIRE(buffer.has_value());
      const std::byte* const data = (*buffer)->data;
      CHECK(std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; }));
      if (bytes >= 2 * kMiB) CHECK(reinterpret_cast<uintptr_t>(data) % (2 * kMiB) == 0);
      CHECK((*buffer)->shm_id == 0);
      CHECK_FALSE((*buffer)->memfd);
      std::memset((*buffer)->data, 7, bytes);
      CHECK((*registry.pin((*buffer)->offset, bytes))->data == data);
    }
    CHECK(registry.allocate(uint64_t{1} << 45, true, "*").error().code == Code::kNoSpace);
  }

  TEST_CASE("a buffer with a backend is offered without an address to read it at") {
    struct Nowhere final : BufferBackend {
      Result<> read(uint64_t, std::span<std::byte>) override { return {}; }
      Result<> write(uint64_t, std::span<const std::byte>) override { return {}; }
    };
    Registry registry(Generation{7});
    auto buffer = registry.add(std::make_shared<Nowhere>(), nullptr, 1 << 20, true, "file");
    REQUIRE(buffer.has_value());
    CHECK((*registry.pin((*buffer)->offset, 1 << 20))->backend != nullptr);
    CHECK_FALSE(registry.pin((*buffer)->offset, (1 << 20) + 1).has_value());
    const auto described = registry.describe();
    REQUIRE(described.size() == 1);
    CHECK(described[0].remote_addr == 0);
    CHECK(described[0].shm_id == 0);
    CHECK(described[0].location == "file");
    CHECK_FALSE(registry.add(nullptr, nullptr, 0, true, "file").has_value());
  }

  TEST_CASE("a local address of device memory is found, one past its end is not") {
    struct Nowhere final : BufferBackend {
      Result<> read(uint64_t, std::span<std::byte>) override { return {}; }
      Result<> write(uint64_t, std::span<const std::byte>) override { return {}; }
    };
    Registry registry(Generation{7});
    std::vector<std::byte> device(8192), host(100);
    REQUIRE(registry.add(host, true, "*").has_value());
    CHECK_FALSE(registry.has_devices());
    auto buffer = registry.add(std::make_shared<Nowhere>(), device.data(), 4096, true, "cuda:0");
    REQUIRE(buffer.has_value());
    CHECK(registry.has_devices());
    CHECK(*registry.pin_device(device.data() + 4095, 1) == *buffer);
    CHECK_FALSE(registry.pin_device(device.data() + 4095, 2).has_value());
    CHECK(*registry.pin_device(device.data() + 4096, 1) == nullptr);
    CHECK(*registry.pin_device(host.data(), 1) == nullptr);
    registry.remove(*buffer);
    CHECK_FALSE(registry.has_devices());
    CHECK(*registry.pin_device(device.data(), 1) == nullptr);
  }

  TEST_CASE("removing memory moves the generation on, and its offsets are not used again") {
    Registry registry(Generation{7});
    std::vector<std::byte> a(100), b(100);
    auto first = registry.add(a, true, "*");
    REQUIRE(first.has_value());
    registry.remove(*first);
    registry.remove(*first);  // once is enough
    CHECK(registry.generation().n == 8);
    auto second = registry.add(b, true, "*");
    REQUIRE(second.has_value());
    CHECK((*second)->offset > (*first)->offset);
    CHECK_FALSE(registry.pin((*first)->offset, 1).has_value());
  }

  TEST_CASE("the application's memory is withdrawn once the last copy ends") {
    Registry registry(Generation{1});
    std::vector<std::byte> memory(100);
    auto buffer = registry.add(memory, true, "*");
    REQUIRE(buffer.has_value());
    auto pin = registry.pin((*buffer)->offset, 100);
    REQUIRE(pin.has_value());
    auto removed = std::async(std::launch::async, [&] { registry.remove(*buffer); });
    while (!(*pin)->withdrawn.load()) std::this_thread::yield();
    CHECK(removed.wait_for(0s) == std::future_status::timeout);
    pin->reset();
    CHECK(removed.wait_for(10s) == std::future_status::ready);
  }

  TEST_CASE("more than a machine has is no space, and nothing at all is invalid") {
    Registry registry(Generation{1});
    // Were it not refused at once, this limit stops it before the machine is full.
    rlimit limit{}, low{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
    low = limit;
    low.rlim_cur = 64 * kMiB;
    auto* before = ::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
    auto huge = registry.allocate(uint64_t{1} << 45, true, "*");
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    ::signal(SIGXFSZ, before);
    REQUIRE_FALSE(huge.has_value());
    CHECK(huge.error().what.find("is free") != std::string::npos);
    CHECK(huge.error().code == Code::kNoSpace);
    CHECK(registry.allocate(0, true, "*").error().code == Code::kInvalid);
    CHECK(registry.add({}, true, "*").error().code == Code::kInvalid);
  }

  TEST_CASE("a peer cannot write to memory that is offered for reading, however it opens it") {
    Registry registry(Generation{1});
    const SteadyClock clock;
    auto server = FdServer::open(registry, clock);
    REQUIRE(server.has_value());
    auto buffer = registry.allocate(8192, false, "*");
    REQUIRE(buffer.has_value());
    (*buffer)->data[0] = std::byte{42};
    auto received = fetch_fd((*server)->name(), (*buffer)->shm_id);
    REQUIRE(received.has_value());
    CHECK(received->bytes == 8192);
    CHECK_FALSE(received->writable);
    const int fd = received->fd.get();
    CHECK(::mmap(nullptr, 8192, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    void* readable = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(readable != MAP_FAILED);
    CHECK(*static_cast<std::byte*>(readable) == std::byte{42});
    CHECK(::mprotect(readable, 8192, PROT_READ | PROT_WRITE) != 0);
    ::munmap(readable, 8192);
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const io::Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (again) {
      CHECK(::mmap(nullptr, 8192, PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
      CHECK(::write(again.get(), "x", 1) < 0);
    }
  }

  TEST_CASE("only what is offered is handed out, and memory keeps its size") {
    Registry registry(Generation{1});
    const SteadyClock clock;
    auto server = FdServer::open(registry, clock);
    REQUIRE(server.has_value());
    auto buffer = registry.allocate(8192, true, "*");
    REQUIRE(buffer.has_value());
    const uint32_t id = (*buffer)->shm_id;
    auto received = fetch_fd((*server)->name(), id);
    REQUIRE(received.has_value());
    CHECK(::ftruncate(received->fd.get(), 0) != 0);
    CHECK(fetch_fd((*server)->name(), id + 1).error().code == Code::kNotFound);
    CHECK(fetch_fd((*server)->name(), 0).error().code == Code::kNotFound);
    registry.remove(*buffer);
    CHECK(fetch_fd((*server)->name(), id).error().code == Code::kNotFound);
    CHECK(fetch_fd("mc-xfer-nobody", 1).error().code == Code::kUnavailable);
  }
}
