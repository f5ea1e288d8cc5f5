// What peers that do not read, or do not finish what they send, can take of a process's memory.
#include <doctest/doctest.h>
#include <zmq.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "rpc/access/unread_answers.h"
#include "rpc/server.h"
#include "rpc/shm_listener.h"

using namespace mc;
using namespace std::chrono_literals;

namespace unread_test {
namespace {

// Callers in shared memory that the test drives by hand.
struct Callers {
  Callers() {
    listener = std::move(*rpc::ShmListener::open(
        loop, address, rpc::ended_connections(metrics),
        [this](uint64_t peer, const rpc::ShmChannel::Message&) { heard.push_back(peer); }));
  }
  rpc::ShmChannel connect() {
    auto handshake = std::move(*rpc::ShmHandshake::to(address));
    for (int i = 0; i < 100; ++i) {
      turns(10);
      auto step = handshake.step();
      REQUIRE(step.has_value());
      if (*step) return std::move(**step);
    }
    FAIL("no handshake");
    return std::move(**handshake.step());
  }
  void turns(int n) {
    for (int i = 0; i < n; ++i) {
      clock.advance(1ms);  // so that it does not poll
      REQUIRE(loop.turn(0ns).has_value());
    }
  }
  // Moves up to so many ringfuls of what a caller has to send.
  void pump(rpc::ShmChannel& caller, int ringfuls) {
    for (int i = 0; i < ringfuls && !caller.broken(); ++i) {
      turns(1);
      caller.woken();
    }
  }
  uint64_t ended() { return rpc::ended_connections(metrics).value(); }

  ManualClock clock;
  Metrics metrics;
  io::Loop loop{clock};
  const std::string address = (*rpc::Server::open(loop, "127.0.0.1:0", metrics))->address();
  std::vector<uint64_t> heard;  // of whom messages came
  std::unique_ptr<rpc::ShmListener> listener;
};

}  // namespace

TEST_CASE("messages in shared memory that are not whole are bounded over all callers") {
  Callers c;
  const std::string envelope(15 * kMiB, 'e'), body(16 * kMiB, 'b');
  const int most = static_cast<int>(28 * kMiB / rpc::kShmRingBytes);
  std::vector<rpc::ShmChannel> callers;
  for (int i = 0; i < 12; ++i) {
    callers.push_back(c.connect());
    REQUIRE(callers.back().send(envelope, body));
    c.pump(callers.back(), most);
  }
  CHECK(c.heard.empty());
  for (auto& caller : callers) caller.woken();
  c.turns(20);
  CHECK(c.ended() >= 3);  // 9 have 252 MiB and more
  CHECK(c.listener->peers() == 12 - c.ended());
  CHECK(c.listener->peers() >= 4);
  // The others go on: a message that is whole is heard, and holds nothing.
  const uint64_t ended = c.ended();
  auto last = std::find_if(callers.begin(), callers.end(), [](auto& at) { return !at.broken(); });
  REQUIRE(last != callers.end());
  for (int i = 0; i < 1000 && c.heard.empty(); ++i) c.pump(*last, 1);
  CHECK(c.heard.size() == 1);
  CHECK(c.ended() == ended);
  callers.clear();
  c.turns(50);
  CHECK(c.listener->peers() == 0);
}

TEST_CASE("answers in shared memory that callers do not read are bounded over all of them") {
  Callers c;
  const std::string answer(16 * kMiB, 'a');
  std::vector<rpc::ShmChannel> callers;
  for (int i = 0; i < 18; ++i) {
    callers.push_back(c.connect());
    REQUIRE(callers.back().send("e", "b"));
    c.turns(10);
    REQUIRE(c.heard.size() == callers.size());
    CHECK(c.listener->send(c.heard.back(), "e", answer));  // one each
  }
  for (const uint64_t peer : c.heard) CHECK_FALSE(c.listener->send(peer, "e", answer));
  for (const uint64_t peer : c.heard) CHECK(c.listener->send(peer, "e", "a short one"));
  c.turns(20);
  CHECK(c.listener->peers() == 18);  // they may read yet
  size_t got = 0;
  for (int i = 0; i < 1000 && got < 2; ++i) {
    c.turns(2);
    callers[0].woken();
    while (callers[0].receive()) ++got;
  }
  CHECK(got == 2);
  // Room again, when those that do not read have gone.
  callers.erase(callers.begin() + 1, callers.end());
  c.turns(50);
  CHECK(c.listener->peers() == 1);
  for (int i = 0; i < 2; ++i) CHECK(c.listener->send(c.heard[0], "e", answer));
}

TEST_CASE("what a subscriber does not read is bounded by messages, and by bytes over all peers") {
  auto publisher = rpc::Socket::listen(rpc::Socket::Kind::kPub, "127.0.0.1:0");
  REQUIRE(publisher);
  void* const context = zmq_ctx_new();
  void* const subscriber = zmq_socket(context, ZMQ_SUB);
  const int one = 1, small = 4096, zero = 0;
  zmq_setsockopt(subscriber, ZMQ_RCVHWM, &one, sizeof one);
  zmq_setsockopt(subscriber, ZMQ_RCVBUF, &small, sizeof small);
  zmq_setsockopt(subscriber, ZMQ_LINGER, &zero, sizeof zero);
  zmq_setsockopt(subscriber, ZMQ_SUBSCRIBE, "", 0);
  REQUIRE(zmq_connect(subscriber, ("tcp://" + publisher->address()).c_str()) == 0);
  REQUIRE(publisher->wait_readable(10'000));
  REQUIRE(publisher->receive().size() == 1);  // the subscription
  constexpr int kSent = 20'000;
  const std::string body(4096, 'x');
  for (int i = 0; i < kSent; ++i) CHECK(publisher->send({"topic", body}));
  CHECK(publisher->send({"topic", "the last"}));
  int read = 0;
  const int patience = 2000;  // without a message
  zmq_setsockopt(subscriber, ZMQ_RCVTIMEO, &patience, sizeof patience);
  std::string got(8192, '\0');
  while (zmq_recv(subscriber, got.data(), got.size(), 0) >= 0) ++read;
  CHECK(read / 2 < kSent * 3 / 4);  // 8,192, and what the kernel holds
  CHECK(read / 2 > 4000);
  {
    rpc::UnreadAnswers::Counted others;
    others.set(rpc::UnreadAnswers::kOfAllMax);
    CHECK(publisher->send({"topic", body}).error().code == Code::kBusy);
    CHECK(publisher->send({"topic", "short"}));
  }
  CHECK(publisher->send({"topic", body}));
  zmq_close(subscriber);
  zmq_ctx_term(context);
}

}  // namespace unread_test
