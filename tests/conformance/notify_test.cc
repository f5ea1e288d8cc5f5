// Notifications: told after the data, in order, bounded, and never when the data is not there.
#include <cstring>

#include "tests/conformance/child.h"
#include "tests/conformance/control.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

// Owner and user over one transport, with control addresses.
struct Told {
  std::unique_ptr<Engine> owner, user;
  Memory memory;
  std::unique_ptr<Control> control;
  SegmentHandle segment = 0;
  explicit Told(const std::string& transport) {
    owner = make_engine("owner", {transport});
    user = make_engine("user", {transport});
    auto allocated = owner->allocate(4 * kMiB);
    REQUIRE(allocated.has_value());
    memory = *allocated;
    control = std::make_unique<Control>(*owner);
    auto opened = user->open_segment(control->address(), 5s);
    REQUIRE(opened.has_value());
    segment = *opened;
  }
  Request write_of(std::span<std::byte> bytes, uint64_t at = 0) const {
    Request r = read_of(segment, memory.offset() + at, bytes);
    r.op = Op::kWrite;
    return r;
  }
};

}  // namespace

TEST_SUITE("xfer/notify") {
  TEST_CASE("a notified peer has the bytes, in the order of the transfers") {
    for (const std::string transport : {"shm", "tcp"}) {
      CAPTURE(transport);
      Told t(transport);
      constexpr uint64_t kRounds = 50, kEach = 256 * kKiB;
      std::atomic<uint64_t> told{0}, wrong{0};
      t.owner->on_notification([&](const Notification& n) {
        uint64_t seed = 0;
        std::memcpy(&seed, n.payload.data(), sizeof seed);
        std::vector<std::byte> want(kEach);
        fill(want, seed);
        const std::byte* at = t.memory.data() + seed % 16 * kEach;
        if (seed != told.load() || n.name != "block" || n.from != "user" ||
            std::memcmp(at, want.data(), kEach) != 0)
          ++wrong;
        ++told;
      });
      for (uint64_t i = 0; i < kRounds; ++i) {
        std::vector<std::byte> bytes(kEach);
        fill(bytes, i);
        std::vector<Request> writes;
        for (uint64_t at = 0; at < kEach; at += kEach / 4)
          writes.push_back(
              t.write_of(std::span(bytes).subspan(at, kEach / 4), i % 16 * kEach + at));
        const BatchId batch = t.user->allocate_batch();
        const Notification after{"block", std::string(reinterpret_cast<const char*>(&i), sizeof i),
                                 ""};
        REQUIRE(t.user->submit(batch, writes, after).has_value());
        auto done = t.user->wait(batch, 10s);
        REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().what));
        CHECK(told.load() == i + 1);  // delivery is part of the batch
        CHECK(t.user->status(batch, writes.size()).state == TransferState::kCompleted);
        CHECK(t.user->status(batch, writes.size()).bytes_done == sizeof i);
        t.user->free_batch(batch);
      }
      CHECK(wrong.load() == 0);
    }
  }

  TEST_CASE("no notification is sent for bytes that did not arrive") {
    Told t("tcp");
    std::vector<std::byte> bytes(4096);
    std::vector<Request> writes{t.write_of(bytes), t.write_of(bytes, 64 * kKiB)};
    writes[1].guard = {t.memory.offset(), 77};  // which it does not hold
    const BatchId batch = t.user->allocate_batch();
    REQUIRE(t.user->submit(batch, writes, {"block", "", ""}).has_value());
    auto done = t.user->wait(batch, 10s);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == Code::kStale);
    CHECK(t.user->status(batch, 0).state == TransferState::kCompleted);
    CHECK(t.user->status(batch, 2).state == TransferState::kFailed);
    CHECK(t.user->status(batch, 2).error.what.find("not notified") == 0);
    t.user->free_batch(batch);
    REQUIRE(t.user->notify(t.segment, {"alone", "x", ""}, 5s).has_value());
    const auto got = t.owner->take_notifications();
    REQUIRE(got.size() == 1);
    CHECK(got[0].name == "alone");
  }

  TEST_CASE("an inbox that is not read fills up, and the sender gets an error") {
    Told t("shm");
    const std::string large(kMiB / 16, 'x');
    size_t accepted = 0;
    Result<> sent;
    while ((sent = t.user->notify(t.segment, {"n", large, ""}, 5s))) ++accepted;
    CHECK(sent.error().code == Code::kBusy);
    CHECK(accepted == 255);  // 16 MiB of them, names counted
    CHECK(t.owner->take_notifications(200).size() == 200);
    CHECK(t.user->notify(t.segment, {"n", large, ""}, 5s).has_value());
    CHECK(t.owner->take_notifications().size() == 56);
    auto over = t.user->notify(t.segment, {"n", large + "x", ""}, 5s);
    REQUIRE_FALSE(over.has_value());
    CHECK(over.error().code == Code::kInvalid);
  }

  TEST_CASE("a peer without a control address cannot be told, and a process can tell itself") {
    Pair pair("shm", 64 * kKiB);
    std::vector<std::byte> bytes(4096);
    const Request r = pair.request(Op::kWrite, bytes);
    const BatchId batch = pair.engine().allocate_batch();
    auto refused = pair.engine().submit(batch, {&r, 1}, Notification{"n", "", ""});
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kInvalid);
    CHECK(refused.error().what.find("control address") != std::string::npos);
    pair.engine().free_batch(batch);
    REQUIRE(pair.engine().notify(pair.engine().self(), {"me", "hello", ""}, 5s).has_value());
    CHECK(pair.engine().take_notifications()[0].payload == "hello");
  }

  TEST_CASE("a process that took another's address is not told what the other was sent") {
    Told t("tcp");
    auto next = make_engine("owner", {"tcp"});
    Control other(*next);
    auto segment = t.user->open_segment(t.owner->describe(), other.address());
    REQUIRE(segment.has_value());
    auto told = t.user->notify(*segment, {"n", "", ""}, 5s);
    REQUIRE_FALSE(told.has_value());
    CHECK(told.error().code == Code::kStale);
    CHECK(next->take_notifications().empty());
  }

  TEST_CASE("a peer that was killed, or hangs, is not told, and the sender knows in time") {
    for (const std::string fate : {"killed", "stopped"}) {
      CAPTURE(fate);
      Served peer("shm");
      auto user = make_engine("user", {"shm"});
      auto segment = user->open_segment(peer.control(), 10s);
      REQUIRE_MESSAGE(segment.has_value(), (segment ? "" : segment.error().what));
      std::vector<std::byte> bytes(8);
      Request r = read_of(*segment, 0, bytes);
      REQUIRE(user->transfer_sync(r, 10s).has_value());
      REQUIRE(user->notify(*segment, {"first", "", ""}, 10s).has_value());
      peer.stop();
      const BatchId told = user->allocate_batch();
      Notification after{"n", "payload", ""};
      r.deadline = kClock.now() + 1s;
      REQUIRE(user->submit(told, {&r, 1}, after).has_value());
      if (fate == "killed") peer.kill();
      const Time before = kClock.now();
      auto done = user->wait(told, 30s);
      REQUIRE_FALSE(done.has_value());
      CHECK(kClock.now() - before < 10s * kSlow);
      // The bytes of a process that hangs are reachable where they are shared.
      if (fate == "stopped") CHECK(user->status(told, 0).state == TransferState::kCompleted);
      CHECK(xfer::finished(user->status(told, 1).state));
      CHECK(user->status(told, 1).state != TransferState::kCompleted);
      user->free_batch(told);
      auto alone = user->notify(*segment, after, 500ms);
      REQUIRE_FALSE(alone.has_value());
      CHECK((alone.error().code == Code::kTimeout || alone.error().code == Code::kUnavailable));
    }
  }

  TEST_CASE("an engine may end while a peer does not answer") {
    auto user = make_engine("user", {"tcp"});
    auto owner = make_engine("owner", {"tcp"});
    auto memory = owner->allocate(4096);
    REQUIRE(memory.has_value());
    auto segment = user->open_segment(owner->describe(), "127.0.0.1:9");  // nobody is there
    REQUIRE(segment.has_value());
    std::vector<std::byte> bytes(4096);
    Request r = read_of(*segment, memory->offset(), bytes);
    const BatchId batch = user->allocate_batch();
    REQUIRE(user->submit(batch, {&r, 1}, Notification{"n", "", ""}).has_value());
    auto pending = user->wait(batch, 50ms);
    REQUIRE_FALSE(pending.has_value());
    const Time before = kClock.now();
    user.reset();
    CHECK(kClock.now() - before < 5s * kSlow);
  }
}
