// Unknown peers at the data port: they say nothing, half of it, or too slowly; and peers that come
// when files or threads have run out.
#include "xfer/transports/tcp/acceptor.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "tests/slow.h"
#include "xfer/transports/tcp/server.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::tcp;
using namespace std::chrono_literals;

namespace acceptor_test {
namespace {

const SteadyClock kClock;
const std::string kSecret(32, 's');

class SetClock final : public Clock {  // by the test, and read by the acceptor
 public:
  Time now() const override { return Time(Duration(1 + ns_.load())); }
  void advance(Duration d) { ns_.fetch_add(d.count()); }

 private:
  std::atomic<int64_t> ns_{0};
};

struct Taker final : Acceptor::Owner {
  std::atomic<size_t> taken{0}, turns{0};
  void take(Acceptor::Proven peer) override {
    ++taken;
    answer_hello(peer.fd.get(), peer.id, {});
  }
  void reap() override { ++turns; }  // once a turn
};

struct Door {
  explicit Door(const Clock& clock = kClock) : acceptor(kSecret, clock, refused, taker) {
    REQUIRE(acceptor.listen_on("127.0.0.1:0").has_value());
    REQUIRE(acceptor.start().has_value());
  }
  const io::Address& address() const { return acceptor.bound().front(); }
  Counter refused;
  Taker taker;
  Acceptor acceptor;
};

io::Fd new_socket() { return io::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// From 127.0.0.`host`.
void connect_to(const io::Fd& fd, const io::Address& address, uint32_t host = 1) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl((127u << 24) + host);
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  at.sin_port = htons(address.port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
}
io::Fd connected(const io::Address& address, uint32_t host = 1) {
  io::Fd fd = new_socket();
  connect_to(fd, address, host);
  return fd;
}

// So many bytes; false: the connection ended before, or nothing came.
bool take(const io::Fd& fd, void* p, size_t n) {
  for (size_t got = 0; got < n;) {
    pollfd waits{fd.get(), POLLIN, 0};
    if (::poll(&waits, 1, 20'000 * kSlow) != 1) return false;
    const ssize_t more = ::recv(fd.get(), static_cast<char*>(p) + got, n - got, 0);
    if (more <= 0) return false;
    got += static_cast<size_t>(more);
  }
  return true;
}
bool ended(const io::Fd& fd) {
  for (char rest[256];;) {
    pollfd waits{fd.get(), POLLIN, 0};
    if (::poll(&waits, 1, 20'000 * kSlow) != 1) return false;
    if (::recv(fd.get(), rest, sizeof rest, 0) <= 0) return true;
  }
}
void drip(const io::Fd& fd) { (void)::send(fd.get(), "M", 1, MSG_NOSIGNAL); }

// The code of the answer to a hello; nothing when there was none.
std::optional<int> greet(const io::Fd& fd, const std::string& secret = kSecret) {
  Nonce nonce{};
  if (!take(fd, nonce.data(), nonce.size())) return std::nullopt;
  const HelloBody hello = prove(secret, nonce);
  char bytes[sizeof(Header) + sizeof hello];
  const Header header = make_header(Kind::kHello, 7, &hello, sizeof hello);
  std::memcpy(bytes, &header, sizeof header);
  std::memcpy(bytes + sizeof header, &hello, sizeof hello);
  (void)::send(fd.get(), bytes, sizeof bytes, MSG_NOSIGNAL);
  Header answer;
  if (!take(fd, &answer, sizeof answer) || !check_header(answer) || answer.id != 7)
    return std::nullopt;
  return answer.code;
}

size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// No more files than are open now.
class NoFiles {
 public:
  NoFiles() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = 3;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~NoFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// No thread can be had: none has room for its stack.
class NoThreads {
 public:
  NoThreads() { set(size_t{1} << 46, &before_); }
  ~NoThreads() { set(before_, nullptr); }

 private:
  static void set(size_t bytes, size_t* before) {
    pthread_attr_t attributes;
    REQUIRE(pthread_getattr_default_np(&attributes) == 0);
    if (before != nullptr) pthread_attr_getstacksize(&attributes, before);
    pthread_attr_setstacksize(&attributes, bytes);
    REQUIRE(pthread_setattr_default_np(&attributes) == 0);
    pthread_attr_destroy(&attributes);
  }
  size_t before_ = 0;
};

struct Served {
  Served() {
    auto opened = Server::open({{"127.0.0.1:0"}, kSecret, 1s}, registry, kClock, metrics);
    REQUIRE(opened.has_value());
    server = std::move(*opened);
  }
  io::Fd connect() const { return connected(server->bound().front()); }
  Registry registry{Generation{1}};
  Metrics metrics;
  std::unique_ptr<Server> server;
};

// The sockets of this process that ask whether their peer is there: ms after which each gives up,
// and s of silence before it asks.
std::map<int, int> limits_of_sockets() {
  std::map<int, int> limits;
  for (int fd = 3; fd < 1024; ++fd) {
    int on = 0, ms = 0, idle = 0;
    socklen_t size = sizeof on;
    if (::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size) != 0 || on == 0) continue;
    (void)::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &size);
    (void)::getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size);
    limits[ms] = idle;
  }
  return limits;
}

}  // namespace

TEST_SUITE("xfer/acceptor") {
  TEST_CASE("a hello has 3 s in all, whatever drips in") {  // (F17)
    SetClock clock;
    Door door(clock);
    const io::Fd slow = connected(door.address());
    Nonce nonce{};
    REQUIRE(take(slow, nonce.data(), nonce.size()));
    for (int i = 0; i < 3; ++i) {
      clock.advance(1500ms);
      drip(slow);
    }
    CHECK(ended(slow));
    CHECK(door.refused.value() == 1);
    CHECK(greet(connected(door.address())) == 0);
  }

  TEST_CASE("the acceptor denies a peer that does not know the secret; noise ends its connection") {
    Door door;
    const io::Fd wrong = connected(door.address());
    CHECK(greet(wrong, std::string(32, 'x')) == static_cast<int>(Code::kDenied));
    CHECK(ended(wrong));
    const io::Fd noisy = connected(door.address());
    const std::string noise(100, 'n');
    (void)::send(noisy.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    CHECK(ended(noisy));
    CHECK(door.refused.value() == 2);
    CHECK(door.taker.taken == 0);
  }

  TEST_CASE("hundreds of unknown peers keep few slots, and lock nobody out") {  // (F17)
    Door door;
    std::vector<io::Fd> unknown;
    for (int i = 0; i < 300; ++i) {
      unknown.push_back(connected(door.address()));
      drip(unknown.back());
    }
    CHECK(greet(connected(door.address())) == 0);
    CHECK(door.refused.value() >= 300 - Acceptor::kUnprovenMax);
    CHECK(door.taker.taken == 1);
  }

  TEST_CASE("unknown peers of one address take no slot of another's") {  // (F17)
    Door door;
    const io::Fd guest = connected(door.address(), 2);
    std::vector<io::Fd> unknown;
    for (size_t i = 0; i < 2 * Acceptor::kUnprovenMax; ++i)
      unknown.push_back(connected(door.address(), 3));
    for (size_t i = 0; i < Acceptor::kUnprovenMax / 2; ++i) CHECK(ended(unknown[i]));
    CHECK(greet(guest) == 0);
  }

  TEST_CASE("without files the acceptor rests, and serves as soon as there are some") {  // (F15)
    Door door;
    const io::Fd waiting = new_socket();
    size_t turns = 0;
    {
      const NoFiles none;
      connect_to(waiting, door.address());
      pollfd nothing{waiting.get(), POLLIN, 0};
      const size_t before = door.taker.turns;
      CHECK(::poll(&nothing, 1, 500) == 0);
      turns = door.taker.turns - before;
    }
    CHECK(turns < 100);  // 5 rests, not as many turns as a CPU can do
    CHECK(greet(waiting) == 0);
  }

  TEST_CASE("out of files, peers that have not proved anything make room") {
    SetClock clock;  // (F15)
    Door door(clock);
    std::vector<io::Fd> idle, late;
    for (int i = 0; i < 4; ++i) idle.push_back(connected(door.address()));
    Nonce nonce{};
    for (const io::Fd& fd : idle) REQUIRE(take(fd, nonce.data(), nonce.size()));
    clock.advance(Acceptor::kTurn);
    for (int i = 0; i < 2; ++i) late.push_back(new_socket());
    rlimit before{}, now{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    now = before;
    now.rlim_cur = static_cast<rlim_t>(late.back().get()) + 1;  // all below are open, or few
    std::vector<io::Fd> fill;
    for (io::Fd fd = new_socket(); fd; fd = new_socket()) {
      if (fd.get() > late.back().get()) break;
      fill.push_back(std::move(fd));
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
    for (const io::Fd& fd : late) connect_to(fd, door.address());
    for (const io::Fd& fd : late) CHECK(greet(fd) == 0);
    ::setrlimit(RLIMIT_NOFILE, &before);
    size_t gone = 0;
    for (const io::Fd& fd : idle) {
      char none = 0;
      gone += ::recv(fd.get(), &none, 1, MSG_DONTWAIT) == 0 ? 1 : 0;
    }
    CHECK(gone >= 1);
  }

  TEST_CASE("where no thread can be had the server ends the connection, and lives") {  // (F14)
    const Served served;
    {
      const NoThreads none;
      const io::Fd peer = served.connect();
      CHECK(greet(peer) == 0);
      CHECK(ended(peer));
    }
    CHECK(greet(served.connect()) == 0);
  }

  TEST_CASE("a connection that ended holds no file, though nobody connects anew") {  // (F15)
    const Served served;
    const size_t before = open_files();
    {
      std::vector<io::Fd> peers;
      for (int i = 0; i < 20; ++i) {
        peers.push_back(served.connect());
        CHECK(greet(peers.back()) == 0);
      }
    }
    const Time limit = kClock.now() + 20s * kSlow;
    while (open_files() > before && kClock.now() < limit) std::this_thread::yield();
    CHECK(open_files() == before);
  }

  TEST_CASE("both ends notice a host that is gone within a minute") {  // (F18)
    CHECK(Stream::vanished_after(1s) == 10s);
    CHECK(Stream::vanished_after(3s) == 30s);
    CHECK(Stream::vanished_after(60s) == 45s);
    const Served served;
    auto stream = Stream::connect(served.server->bound().front().text(), kClock, 3s,
                                  []() -> Result<> { return {}; });
    REQUIRE(stream.has_value());
    Nonce nonce{};
    REQUIRE(stream->receive(nonce.data(), nonce.size(), []() -> Result<> { return {}; }));
    const io::Fd peer = served.connect();  // the owner ends its side as soon as this one is closed
    CHECK(greet(peer) == 0);
    // The owner's, the client's: ms after which each gives up, and s of silence before it asks. The
    // owner sets its own once it has answered.
    const std::map<int, int> wanted{{10'000, 5}, {30'000, 15}};
    const Time limit = kClock.now() + 20s * kSlow;
    while (limits_of_sockets() != wanted && kClock.now() < limit) std::this_thread::yield();
    CHECK(limits_of_sockets() == wanted);
  }
}

}  // namespace acceptor_test
