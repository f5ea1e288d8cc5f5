#include "xfer/rails/endpoint_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace {

struct Pool {
  SteadyClock clock;
  std::vector<int> closed;
  EndpointPool pool;
  explicit Pool(size_t most) : pool(most) {}
  EndpointPool::Id add(int name) {
    auto id = pool.add([this, name] { closed.push_back(name); }, clock, 0s);
    REQUIRE(id.has_value());
    return *id;
  }
};

}  // namespace

TEST_SUITE("xfer/endpoint pool") {
  TEST_CASE("a new endpoint takes the room of an idle one that was not used since") {
    Pool p(3);
    const auto a = p.add(1), b = p.add(2), c = p.add(3);
    for (const auto id : {a, b, c}) p.pool.release(id);
    REQUIRE(p.pool.claim(a));
    p.pool.release(a);
    p.add(4);
    CHECK(p.closed == std::vector<int>{2});
    CHECK_FALSE(p.pool.claim(b));
    CHECK(p.pool.claim(a));
    CHECK(p.pool.size() == 3);
    CHECK(p.pool.evicted() == 1);
  }

  TEST_CASE("what is in use is never closed; when all are, there is no room") {
    Pool p(2);
    const auto a = p.add(1);
    p.add(2);
    auto third = p.pool.add([] {}, p.clock, 1ms);
    REQUIRE_FALSE(third.has_value());
    CHECK(third.error().code == Code::kUnavailable);
    CHECK(p.closed.empty());
    p.pool.remove(a);
    p.add(3);
    CHECK(p.pool.size() == 2);
  }

  TEST_CASE("who waits for room gets it from the first that becomes idle") {
    Pool p(1);
    const auto a = p.add(1);
    std::thread other([&] { p.pool.release(a); });
    auto b = p.pool.add([] {}, p.clock, 10s);
    other.join();
    CHECK(b.has_value());
    CHECK(p.closed == std::vector<int>{1});
  }

  TEST_CASE("many threads that share few endpoints never use one that was closed") {
    EndpointPool pool(4);
    SteadyClock clock;
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        std::atomic<bool> open{false};
        EndpointPool::Id id = 0;
        for (int i = 0; i < 300; ++i) {
          if (id == 0 || !pool.claim(id)) {
            if (open.load()) ++wrong;
            auto made = pool.add([&open] { open.store(false); }, clock, 10s);
            if (!made) {
              ++wrong;
              break;
            }
            id = *made;
            open.store(true);
          }
          if (!open.load()) ++wrong;
          pool.release(id);
        }
        pool.remove(id);
      });
    for (auto& t : threads) t.join();
    CHECK(wrong.load() == 0);
    CHECK(pool.size() == 0);
  }
  TEST_CASE(
      "of 1000 skewed peers, 64 endpoints are made anew less often than first in, first out") {
    constexpr size_t kPeers = 1000, kEndpoints = 64, kTransfers = 50'000;
    std::vector<double> until;  // the k-th peer is used 1/k as often as the first
    double sum = 0;
    for (size_t k = 1; k <= kPeers; ++k) until.push_back(sum += 1. / static_cast<double>(k));
    Random random(4);
    Pool p(kEndpoints);
    std::vector<EndpointPool::Id> ids(kPeers);
    std::deque<size_t> fifo;
    std::set<size_t> held;
    size_t made = 0, made_fifo = 0;
    for (size_t i = 0; i < kTransfers; ++i) {
      const auto at = std::lower_bound(until.begin(), until.end(), random.uniform() * sum);
      const auto peer = static_cast<size_t>(at - until.begin());
      if (ids[peer] == 0 || !p.pool.claim(ids[peer])) {
        ids[peer] = p.add(static_cast<int>(peer));
        ++made;
      }
      p.pool.release(ids[peer]);
      if (held.insert(peer).second) {
        ++made_fifo;
        fifo.push_back(peer);
        if (fifo.size() > kEndpoints) {
          held.erase(fifo.front());
          fifo.pop_front();
        }
      }
    }
    CAPTURE(made);
    CAPTURE(made_fifo);
    CHECK(p.pool.size() == kEndpoints);
    CHECK(static_cast<double>(made) < .85 * static_cast<double>(made_fifo));
  }
}
