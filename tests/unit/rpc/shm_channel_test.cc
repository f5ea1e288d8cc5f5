#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>

#include "base/random.h"
#include "io/free_port.h"
#include "io/local_socket.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "rpc/shm_listener.h"

using namespace mc;
using namespace std::chrono_literals;

namespace {

struct ShmHeard {
  static constexpr const char* kName = "echoed";
  std::string text;
  std::vector<std::string> more{};
  static void fields(auto& a, auto& m) { a(m.text, wire::at_most<wire::kListMax>(m.more)); }
};
struct ShmSaid {
  static constexpr const char* kName = "echo";
  using Reply = ShmHeard;
  std::string text;
  std::vector<std::string> more{};
  static void fields(auto& a, auto& m) { a(m.text, wire::at_most<wire::kListMax>(m.more)); }
};

// A server on a thread of its own; "later" is never answered.
class ShmService {
 public:
  explicit ShmService(const std::string& listen = "127.0.0.1:0") {
    // A port that was just closed may be in use a moment longer.
    auto opened = rpc::Server::open(loop_, listen, metrics_);
    for (const Time deadline = clock_.now() + 20s; !opened && clock_.now() < deadline;) {
      std::this_thread::yield();
      opened = rpc::Server::open(loop_, listen, metrics_);
    }
    REQUIRE(opened.has_value());
    server_ = std::move(*opened);
    REQUIRE(server_->listen_shm().has_value());
    server_->on_later<ShmSaid>([this](const ShmSaid& m, const rpc::Call&, const auto& reply) {
      ++calls_;
      {
        Lock lock(mutex_);
        last_ = m.text;
      }
      if (m.text == "later") return kept_.push_back(reply);
      shm_ = server_->shm_callers();
      reply(ShmHeard{m.text, m.more});
    });
    address = server_->address();
    thread_ = std::thread([this] { CHECK(loop_.run().has_value()); });
  }
  ~ShmService() {
    loop_.stop();
    thread_.join();
  }
  size_t shm() const { return shm_; }  // callers, at the last call
  int calls() const { return calls_; }
  std::string last() {
    Lock lock(mutex_);
    return last_;
  }
  std::string address;

 private:
  SteadyClock clock_;
  io::Loop loop_{clock_};
  Metrics metrics_;
  std::vector<rpc::Reply<ShmHeard>> kept_;  // outlives the server: it answers no more
  std::unique_ptr<rpc::Server> server_;
  std::atomic<size_t> shm_{0};
  std::atomic<int> calls_{0};
  Mutex mutex_;
  std::string last_ MC_GUARDED_BY(mutex_);
  std::thread thread_;
};

std::unique_ptr<rpc::SyncClient> shm_sync(const std::string& address, const Clock& clock) {
  return std::move(*rpc::SyncClient::connect(address, clock, rpc::Channel::kShm));
}

// The layout of a ring: written, crowded and wakes-words, then on further lines taken and asleep,
// and the bytes.
struct RawRing {
  uint64_t written;
  uint32_t crowded, wakes_words;
  uint64_t pad0[6];
  uint64_t taken;
  std::atomic<uint32_t> asleep;
  uint32_t pad1;
  uint64_t pad2[6];
  char bytes[rpc::kShmRingBytes];
};
struct RawRings {
  RawRing to_server, from_server;
};

// Two ends in one process.
struct ShmPair {
  std::optional<rpc::ShmChannel> server, client;
  int memory = -1;
  ShmPair() {
    int sockets[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    auto made = rpc::ShmChannel::make_memory();
    REQUIRE(made.has_value());
    server = std::move(*rpc::ShmChannel::map(io::Fd(sockets[0]), made->get(), true, nullptr));
    client = std::move(*rpc::ShmChannel::map(io::Fd(sockets[1]), made->get(), false, nullptr));
    memory = made->release();
  }
  ~ShmPair() {
    if (raw != nullptr) ::munmap(raw, sizeof(RawRings));
    ::close(memory);
  }
  RawRings& rings() {
    void* at = ::mmap(nullptr, sizeof(RawRings), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    REQUIRE(at != MAP_FAILED);
    raw = static_cast<RawRings*>(at);
    return *raw;
  }
  RawRings* raw = nullptr;
};

// Waits on a thread of its own until `end` has a message or is broken.
class ShmWaiter {
 public:
  explicit ShmWaiter(rpc::ShmChannel& end)
      : thread_([this, &end] {
          while (!end.broken()) {
            if (const auto m = end.receive()) {
              got_ = std::string(m->body);
              return;
            }
            end.await_input(60s);
          }
        }) {}
  std::string join() {
    thread_.join();
    return got_;
  }

 private:
  std::string got_;
  std::thread thread_;
};

// A server by hand: it answers on the test's thread, when the test says so.
class HandServer {
 public:
  HandServer() {
    listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    Random random(fresh_seed());
    REQUIRE(io::listen_on_free_port(random, [this](uint16_t port) {
      address = "127.0.0.1:" + std::to_string(port);
      return port != 0 && io::bind_local(listener_.get(), rpc::shm_names(address)[0]) == 0;
    }));
    REQUIRE(::listen(listener_.get(), 1) == 0);
  }
  // Shakes hands with a client of that loop, which has connected.
  void take(io::Loop& loop) {
    io::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    REQUIRE(socket);
    auto handshake = std::move(*rpc::ShmHandshake::from(std::move(socket), address));
    while (!end_) {
      REQUIRE(loop.turn(20s).has_value());
      auto step = handshake.step();
      REQUIRE(step.has_value());
      if (*step) end_ = std::move(**step);
    }
    REQUIRE(loop.turn(20s).has_value());
  }
  // Answers what is there, but for "later".
  void answer() {
    while (const auto message = end_->receive()) {
      const auto asked = wire::decode<rpc::Envelope>(message->envelope);
      const auto said = wire::decode<ShmSaid>(message->body);
      REQUIRE(asked.has_value());
      REQUIRE(said.has_value());
      if (said->text == "later") continue;
      rpc::Envelope ok;
      ok.type = "ok";
      ok.id = asked->id;
      CHECK(end_->send(wire::encode(ok), wire::encode(ShmHeard{said->text})));
    }
  }
  std::string address;

 private:
  io::Fd listener_;
  std::optional<rpc::ShmChannel> end_;
};

void until_asleep(const RawRing& ring, uint32_t how) {
  SteadyClock clock;
  const Time deadline = clock.now() + 20s;
  while (ring.asleep != how && clock.now() < deadline) std::this_thread::yield();
  REQUIRE(ring.asleep == how);
}

int shm_knock(const std::string& address) {  // a client that does as it likes
  const std::string name = rpc::shm_names(address)[0];
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, name.data(), name.size());
  const auto n = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), n) == 0);
  return fd;
}

}  // namespace

TEST_SUITE("shm_channel") {
  TEST_CASE("calls of any size use shared memory") {
    SteadyClock clock;
    ShmService service;
    auto client = shm_sync(service.address, clock);
    for (const size_t bytes : {0u, 1u, 4096u, 60'000u}) {
      auto r = client->call(ShmSaid{std::string(bytes, 'x'), {}}, 10s);
      REQUIRE(r.has_value());
      CHECK(r->text == std::string(bytes, 'x'));
      CHECK(service.shm() == 1);
    }
    // Many times what a ring holds, there and back.
    const std::vector<std::string> many(100, std::string(50'000, 'y'));
    auto r = client->call(ShmSaid{"many", many}, 10s);
    REQUIRE(r.has_value());
    CHECK(r->more == many);
  }

  TEST_CASE("callers that block and callers that are called back share a server") {
    SteadyClock clock;
    ShmService service;
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        auto client = shm_sync(service.address, clock);
        for (int n = 0; n < 200; ++n) {
          const std::string text = std::to_string(i) + "-" + std::to_string(n);
          auto r = client->call(ShmSaid{text, {}}, 10s);
          if (r && r->text == text) ++right;
        }
      });
    io::Loop loop(clock);
    auto client = std::move(*rpc::Client::connect(loop, service.address, rpc::Channel::kShm));
    int answered = 0;
    std::function<void()> again = [&] {
      client->call<ShmSaid>(ShmSaid{std::to_string(answered), {}}, 10s, [&](Result<ShmHeard> r) {
        REQUIRE(r.has_value());
        CHECK(r->text == std::to_string(answered));
        if (++answered < 200) again();
      });
    };
    again();
    const Time deadline = clock.now() + 20s;
    while (answered < 200 && clock.now() < deadline) REQUIRE(loop.turn(20ms).has_value());
    for (auto& t : threads) t.join();
    CHECK(answered == 200);
    CHECK(right == 800);
    CHECK(service.shm() > 0);
  }

  TEST_CASE("calls keep their order while the client switches to shared memory") {
    SteadyClock clock;
    ShmService service;
    io::Loop loop(clock);
    auto client = std::move(*rpc::Client::connect(loop, service.address, rpc::Channel::kShm));
    std::vector<int> order;
    int sent = 0;
    const Time deadline = clock.now() + 20s;
    while (order.size() < 300 && clock.now() < deadline) {
      for (int i = 0; i < 3 && sent < 300; ++i, ++sent)
        client->call<ShmSaid>(ShmSaid{std::to_string(sent), {}}, 10s, [&](Result<ShmHeard> r) {
          REQUIRE(r.has_value());
          order.push_back(std::stoi(r->text));
        });
      REQUIRE(loop.turn(5ms).has_value());
    }
    REQUIRE(order.size() == 300);
    CHECK(std::is_sorted(order.begin(), order.end()));
    CHECK(service.shm() == 1);
  }

  TEST_CASE(
      "a call with little time that comes back without an answer leaves shared memory as it is") {
    SteadyClock clock;
    ShmService service;
    auto client = shm_sync(service.address, clock);
    REQUIRE(client->call(ShmSaid{"first", {}}, 10s).has_value());
    for (int i = 0; i < 3; ++i) {
      auto late = client->call(ShmSaid{"later", {}}, 5ms);
      REQUIRE(!late.has_value());
      CHECK(late.error().code == Code::kTimeout);
      auto r = client->call(ShmSaid{"again", {}}, 10s);
      REQUIRE(r.has_value());
      CHECK(r->text == "again");
      CHECK(service.shm() == 1);
    }
  }

  TEST_CASE("what is sent right before an end is heard") {
    SteadyClock clock;
    ShmService service;
    {
      io::Loop loop(clock);
      auto client = std::move(*rpc::Client::connect(loop, service.address, rpc::Channel::kShm));
      bool answered = true;
      const Time deadline = clock.now() + 20s;
      while ((service.shm() == 0 || !answered) && clock.now() < deadline) {
        if (std::exchange(answered, false))
          client->call<ShmSaid>(ShmSaid{"k", {}}, 10s,
                                [&](const Result<ShmHeard>&) { answered = true; });
        REQUIRE(loop.turn(5ms).has_value());
      }
      REQUIRE(service.shm() == 1);
      client->call<ShmSaid>(ShmSaid{"last", {}}, 10s, [](const Result<ShmHeard>&) {});
    }
    const Time deadline = clock.now() + 20s;
    while (service.last() != "last" && clock.now() < deadline) std::this_thread::yield();
    CHECK(service.last() == "last");
  }

  TEST_CASE("a caller that wakes a server spares the other recent callers the system call") {
    ManualClock clock;
    Metrics metrics;
    io::Loop loop(clock);
    const auto address = std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics))->address();
    int heard = 0;
    auto listener = std::move(
        *rpc::ShmListener::open(loop, address, rpc::ended_connections(metrics),
                                [&](uint64_t, const rpc::ShmChannel::Message&) { ++heard; }));
    const auto turns = [&](int n) {
      for (int i = 0; i < n; ++i) REQUIRE(loop.turn(0ns).has_value());
    };
    const auto connect = [&] {
      auto handshake = std::move(*rpc::ShmHandshake::to(address));
      std::optional<rpc::ShmChannel> end;
      for (int i = 0; i < 100 && !end; ++i) {
        turns(10);
        auto step = handshake.step();
        REQUIRE(step.has_value());
        if (*step) end = std::move(**step);
      }
      REQUIRE(end.has_value());
      return std::move(*end);
    };
    const auto unread = [](const rpc::ShmChannel& end) {  // bytes that are to wake the server
      int bytes = 0;
      REQUIRE(::ioctl(end.fd(), SIOCOUTQ, &bytes) == 0);
      return bytes;
    };
    auto one = connect(), two = connect(), old = connect();
    for (auto* end : {&old, &one, &two}) {
      REQUIRE(end->send("e", "b"));
      turns(10);
      clock.advance(end == &old ? Duration(10ms) : Duration(100us));
      turns(10);  // its time to poll is over: it sleeps
    }
    REQUIRE(heard == 3);
    REQUIRE(one.send("e", "b"));
    CHECK(unread(one) > 0);
    turns(10);
    REQUIRE(heard == 4);
    REQUIRE(two.send("e", "b"));
    CHECK(unread(two) == 0);
    REQUIRE(old.send("e", "b"));  // it is not polled: its last call is long ago
    CHECK(unread(old) > 0);
    turns(10);
    CHECK(heard == 6);
  }

  TEST_CASE("a client calls a server without shared memory over ZeroMQ") {
    SteadyClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    auto server = std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics));
    server->on<ShmSaid>([](const ShmSaid& m, const rpc::Call&) -> Result<ShmHeard> {
      return ShmHeard{m.text, {}};
    });
    std::thread thread([&] { CHECK(loop.run().has_value()); });
    auto client = shm_sync(server->address(), clock);
    auto r = client->call(ShmSaid{"k", {}}, 10s);
    loop.stop();
    thread.join();
    REQUIRE(r.has_value());
    CHECK(r->text == "k");
  }

  TEST_CASE("a call that the server's end leaves open is over at once; the next finds the next") {
    SteadyClock clock;
    auto first = std::make_unique<ShmService>();
    const std::string address = first->address;
    auto client = shm_sync(address, clock);
    REQUIRE(client->call(ShmSaid{"k", {}}, 10s).has_value());
    std::atomic<bool> done{false};
    Code code = Code::kInternal;
    std::thread caller([&] {
      auto r = client->call(ShmSaid{"later", {}}, 60s);
      if (!r) code = r.error().code;
      done = true;
    });
    const Time deadline = clock.now() + 20s;
    while (first->calls() < 2 && clock.now() < deadline) std::this_thread::yield();
    first.reset();
    caller.join();
    CHECK(code == Code::kUnavailable);
    ShmService second(address);
    auto r = client->call(ShmSaid{"again", {}}, 10s);
    REQUIRE(r.has_value());
    CHECK(r->text == "again");
  }

  TEST_CASE("a call fails when its server does not answer in time") {
    SteadyClock clock;
    ShmService service;
    auto client = shm_sync(service.address, clock);
    REQUIRE(client->call(ShmSaid{"k", {}}, 10s).has_value());
    auto r = client->call(ShmSaid{"later", {}}, 50ms);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().code == Code::kTimeout);
    CHECK(client->call(ShmSaid{"k", {}}, 10s).has_value());
  }

  TEST_CASE("answers without end keep no other call past its time limit") {
    SteadyClock clock;
    io::Loop loop(clock);
    HandServer server;
    auto client = std::move(*rpc::Client::connect(loop, server.address, rpc::Channel::kShm));
    server.take(loop);
    constexpr int kMany = 200'000;
    int answered = 0;
    bool expired = false;
    client->call<ShmSaid>(ShmSaid{"later"}, 10ms, [&](const Result<ShmHeard>& r) {
      expired = true;
      CHECK(!r.has_value());
    });
    std::function<void()> next = [&] {  // each answer is there before the one before it is read
      client->call<ShmSaid>(ShmSaid{"now"}, 20s, [&](const Result<ShmHeard>& r) {
        CHECK(r.has_value());
        if (!expired && ++answered < kMany) next();
      });
      server.answer();
    };
    next();
    const Time deadline = clock.now() + 60s;
    while (!expired && clock.now() < deadline) REQUIRE(loop.turn(20ms).has_value());
    CHECK(expired);
    CHECK(answered < kMany);
  }

  TEST_CASE("what does not fit waits, and goes on when the other side has read") {
    ShmPair p;
    const std::string long_one(5 * rpc::kShmRingBytes, 'a');
    REQUIRE(p.client->send("one", long_one));
    REQUIRE(p.client->send("two", "short"));
    std::vector<std::pair<std::string, std::string>> got;
    for (int i = 0; i < 100 && got.size() < 2; ++i) {
      while (const auto m = p.server->receive()) got.emplace_back(m->envelope, m->body);
      p.client->woken();
    }
    REQUIRE(got.size() == 2);
    CHECK(got[0] == std::pair<std::string, std::string>{"one", long_one});
    CHECK(got[1] == std::pair<std::string, std::string>{"two", "short"});
  }

  TEST_CASE("a peer that does not read is not sent to without end") {
    ShmPair p;
    const std::string large(8 << 20, 'a');
    int sent = 0;
    while (sent < 100 && p.server->send("", large)) ++sent;
    CHECK(sent >= 2);
    CHECK(sent < 10);
  }

  TEST_CASE("an end notices that the other has gone") {
    ShmPair p;
    REQUIRE(p.client->arm());
    p.server.reset();
    p.client->woken();
    CHECK(p.client->broken());
    CHECK_FALSE(p.client->send("a", "b"));
  }

  TEST_CASE("an end that has gone is noticed behind its wakeups") {
    ShmPair p;
    for (int i = 0; i < 100; ++i) REQUIRE(::send(p.server->fd(), "!", 1, MSG_DONTWAIT) == 1);
    p.server.reset();
    p.client->woken();
    CHECK(p.client->broken());
  }

  TEST_CASE("who waits for its word is woken without a byte over the socket") {
    ShmPair p;
    const RawRing& ring = p.rings().from_server;
    ShmWaiter waiter(*p.client);
    until_asleep(ring, 2);
    REQUIRE(p.server->send("", "k"));
    CHECK(waiter.join() == "k");
    char byte;
    CHECK(::recv(p.client->fd(), &byte, 1, MSG_DONTWAIT) == -1);
  }

  TEST_CASE("who waits for a writer that wakes no words waits at the socket") {
    ShmPair p;
    RawRing& ring = p.rings().from_server;
    ring.wakes_words = 0;  // as versions before it leave it
    p.client->woken();
    ShmWaiter waiter(*p.client);
    until_asleep(ring, 1);
    REQUIRE(p.server->send("", "k"));
    CHECK(waiter.join() == "k");
  }

  TEST_CASE("who waits for room in the ring is woken over the socket") {
    ShmPair p;
    const RawRing& ring = p.rings().from_server;
    const std::string long_one(2 * rpc::kShmRingBytes, 'a');
    REQUIRE(p.client->send("", long_one));
    p.client->woken();
    ShmWaiter waiter(*p.client);
    until_asleep(ring, 1);
    std::string got;
    SteadyClock clock;
    for (const Time deadline = clock.now() + 20s; got.empty() && clock.now() < deadline;)
      if (const auto m = p.server->receive()) got = m->body;
    CHECK(got == long_one);
    REQUIRE(p.server->send("", "k"));
    CHECK(waiter.join() == "k");
  }

  TEST_CASE("who waits for its word notices that the other has gone") {
    ShmPair p;
    const RawRing& ring = p.rings().from_server;
    ShmWaiter waiter(*p.client);
    until_asleep(ring, 2);
    p.server.reset();
    CHECK(waiter.join().empty());
    CHECK(p.client->broken());
  }

  TEST_CASE("positions and lengths that cannot be break the connection and nothing else") {
    const auto lie = [](auto&& change) {
      ShmPair p;
      change(p.rings().to_server);
      CHECK_FALSE(p.server->receive().has_value());
      return p.server->broken();
    };
    CHECK(lie([](RawRing& r) { r.written = rpc::kShmRingBytes + 1; }));
    CHECK(lie([](RawRing& r) { r.written = UINT64_MAX; }));
    CHECK(lie([](RawRing& r) {
      std::memset(r.bytes, 0xff, 8);  // frames of 4 GiB
      r.written = 8;
    }));
    CHECK_FALSE(lie([](RawRing& r) {  // half a head: the rest may come
      r.written = 4;
    }));
    ShmPair p;                        // of the ring that the server writes
    p.rings().from_server.taken = 1;  // what was never written
    CHECK_FALSE(p.server->send("a", "b"));
    CHECK(p.server->broken());
    CHECK(::ftruncate(p.memory, 0) != 0);  // nobody can take the memory away
  }

  TEST_CASE("peers with a wrong handshake, or none, do not block others") {
    SteadyClock clock;
    ShmService service;
    std::vector<int> peers;
    for (int i = 0; i < 100; ++i) {
      peers.push_back(shm_knock(service.address));
      const std::string wrong(static_cast<size_t>(i), 'x');
      if (i > 0) (void)::send(peers.back(), wrong.data(), wrong.size(), MSG_NOSIGNAL);
    }
    auto client = shm_sync(service.address, clock);
    auto r = client->call(ShmSaid{"k", {}}, 10s);
    REQUIRE(r.has_value());
    CHECK(r->text == "k");
    for (const int fd : peers) ::close(fd);
  }
}
