#include "sim/pool/network.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"

using namespace mc;
using namespace mc::sim;

namespace network_test {

namespace {
Time at(double s) { return Time{} + from_seconds(s); }
}  // namespace

TEST_CASE("flows that leave one sender share its NIC, and speed up when others end") {
  Network net(4, 100);
  const auto a = net.start(0, 1, 100, at(0)), b = net.start(0, 2, 200, at(0));
  CHECK(net.rate(a) == doctest::Approx(50));
  CHECK(net.rate(b) == doctest::Approx(50));
  CHECK(to_seconds(*net.deadline() - at(0)) == doctest::Approx(2));
  CHECK(net.finished(*net.deadline()) == std::vector{a});
  CHECK(net.rate(b) == doctest::Approx(100));
  CHECK(to_seconds(*net.deadline() - at(0)) == doctest::Approx(3));
  CHECK(net.finished(at(2.5)).empty());
  CHECK(net.finished(at(3.001)) == std::vector{b});
  CHECK(net.sent(0) == doctest::Approx(300));
  CHECK(!net.deadline());
}

TEST_CASE("sharing is max-min fair: what a bottleneck elsewhere leaves goes to the others") {
  Network net(5, 90);
  // Three flows into node 4, one of them from node 0, which also sends to node 3.
  const auto a = net.start(0, 4, 1e3, at(0)), b = net.start(1, 4, 1e3, at(0)),
             c = net.start(2, 4, 1e3, at(0)), d = net.start(0, 3, 1e3, at(0));
  CHECK(net.rate(a) == doctest::Approx(30));
  CHECK(net.rate(b) == doctest::Approx(30));
  CHECK(net.rate(c) == doctest::Approx(30));
  CHECK(net.rate(d) == doctest::Approx(60));
}

TEST_CASE("no NIC carries more than it can, and every byte sent arrives") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Network net(8, 1e6);
    std::map<Network::FlowId, double> bytes;
    double total = 0;
    Time now = at(0);
    size_t ended = 0;
    for (int i = 0; i < 300; ++i) {
      now += from_seconds(random.exponential(0.05));
      ended += net.finished(now).size();
      const size_t from = random.below(8), to = (from + 1 + random.below(7)) % 8;
      const double n = 1 + static_cast<double>(random.below(200'000));
      total += n;
      net.start(from, to, n, now);
      for (size_t node = 0; node < 8; ++node) {
        CHECK(net.rate_out(node) <= 1e6 * 1.0001);
        CHECK(net.rate_in(node) <= 1e6 * 1.0001);
      }
    }
    while (const auto next = net.deadline()) ended += net.finished(*next).size();
    CHECK(ended == 300);
    CHECK(net.flows() == 0);
    double sent = 0, received = 0;
    for (size_t node = 0; node < 8; ++node) {
      sent += net.sent(node);
      received += net.received(node);
    }
    CHECK(sent == doctest::Approx(total));
    CHECK(received == doctest::Approx(total));
  }
}

TEST_CASE("a cancelled flow leaves its share to the others and counts what it moved") {
  Network net(3, 100);
  const auto a = net.start(0, 1, 1000, at(0)), b = net.start(0, 2, 100, at(0));
  net.cancel(a, at(1));
  net.cancel(a, at(1));
  CHECK(net.rate(b) == doctest::Approx(100));
  CHECK(net.sent(0) == doctest::Approx(50));
  CHECK(net.finished(at(1.6)) == std::vector{b});
}

}  // namespace network_test
