#include "rpc/probe.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include "io/fd.h"

namespace mc::rpc {
namespace {

using namespace std::chrono_literals;

struct Port {  // of this machine; it refuses until it listens
  explicit Port(bool listens) : fd(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof at;
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), n) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &n) == 0);
    if (listens) REQUIRE(::listen(fd.get(), 4) == 0);
    address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  io::Fd fd;
  std::string address;
};

TEST_CASE("the first that listens is found, however many before it are gone") {
  const SteadyClock clock;
  const Port gone(false), one(true), two(true);
  const auto first = [&](const std::vector<std::string>& of) {
    return first_listening(of, 10s, clock);
  };
  const Time start = clock.now();
  CHECK(first({one.address, two.address}) == 0);
  CHECK(first({gone.address, one.address, two.address}) == 1);
  CHECK(first({gone.address, "no address", two.address}) == 2);
  CHECK(first({gone.address, gone.address}) == SIZE_MAX);
  CHECK(first({}) == SIZE_MAX);
  CHECK(clock.now() - start < 9s);  // nobody was waited for to the end
}

}  // namespace
}  // namespace mc::rpc
