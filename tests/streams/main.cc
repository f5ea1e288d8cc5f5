// Holds idle streams: clients, and the workers behind a conductor.
//
// It measures what ten thousand streams cost the conductor (tests/net/idle_streams.sh).
//
//   streams workers CONTROL READY     workers of a conductor: a first token, then silence
//   streams clients HTTP N READY      holds N streams until its stdin ends; then each must be open
//
// READY is a file, written once they are there.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "base/log.h"
#include "bench/front_mocks.h"
#include "io/address.h"
#include "io/fd.h"
#include "io/file.h"
#include "io/limits.h"

namespace mc {
namespace {

constexpr size_t kAsking = 128;  // at once without a first token
constexpr int kFirstTokenMs = 60'000;

int workers(const std::string& control, const std::string& ready) {
  const SteadyClock clock;
  io::Loop loop(clock);
  bench::MockWorker decode(loop, control, "d0", false, 256);
  bench::MockWorker prefill(loop, control, "p0", true, 256);
  decode.hold = true;
  prefill.computed = [&decode](const std::string& request) { decode.begin(request); };
  while (!decode.joined() || !prefill.joined())
    MC_CHECK(loop.turn(std::chrono::milliseconds(20)).has_value());
  MC_CHECK(io::write_file_atomically(ready, "joined\n").has_value());
  return loop.run() ? 0 : 1;
}

struct Stream {
  io::Fd fd;
  std::string seen;
};

Stream ask(const io::Address& address, size_t number) {
  Stream s{io::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  MC_CHECK(s.fd);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  MC_CHECK(::inet_pton(AF_INET, address.host.c_str(), &to.sin_addr) == 1);
  MC_CHECK(::connect(s.fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  const std::string body = strf(
      R"({"model":"tiny","prompt":"stream number %zu","max_tokens":100,"stream":true})", number);
  const std::string text = strf(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: %zu\r\n\r\n%s",
      body.size(), body.c_str());
  MC_CHECK(::send(s.fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size()));
  return s;
}

// False when it was closed.
bool take(Stream& s) {
  char buffer[4096];
  for (;;) {
    const auto n = ::recv(s.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    s.seen.append(buffer, static_cast<size_t>(n));
  }
}

int clients(const std::string& http, size_t n, const std::string& ready) {
  (void)io::raise_open_files(n + 100);
  const auto address = io::parse_address(http);
  MC_CHECK(address.has_value());
  std::deque<Stream> asking, open;
  for (size_t asked = 0; open.size() < n;) {
    while (asked < n && asking.size() < kAsking) asking.push_back(ask(*address, asked++));
    std::vector<pollfd> fds;
    for (const Stream& s : asking) fds.push_back({s.fd.get(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), kFirstTokenMs) <= 0) {
      std::fprintf(stderr, "streams: %zu open, and no first token for a minute\n", open.size());
      return 1;
    }
    for (size_t i = asking.size(); i-- > 0;) {
      Stream s = std::move(asking.front());
      asking.pop_front();
      if (!take(s)) {
        std::fprintf(stderr, "streams: closed: %s\n", s.seen.c_str());
        return 1;
      }
      (s.seen.find("data: {") == std::string::npos ? asking : open).push_back(std::move(s));
    }
  }
  MC_CHECK(io::write_file_atomically(ready, "open\n").has_value());
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  const auto whole = static_cast<size_t>(std::count_if(open.begin(), open.end(), take));
  std::printf("%zu of %zu streams are open\n", whole, n);
  return whole == n ? 0 : 1;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "workers" && argc == 4) return mc::workers(argv[2], argv[3]);
  if (what == "clients" && argc == 5)
    return mc::clients(argv[2], static_cast<size_t>(std::atol(argv[3])), argv[4]);
  std::fputs("usage: streams workers CONTROL READY | streams clients HTTP N READY\n", stderr);
  return 2;
}
