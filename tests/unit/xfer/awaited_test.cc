// Requests of a caller that waits are moved on its own thread, and left to the connection's thread
// when they take long.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "tests/slow.h"
#include "xfer/engine.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

const SteadyClock kSteady;
constexpr uint64_t kShortBytes = 4 * kKiB;

struct Ours {  // an engine, and what it counts
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  explicit Ours(const char* node) {
    EngineOptions o;
    o.node = node;
    o.transports = {"tcp"};
    o.peer_timeout = 20s * kSlow;
    auto opened = Engine::open(kSteady, o, metrics);
    REQUIRE(opened);
    engine = std::move(*opened);
  }
  uint64_t carried() {
    return metrics.counter("mc_xfer_carried_total", "", {{"transport", "tcp"}}).value();
  }
  uint64_t slices() {
    return metrics.counter("mc_xfer_slices_total", "", {{"transport", "tcp"}}).value();
  }
};

// Counts how often an engine looks at it: each wake-up of a timer does.
class CountingClock final : public Clock {
 public:
  Time now() const override {
    reads.fetch_add(1);
    return kSteady.now();
  }
  mutable std::atomic<uint64_t> reads{0};
};

// Neighbours have other lengths: else they were rows of one request.
uint64_t place_of(uint64_t i) { return 2 * i * kShortBytes; }
uint64_t bytes_of(uint64_t i) { return kShortBytes - 8 * (i % 3); }

std::vector<Request> requests_of(Op op, SegmentHandle segment, uint64_t offset,
                                 std::span<std::byte> local) {
  std::vector<Request> out;
  for (uint64_t at = 0; at < local.size(); at += kShortBytes) {
    Request r;
    r.op = op;
    r.local = local.data() + at;
    r.segment = segment;
    r.offset = offset + place_of(at / kShortBytes);
    r.bytes = bytes_of(at / kShortBytes);
    out.push_back(r);
  }
  return out;
}

// Until one turn had `all` of its requests carried by the caller. The first connects; on a busy
// machine the connection's thread may rest later than the caller asks, and carries some.
template <class F>
void until_all_carried(Ours& ours, uint64_t all, const F& once) {
  const Time end = kSteady.now() + 30s * kSlow;
  for (uint64_t carried = 0; carried != all;) {
    REQUIRE(kSteady.now() < end);
    const uint64_t before = ours.carried();
    REQUIRE(once());
    carried = ours.carried() - before;
  }
}

// Connects, and lets the connection come to rest: after this a caller may borrow it.
template <class F>
void until_carried(Ours& ours, const F& once) {
  const Time end = kSteady.now() + 30s * kSlow;
  for (const uint64_t before = ours.carried(); ours.carried() == before;) {
    REQUIRE(kSteady.now() < end);
    REQUIRE(once());
  }
}

// A peer whose connections answer one read after the other, while answer(true) was the last call;
// the first `begins` bytes of an answer are sent at once.
class SlowPeer {
 public:
  explicit SlowPeer(std::span<const std::byte> bytes, size_t begins = 0)
      : bytes_(bytes), begins_(begins), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof at;
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), n) == 0);
    REQUIRE(::listen(fd_.get(), 8) == 0);
    REQUIRE(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &n) == 0);
    address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    accepting_ = std::thread([this] {
      for (;;) {
        io::Fd fd(::accept(fd_.get(), nullptr, nullptr));
        if (!fd) return;
        threads_.emplace_back([this, fd = std::move(fd)]() mutable { serve(std::move(fd)); });
      }
    });
  }
  ~SlowPeer() {
    answer(true);
    ::shutdown(fd_.get(), SHUT_RDWR);
    accepting_.join();
    for (auto& t : threads_) t.join();
  }
  void answer(bool on) {
    Lock lock(mutex_);
    answers_ = on;
    changed_.notify_all();
  }
  std::string address;

 private:
  void serve(io::Fd fd) {
    tcp::Stream stream(std::move(fd), kSteady, 60s * kSlow);
    const auto go_on = []() -> Result<> { return {}; };
    const tcp::Nonce nonce{};
    tcp::Header header;
    tcp::HelloBody hello;
    if (!stream.send(nonce.data(), nonce.size(), go_on) ||
        !stream.receive(&header, sizeof header, go_on) ||
        !stream.receive(&hello, sizeof hello, go_on))
      return;
    const tcp::Header welcome = tcp::make_header(tcp::Kind::kReply, header.id, nullptr, 0);
    if (!stream.send(&welcome, sizeof welcome, go_on)) return;
    tcp::Frame frame;
    while (stream.receive(&frame, sizeof frame, go_on)) {
      const tcp::Header reply = tcp::make_header(tcp::Kind::kReply, frame.header.id, nullptr, 0);
      const tcp::Trailer trailer;
      std::vector<std::byte> answer(sizeof reply + frame.body.bytes + sizeof trailer);
      std::memcpy(answer.data(), &reply, sizeof reply);
      std::memcpy(answer.data() + sizeof reply, bytes_.data() + frame.body.offset,
                  frame.body.bytes);
      std::memcpy(answer.data() + answer.size() - sizeof trailer, &trailer, sizeof trailer);
      const size_t begins = std::min(begins_, answer.size());
      if (!stream.send(answer.data(), begins, go_on)) return;
      {
        Lock lock(mutex_);
        while (!answers_) changed_.wait(mutex_);
      }
      if (!stream.send(answer.data() + begins, answer.size() - begins, go_on)) return;
    }
  }

  const std::span<const std::byte> bytes_;
  const size_t begins_;
  io::Fd fd_;
  Mutex mutex_;
  Condition changed_;
  bool answers_ MC_GUARDED_BY(mutex_) = true;
  std::thread accepting_;
  std::vector<std::thread> threads_;  // of accepting_, until it ended
};

}  // namespace

TEST_SUITE("xfer/awaited") {
  TEST_CASE("F179: no thread of a rail wakes up for short requests whose caller waits") {
    Ours owner("owner"), user("user");
    auto memory = owner.engine->allocate(1 * kMiB);
    REQUIRE(memory);
    auto segment = user.engine->open_segment(owner.engine->describe());
    REQUIRE(segment);
    std::vector<std::byte> out(64 * kShortBytes), in(out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7 + i / 4096);
    const auto moved = [&](Op op, std::span<std::byte> local) {
      const auto requests = requests_of(op, *segment, memory->offset(), local);
      const BatchId batch = user.engine->allocate_batch();
      auto outcome = user.engine->submit_awaited(batch, requests, 10s);
      if (outcome) outcome = user.engine->wait(batch, 10s * kSlow);
      user.engine->free_batch(batch);
      return outcome.has_value();
    };
    for (const Op op : {Op::kWrite, Op::kRead})
      until_all_carried(user, 64, [&] {
        const uint64_t slices = user.slices();
        const bool ok = moved(op, op == Op::kWrite ? out : in);
        CHECK(user.slices() - slices == 64);
        return ok;
      });
    for (uint64_t i = 0; i < 64; ++i) {
      const uint64_t at = i * kShortBytes;
      CHECK(std::memcmp(in.data() + at, out.data() + at, bytes_of(i)) == 0);
    }

    const uint64_t gap = kShortBytes;  // nothing was written there
    std::vector<Engine::GuardAdvance> guards;
    uint64_t turn = 0;
    until_all_carried(user, 40, [&] {
      guards.clear();
      ++turn;
      for (uint64_t i = 0; i < 40; ++i)
        guards.push_back({*segment, memory->offset() + gap + 8 * i, i + turn, {}});
      guards.push_back({*segment, memory->offset() + gap + 4, 1, {}});
      user.engine->advance_guards(guards, 10s * kSlow);
      for (uint64_t i = 0; i < 40; ++i) {
        CHECK(guards[i].outcome.has_value());
        uint64_t word = 0;
        std::memcpy(&word, memory->data() + gap + 8 * i, 8);
        CHECK(word == i + turn);
      }
      REQUIRE(!guards.back().outcome);
      return guards.back().outcome.error().code == Code::kInvalid;
    });
    guards.pop_back();
    guards[3].value = 1;  // it has 4 already, at least
    user.engine->advance_guards(guards, 10s * kSlow);
    CHECK(guards[2].outcome.has_value());
    REQUIRE(!guards[3].outcome);
    CHECK(guards[3].outcome.error().code == Code::kStale);
  }

  TEST_CASE("the timer of a client that asks rarely sleeps soon, and wakes for the next request") {
    CountingClock clock;
    Metrics metrics;
    EngineOptions options;
    options.node = "user";
    options.transports = {"tcp"};
    auto user = Engine::open(clock, options, metrics);
    REQUIRE(user);
    Ours owner("owner");
    auto memory = owner.engine->allocate(1 * kMiB);
    REQUIRE(memory);
    auto segment = (*user)->open_segment(owner.engine->describe());
    REQUIRE(segment);
    std::vector<std::byte> in(kShortBytes);
    const Time end = kSteady.now() + 30s * kSlow;
    uint64_t least = UINT64_MAX;  // looks after a request until there are none for a while
    for (int i = 0; i < 3; ++i) {
      Request r;
      r.local = in.data();
      r.segment = *segment;
      r.offset = memory->offset();
      r.bytes = in.size();
      REQUIRE((*user)->transfer_sync(r, 10s * kSlow));
      const uint64_t from = clock.reads;
      uint64_t last = from;
      for (Time since = kSteady.now(); kSteady.now() - since < 100ms && kSteady.now() < end;) {
        if (const uint64_t reads = clock.reads; std::exchange(last, reads) != reads)
          since = kSteady.now();
        std::this_thread::yield();
      }
      least = std::min(least, last - from);
    }
    CHECK(least < 100);  // some for each of a few steps; not a second of them
  }

  TEST_CASE("what a caller began and the peer is slow to answer ends on the connection's thread") {
    std::vector<std::byte> bytes(64 * kShortBytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 5 + i / 4096);
    size_t begins = 0;  // of an answer, at once: nothing, the header alone, or with some bytes
    SUBCASE("says nothing") {}
    SUBCASE("stops in a header") { begins = 7; }
    SUBCASE("stops after a header") { begins = sizeof(tcp::Header); }
    SUBCASE("stops in the bytes") { begins = 1000; }
    SlowPeer peer(bytes, begins);
    Ours user("user");
    SegmentDescriptor segment = Ours("owner").engine->describe();
    segment.tcp = {peer.address};
    segment.nics.clear();
    segment.buffers.clear();
    BufferInfo all;
    all.bytes = bytes.size();
    segment.buffers.push_back(all);
    auto opened = user.engine->open_segment(segment);
    REQUIRE(opened);
    std::vector<std::byte> in(8 * kShortBytes);
    const auto requests = requests_of(Op::kRead, *opened, 0, in);
    until_carried(user, [&] {
      const BatchId batch = user.engine->allocate_batch();
      auto outcome = user.engine->submit_awaited(batch, requests, 10s);
      if (outcome) outcome = user.engine->wait(batch, 10s * kSlow);
      user.engine->free_batch(batch);
      return outcome.has_value();
    });
    // On a busy machine 1 ms may be over before anything began: such a round does not count.
    for (int round = 0, tries = 0; round < 3; ++tries) {
      REQUIRE(tries < 300);
      std::fill(in.begin(), in.end(), std::byte{0});
      const uint64_t before = user.carried();
      peer.answer(false);
      const BatchId batch = user.engine->allocate_batch();
      REQUIRE(user.engine->submit_awaited(batch, requests, 1ms));
      CHECK(user.engine->status(batch, 0).state == TransferState::kPending);
      const auto early = user.engine->wait(batch, 1ms);
      REQUIRE(!early);
      CHECK(early.error().code == Code::kTimeout);
      peer.answer(true);
      CHECK(user.engine->wait(batch, 20s * kSlow));
      const uint64_t carried = user.carried() - before;
      CHECK((carried == 0 || carried == requests.size()));
      round += carried > 0 ? 1 : 0;
      for (size_t i = 0; i < requests.size(); ++i)
        CHECK(std::memcmp(in.data() + i * kShortBytes, bytes.data() + place_of(i), bytes_of(i)) ==
              0);
      user.engine->free_batch(batch);
      // Its thread rests again, at some time.
      until_carried(user, [&] {
        const BatchId next = user.engine->allocate_batch();
        auto outcome = user.engine->submit_awaited(next, requests, 10s);
        if (outcome) outcome = user.engine->wait(next, 10s * kSlow);
        user.engine->free_batch(next);
        return outcome.has_value();
      });
    }
  }
}
