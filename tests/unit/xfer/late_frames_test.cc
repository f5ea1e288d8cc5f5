// The server of tcp and frames that come late or never end (F1).
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/slow.h"
#include "xfer/memory/copy.h"
#include "xfer/memory/registry.h"
#include "xfer/transports/tcp/server.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::tcp;
using namespace std::chrono_literals;

namespace {

const SteadyClock kRealClock;
const auto kGoOn = []() -> Result<> { return {}; };

class SharedClock final : public Clock {  // a manual one for several threads
 public:
  Time now() const override { return Time(Duration(now_.load())); }
  void advance(Duration d) { now_ += d.count(); }

 private:
  std::atomic<Duration::rep> now_{Duration(1h).count()};
};

// True once it is; false when that takes too long.
template <class F>
bool comes_true(const F& f) {
  const Time until = kRealClock.now() + 20s * kSlow;
  while (!f()) {
    if (kRealClock.now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

struct Owner {
  SharedClock clock;
  Metrics metrics;
  Registry registry{Generation{7}};
  BufferPtr buffer = *registry.allocate(1 * kMiB, true, "*");
  std::unique_ptr<Server> server =
      *Server::open({{"127.0.0.1:0"}, "secret", 3s, 15s}, registry, clock, metrics);
  std::byte at(size_t i) const {
    return std::atomic_ref<std::byte>(buffer->data[i]).load(std::memory_order_acquire);
  }
};

class Writer {
 public:
  explicit Writer(const Owner& owner) {
    auto stream = Stream::connect(owner.server->bound().front().text(), kRealClock, 20s, kGoOn);
    REQUIRE(stream.has_value());
    stream_ = std::move(*stream);
    Nonce nonce;
    REQUIRE(stream_.receive(nonce.data(), nonce.size(), kGoOn).has_value());
    const HelloBody hello = prove("secret", nonce);
    send(make_header(Kind::kHello, 0, &hello, sizeof hello), &hello, sizeof hello);
    REQUIRE(reply() == 0);
  }
  void begin(const Owner& owner, uint64_t at, uint64_t bytes, uint64_t guard_at = Guard::kNone,
             uint64_t guard = 0) {
    Descriptor d;
    d.generation = 7;
    d.offset = owner.buffer->offset + at;
    d.bytes = bytes;
    d.rows = 1;
    d.guard_offset = guard_at == Guard::kNone ? guard_at : owner.buffer->offset + guard_at;
    d.guard_value = guard;
    send(make_header(Kind::kWrite, 1, &d, sizeof d), &d, sizeof d);
  }
  bool send(const void* p, size_t n) { return stream_.send(p, n, kGoOn).has_value(); }
  bool send(size_t n, int value) {
    const std::vector<std::byte> bytes(n, static_cast<std::byte>(value));
    return send(bytes.data(), n);
  }
  int reply() {
    Header h;
    if (!stream_.receive(&h, sizeof h, kGoOn) || !check_header(h)) return -1;
    std::string text(h.body_bytes, '\0');
    return stream_.receive(text.data(), text.size(), kGoOn) ? h.code : -1;
  }
  bool closed() const {
    return stream_.readable_now();  // it is owed no answer yet
  }

 private:
  void send(const Header& header, const void* body, size_t n) {
    CHECK(send(&header, sizeof header));
    CHECK(send(body, n));
  }
  Stream stream_;
};

}  // namespace

TEST_SUITE("xfer/late_frames") {
  TEST_CASE("F1: a frame has a limit in all, however often a byte of it comes") {
    for (const uint64_t bytes : {uint64_t{1000}, 64 * kKiB}) {
      Owner owner;
      Writer writer(owner);
      writer.begin(owner, 0, bytes);
      size_t landed = 0;
      while (landed < 60 && !writer.closed()) {
        if (!writer.send(1, 9)) break;
        if (!comes_true([&] { return owner.at(landed) == std::byte{9} || writer.closed(); })) break;
        landed += owner.at(landed) == std::byte{9} ? 1 : 0;
        owner.clock.advance(1s);
      }
      CHECK(landed >= 10);  // nobody was cut off early
      CHECK(comes_true([&] { return writer.closed(); }));
      CHECK(writer.reply() == -1);
    }
  }

  TEST_CASE("F1: once a range is fenced no byte of an earlier frame lands there") {
    Owner owner;
    const uint64_t bytes = 100 * kKiB, guard_at = 900 * kKiB;
    Writer late(owner), other(owner);
    late.begin(owner, 0, bytes, guard_at, 0);
    CHECK(late.send(40 * kKiB, 9));
    other.begin(owner, bytes, bytes);  // its neighbour is left alone
    CHECK(other.send(40 * kKiB, 8));
    REQUIRE(comes_true([&] { return owner.at(40 * kKiB - 1) == std::byte{9}; }));
    REQUIRE(comes_true([&] { return owner.at(bytes) == std::byte{8}; }));
    REQUIRE(raise_guard_word(owner.buffer->data + guard_at, 5));
    FencedRange range{owner.buffer->offset + 4096, 4096};
    REQUIRE(comes_true([&] {
      range.done = true;
      owner.server->fence({&range, 1});
      return range.done;
    }));
    std::memset(owner.buffer->data, 1, bytes);  // the next owner's
    (void)late.send(60 * kKiB, 9);
    CHECK(late.reply() == -1);
    for (size_t i = 0; i < bytes; ++i)
      if (owner.at(i) != std::byte{1}) FAIL("byte ", i, " is the late writer's");
    CHECK(other.send(60 * kKiB, 8));
    CHECK(other.reply() == 0);
    CHECK(owner.at(2 * bytes - 1) == std::byte{8});
  }
}
