// The codes of transfers, notices and peers that only a fault makes happen, through the C
// interface.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/loop.h"
#include "rpc/server.h"
#include "tests/unit/capi/peer.h"
#include "xfer/core/messages.h"
#include "xfer/engine.h"

namespace mc::capi {
namespace {
namespace peer_codes {

constexpr size_t kBytes = 4096;

// An engine whose writes are held back for ten minutes, and one that offers memory to it.
struct HeldPair {
  HeldPair() { to = writer.open(owner); }
  mc_request write() {
    return request_for(MC_WRITE, local.data(), to, mc_memory_offset(memory.handle), kBytes);
  }
  FaultScript script{R"({"op": "write", "delay": "10m"})"};
  Peer owner{"owner"}, writer{"writer", {{"fault", script.path}}};
  std::vector<char> target = std::vector<char>(kBytes), local = std::vector<char>(kBytes, 'x');
  Registered memory{owner, target};
  mc_segment to = 0;
};

mc_status status_of(mc_engine* engine, mc_batch batch, size_t index) {
  mc_status out{};
  REQUIRE(mc_batch_status(engine, batch, index, &out) == MC_OK);
  return out;
}

TEST_CASE("a batch tells that it moves still, that it was cancelled, and that it took too long") {
  HeldPair pair;
  mc_engine* const engine = pair.writer.engine;
  mc_request held = pair.write();
  mc_batch batch = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit(engine, batch, &held, 1) == MC_OK);
  CHECK(mc_batch_wait(engine, batch, 1) == MC_TIMEOUT);
  CHECK(status_of(engine, batch, 0).state <= MC_STATE_PENDING);
  mc_batch_cancel(engine, batch);
  CHECK(mc_batch_wait(engine, batch, 60'000) == MC_UNAVAILABLE);
  CHECK(status_of(engine, batch, 0).state == MC_STATE_CANCELLED);
  CHECK(status_of(engine, batch, 0).code == MC_UNAVAILABLE);
  mc_batch_free(engine, batch);
  CHECK(mc_batch_wait(engine, batch, 1) == MC_NOT_FOUND);

  held.timeout_ms = 1;
  batch = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit(engine, batch, &held, 1) == MC_OK);
  CHECK(mc_batch_wait(engine, batch, 60'000) == MC_TIMEOUT);
  CHECK(status_of(engine, batch, 0).state == MC_STATE_TIMED_OUT);
  CHECK(status_of(engine, batch, 0).code == MC_TIMEOUT);
  mc_batch_free(engine, batch);
  held.timeout_ms = 0;
  CHECK(mc_transfer(engine, &held, 1) == MC_TIMEOUT);
  CHECK(pair.target == std::vector<char>(kBytes));
}

TEST_CASE("a queue tells of a batch that failed, was cancelled, or found it full") {
  HeldPair pair;
  mc_engine* const engine = pair.writer.engine;
  mc_queue* queue = nullptr;
  REQUIRE(mc_queue_open(engine, 1, 1, &queue) == MC_OK);
  const auto next = [&] {
    mc_done done{};
    REQUIRE(mc_queue_wait(queue, 60'000) == MC_OK);
    REQUIRE(mc_queue_take(queue, &done, 1) == 1);
    return done;
  };
  const mc_request held = pair.write();
  const mc_batch batch = mc_batch_allocate(engine), other = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit_queue(engine, batch, &held, 1, queue, 3) == MC_OK);
  CHECK(mc_batch_submit_queue(engine, other, &held, 1, queue, 4) == MC_BUSY);
  mc_prepared* prepared = nullptr;
  REQUIRE(mc_prepared_new(engine, &held, 1, &prepared) == MC_OK);
  CHECK(mc_prepared_submit(prepared, other, 0, queue, 4) == MC_BUSY);
  mc_prepared_free(prepared);
  REQUIRE(mc_queue_cancel(queue, 3) == MC_OK);
  mc_done done = next();
  CHECK(done.tag == 3);
  CHECK(done.code == MC_UNAVAILABLE);
  CHECK(done.failed == 1);
  CHECK(done.bytes == 0);
  mc_batch_free(engine, batch);

  // Of two reads the second finds that its memory was withdrawn.
  std::vector<char> withdrawn(kBytes), back(2 * kBytes);
  Registered gone(pair.owner, withdrawn);
  mc_segment to = 0;
  mc_segment_close(engine, pair.to);
  to = pair.writer.open(pair.owner);
  const mc_request reads[] = {
      request_for(MC_READ, back.data(), to, mc_memory_offset(pair.memory.handle), kBytes),
      request_for(MC_READ, &back[kBytes], to, mc_memory_offset(gone.handle), kBytes)};
  gone.free();
  REQUIRE(mc_batch_submit_queue(engine, other, reads, 2, queue, 5) == MC_OK);
  done = next();
  CHECK(done.code == MC_STALE);
  CHECK(done.failed == 1);
  CHECK(done.bytes == kBytes);
  mc_batch_free(engine, other);
  mc_queue_close(queue);
}

struct Heard {
  std::vector<std::string> names;
};

int hear(void* user, const mc_notice* notice) {
  static_cast<Heard*>(user)->names.emplace_back(notice->name);
  return 0;
}

// Order between two peers is kept: what was to come before "last" is there before it, or never.
std::vector<std::string> all_heard(const Peer& from, mc_segment to, const Peer& by) {
  REQUIRE(mc_notify(from.engine, to, "last", nullptr, 0, 60'000) == MC_OK);
  Heard heard;
  (void)mc_notices_take(by.engine, 100, hear, &heard);
  return heard.names;
}

TEST_CASE("a notice behind a batch that fails, or is cancelled, never arrives") {
  HeldPair pair;
  mc_engine* const engine = pair.writer.engine;
  std::vector<char> withdrawn(kBytes), back(2 * kBytes);
  Registered gone(pair.owner, withdrawn);
  const mc_segment to = pair.writer.open(pair.owner);
  const uint64_t at = mc_memory_offset(pair.memory.handle);
  const mc_request reads[] = {
      request_for(MC_READ, back.data(), to, at, kBytes),
      request_for(MC_READ, &back[kBytes], to, mc_memory_offset(gone.handle), kBytes)};
  mc_batch batch = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit_notify(engine, batch, reads, 2, "both", "", 0) == MC_OK);
  REQUIRE(mc_batch_wait(engine, batch, 60'000) == MC_OK);
  mc_batch_free(engine, batch);
  gone.free();
  batch = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit_notify(engine, batch, reads, 2, "one", "", 0) == MC_OK);
  CHECK(mc_batch_wait(engine, batch, 60'000) == MC_STALE);
  CHECK(status_of(engine, batch, 0).state == MC_STATE_COMPLETED);
  CHECK(status_of(engine, batch, 1).code == MC_STALE);
  const mc_status delivery = status_of(engine, batch, 2);
  CHECK(delivery.state == MC_STATE_FAILED);
  CHECK(delivery.code == MC_STALE);
  mc_batch_free(engine, batch);

  const mc_request held = request_for(MC_WRITE, back.data(), to, at, kBytes);
  batch = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit_notify(engine, batch, &held, 1, "held", "", 0) == MC_OK);
  mc_batch_cancel(engine, batch);
  CHECK(mc_batch_wait(engine, batch, 60'000) == MC_UNAVAILABLE);
  mc_batch_free(engine, batch);
  CHECK(mc_batch_submit_notify(engine, batch, &held, 1, "none", "", 0) == MC_NOT_FOUND);
  batch = mc_batch_allocate(engine);
  CHECK(mc_batch_submit_notify(engine, batch, nullptr, 0, "none", "", 0) == MC_INVALID);
  mc_batch_free(engine, batch);
  CHECK(all_heard(pair.writer, to, pair.owner) == std::vector<std::string>{"both", "last"});
}

// Takes what peers ask, and does not answer once it is mute.
class SlowOwner {
 public:
  SlowOwner() : loop_(clock_) {
    xfer::EngineOptions options;
    options.node = "slow";
    options.addresses = true;
    auto engine = xfer::Engine::open(clock_, options, metrics_);
    REQUIRE(engine);
    engine_ = std::move(*engine);
    auto server = rpc::Server::open(loop_, "127.0.0.1:0", metrics_);
    REQUIRE(server);
    server_ = std::move(*server);
    server_->on_later<xfer::DescribeSegment>(
        [this](const xfer::DescribeSegment&, const rpc::Call&,
               const rpc::Reply<xfer::SegmentDescriptor>& reply) {
          if (!mute) return reply(engine_->describe());
          segments_.push_back(reply);
        });
    server_->on_later<xfer::Notify>([this](const xfer::Notify&, const rpc::Call&,
                                           const rpc::Reply<xfer::Notify::Reply>& reply) {
      if (!mute) return reply(xfer::Notify::Reply{});
      notices_.push_back(reply);
    });
    thread_ = std::thread([this] { (void)loop_.run(); });
  }
  ~SlowOwner() {
    loop_.stop();
    thread_.join();
  }
  SlowOwner(const SlowOwner&) = delete;
  SlowOwner& operator=(const SlowOwner&) = delete;
  std::string address() const { return server_->address(); }
  std::atomic<bool> mute{false};

 private:
  SteadyClock clock_;
  Metrics metrics_;
  io::Loop loop_;
  std::vector<rpc::Reply<xfer::SegmentDescriptor>> segments_;
  std::vector<rpc::Reply<xfer::Notify::Reply>> notices_;
  std::unique_ptr<xfer::Engine> engine_;
  std::unique_ptr<rpc::Server> server_;
  std::thread thread_;
};

TEST_CASE(
    "a peer that does not answer is unavailable, and a timeout once it has answered a notice") {
  SlowOwner owner;
  const Peer user("user"), late("late"), quick("quick");
  const std::string address = owner.address();
  mc_segment to = 0, other = 0, again = 0;
  REQUIRE(mc_segment_open(user.engine, address.c_str(), 60'000, &to) == MC_OK);
  REQUIRE(mc_segment_open(quick.engine, address.c_str(), 60'000, &again) == MC_OK);
  REQUIRE(mc_notify(quick.engine, again, "n", nullptr, 0, 60'000) == MC_OK);
  owner.mute = true;
  uint64_t offset = 0;
  CHECK(mc_segment_offset(user.engine, to, reinterpret_cast<uint64_t>(&owner), 1, &offset) ==
        MC_UNAVAILABLE);
  CHECK(mc_segment_open(late.engine, address.c_str(), 200, &other) == MC_UNAVAILABLE);
  CHECK(mc_notify(user.engine, to, "n", nullptr, 0, 200) == MC_UNAVAILABLE);
  CHECK(mc_notify(quick.engine, again, "n", nullptr, 0, 200) == MC_TIMEOUT);
}

TEST_CASE("a peer that is gone, or is another one now, has its own code") {
  auto owner = std::make_unique<Peer>("owner");
  Peer user("user");
  std::vector<char> unknown(kBytes);
  const std::string address = mc_engine_address(owner->engine);
  const mc_segment to = user.open(*owner);
  const auto address_known = [&] {
    uint64_t offset = 0;
    return mc_segment_offset(user.engine, to, reinterpret_cast<uint64_t>(unknown.data()), 1,
                             &offset);
  };
  CHECK(address_known() == MC_NOT_FOUND);
  mc_segment other = 0;
  const Peer third("third");
  owner.reset();
  CHECK(address_known() == MC_UNAVAILABLE);
  CHECK(mc_notify(user.engine, to, "n", nullptr, 0, 500) == MC_UNAVAILABLE);
  CHECK(mc_segment_open(third.engine, address.c_str(), 200, &other) == MC_UNAVAILABLE);
  const Peer again("owner", {{"listen", address}});
  CHECK(mc_notify(user.engine, to, "n", nullptr, 0, 60'000) == MC_STALE);
  Heard heard;
  CHECK(mc_notices_take(again.engine, 100, hear, &heard) == 0);
}

TEST_CASE("prepared requests take no longer than a run may, nor memory that was freed") {
  HeldPair pair;
  mc_engine* const engine = pair.writer.engine;
  const mc_request held = pair.write();
  mc_prepared* prepared = nullptr;
  REQUIRE(mc_prepared_new(engine, &held, 1, &prepared) == MC_OK);
  CHECK(mc_prepared_run(prepared, 1) == MC_TIMEOUT);
  mc_prepared_free(prepared);

  mc_memory* own = nullptr;
  REQUIRE(mc_memory_allocate(engine, kBytes, 0, &own) == MC_OK);
  const mc_request read = request_for(MC_READ, static_cast<char*>(mc_memory_data(own)), pair.to,
                                      mc_memory_offset(pair.memory.handle), kBytes);
  REQUIRE(mc_prepared_new(engine, &read, 1, &prepared) == MC_OK);
  CHECK(mc_prepared_run(prepared, 60'000) == MC_OK);
  mc_memory_free(own);
  CHECK(mc_prepared_run(prepared, 60'000) == MC_INVALID);
  const mc_batch batch = mc_batch_allocate(engine);
  CHECK(mc_prepared_submit(prepared, batch, 0, nullptr, 0) == MC_INVALID);
  mc_batch_free(engine, batch);
  mc_prepared_free(prepared);
  // The owner withdraws it: a run reaches nothing there.
  std::vector<char> back(kBytes);
  const mc_request last =
      request_for(MC_READ, back.data(), pair.to, mc_memory_offset(pair.memory.handle), kBytes);
  REQUIRE(mc_prepared_new(engine, &last, 1, &prepared) == MC_OK);
  pair.memory.free();
  CHECK(mc_prepared_run(prepared, 60'000) == MC_STALE);
  mc_prepared_free(prepared);
}

TEST_CASE("an option that is not there, or has no such value, is invalid") {
  mc_options* options = nullptr;
  REQUIRE(mc_options_new(&options) == MC_OK);
  CHECK(mc_options_set(options, "colour", "blue") == MC_INVALID);
  CHECK(mc_options_set(options, "timeout", "blue") == MC_INVALID);
  CHECK(mc_options_set(options, "devices", "blue") == MC_INVALID);
  mc_options_free(options);
}

}  // namespace peer_codes
}  // namespace
}  // namespace mc::capi
