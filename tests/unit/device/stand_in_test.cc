// The stand-in: injected faults, and memory that another process opens.
#include "device/stand_in.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/unit/device/kinds.h"

using namespace mc;
using namespace mc::device;
using namespace std::chrono_literals;

namespace stand_in_test {
namespace {

void expect(const Result<>& result, Code code, const char* text) {
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == code);
  CHECK_MESSAGE(result.error().what.find(text) != std::string::npos, result.error().what);
}
template <class T>
Result<> plain(const Result<T>& r) {
  if (r) return {};
  return fail(r.error());
}

std::string read_all(int fd, size_t bytes) {
  std::string out(bytes, '\0');
  size_t got = 0;
  while (got < bytes) {
    const ssize_t n = ::read(fd, out.data() + got, bytes - got);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  out.resize(got);
  return out;
}

}  // namespace

TEST_SUITE("device/stand-in") {
  TEST_CASE("host code cannot touch its memory") {
    const auto device = StandIn::make(kClock, {});
    const Memory memory = must(device->allocate(4096));
    int fds[2];
    REQUIRE(::pipe(fds) == 0);
    CHECK(::write(fds[1], memory.data(), 1) == -1);
    CHECK(errno == EFAULT);
    CHECK(::write(fds[1], device->seen_by_device(memory.data()), 1) == 1);
    ::close(fds[0]);
    ::close(fds[1]);
  }

  TEST_CASE("another process reads and writes what was shared, while its owner lives") {
    int up[2], down[2];
    REQUIRE(::pipe(up) == 0);
    REQUIRE(::pipe(down) == 0);
    const pid_t owner = ::fork();
    if (owner == 0) {  // checks nothing: what it does wrong, the parent sees
      const auto device = StandIn::make(kClock, {});
      const auto memory = device->allocate(8192);
      std::memset(device->seen_by_device(memory->data()), 0x5a, 8192);
      const auto handle = device->share(memory->bytes.subspan(4096));
      (void)!::write(up[1], handle->data(), handle->size());
      (void)read_all(down[0], 1);
      (void)!::write(up[1], device->seen_by_device(memory->data()) + 4096, 1);
      (void)read_all(down[0], 1);
      ::_exit(0);
    }
    const std::string handle = read_all(up[0], 104);
    REQUIRE(handle.size() == 104);
    const auto device = StandIn::make(kClock, {});
    {
      const Memory opened = must(device->open(handle));
      CHECK(opened.size() == 4096);
      const auto stream = must(device->open_stream());
      CHECK(get(*stream, opened.data(), 4096) == std::vector<std::byte>(4096, std::byte{0x5a}));
      put(*stream, opened.data(), std::vector<std::byte>(1, std::byte{0x33}));
      CHECK(must(device->query(opened.data())).data() == opened.data() - 4096);
      CHECK_FALSE(device->share(opened.bytes).has_value());
    }
    REQUIRE(::write(down[1], "x", 1) == 1);
    CHECK(read_all(up[0], 1) == "\x33");
    REQUIRE(::write(down[1], "x", 1) == 1);
    REQUIRE(::waitpid(owner, nullptr, 0) == owner);
    expect(plain(device->open(handle)), Code::kUnavailable, "gone");
    for (const int fd : {up[0], up[1], down[0], down[1]}) ::close(fd);
  }

  TEST_CASE("the next event returns the error of a failed copy, and the stream continues") {
    const auto device = StandIn::make(kClock, {});
    const Memory memory = must(device->allocate(4096));
    const auto stream = must(device->open_stream());
    std::vector<std::byte> host(4096, std::byte{1});
    device->inject({.fails_from = 1});
    must(stream->copy(memory.data(), host.data(), 4096));
    must(must(stream->record())->wait());
    must(stream->copy(memory.data(), host.data(), 4096));
    expect(must(stream->record())->wait(), Code::kInternal, "stand-in:0 failed a copy");
    device->inject({});
    must(stream->copy(memory.data(), host.data(), 4096));
    must(must(stream->record())->wait());
  }

  TEST_CASE("a lost device fails running, queued and later work, permanently") {
    const auto device = StandIn::make(kClock, {});
    const Memory memory = must(device->allocate(4096));
    const auto stream = must(device->open_stream());
    std::vector<std::byte> host(4096);
    device->inject({.latency = 1h});
    must(stream->copy(memory.data(), host.data(), 4096));
    must(stream->copy(memory.data(), host.data(), 4096));
    const auto event = must(stream->record());
    CHECK_FALSE(must(event->done()));
    device->inject({.lost = true});
    expect(event->wait(), Code::kUnavailable, "stand-in:0 was lost");
    device->inject({});
    expect(stream->copy(memory.data(), host.data(), 1), Code::kUnavailable, "lost");
    expect(plain(stream->record()), Code::kUnavailable, "lost");
    expect(plain(device->allocate(1)), Code::kUnavailable, "lost");
    expect(plain(device->query(memory.data())), Code::kUnavailable, "lost");
  }

  TEST_CASE("a busy device refuses allocations and streams until it is free") {
    const auto device = StandIn::make(kClock, {});
    device->inject({.busy = true});
    expect(plain(device->allocate(1)), Code::kBusy, "held by others");
    expect(plain(device->open_stream()), Code::kBusy, "held by others");
    device->inject({});
    must(device->allocate(1));
  }

  TEST_CASE("freed memory and another device's are refused by copies, and peers are not") {
    const auto device = StandIn::make(kClock, {}), other = StandIn::make(kClock, {.ordinal = 1});
    const auto alone = StandIn::make(kClock, {.ordinal = 2, .peers = false});
    const auto stream = must(device->open_stream());
    std::vector<std::byte> host(4096, std::byte{7});
    Memory memory = must(device->allocate(4096));
    const Memory theirs = must(other->allocate(4096));
    std::byte* const freed = memory.data();
    expect(stream->copy(memory.data() + 1, host.data(), 4096), Code::kInvalid, "pass the end");
    memory = Memory();
    expect(stream->copy(freed, host.data(), 1), Code::kInvalid, "was freed");
    expect(stream->copy(theirs.data(), host.data(), 1), Code::kInvalid, "not of stand-in:0");
    must(device->reach(*other));
    put(*stream, theirs.data(), host);
    CHECK(get(*stream, theirs.data(), 4096) == host);
    expect(alone->reach(*other), Code::kUnsupported, "does not reach");
  }

  TEST_CASE("injected latency delays copies, and streams run in parallel") {
    const auto device = StandIn::make(kClock, {});
    const Memory memory = must(device->allocate(2 << 20));
    const auto a = must(device->open_stream()), b = must(device->open_stream());
    std::vector<std::byte> host(1 << 20);
    device->inject({.latency = 1ms, .bytes_per_s = 100u << 20});  // 11 ms
    const Time began = kClock.now();
    must(a->copy(memory.data(), host.data(), host.size()));
    must(b->copy(memory.data() + host.size(), host.data(), host.size()));
    must(must(a->record())->wait());
    must(must(b->record())->wait());
    CHECK(kClock.now() - began >= 11ms);
    CHECK(device->counts().copies == 2);
    CHECK(device->counts().running_most == 2);
  }

  TEST_CASE("a stream that is closed finishes its work") {
    const auto device = StandIn::make(kClock, {});
    const Memory memory = must(device->allocate(4096));
    std::vector<std::byte> host(4096, std::byte{9});
    device->inject({.latency = 5ms});
    auto stream = must(device->open_stream());
    must(stream->copy(memory.data(), host.data(), 4096));
    const auto event = must(stream->record());
    stream.reset();
    CHECK(must(event->done()));
    CHECK(device->seen_by_device(memory.data())[4095] == std::byte{9});
  }
}

}  // namespace stand_in_test
