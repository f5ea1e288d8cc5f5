// What an engine says on its data connections, as heard by a server that is spoken by hand.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "tests/conformance/pair.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::tcp;
using namespace std::chrono_literals;

namespace {

const auto kNoLimit = []() -> Result<> { return {}; };

// Serves one connection: answers each read with zeros, and says which frames it came in.
class Hearer {
 public:
  Hearer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof any;
    auto* address = reinterpret_cast<sockaddr*>(&any);
    REQUIRE(::bind(listener_.get(), address, n) == 0);
    REQUIRE(::listen(listener_.get(), 4) == 0);
    REQUIRE(::getsockname(listener_.get(), address, &n) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~Hearer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Hearer(const Hearer&) = delete;
  Hearer& operator=(const Hearer&) = delete;
  const std::string& address() const { return address_; }
  // Once all requests are answered.
  size_t frames() const { return frames_; }
  size_t followed() const { return followed_; }  // by another that came with it

 private:
  void serve() {
    Stream stream(io::Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), kClock, 10s);
    stream.tune();
    const Nonce nonce{};
    (void)stream.send(nonce.data(), nonce.size(), kNoLimit);
    Header hello;
    HelloBody proof;
    if (!stream.receive(&hello, sizeof hello, kNoLimit) ||
        !stream.receive(&proof, sizeof proof, kNoLimit))
      return;
    answer(stream, hello.id, {});
    Frame frame;
    while (stream.receive(&frame, sizeof frame, kNoLimit)) {
      ++frames_;
      if ((frame.header.flags & kMore) != 0) ++followed_;
      const Trailer good{};
      std::vector<std::byte> payload(frame.body.bytes * frame.body.rows + sizeof good);
      if (frame.header.kind != Kind::kRead) return;
      answer(stream, frame.header.id, payload);
    }
  }
  static void answer(Stream& stream, uint64_t id, std::span<std::byte> payload) {
    Header header = make_header(Kind::kReply, id, nullptr, 0);
    iovec parts[2] = {{&header, sizeof header}, {payload.data(), payload.size()}};
    (void)stream.send(parts, kNoLimit);
  }
  io::Fd listener_;
  std::string address_;
  std::atomic<size_t> frames_{0}, followed_{0};
  std::thread thread_;
};

}  // namespace

TEST_SUITE("xfer/frames") {
  TEST_CASE("small reads of one batch, scattered in memory, leave in one frame group") {
    constexpr uint64_t kBytes = 4 * kKiB, kApart = 3 * kBytes;
    constexpr size_t kReads = 32;
    auto owner = make_engine("owner", {"tcp"});
    auto memory = owner->allocate(kReads * kApart);
    REQUIRE(memory.has_value());
    Hearer hearer;
    SegmentDescriptor told = owner->describe();
    told.tcp = {hearer.address()};
    Metrics metrics;
    EngineOptions o;
    o.node = "user";
    o.transports = {"tcp"};
    o.connections = 1;
    auto opened = Engine::open(kClock, o, metrics);
    REQUIRE(opened.has_value());
    std::unique_ptr<Engine> user = std::move(*opened);
    auto segment = user->open_segment(told);
    REQUIRE(segment.has_value());

    std::vector<std::byte> local(kReads * kApart, std::byte{1});
    std::vector<Request> requests(kReads);
    for (size_t i = 0; i < kReads; ++i) {
      requests[i].op = Op::kRead;
      requests[i].segment = *segment;
      requests[i].local = local.data() + (kReads - 1 - i) * kApart;
      requests[i].offset = memory->offset() + i * kApart;
      requests[i].bytes = kBytes;
    }
    const BatchId batch = user->allocate_batch();
    REQUIRE(user->submit(batch, requests).has_value());
    const auto outcome = user->wait(batch, 20s);
    CHECK_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().what));
    user->free_batch(batch);
    size_t read = 0;
    for (size_t i = 0; i < kReads; ++i) read += local[i * kApart] == std::byte{0} ? 1 : 0;
    CHECK(read == kReads);
    user.reset();  // closes the connection
    CHECK(hearer.frames() == kReads);
    // In one call, or a few where the thread of the connection was at it before the last was there.
    CHECK(hearer.followed() >= kReads / 2);
  }
}
