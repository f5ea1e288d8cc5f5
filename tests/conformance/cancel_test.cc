// Giving up in the middle: once cancel or a deadline has ended a request, its memory is the
// application's again, whichever transport it was on. Here it is unmapped at once: a late touch
// would be the end of this process.
#include <sys/mman.h>

#include <thread>

#include "tests/conformance/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLong = 96 * kMiB;

class Mapped {
 public:
  Mapped() {
    void* p = ::mmap(nullptr, kLong, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    REQUIRE(p != MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(p), kLong};
  }
  ~Mapped() { ::munmap(bytes_.data(), bytes_.size()); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

void until_moving(Engine& engine, BatchId batch) {
  const Time limit = kClock.now() + 10s * kSlow;
  while (engine.status(batch, 0).bytes_done == 0 && kClock.now() < limit) std::this_thread::yield();
}

}  // namespace

TEST_SUITE("xfer/cancel") {
  TEST_CASE("a cancel in the middle of a long transfer returns soon, and its memory may go") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, kLong);
      for (const Op op : {Op::kRead, Op::kWrite}) {
        const BatchId batch = pair.engine().allocate_batch();
        {
          Mapped local;
          const Request r = pair.request(op, local.bytes());
          REQUIRE(pair.engine().submit(batch, {&r, 1}).has_value());
          until_moving(pair.engine(), batch);
          const Time before = kClock.now();
          pair.engine().cancel(batch);
          CHECK(kClock.now() - before < 2s * kSlow);
        }
        const Status s = pair.engine().status(batch, 0);
        CHECK((s.state == TransferState::kCancelled || s.state == TransferState::kCompleted));
        CHECK((s.state == TransferState::kCompleted) == (s.bytes_done == kLong));
        pair.engine().free_batch(batch);
      }
      std::vector<std::byte> again(64 * kKiB);  // and the transport is none the worse
      fill(pair.remote.bytes().first(again.size()), 4);
      REQUIRE(pair.engine().transfer_sync(pair.request(Op::kRead, again), 5s).has_value());
      CHECK(digest(again) == digest(pair.remote.bytes().first(again.size())));
    }
  }

  TEST_CASE("a deadline in the middle of a long transfer frees its memory too") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, kLong);
      for (const Op op : {Op::kRead, Op::kWrite}) {
        Mapped local;
        const Time before = kClock.now();
        auto late = pair.engine().transfer_sync(pair.request(op, local.bytes()), 3ms);
        CHECK((late.has_value() || late.error().code == Code::kTimeout));
        CHECK(kClock.now() - before < 3s * kSlow);
      }
    }
  }

  TEST_CASE("a cancelled batch takes nothing from the one beside it") {
    for (const auto& transport : kTransports) {
      CAPTURE(transport);
      Pair pair(transport, kLong);
      fill(pair.remote.bytes().first(8 * kMiB), 6);
      std::vector<std::byte> kept(8 * kMiB);
      const BatchId doomed = pair.engine().allocate_batch(), good = pair.engine().allocate_batch();
      {
        Mapped local;
        const Request bulk = pair.request(Op::kRead, local.bytes()),
                      wanted = pair.request(Op::kRead, kept);
        REQUIRE(pair.engine().submit(doomed, {&bulk, 1}).has_value());
        REQUIRE(pair.engine().submit(good, {&wanted, 1}).has_value());
        pair.engine().cancel(doomed);
      }
      auto done = pair.engine().wait(good, 10s);
      CHECK_MESSAGE(done.has_value(), (done ? "" : done.error().what));
      CHECK(digest(kept) == digest(pair.remote.bytes().first(8 * kMiB)));
      pair.engine().free_batch(doomed);
      pair.engine().free_batch(good);
    }
  }
}
