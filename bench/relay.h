// A relay before a data address, for what an interface cannot be told to do: delay by some
// milliseconds, or lose a share of its connections. Runs in a process of its own, for good.
#pragma once
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "base/time.h"
#include "base/units.h"
#include "io/address.h"
#include "io/fd.h"

namespace mc::bench {

inline Result<sockaddr_in> ipv4(const std::string& text) {
  MC_TRY(const io::Address address, io::parse_address(text));
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(address.port);
  if (::inet_pton(AF_INET, address.host.c_str(), &out.sin_addr) != 1)
    return fail(Code::kInvalid, "%s is no IPv4 address", text.c_str());
  return out;
}

// A listener on a free port of `host`, and its address.
inline Result<io::Fd> listen_at(const std::string& host, std::string* address) {
  MC_TRY(sockaddr_in at, ipv4(host + ":0"));
  socklen_t n = sizeof at;
  io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), n) != 0 || ::listen(fd.get(), 64) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &n) != 0)
    return fail_errno("listen");
  *address = host + ":" + std::to_string(ntohs(at.sin_port));
  return fd;
}

class Relay {
 public:
  struct Config {
    Duration delay{};   // each way
    double breaks = 0;  // of this share of the connections, within each MiB that goes back
    uint64_t seed = 1;
  };
  Relay(const Clock& clock, Config config) : clock_(clock), config_(config), random_(config.seed) {}

  [[noreturn]] void run(io::Fd listener, const std::string& target) {
    for (;;) {
      const int client = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
      const int owner = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const auto to = ipv4(target);
      if (client < 0 || !to ||
          ::connect(owner, reinterpret_cast<const sockaddr*>(&*to), sizeof *to) != 0) {
        ::close(owner);
        ::close(client);
        continue;
      }
      const int on = 1;
      for (const int fd : {client, owner})
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      // The sockets stay open until the process ends: they are few.
      for (const bool back : {false, true}) {
        pipes_.push_back(std::make_unique<Pipe>());
        Pipe& pipe = *pipes_.back();
        pipe.from = back ? owner : client;
        pipe.to = back ? client : owner;
        pipe.breaks = back ? config_.breaks : 0;
        pipe.random = Random(random_.next());
        threads_.emplace_back([this, &pipe] { take(pipe); });
        threads_.emplace_back([this, &pipe] { give(pipe); });
      }
    }
  }

 private:
  struct Pipe {  // one direction
    int from = -1, to = -1;
    double breaks = 0;
    Random random{1};
    Mutex mutex;
    Condition changed;
    size_t held MC_GUARDED_BY(mutex) = 0;
    bool ended MC_GUARDED_BY(mutex) = false;
    std::deque<std::pair<Time, std::vector<char>>> bytes MC_GUARDED_BY(mutex);
  };
  static constexpr size_t kHeldMost = 4 * kMiB;

  void take(Pipe& pipe) {
    std::vector<char> chunk(64 * kKiB);
    for (;;) {
      const ssize_t n = ::recv(pipe.from, chunk.data(), chunk.size(), 0);
      Lock lock(pipe.mutex);
      pipe.changed.notify_all();
      if (n <= 0) {
        pipe.ended = true;
        return;
      }
      pipe.bytes.emplace_back(clock_.now() + config_.delay,
                              std::vector<char>(chunk.data(), chunk.data() + n));
      pipe.held += static_cast<size_t>(n);
      while (pipe.held > kHeldMost && !pipe.ended) pipe.changed.wait(pipe.mutex);
    }
  }

  // The next bytes once their time has come; none: the end.
  std::vector<char> next(Pipe& pipe) {
    Lock lock(pipe.mutex);
    for (;;) {
      while (pipe.bytes.empty() && !pipe.ended) pipe.changed.wait(pipe.mutex);
      if (pipe.bytes.empty()) return {};
      const Duration left = pipe.bytes.front().first - clock_.now();
      if (left.count() <= 0) break;
      pipe.changed.wait_for(pipe.mutex, left);
    }
    auto chunk = std::move(pipe.bytes.front().second);
    pipe.bytes.pop_front();
    pipe.held -= chunk.size();
    pipe.changed.notify_all();
    return chunk;
  }

  void give(Pipe& pipe) {
    uint64_t given = 0;
    for (auto chunk = next(pipe); !chunk.empty(); chunk = next(pipe)) {
      for (size_t at = 0; at < chunk.size();) {
        const ssize_t n = ::send(pipe.to, chunk.data() + at, chunk.size() - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += static_cast<size_t>(n);
      }
      const uint64_t before = given;
      given += chunk.size();
      if (before / kMiB != given / kMiB && pipe.breaks > 0 && pipe.random.chance(pipe.breaks))
        break;
    }
    for (const int fd : {pipe.from, pipe.to}) ::shutdown(fd, SHUT_RDWR);
    Lock lock(pipe.mutex);
    pipe.ended = true;
    pipe.changed.notify_all();
  }

  const Clock& clock_;
  const Config config_;
  Random random_;
  std::vector<std::unique_ptr<Pipe>> pipes_;
  std::vector<std::thread> threads_;  // the process ends before they do
};

}  // namespace mc::bench
