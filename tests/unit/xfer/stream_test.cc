// How far a connection reads ahead.
#include "xfer/transports/tcp/stream.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <vector>

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace stream_test {
namespace {

const SteadyClock kClock;
constexpr size_t kSent = 60'000, kFar = 64 * 1024;

Result<> never() { return {}; }

// One end of a connection over which those bytes have come.
struct Arrived {
  Arrived() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    other.reset(ends[1]);
    stream = tcp::Stream(io::Fd(ends[0]), kClock, 20s);
    for (size_t i = 0; i < kSent; ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 256);
    REQUIRE(::send(other.get(), sent.data(), kSent, 0) == static_cast<ssize_t>(kSent));
  }
  bool takes(size_t from, size_t n) {
    std::vector<std::byte> got(n);
    REQUIRE(stream.receive(got.data(), n, never));
    return std::equal(got.begin(), got.end(), sent.begin() + static_cast<ptrdiff_t>(from));
  }
  io::Fd other;
  tcp::Stream stream;
  std::vector<std::byte> sent = std::vector<std::byte>(kSent);
};

}  // namespace

TEST_SUITE("xfer/stream") {
  TEST_CASE("in a run of short ones it reads ahead as far as it may, else little") {
    Arrived a;
    CHECK(a.takes(0, 100));
    CHECK(a.stream.ahead() < 8192);
    size_t at = 100;
    at += a.stream.ahead();
    CHECK(a.takes(100, at - 100));
    CHECK(a.stream.ahead() == 0);
    a.stream.expect_short(true);
    CHECK(a.takes(at, 100));
    CHECK(a.stream.ahead() == kSent - at - 100);  // all there is, in one call
    a.stream.expect_short(false);
    CHECK(a.takes(at + 100, kSent - at - 100));  // and none of it is lost
    CHECK(a.stream.ahead() == 0);
    static_assert(kSent < kFar);
  }
}

}  // namespace stream_test
