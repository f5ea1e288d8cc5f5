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

// Serves one connection: answers each read with zeros, and each write; says which frames it came
// in.
class Hearer {
 public:
  // `hello`: the flags of its reply to that. `together`: it answers reads of one frame so.
  explicit Hearer(uint32_t hello = 0, bool together = true)
      : hello_(hello),
        together_(together),
        listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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
  size_t requests() const { return requests_; }  // in all frames

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
    answer(stream, hello.id, {}, hello_);
    Frame frame;
    while (stream.receive(&frame, sizeof frame, kNoLimit)) {
      ++frames_;
      if ((frame.header.flags & kMore) != 0) ++followed_;
      if (!take(stream, frame)) return;
    }
  }
  bool take(Stream& stream, const Frame& frame) {
    const Header& h = frame.header;
    std::vector<Descriptor> all(h.body_bytes / sizeof(Descriptor));
    all[0] = frame.body;
    if (!stream.receive(all.data() + 1, (all.size() - 1) * sizeof(Descriptor), kNoLimit) ||
        !check_body(h, all.data()))
      return false;
    requests_ += all.size();
    const bool reads = h.kind == Kind::kRead || h.kind == Kind::kReadMany;
    uint64_t bytes = 0;
    for (const Descriptor& d : all) bytes += d.bytes * d.rows;
    std::vector<std::byte> payload(bytes);
    if (!reads && !stream.receive(payload.data(), bytes, kNoLimit)) return false;
    if (h.kind == Kind::kReadMany && together_) {
      payload.resize(bytes + sizeof(Trailer));
      answer(stream, h.id, payload, static_cast<uint32_t>(all.size()));
      return true;
    }
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<std::byte> one(reads ? all[i].bytes * all[i].rows + sizeof(Trailer) : 0);
      answer(stream, h.id + i, one);
    }
    return true;
  }
  static void answer(Stream& stream, uint64_t id, std::span<std::byte> payload,
                     uint32_t flags = 0) {
    Header header = make_header(Kind::kReply, id, nullptr, 0, 0, flags);
    iovec parts[2] = {{&header, sizeof header}, {payload.data(), payload.size()}};
    (void)stream.send(parts, kNoLimit);
  }
  const uint32_t hello_;
  const bool together_;
  io::Fd listener_;
  std::string address_;
  std::atomic<size_t> frames_{0}, followed_{0}, requests_{0};
  std::thread thread_;
};

constexpr uint64_t kFrameBytes = 4 * kKiB, kApart = 3 * kFrameBytes;
constexpr size_t kRequests = 32;

// Moves scattered blocks to or from that peer in one batch, over one connection.
void move_scattered(Op op, const Hearer& hearer, std::span<std::byte> local) {
  auto owner = make_engine("owner", {"tcp"});
  auto memory = owner->allocate(kRequests * kApart);
  REQUIRE(memory.has_value());
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
  std::vector<Request> requests(kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    requests[i].op = op;
    requests[i].segment = *segment;
    requests[i].local = local.data() + (kRequests - 1 - i) * kApart;
    requests[i].offset = memory->offset() + i * kApart;
    requests[i].bytes = kFrameBytes;
  }
  const BatchId batch = user->allocate_batch();
  REQUIRE(user->submit(batch, requests).has_value());
  const auto outcome = user->wait(batch, 20s);
  CHECK_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().what));
  user->free_batch(batch);
}

}  // namespace

TEST_SUITE("xfer/frames") {
  TEST_CASE("small reads of one batch, scattered in memory, leave in one frame group") {
    Hearer hearer;
    std::vector<std::byte> local(kRequests * kApart, std::byte{1});
    move_scattered(Op::kRead, hearer, local);
    size_t read = 0;
    for (size_t i = 0; i < kRequests; ++i) read += local[i * kApart] == std::byte{0} ? 1 : 0;
    CHECK(read == kRequests);
    CHECK(hearer.frames() == kRequests);
    // In one call, or a few where the thread of the connection was at it before the last was there.
    CHECK(hearer.followed() >= kRequests / 2);
  }

  TEST_CASE("small reads of one batch share frames, and answers, where their owner takes that") {
    for (const bool together : {true, false}) {
      Hearer takes(kTakesMany, together);
      std::vector<std::byte> local(kRequests * kApart, std::byte{1});
      move_scattered(Op::kRead, takes, local);
      CHECK(takes.requests() == kRequests);
      CHECK(takes.frames() <= kRequests / 4);
      for (size_t i = 0; i < kRequests; ++i) {
        CHECK(local[i * kApart] == std::byte{0});
        CHECK(local[i * kApart + kFrameBytes - 1] == std::byte{0});
        CHECK(local[i * kApart + kFrameBytes] == std::byte{1});
      }
    }
  }

  TEST_CASE("small writes of one batch share frames, where their owner takes that") {
    std::vector<std::byte> local(kRequests * kApart, std::byte{1});
    Hearer takes(kTakesMany);
    move_scattered(Op::kWrite, takes, local);
    CHECK(takes.requests() == kRequests);
    CHECK(takes.frames() <= kRequests / 4);
    Hearer older;
    move_scattered(Op::kWrite, older, local);
    CHECK(older.requests() == kRequests);
    CHECK(older.frames() == kRequests);
  }
}
