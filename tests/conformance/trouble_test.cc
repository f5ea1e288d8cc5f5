// What goes wrong in the middle: peers that die, hang, restart or are someone else's, memory that
// is withdrawn while it is read, requests that are given up beside others.
#include <sys/wait.h>

#include <thread>

#include "io/loop.h"
#include "rpc/server.h"
#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace trouble_test {

namespace {

// Answers describe-segment on a thread of its own, for whichever engine is the owner now.
class Served {
 public:
  explicit Served(Engine& engine) : engine_(&engine) {
    auto server = rpc::Server::open(loop_, "127.0.0.1:0", metrics_);
    REQUIRE(server.has_value());
    server_ = std::move(*server);
    server_->on<DescribeSegment>(
        [this](const DescribeSegment&, const rpc::Call&) -> Result<SegmentDescriptor> {
          Lock lock(mutex_);
          return engine_->describe();
        });
    thread_ = std::thread([this] { CHECK(loop_.run().has_value()); });
  }
  ~Served() {
    loop_.stop();
    thread_.join();
  }
  void change(Engine& engine) {
    Lock lock(mutex_);
    engine_ = &engine;
  }
  const std::string& address() const { return server_->address(); }

 private:
  io::Loop loop_{kClock};
  Metrics metrics_;
  std::unique_ptr<rpc::Server> server_;
  Mutex mutex_;
  Engine* engine_;
  std::thread thread_;
};

}  // namespace

TEST_SUITE("xfer/trouble") {
  TEST_CASE("a peer killed in the middle of a transfer fails it, and nothing hangs") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      Child child({.transports = {transport}, .bytes = 32 * kMiB});
      auto engine = make_engine("parent", {transport});
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment.has_value());
      std::vector<std::byte> got(256 * kMiB);
      const auto many = reads_of(*segment, 0, got, 64);
      const BatchId batch = engine->allocate_batch();
      REQUIRE(engine->submit(batch, many).has_value());
      child.kill();
      auto gone = engine->wait(batch, 10s);
      // That was quicker than the kill; and shm may see it a millisecond late.
      const Time end = kClock.now() + 5s * kSlow;
      while (gone && kClock.now() < end) gone = engine->transfer_sync(many.front(), 10s);
      REQUIRE_FALSE(gone.has_value());
      CHECK(gone.error().code == Code::kUnavailable);
      engine->free_batch(batch);
    }
  }

  TEST_CASE("a peer that hangs fails a request within the peer timeout, and serves again later") {
    Child child({.transports = {"tcp"}});
    auto engine = make_engine("parent", {"tcp"});
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(kMiB);
    REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
    child.stop();
    const Time before = kClock.now();
    auto hung = engine->transfer_sync(read_of(*segment, 0, got), 20s);
    REQUIRE_FALSE(hung.has_value());
    CHECK(hung.error().code == Code::kUnavailable);
    CHECK(kClock.now() - before < 8s * kSlow);
    auto late = engine->transfer_sync(read_of(*segment, 0, got), 200ms);
    REQUIRE_FALSE(late.has_value());
    CHECK(late.error().code == Code::kTimeout);
    child.resume();
    auto read = engine->transfer_sync(read_of(*segment, 0, got), 10s);
    CHECK_MESSAGE(read.has_value(), (read ? "" : read.error().what));
  }

  TEST_CASE("a cancelled request does not cost its neighbours on the connection anything") {
    Child child({.transports = {"tcp"}});
    // Nobody gives the peer up for being silent, so a cancel that waited for it would not return.
    auto engine = make_engine("parent", {"tcp"}, 1h);
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> want(kMiB), got(kMiB), other(kMiB);
    fill(want, 11);
    REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
    for (const Op op : {Op::kRead, Op::kWrite}) {
      if (op == Op::kWrite) fill(want, 12);
      const std::span<std::byte> moved(op == Op::kRead ? got : want);
      child.stop();
      const BatchId doomed = engine->allocate_batch(), kept = engine->allocate_batch();
      for (uint64_t at = 0; at < kMiB; at += 64 * kKiB) {
        Request d = read_of(*segment, 0, std::span(other).subspan(at, 64 * kKiB));
        Request k = read_of(*segment, at, moved.subspan(at, 64 * kKiB));
        k.op = op;
        REQUIRE(engine->submit(doomed, {&d, 1}).has_value());
        REQUIRE(engine->submit(kept, {&k, 1}).has_value());
      }
      engine->cancel(doomed);
      for (size_t i = 0; i < kMiB / (64 * kKiB); ++i) {
        CHECK(engine->status(doomed, i).state == TransferState::kCancelled);
        CHECK_FALSE(finished(engine->status(kept, i).state));
      }
      child.resume();
      auto done = engine->wait(kept, 10s);
      REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().what));
      engine->free_batch(doomed);
      engine->free_batch(kept);
      if (op == Op::kWrite)
        REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
      CHECK(digest(got) == digest(want));
    }
  }

  TEST_CASE("an engine may end with transfers in flight") {
    Child child({.transports = {"shm", "tcp"}, .bytes = 16 * kMiB});
    std::vector<std::byte> got(128 * kMiB);
    for (const std::vector<std::string>& transports :
         {std::vector<std::string>{"shm", "tcp"}, std::vector<std::string>{"tcp"}}) {
      auto engine = make_engine("parent", transports);
      auto segment = engine->open_segment(child.segment);
      REQUIRE(segment.has_value());
      child.stop();  // tcp gets no answer, shm no descriptor
      const auto many = reads_of(*segment, 0, got, 8);
      REQUIRE(engine->submit(engine->allocate_batch(), many).has_value());
      engine.reset();
      child.resume();
    }
  }

  TEST_CASE("memory of the application is free when its registration ends, readers or not") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      auto owner = make_engine("owner", {transport}), user = make_engine("user", {transport});
      auto mine = std::make_unique<std::vector<std::byte>>(8 * kMiB);
      auto memory = owner->register_memory(*mine);
      REQUIRE(memory.has_value());
      auto segment = user->open_segment(owner->describe());
      REQUIRE(segment.has_value());
      std::vector<std::byte> local(8 * kMiB);
      for (const Op op : {Op::kWrite, Op::kRead}) {
        Request r = read_of(*segment, memory->offset(), local);
        r.op = op;
        REQUIRE(user->transfer_sync(r, 5s).has_value());
      }
      std::vector<std::byte> got(256 * kMiB);
      const auto many = reads_of(*segment, memory->offset(), got, 32);
      const BatchId batch = user->allocate_batch();
      REQUIRE(user->submit(batch, many).has_value());
      *memory = Memory();
      mine.reset();  // an address sanitizer's test
      auto ended = user->wait(batch, 10s);
      if (ended) ended = user->transfer_sync(many.front(), 10s);  // that was quicker than the end
      REQUIRE_FALSE(ended.has_value());
      CHECK((ended.error().code == Code::kStale || ended.error().code == Code::kUnavailable));
      user->free_batch(batch);
    }
  }

  TEST_CASE("a closed segment fails what is in flight, and is not open any more") {
    Child child({.transports = {"tcp"}});
    auto engine = make_engine("parent", {"tcp"});
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    std::vector<std::byte> got(kMiB);
    child.stop();
    const Request r = read_of(*segment, 0, got);
    const BatchId batch = engine->allocate_batch();
    REQUIRE(engine->submit(batch, {&r, 1}).has_value());
    engine->close_segment(*segment);
    auto closed = engine->wait(batch, 5s);
    REQUIRE_FALSE(closed.has_value());
    CHECK(closed.error().code == Code::kUnavailable);
    auto not_open = engine->transfer_sync(r, 1s);
    REQUIRE_FALSE(not_open.has_value());
    CHECK(not_open.error().code == Code::kNotFound);
    engine->free_batch(batch);
  }

  TEST_CASE("another user's memory travels by tcp") {
    if (::geteuid() != 0) {
      MESSAGE("skipped: only root can become another user");
      return;
    }
    Child child({.transports = {"shm", "tcp"}, .uid = 65534});
    auto engine = make_engine("parent", {"shm", "tcp"});
    auto segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    CHECK(engine->transport_of(*segment) == "tcp");
    std::vector<std::byte> want(kMiB), got(kMiB);
    fill(want, 11);
    REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
    CHECK(digest(got) == digest(want));
    // One that lies about its user is refused the memory, and falls to tcp as well.
    engine->close_segment(*segment);
    child.segment.uid = 0;
    child.segment.node = "liar";
    segment = engine->open_segment(child.segment);
    REQUIRE(segment.has_value());
    std::fill(got.begin(), got.end(), std::byte{0});
    REQUIRE(engine->transfer_sync(read_of(*segment, 0, got), 5s).has_value());
    CHECK(digest(got) == digest(want));
  }

  TEST_CASE("copies inside a process need no transport, and callbacks never run inside submit") {
    auto engine = make_engine("alone", {"tcp"});
    auto memory = engine->allocate(kMiB);
    REQUIRE(memory.has_value());
    CHECK(engine->transport_of(engine->self()) == "self");
    std::vector<std::byte> local(4096);
    const Request r = read_of(engine->self(), memory->offset(), local);
    Mutex mutex;  // a callback inside submit() would wait for itself
    Condition changed;
    int calls = 0;
    const BatchId batch = engine->allocate_batch();
    Lock lock(mutex);
    REQUIRE(engine
                ->submit(batch, {&r, 1},
                         [&] {
                           Lock inner(mutex);
                           ++calls;
                           changed.notify_all();
                         })
                .has_value());
    while (calls == 0) REQUIRE(changed.wait_for(mutex, 10s));
    CHECK(calls == 1);
    engine->free_batch(batch);
  }

  // The last two: ZeroMQ keeps threads, and nothing forks beside threads.
  TEST_CASE("memory offered after the segment was opened is found") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      auto owner = make_engine("owner", {transport}), user = make_engine("user", {transport});
      auto first = owner->allocate(4096);
      REQUIRE(first.has_value());
      Served served(*owner);
      auto segment = user->open_segment(served.address(), 5s);
      REQUIRE(segment.has_value());
      auto second = owner->allocate(kMiB);
      REQUIRE(second.has_value());
      fill(second->bytes(), 4);
      std::vector<std::byte> got(kMiB);
      auto read = user->transfer_sync(read_of(*segment, second->offset(), got), 5s);
      REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
      CHECK(digest(got) == digest(second->bytes()));
      auto beyond = user->transfer_sync(read_of(*segment, second->offset() + 4096, got), 5s);
      REQUIRE_FALSE(beyond.has_value());
      CHECK(beyond.error().code == Code::kInvalid);
    }
  }

  TEST_CASE("an owner that restarted is reached again under the same handle") {
    for (const std::string& transport : kBetween) {
      CAPTURE(transport);
      auto owner = make_engine("owner", {transport}), user = make_engine("user", {transport});
      auto memory = owner->allocate(kMiB);
      REQUIRE(memory.has_value());
      Served served(*owner);
      auto segment = user->open_segment(served.address(), 5s);
      REQUIRE(segment.has_value());
      std::vector<std::byte> got(kMiB);
      REQUIRE(user->transfer_sync(read_of(*segment, memory->offset(), got), 5s).has_value());
      // Other memory comes and goes: the reads of this one do not fail (F32).
      for (int i = 0; i < 20; ++i) {
        Memory other = *owner->allocate(kMiB);
        auto read = user->transfer_sync(read_of(*segment, memory->offset(), got), 5s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        other = Memory();
        read = user->transfer_sync(read_of(*segment, memory->offset(), got), 5s);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
      }
      auto next = make_engine("owner", {transport});
      auto memory2 = next->allocate(kMiB);
      REQUIRE(memory2.has_value());
      fill(memory2->bytes(), 5);
      served.change(*next);
      *memory = Memory();  // the old process's memory goes away
      auto read = user->transfer_sync(read_of(*segment, memory2->offset(), got), 5s);
      REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().what));
      CHECK(digest(got) == digest(memory2->bytes()));
    }
  }
}

}  // namespace trouble_test
