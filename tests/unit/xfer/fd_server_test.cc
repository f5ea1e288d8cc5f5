// Processes of this host that ask for memory, or only connect; and what is left when files run out.
#include "xfer/transports/shm/fd_server.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ctime>

#include "base/result.h"
#include "io/local_socket.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace fd_server_test {
namespace {

struct Offer {
  Offer() {
    auto opened = FdServer::open(registry, clock);
    REQUIRE(opened.has_value());
    server = std::move(*opened);
    auto allocated = registry.allocate(8192, true, "*");
    REQUIRE(allocated.has_value());
    buffer = *allocated;
  }
  io::Fd connect() const {
    io::Fd fd = new_socket();
    REQUIRE(io::connect_local(fd.get(), server->name()) == 0);
    return fd;
  }
  static io::Fd new_socket() { return io::Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }
  bool serves() const { return fetch_fd(server->name(), buffer->shm_id).has_value(); }
  const SteadyClock clock;
  Registry registry{Generation{1}};
  std::unique_ptr<FdServer> server;
  BufferPtr buffer;
};

bool readable(const io::Fd& fd, int ms) {
  pollfd p{fd.get(), POLLIN, 0};
  return ::poll(&p, 1, ms) == 1;
}

double cpu_seconds() {  // of this process
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

TEST_SUITE("xfer/fd_server") {
  TEST_CASE("who asks an owner that does not answer may give up at any time") {  // (F60)
    const io::Fd listener = Offer::new_socket();
    const std::string name = strf("mc-test-%d-answers-nobody", ::getpid());
    REQUIRE(io::bind_local(listener.get(), name) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
    int asked = 0;
    const auto got = fetch_fd(name, 1, [&] { return ++asked == 3; });
    REQUIRE_FALSE(got.has_value());
    CHECK(got.error().code == Code::kTimeout);
    CHECK(asked == 3);
  }

  TEST_CASE("a peer that says nothing delays no other") {  // (F24)
    const Offer offer;
    std::vector<io::Fd> silent;
    for (int i = 0; i < 10; ++i) silent.push_back(offer.connect());
    for (int i = 0; i < 3; ++i) CHECK(offer.serves());  // a wait for each would outlast our own
    for (const io::Fd& fd : silent) CHECK_FALSE(readable(fd, 0));
    const uint32_t id = offer.buffer->shm_id;  // late, and answered all the same
    REQUIRE(::send(silent[9].get(), &id, sizeof id, MSG_NOSIGNAL) == sizeof id);
    CHECK(readable(silent[9], 20'000 * kSlow));
  }

  TEST_CASE("silent peers keep few places, the newest of them") {  // (F24)
    const Offer offer;
    std::vector<io::Fd> silent;
    for (size_t i = 0; i < FdServer::kPendingMax + 20; ++i) silent.push_back(offer.connect());
    for (size_t i = 0; i < 20; ++i) {
      REQUIRE(readable(silent[i], 20'000 * kSlow));
      char none = 0;
      CHECK(::recv(silent[i].get(), &none, 1, 0) <= 0);
    }
    CHECK(offer.serves());
  }

  TEST_CASE("without files the server rests, and serves as soon as there are some") {  // (F16)
    const Offer offer;
    const io::Fd waiting = Offer::new_socket();
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit none = before;
    none.rlim_cur = 3;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const int connected = io::connect_local(waiting.get(), offer.server->name());
    const uint32_t id = offer.buffer->shm_id;
    const ssize_t sent = ::send(waiting.get(), &id, sizeof id, MSG_NOSIGNAL);
    const double cpu = cpu_seconds();
    const bool answered = readable(waiting, 500);
    const double used = cpu_seconds() - cpu;
    ::setrlimit(RLIMIT_NOFILE, &before);
    CHECK(connected == 0);
    CHECK(sent == sizeof id);
    CHECK_FALSE(answered);
    CHECK(used < 0.2);
    CHECK(readable(waiting, 20'000 * kSlow));
    CHECK(offer.serves());
  }
}

}  // namespace fd_server_test
