// Unknown peers of control sockets: they send without end, greet by half, or bring what was not
// asked for. Honest peers beside them, and peers of an owner that stands still, lose nothing.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "io/address.h"
#include "io/local_socket.h"
#include "rpc/access/connection_guard.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "rpc/shm_channel.h"

using namespace mc;
using namespace std::chrono_literals;

namespace unknown_peers_test {
namespace {

struct Heard {
  static constexpr const char* kName = "heard";
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};
struct Say {
  static constexpr const char* kName = "say";
  using Reply = Heard;
  wire::Blob text;
  static void fields(auto& a, auto& m) { a(m.text); }
};

// A server on a thread of its own.
class Service {
 public:
  Service() {
    auto server = rpc::Server::open(loop_, "127.0.0.1:0", metrics_);
    REQUIRE(server.has_value());
    server_ = std::move(*server);
    server_->on<Say>(
        [](const Say& m, const rpc::Call&) -> Result<Heard> { return Heard{m.text.bytes}; });
    thread_ = std::thread([this] { (void)loop_.run(); });
  }
  ~Service() {
    loop_.stop();
    thread_.join();
  }
  const std::string& address() const { return server_->address(); }
  uint64_t ended() { return metrics_.counter("mc_rpc_ended_connections_total", "").value(); }
  bool answers() {
    auto client = rpc::SyncClient::connect(address(), clock_);
    REQUIRE(client.has_value());
    return (*client)->call(Say{{"hello"}}, 10s).has_value();
  }

 private:
  SteadyClock clock_;
  io::Loop loop_{clock_};
  Metrics metrics_;
  std::unique_ptr<rpc::Server> server_;
  std::thread thread_;
};

io::Fd connect_to(const std::string& text) {
  const auto address = io::parse_address(text);
  REQUIRE(address.has_value());
  io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address->port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

// Reads until the other side ends the connection.
bool ended(int fd) {
  for (char buffer[4096];;) {
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 20'000) != 1) return false;
    if (::recv(fd, buffer, sizeof buffer, 0) <= 0) return true;
  }
}

// What a peer says first, as RFC 23/ZMTP has it: greeting, then READY, without a mechanism.
std::string greeting(const std::string& type = "DEALER") {
  std::string out("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  out.resize(64, '\0');
  std::string ready("\5READY\13Socket-Type\0\0\0", 21);
  ready += static_cast<char>(type.size()) + type;
  return out + '\4' + static_cast<char>(ready.size()) + ready;
}

std::string frame(const std::string& body, bool more) {
  std::string out(1, more ? '\3' : '\2');  // long
  for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(body.size() >> shift);
  return out + body;
}

void say(const io::Fd& to, const std::string& what) {
  REQUIRE(::send(to.get(), what.data(), what.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(what.size()));
}

// A peer that did its handshake.
io::Fd greet(const std::string& address, const std::string& type = "DEALER") {
  io::Fd fd = connect_to(address);
  say(fd, greeting(type));
  char hello[64 + 2 + 255];  // a greeting, and READY with its length before it
  REQUIRE(::recv(fd.get(), hello, 66, MSG_WAITALL) == 66);
  const auto left = static_cast<ssize_t>(static_cast<unsigned char>(hello[65]));
  REQUIRE(::recv(fd.get(), hello, static_cast<size_t>(left), MSG_WAITALL) == left);
  return fd;
}

bool open_still(const io::Fd& fd) {
  char byte = 0;
  return ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

// The soft limit on open files, for a while.
class OpenFiles {
 public:
  explicit OpenFiles(rlim_t most) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit now{most, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~OpenFiles() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_SUITE("rpc/unknown peers") {
  TEST_CASE("a message of frames without end is cut off, and others are served") {  // (F20)
    Service service;
    const io::Fd fd = greet(service.address());
    const std::string part = frame(std::string(kMiB, 'x'), true);
    uint64_t sent = 0;
    while (sent < 2 * kGiB) {
      const ssize_t n = ::send(fd.get(), part.data(), part.size(), MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<uint64_t>(n);
    }
    CHECK(sent > 16 * kMiB);  // it was a connection like others
    CHECK(sent < 2 * kGiB);
    CHECK(service.answers());
    CHECK(service.ended() == 1);
  }

  TEST_CASE("tiny frames without end are cut off before they take much memory") {  // (F20)
    Service service;
    const io::Fd fd = greet(service.address());
    std::string parts;  // empty, more to come: 2 bytes each, 64 in libzmq's queue
    for (size_t i = 0; i < 128 * kKiB; ++i) parts += std::string("\1\0", 2);
    uint64_t sent = 0;
    for (bool open = true; open && sent < 64 * kMiB;) {
      const ssize_t n = ::send(fd.get(), parts.data(), parts.size(), MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<uint64_t>(n);
      pollfd p{fd.get(), POLLRDHUP, 0};  // a slow peer: the guard sees each step
      open = ::poll(&p, 1, 20) == 0;
    }
    CHECK(sent < 24 * kMiB);
    CHECK(service.answers());
    CHECK(service.ended() == 1);
  }

  TEST_CASE("few tiny frames of many connections take bounded memory, too") {  // (F20)
    Service service;
    std::string parts;  // 2 bytes each; all of a connection are fewer than the guard minds in one
    for (size_t i = 0; i < 100 * kKiB; ++i) parts += std::string("\1\0", 2);
    std::vector<io::Fd> peers;
    for (int i = 0; i < 100 && service.ended() == 0; ++i) {
      peers.push_back(greet(service.address()));
      (void)::send(peers.back().get(), parts.data(), parts.size(), MSG_NOSIGNAL);
      pollfd p{peers.back().get(), POLLRDHUP, 0};
      (void)::poll(&p, 1, 20);
    }
    CHECK(service.ended() >= 1);
    CHECK(service.answers());
  }

  TEST_CASE("an owner that stands still finds all that honest peers sent meanwhile") {  // (F20)
    SteadyClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(server.has_value());
    int heard = 0;
    (*server)->on<Say>([&](const Say&, const rpc::Call&) -> Result<Heard> {
      ++heard;
      return Heard{};
    });
    rpc::Envelope envelope;
    envelope.type = Say::kName;
    const std::string call = frame(wire::encode(envelope), true) +
                             frame(wire::encode(Say{{std::string(4 * kMiB, 'x')}}), false);
    std::vector<io::Fd> peers;
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      peers.push_back(greet((*server)->address()));
      threads.emplace_back([&call, fd = peers.back().get()] {
        for (int k = 0; k < 7; ++k) (void)::send(fd, call.data(), call.size(), MSG_NOSIGNAL);
      });
    }
    for (std::thread& thread : threads) thread.join();  // all is sent before the owner looks
    for (const Time until = clock.now() + 60s; heard < 42 && clock.now() < until;)
      REQUIRE(loop.turn(100ms).has_value());
    CHECK(heard == 42);
    CHECK(metrics.counter("mc_rpc_ended_connections_total", "").value() == 0);
  }

  TEST_CASE("an owner that grows for its own reasons loses no peer") {  // (F20)
    SteadyClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(server.has_value());
    int heard = 0;
    (*server)->on<Say>([&](const Say&, const rpc::Call&) -> Result<Heard> {
      ++heard;
      return Heard{};
    });
    rpc::Envelope envelope;
    envelope.type = Say::kName;
    const std::string call = frame(wire::encode(envelope), true) +
                             frame(wire::encode(Say{{std::string(kKiB, 'x')}}), false);
    const io::Fd peer = greet((*server)->address());
    std::vector<std::string> own;
    int sent = 0;
    for (int i = 0; i < 32; ++i) {
      for (int k = 0; k < (i == 0 ? 320 : 1); ++k, ++sent) say(peer, call);
      if (i >= 4) own.emplace_back(44 * kMiB / 28, 'o');
      pollfd p{peer.get(), POLLRDHUP, 0};
      CHECK(::poll(&p, 1, 20) == 0);  // the guard sees each step
    }
    for (const Time until = clock.now() + 60s; heard < sent && clock.now() < until;)
      REQUIRE(loop.turn(100ms).has_value());
    CHECK(heard == sent);
    CHECK(metrics.counter("mc_rpc_ended_connections_total", "").value() == 0);
  }

  TEST_CASE("a request of more than two frames ends its connection") {  // (F20)
    Service service;
    const io::Fd fd = greet(service.address());
    say(fd, std::string("\1\1a\1\1b\0\1c", 9));
    CHECK(ended(fd.get()));
    CHECK(service.answers());
  }

  TEST_CASE("half greetings in any number keep nobody out") {  // (F21)
    const OpenFiles few(1024);
    Service service;
    std::vector<io::Fd> peers;
    for (size_t i = 0; i < rpc::ConnectionGuard::limits().handshakes_max + 20; ++i) {
      peers.push_back(connect_to(service.address()));
      say(peers.back(), "\xff");
    }
    CHECK(service.answers());
    for (size_t i = 0; i < 20; ++i) CHECK(ended(peers[i].get()));
    for (const io::Fd& peer : peers) CHECK(ended(peer.get()));  // after 3 s without a handshake
  }

  TEST_CASE("silent connections in any number keep nobody out, and the oldest go") {  // (F21)
    const OpenFiles few(512);
    Service service;
    const size_t most = rpc::ConnectionGuard::limits().silent_max;
    std::vector<io::Fd> peers;
    for (size_t i = 0; i < most + 10; ++i) {
      peers.push_back(greet(service.address()));
    }
    for (size_t i = 0; i < 10; ++i) CHECK(ended(peers[i].get()));
    CHECK(service.answers());
    CHECK(open_still(peers.back()));
  }

  TEST_CASE("subscribers send no messages, and all of them stay") {  // (F21)
    const OpenFiles few(512);
    auto events = rpc::Socket::listen(rpc::Socket::Kind::kPub, "127.0.0.1:0");
    REQUIRE(events.has_value());
    const rpc::ConnectionGuard::Limits limits = rpc::ConnectionGuard::limits();
    std::vector<io::Fd> peers;
    for (size_t i = 0; i < limits.handshakes_max + limits.silent_max / 2; ++i) {
      peers.push_back(greet(events->address(), "SUB"));
      say(peers.back(), std::string("\0\1\1", 3));  // subscribed to all
    }
    REQUIRE(events->wait_readable(20'000));
    while (!events->receive().empty()) {
    }
    const auto heard = [](const io::Fd& fd) {
      pollfd p{fd.get(), POLLIN, 0};
      char news[6] = {};
      return ::poll(&p, 1, 100) == 1 && ::recv(fd.get(), news, 6, MSG_WAITALL) == 6 &&
             std::memcmp(news, "\0\4news", 6) == 0;
    };
    size_t served = 0;  // a subscription may come after the first news
    for (int turn = 0; turn < 200 && served < peers.size(); ++turn) {
      REQUIRE(events->send({"news"}).has_value());
      served = 0;
      for (const io::Fd& peer : peers) served += heard(peer) ? 1 : 0;
    }
    CHECK(served == peers.size());
  }

  TEST_CASE("the kernel asks whether a peer's host is there, and gives it up within a minute") {
    Service service;  // (F18)
    const SteadyClock clock;
    auto client = rpc::SyncClient::connect(service.address(), clock);
    REQUIRE((*client)->call(Say{{"hello"}}, 10s).has_value());
    int asked = 0;
    for (int fd = 3; fd < 1024; ++fd) {  // both ends are in this process
      sockaddr_storage peer{};
      socklen_t n = sizeof peer;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &n) != 0) continue;
      if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
      const auto option = [fd](int level, int name) {
        int value = 0;
        socklen_t size = sizeof value;
        return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : 0;
      };
      if (option(SOL_SOCKET, SO_KEEPALIVE) == 0) continue;
      ++asked;
      CHECK(option(IPPROTO_TCP, TCP_KEEPIDLE) +
                option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT) <
            60);
      CHECK(option(IPPROTO_TCP, TCP_USER_TIMEOUT) > 0);
      CHECK(option(IPPROTO_TCP, TCP_USER_TIMEOUT) < 60'000);
    }
    CHECK(asked == 2);
  }

  TEST_CASE("a greeting that brings more descriptors than asked for leaves none open") {  // (F23)
    SteadyClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(server.has_value());
    REQUIRE((*server)->listen_shm().has_value());
    const std::string name = rpc::shm_names((*server)->address()).front();
    const size_t before = open_files();
    for (int i = 0; i < 100; ++i) {
      const io::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      REQUIRE(io::connect_local(socket.get(), name) == 0);
      alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
      char byte = 'x';
      iovec data{&byte, 1};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(2 * sizeof(int));
      const int two[2] = {0, 0};
      std::memcpy(CMSG_DATA(c), two, sizeof two);
      REQUIRE(::sendmsg(socket.get(), &message, MSG_NOSIGNAL) == 1);
      const Time deadline = clock.now() + 20s;
      pollfd closed{socket.get(), POLLRDHUP, 0};
      while (::poll(&closed, 1, 0) == 0 && clock.now() < deadline)
        REQUIRE(loop.turn(10ms).has_value());
    }
    CHECK(open_files() < before + 50);  // sockets of earlier cases may end meanwhile
  }

  TEST_CASE(
      "without free descriptors the loop rests, and serves again when there are some") {  // (F16)
    SteadyClock clock;
    io::Loop loop(clock);
    Metrics metrics;
    auto server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(server.has_value());
    REQUIRE((*server)->listen_shm().has_value());
    const std::string name = rpc::shm_names((*server)->address()).front();
    const io::Fd caller(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    std::optional<OpenFiles> none(3);
    const int connected = io::connect_local(caller.get(), name);
    int turns = 0;
    for (const Time until = clock.now() + 300ms; clock.now() < until; ++turns)
      (void)loop.turn(100ms);
    none.reset();
    REQUIRE(connected == 0);
    CHECK(turns < 100);
    pollfd greeted{caller.get(), POLLIN, 0};
    const Time deadline = clock.now() + 20s;
    while (::poll(&greeted, 1, 0) == 0 && clock.now() < deadline)
      REQUIRE(loop.turn(100ms).has_value());
    CHECK(greeted.revents == POLLIN);
  }
}

}  // namespace unknown_peers_test
