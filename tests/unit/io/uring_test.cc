#include "io/uring.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>

#include <array>
#include <cstring>
#include <vector>

#include "io/fd.h"

using namespace mc;
using namespace mc::io;
using namespace std::chrono_literals;

namespace {
io::Fd temporary() {
  io::Fd fd(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  REQUIRE(fd);
  return fd;
}

std::unique_ptr<Uring> ring_of(unsigned depth, bool one_thread = false) {
  auto ring = Uring::open({depth, one_thread});
  REQUIRE_MESSAGE(ring.has_value(), (ring ? "" : ring.error().what));
  return std::move(*ring);
}
}  // namespace

TEST_SUITE("io/uring") {
  TEST_CASE("what is written through a ring is read back, in whichever order it ends") {
    if (!Uring::available()) {
      MESSAGE("skipped: the kernel refuses io_uring");
      return;
    }
    for (const bool one_thread : {false, true}) {
      for (const bool fixed : {false, true}) {
        auto ring = ring_of(8, one_thread);
        const io::Fd file = temporary();
        std::vector<std::byte> out(8 * 4096), in(8 * 4096);
        for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i / 97);
        if (fixed) {
          const std::array<iovec, 2> both{{{out.data(), out.size()}, {in.data(), in.size()}}};
          const auto registered = ring->register_buffers(both);
          REQUIRE_MESSAGE(registered.has_value(), (registered ? "" : registered.error().what));
        }
        for (const bool write : {true, false}) {
          for (uint64_t i = 0; i < 8; ++i)
            ring->prepare({write, file.get(), (write ? out : in).data() + i * 4096, 4096, i * 4096,
                           i, fixed ? (write ? 0 : 1) : -1});
          CHECK(ring->full());
          unsigned seen = 0;
          while (ring->under_way() > 0) {
            std::array<Uring::End, 3> ends;
            const auto n = ring->run(ends, 5s);
            REQUIRE(n.has_value());
            REQUIRE(*n > 0);
            for (size_t i = 0; i < *n; ++i) {
              CHECK(ends[i].result == 4096);
              seen |= 1u << ends[i].tag;
            }
          }
          CHECK(seen == 0xff);
        }
        CHECK(std::memcmp(in.data(), out.data(), in.size()) == 0);
      }
    }
  }

  TEST_CASE("a wait for an end that does not come is over when its time is") {
    if (!Uring::available()) {
      MESSAGE("skipped: the kernel refuses io_uring");
      return;
    }
    auto ring = ring_of(4);
    const io::Fd event(::eventfd(0, EFD_CLOEXEC));
    uint64_t count = 0;
    ring->prepare({false, event.get(), reinterpret_cast<std::byte*>(&count), sizeof count, 0, 7});
    std::array<Uring::End, 4> ends;
    auto none = ring->run(ends, 5ms);
    REQUIRE(none.has_value());
    CHECK(*none == 0);
    CHECK(ring->under_way() == 1);
    REQUIRE(eventfd_write(event.get(), 3) == 0);
    auto one = ring->run(ends, 5s);
    REQUIRE(one.has_value());
    REQUIRE(*one == 1);
    CHECK(ends[0].tag == 7);
    CHECK(count == 3);
  }

  TEST_CASE("an operation that fails says so with its tag") {
    if (!Uring::available()) {
      MESSAGE("skipped: the kernel refuses io_uring");
      return;
    }
    auto ring = ring_of(1);
    std::byte byte{};
    ring->prepare({false, -1, &byte, 1, 0, 42});
    std::array<Uring::End, 4> ends;
    auto one = ring->run(ends, 5s);
    REQUIRE(one.has_value());
    REQUIRE(*one == 1);
    CHECK(ends[0].tag == 42);
    CHECK(ends[0].result == -EBADF);
  }

  TEST_CASE("a depth beyond reason is refused") {
    CHECK(Uring::open({0}).error().code == Code::kInvalid);
    CHECK(Uring::open({5000}).error().code == Code::kInvalid);
  }
}
