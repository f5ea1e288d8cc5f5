// Transfers that are given up beside others on the NICs of the emulator: what the others lose.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/mutex.h"
#include "tests/conformance/rdma_traffic.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::rdma_tests;
using namespace std::chrono_literals;

namespace rdma_cancel_test {
namespace {

constexpr uint64_t kSlice = 64 * kKiB;

EngineOptions in_small_slices() {
  EngineOptions o = over_rdma();
  o.slice = Bytes{kSlice};
  o.peer_timeout = 10s * kSlow;
  return o;
}

// Writes all the time, several requests at once; counts those that are done.
class Stream {
 public:
  explicit Stream(const Ends& ends) : ends_(ends), thread_([this] { run(); }) {}
  ~Stream() { end(); }
  void end() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  uint64_t done() const { return done_.load(); }
  uint64_t failed() const { return failed_.load(); }

 private:
  void run() {
    while (!stop_.load()) {
      const BatchId batch = ends_.user->allocate_batch();
      std::vector<Request> requests;
      for (uint64_t i = 0; i < 8; ++i) {  // not adjacent, so that each is a request of its own
        Request r = ends_.request();
        r.local += 2 * i * kSlice;
        r.offset += 2 * i * kSlice;
        r.bytes = kSlice;
        requests.push_back(r);
      }
      if (!ends_.user->submit(batch, requests) || !ends_.user->wait(batch, 20s))
        failed_.fetch_add(1);
      else
        done_.fetch_add(requests.size());
      ends_.user->free_batch(batch);
    }
  }
  const Ends& ends_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> done_{0}, failed_{0};
  std::thread thread_;
};

// Submits a request and gives it up while it is on its way.
void cancel_one(const Ends& ends, std::span<std::byte> into) {
  Request r = ends.request(Op::kWrite);  // a read takes longer: what is behind it would wait
  r.local = into.data();
  r.offset += 15 * kSlice;
  r.bytes = into.size();
  const BatchId batch = ends.user->allocate_batch();
  REQUIRE(ends.user->submit(batch, {&r, 1}).has_value());
  ends.user->cancel(batch);
  CHECK(finished(ends.user->status(batch, 0).state));
  ends.user->free_batch(batch);
}

uint64_t queue_pairs_made(Ends& ends) {
  return ends.of_user.counter("mc_xfer_rdma_connections_total", "").value();
}

// What is left of the stream's rate while a hundred requests a second are cancelled beside it.
double share_left(const Ends& ends, const Stream& stream, std::span<std::byte> into) {
  Mutex mutex;
  Condition never;
  uint64_t done[2] = {};
  for (int window = 0; window < 8; ++window) {
    const bool cancels = window % 2 == 1;
    const uint64_t before = stream.done();
    const Time begin = kClock.now();
    for (int i = 1; i <= 20; ++i) {
      if (cancels) cancel_one(ends, into);
      Lock lock(mutex);  // a cancel every 10 ms
      const Time next = begin + i * 10ms;
      for (Time now = kClock.now(); now < next; now = kClock.now())
        never.wait_for(mutex, next - now);
    }
    const double windows = to_seconds(kClock.now() - begin) / .2;
    done[cancels] += static_cast<uint64_t>(static_cast<double>(stream.done() - before) / windows);
  }
  return static_cast<double>(done[1]) / static_cast<double>(done[0]);
}

}  // namespace

TEST_SUITE("rdma") {
  TEST_CASE("100 cancels a second leave a stream beside them its rate and its queue pair (F45)") {
    if (skipped()) return;
    const Healed healed;
    Ends ends(in_small_slices());
    std::vector<std::byte> into(16 * kKiB);
    // Paths and rates decide, and not the CPUs of this machine.
    emu::set_latency(nics(), 0, 2'000'000);
    emu::set_rate(nics(), 0, 200'000'000);
    Stream stream(ends);
    double share = 0;
    for (int round = 0; round < 3 && share < .8; ++round) share = share_left(ends, stream, into);
    stream.end();
    CHECK(stream.failed() == 0);
    CHECK(stream.done() > 0);
    if (kSlow > 1) return;  // then the CPUs decide after all, and 20 ms are over too soon
    CHECK(share >= .6);
    CHECK(queue_pairs_made(ends) <= 16);  // a machine that stands still for long may cost some
  }

  TEST_CASE("a second queue pair takes over while a slow one ends what it has (F45)") {
    if (skipped()) return;
    size_t most = 0;
    for (int attempt = 0; attempt < 30 && most < 4; ++attempt) {
      const Healed healed;
      Ends ends(in_small_slices());
      for (int i = 0; i < 10; ++i) {  // its rate is known
        const auto written = ends.write();
        REQUIRE_MESSAGE(written.has_value(), (written ? "" : written.error().what));
      }
      fill(ends.local.bytes(), 40);
      emu::set_rate(nics(), 0, 1'250'000);  // 52 ms a slice
      const BatchId slow = ends.user->allocate_batch();
      Request r = ends.request();
      r.bytes = kSlice;  // it and the cancelled one fill the least window that there is
      REQUIRE(ends.user->submit(slow, {&r, 1}).has_value());
      std::vector<std::byte> unwanted(kSlice), into(kSlice);
      Request next = ends.request(Op::kRead);
      next.local = unwanted.data();
      next.bytes = kSlice;
      const BatchId given_up = ends.user->allocate_batch();
      REQUIRE(ends.user->submit(given_up, {&next, 1}).has_value());
      std::thread cancels([&] { ends.user->cancel(given_up); });
      r.local += kSlice;
      r.offset += kSlice;
      r.bytes = 3 * kSlice;
      REQUIRE(ends.user->submit(slow, {&r, 1}).has_value());
      next.local = into.data();
      std::vector<BatchId> beside;
      Time due = kClock.now();
      while (!finished(ends.user->status(slow, 0).state) ||
             !finished(ends.user->status(slow, 1).state)) {
        size_t pairs = 0;
        each_pair([&](const emu::QpSlot&) { ++pairs; });
        most = std::max(most, pairs);
        if (kClock.now() < due || beside.size() == 5) continue;
        due = kClock.now() + 10ms;
        beside.push_back(ends.user->allocate_batch());
        REQUIRE(ends.user->submit(beside.back(), {&next, 1}).has_value());
      }
      cancels.join();
      ends.user->free_batch(given_up);
      for (const BatchId batch : beside) {
        const auto read = ends.user->wait(batch, 20s);
        CHECK_MESSAGE(read.has_value(), (read ? "" : read.error().what));
        ends.user->free_batch(batch);
      }
      const auto done = ends.user->wait(slow, 20s);
      CHECK_MESSAGE(done.has_value(), (done ? "" : done.error().what));
      ends.user->free_batch(slow);
      CHECK(std::memcmp(ends.remote.data(), ends.local.data(), 4 * kSlice) == 0);
      if (kSlow == 1) CHECK(queue_pairs_made(ends) <= 4);
    }
    CHECK(most == 4);  // both ends of two
  }

  TEST_CASE("what is cancelled on a NIC that does not answer ends soon (F45)") {
    if (skipped()) return;
    const Healed healed;
    for (const Op op : {Op::kRead, Op::kWrite}) {
      Ends ends(in_small_slices());
      REQUIRE(ends.write().has_value());
      emu::set_retry_percent(nics(), 0);  // the NIC itself gives nothing up
      emu::set_silent(nics(), 0, true);
      const BatchId batch = ends.user->allocate_batch();
      Request r = ends.request(op);
      r.bytes = kSlice;
      REQUIRE(ends.user->submit(batch, {&r, 1}).has_value());
      const Time before = kClock.now();
      ends.user->cancel(batch);
      CHECK(kClock.now() - before < 1500ms * kSlow);  // and not the peer timeout
      CHECK(ends.user->status(batch, 0).state == TransferState::kCancelled);
      ends.user->free_batch(batch);
      emu::set_silent(nics(), 0, false);
      const auto again = ends.write();
      CHECK_MESSAGE(again.has_value(), (again ? "" : again.error().what));
      CHECK(digest(ends.remote.bytes()) == digest(ends.local.bytes()));
    }
  }
}

}  // namespace rdma_cancel_test

#endif
