// The peer of the tcp benchmark: a child process and plain sockets that move the same bytes between
// the same amounts of memory as a transfer does, with large blocking calls and nothing else.
#pragma once
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/fd.h"

namespace mc::bench {

inline constexpr const char* kCongestion[] = {"reno", "cubic"};  // as lib/xfer/tcp asks for

// The next order of a stream; then bytes flow, and after those that the child takes, one
// byte back.
struct Ask {
  uint64_t bytes = 0;   // in all
  uint64_t region = 0;  // of memory they come from or go to, again and again
  uint64_t to_child = 0;
};

class RawPair {
 public:
  static constexpr uint64_t kMemory = 64 << 20;
  static Result<std::unique_ptr<RawPair>> start() {
    io::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof address;
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), n) != 0 ||
        ::listen(listener.get(), 16) != 0 ||
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &n) != 0)
      return fail_errno("listen for the raw pair");
    auto pair = std::unique_ptr<RawPair>(new RawPair);
    pair->address_ = address;
    pair->pid_ = ::fork();
    if (pair->pid_ == 0) serve(listener.get());
    return pair;
  }
  ~RawPair() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RawPair(const RawPair&) = delete;
  RawPair& operator=(const RawPair&) = delete;
  pid_t pid() const { return pid_; }

  Result<io::Fd> connect() const {
    io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    tune(fd.get());
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0)
      return fail_errno("connect the raw pair");
    return fd;
  }

  // Moves the bytes of `ask` over each stream at once, between `mine` (a part for each) and the
  // child's memory.
  static Result<> move(const std::vector<io::Fd>& streams, std::span<std::byte> mine, Ask ask) {
    std::vector<std::thread> threads;
    std::vector<int> good(streams.size(), 0);
    ask.bytes /= streams.size();
    ask.region /= streams.size();
    for (size_t i = 0; i < streams.size(); ++i)
      threads.emplace_back([&, i] {
        const int fd = streams[i].get();
        const auto part = mine.subspan(i * ask.region, ask.region);
        char done = 1;
        good[i] = ::send(fd, &ask, sizeof ask, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof ask) &&
                  flow(fd, part, ask.bytes, ask.to_child != 0) &&
                  (ask.to_child == 0 || ::recv(fd, &done, 1, MSG_WAITALL) == 1);
      });
    for (auto& t : threads) t.join();
    for (const int ok : good)
      if (ok == 0) return fail(Code::kUnavailable, "a raw stream ended");
    return {};
  }

  // One question, one answer of `answer.size()` bytes.
  static bool ping(int fd, std::span<std::byte> answer) {
    const Ask ask{answer.size(), answer.size(), 0};
    return ::send(fd, &ask, sizeof ask, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof ask) &&
           ::recv(fd, answer.data(), answer.size(), MSG_WAITALL) ==
               static_cast<ssize_t>(answer.size());
  }

 private:
  static constexpr size_t kStep = 1 << 20;
  RawPair() = default;
  static void tune(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (const char* name : kCongestion)
      if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                       static_cast<socklen_t>(std::strlen(name))) == 0)
        break;
  }
  static bool flow(int fd, std::span<std::byte> region, uint64_t bytes, bool sending) {
    size_t at = 0;
    while (bytes > 0) {
      const size_t n = std::min<uint64_t>({bytes, region.size() - at, kStep});
      const ssize_t moved = sending ? ::send(fd, region.data() + at, n, MSG_NOSIGNAL)
                                    : ::recv(fd, region.data() + at, n, MSG_WAITALL);
      if (moved <= 0) return false;
      bytes -= static_cast<uint64_t>(moved);
      at += static_cast<size_t>(moved);
      if (at == region.size()) at = 0;
    }
    return true;
  }
  [[noreturn]] static void serve(int listener) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::thread> threads;
    for (;;) {
      const int fd = ::accept(listener, nullptr, nullptr);
      tune(fd);
      threads.emplace_back([fd] {
        std::vector<std::byte> memory(kMemory);
        std::memset(memory.data(), 1, memory.size());
        Ask ask;
        while (::recv(fd, &ask, sizeof ask, MSG_WAITALL) == static_cast<ssize_t>(sizeof ask)) {
          const char done = 1;
          const auto region = std::span(memory).first(std::min<uint64_t>(ask.region, kMemory));
          if (!flow(fd, region, ask.bytes, ask.to_child == 0) ||
              (ask.to_child != 0 && ::send(fd, &done, 1, MSG_NOSIGNAL) != 1))
            break;
        }
        ::close(fd);
      });
    }
  }
  sockaddr_in address_{};
  pid_t pid_ = 0;
};

}  // namespace mc::bench
