// A peer that is killed, stopped, or started again at the same addresses, at any step of what two
// processes do with each other: everything is answered, in time, and with the right bytes or an
// error.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstring>

#include "io/fd.h"
#include "tests/conformance/child.h"
#include "tests/conformance/control.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

constexpr Duration kPeerTimeout = 500ms * kSlow,
                   kSoon = 8s * kSlow;  // of what takes a fraction of that

std::unique_ptr<Engine> user_of(const std::string& transport) {
  static Metrics metrics;
  EngineOptions o;
  o.node = "user";
  o.transports = {transport};
  o.peer_timeout = kPeerTimeout;
  auto engine = Engine::open(kClock, o, metrics);
  REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
  return std::move(*engine);
}

enum class Fate { kKilled, kStopped, kRestarted };
const Fate kFates[] = {Fate::kKilled, Fate::kStopped, Fate::kRestarted};

void meet(Served& peer, Fate fate) {
  switch (fate) {
    case Fate::kKilled: peer.kill(); break;
    case Fate::kStopped: peer.stop(); break;
    case Fate::kRestarted: peer.restart(); break;
  }
}

std::vector<std::byte> pattern() {
  std::vector<std::byte> bytes(Served::kBytes);
  describe_served(bytes);
  return bytes;
}

bool moving(const Engine& engine, BatchId batch) {
  const Time limit = kClock.now() + 10s * kSlow;
  while (engine.status(batch, 0).state != TransferState::kCompleted && kClock.now() < limit)
    std::this_thread::yield();
  return engine.status(batch, 0).state == TransferState::kCompleted;
}

// A peer, a user of it, and how long the user's calls take.
struct Met {
  Served peer;
  std::unique_ptr<Engine> user;
  SegmentHandle segment = 0;
  Time before{};
  explicit Met(const std::string& transport) : peer(transport), user(user_of(transport)) {
    auto opened = user->open_segment(peer.control(), 10s);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().what));
    segment = *opened;
  }
  void begin() { before = kClock.now(); }
  bool soon() const { return kClock.now() - before < kSoon; }
  // Afterwards a peer that is there again is of use again.
  void recovers(Fate fate) {
    if (fate == Fate::kKilled) return;
    if (fate == Fate::kStopped) peer.resume();
    const std::vector<std::byte> want = pattern();
    std::vector<std::byte> got(want.size());
    Result<> read;
    const Time limit = kClock.now() + 10s * kSlow;
    do {
      read = user->transfer_sync(read_of(segment, 0, got), 5s);
    } while (!read && kClock.now() < limit);
    REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
    CHECK(digest(got) == digest(want));
  }
};

// A port of a process that hangs: connections are made and nothing is said; or one that refuses.
class DeafPort {
 public:
  explicit DeafPort(bool listens) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd_.get(), address, size) == 0);
    if (listens) REQUIRE(::listen(fd_.get(), 64) == 0);
    REQUIRE(::getsockname(fd_.get(), address, &size) == 0);
    text_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  const std::string& address() const { return text_; }

 private:
  io::Fd fd_;
  std::string text_;
};

}  // namespace

TEST_SUITE("xfer/hang") {
  TEST_CASE("serve until killed" * doctest::skip()) {  // what class Served runs
    const std::vector<std::string> told = Process::told();
    if (told.size() != 3) return;
    Metrics metrics;
    EngineOptions o;
    o.node = "served";
    const size_t nic = told[0].find(':');
    o.transports = {told[0].substr(0, nic)};
    if (nic != std::string::npos) o.nics = {told[0].substr(nic + 1)};
    o.data = {told[2]};
    o.peer_timeout = 2s * kSlow;
    auto engine = Engine::open(kClock, o, metrics);
    REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
    auto memory = (*engine)->allocate(Served::kBytes);
    REQUIRE(memory.has_value());
    describe_served(memory->bytes());
    Control control(**engine, told[1]);
    (*engine)->on_notification([](const Notification&) {});
    const auto& data = (*engine)->data_addresses();
    Process::answer(control.address() + " " + (data.empty() ? told[2] : data.front()));
  }

  TEST_CASE("opening a segment: an answer within its budget, whatever became of the peer") {
    for (const Fate fate : kFates) {
      CAPTURE(static_cast<int>(fate));
      Served peer("tcp");
      auto user = user_of("tcp");
      meet(peer, fate);
      const Time before = kClock.now();
      auto opened = user->open_segment(peer.control(), fate == Fate::kRestarted ? 10s : 500ms);
      CHECK(opened.has_value() == (fate == Fate::kRestarted));
      CHECK(kClock.now() - before < kSoon);
    }
  }

  TEST_CASE("the first transfer after the descriptor was fetched: an error, or the right bytes") {
    for (const std::string& transport : kBetween) {
      for (const Fate fate : kFates) {
        CAPTURE(transport);
        CAPTURE(static_cast<int>(fate));
        Met met(transport);
        meet(met.peer, fate);
        std::vector<std::byte> got(64 * kKiB);
        met.begin();
        auto read = met.user->transfer_sync(read_of(met.segment, 0, got), 20s);
        CHECK(met.soon());
        CHECK_MESSAGE(read.has_value() == (fate == Fate::kRestarted),
                      (read ? "" : read.error().what));
        const std::vector<std::byte> want = pattern();
        if (read) CHECK(std::memcmp(got.data(), want.data(), got.size()) == 0);
        met.recovers(fate);
      }
    }
  }

  TEST_CASE("in the middle of reads and writes: each request is answered, and rightly") {
    for (const std::string& transport : kBetween) {
      for (const Op op : {Op::kRead, Op::kWrite}) {
        for (const Fate fate : kFates) {
          CAPTURE(transport);
          CAPTURE(static_cast<int>(op));
          CAPTURE(static_cast<int>(fate));
          Met met(transport);
          const std::vector<std::byte> want = pattern();
          // A tcp connection to a peer that hangs gives up its slices one after another.
          const size_t n = transport == "tcp" && fate == Fate::kStopped ? 4 : 64;
          constexpr uint64_t kEach = Served::kBytes / 64;
          std::vector<std::vector<std::byte>> local(n, std::vector<std::byte>(kEach));
          const auto want_of = [&](size_t i) { return std::span(want).subspan(i * kEach, kEach); };
          std::vector<Request> requests;
          for (size_t i = 0; i < local.size(); ++i) {
            if (op == Op::kWrite) std::memcpy(local[i].data(), want_of(i).data(), kEach);
            requests.push_back(read_of(met.segment, i * kEach, local[i]));
            requests.back().op = op;
          }
          const BatchId batch = met.user->allocate_batch();
          REQUIRE(met.user->submit(batch, requests).has_value());
          CHECK(moving(*met.user, batch));
          meet(met.peer, fate);
          met.begin();
          auto done = met.user->wait(batch, 20s);
          CHECK(met.soon());
          for (size_t i = 0; i < local.size(); ++i) {
            const Status s = met.user->status(batch, i);
            CHECK(xfer::finished(s.state));
            if (s.state == TransferState::kCompleted && op == Op::kRead)
              CHECK(std::memcmp(local[i].data(), want_of(i).data(), kEach) == 0);
          }
          met.user->free_batch(batch);
          met.recovers(fate);
        }
      }
    }
  }

  TEST_CASE("thirty peers that hang: a request ends at its own deadline, or when cancelled (F31)") {
    constexpr size_t kPeers = 30;
    auto owner = user_of("tcp"), user = user_of("tcp");
    const Memory memory = *owner->allocate(64 * kKiB);
    const DeafPort data(false);
    std::vector<std::unique_ptr<DeafPort>> controls;
    for (const bool cancelled : {false, true}) {
      CAPTURE(cancelled);
      std::vector<std::byte> local(kPeers * 1024);
      std::vector<Request> requests;
      for (size_t i = 0; i < kPeers; ++i) {
        controls.push_back(std::make_unique<DeafPort>(true));
        SegmentDescriptor d = owner->describe();
        d.node = "hangs-" + std::to_string(controls.size());
        d.tcp = {data.address()};  // so that each transfer asks whether the peer was restarted
        const auto segment = user->open_segment(d, controls.back()->address());
        REQUIRE(segment.has_value());
        requests.push_back(
            read_of(*segment, memory.offset(), std::span(local).subspan(i * 1024, 1024)));
        if (!cancelled) requests.back().deadline = kClock.now() + 100ms;
      }
      const BatchId batch = user->allocate_batch();
      const Time before = kClock.now();
      REQUIRE(user->submit(batch, requests).has_value());
      if (cancelled)
        user->cancel(batch);
      else
        CHECK_FALSE(user->wait(batch, 40s).has_value());
      CHECK(kClock.now() - before < kSoon);  // one after the other they would take 30 s
      for (size_t i = 0; i < kPeers; ++i)
        CHECK(user->status(batch, i).state != TransferState::kCompleted);
      user->free_batch(batch);
    }
  }

  TEST_CASE("a notification: an answer in its time, and a successor is not told") {
    for (const Fate fate : kFates) {
      CAPTURE(static_cast<int>(fate));
      Met met("shm");
      REQUIRE(met.user->notify(met.segment, {"n", "", ""}, 5s).has_value());
      meet(met.peer, fate);
      met.begin();
      // To ask the restarted one who it is takes a busy machine a while.
      auto told = met.user->notify(met.segment, {"n", "", ""}, fate == Fate::kRestarted ? 5s : 1s);
      CHECK(met.soon());
      REQUIRE_FALSE(told.has_value());
      if (fate == Fate::kRestarted) CHECK(told.error().code == Code::kStale);
      met.recovers(fate);
    }
  }

  TEST_CASE("what a notification speaks of is never in another process") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      Met met(transport);
      std::vector<std::byte> bytes(64 * kKiB);
      Request first = read_of(met.segment, 0, bytes), second = first;
      first.op = second.op = Op::kWrite;
      REQUIRE(met.user->transfer_sync(first, 5s).has_value());
      met.peer.restart();
      const BatchId batch = met.user->allocate_batch();
      REQUIRE(met.user->submit(batch, {&second, 1}, Notification{"n", "", ""}).has_value());
      CHECK_FALSE(met.user->wait(batch, 20s).has_value());
      met.user->free_batch(batch);
    }
  }

  TEST_CASE("engines close at once, whatever their peers do") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      Met met(transport);
      std::vector<std::byte> got(128 * kMiB);
      const auto requests = reads_of(met.segment, 0, got, 32);
      const BatchId batch = met.user->allocate_batch();
      REQUIRE(met.user->submit(batch, requests).has_value());
      met.peer.stop();
      met.begin();
      met.user.reset();
      CHECK(met.soon());
      met.peer.kill();
    }
  }
}
