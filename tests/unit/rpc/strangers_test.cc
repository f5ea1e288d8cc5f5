// Peers that nobody invited: they send without end, greet by half, or bring what was not asked for.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "io/address.h"
#include "io/limits.h"
#include "io/local_socket.h"
#include "rpc/client.h"
#include "rpc/connection_guard.h"
#include "rpc/server.h"
#include "rpc/shm_channel.h"

using namespace mc;
using namespace std::chrono_literals;

namespace strangers_test {
namespace {

struct Heard {
  static constexpr const char* kName = "heard";
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};
struct Say {
  static constexpr const char* kName = "say";
  using Reply = Heard;
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};

// A server on a thread of its own.
class Service {
 public:
  Service() {
    auto server = rpc::Server::open(loop_, "127.0.0.1:0", metrics_);
    REQUIRE(server.has_value());
    server_ = std::move(*server);
    server_->on<Say>([](const Say& m, const rpc::Call&) -> Result<Heard> { return Heard{m.text}; });
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
    return (*client)->call(Say{"hello"}, 10s).has_value();
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

// What a DEALER says first, as RFC 37/ZMTP has it: greeting, then READY, without a mechanism.
std::string greeting() {
  std::string out("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  out.resize(64, '\0');
  const std::string ready("\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0\0", 41);
  return out + '\4' + static_cast<char>(ready.size()) + ready;
}

size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_SUITE("strangers") {
  TEST_CASE("a message of frames without end is cut off, and others are served") {  // (F20)
    Service service;
    const io::Fd fd = connect_to(service.address());
    const std::string hello = greeting();
    REQUIRE(::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0);
    std::string frame("\3\0\0\0\0\0\x10\0\0", 9);  // long, more to come, 1 MiB
    frame.resize(9 + kMiB);
    uint64_t sent = 0;
    while (sent < 2 * kGiB) {
      const ssize_t n = ::send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<uint64_t>(n);
    }
    CHECK(sent > 16 * kMiB);  // it was a connection like others
    CHECK(sent < 2 * kGiB);
    CHECK(service.answers());
    CHECK(service.ended() == 1);
  }

  TEST_CASE("a request of more than two frames ends its connection") {  // (F20)
    Service service;
    const io::Fd fd = connect_to(service.address());
    const std::string frames = greeting() + std::string("\1\1a\1\1b\0\1c", 9);
    REQUIRE(::send(fd.get(), frames.data(), frames.size(), MSG_NOSIGNAL) > 0);
    CHECK(ended(fd.get()));
    CHECK(service.answers());
  }

  TEST_CASE("half greetings in any number keep nobody out") {  // (F21)
    (void)io::raise_open_files(4096);
    Service service;
    std::vector<io::Fd> strangers;
    for (size_t i = 0; i < rpc::ConnectionGuard::limits().unproven_max + 20; ++i) {
      strangers.push_back(connect_to(service.address()));
      REQUIRE(::send(strangers.back().get(), "\xff", 1, MSG_NOSIGNAL) == 1);
    }
    CHECK(service.answers());
    for (size_t i = 0; i < 20; ++i) CHECK(ended(strangers[i].get()));
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
    CHECK(open_files() == before);
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
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlimit none{3, limit.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const int connected = io::connect_local(caller.get(), name);
    int turns = 0;
    for (const Time until = clock.now() + 300ms; clock.now() < until; ++turns)
      (void)loop.turn(100ms);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    REQUIRE(connected == 0);
    CHECK(turns < 100);
    pollfd greeted{caller.get(), POLLIN, 0};
    const Time deadline = clock.now() + 20s;
    while (::poll(&greeted, 1, 0) == 0 && clock.now() < deadline)
      REQUIRE(loop.turn(100ms).has_value());
    CHECK(greeted.revents == POLLIN);
  }
}

}  // namespace strangers_test
