// Another process that offers memory, and the descriptor by which it is reached.
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/conformance/pair.h"

namespace mc::xfer {

struct ChildOptions {
  std::vector<std::string> transports{"shm"};
  bool application_memory = false;  // else the engine's
  uint64_t bytes = 1 * kMiB;
  uid_t uid = 0;  // not 0: becomes that user first
};

// Offers memory filled from seed 11 until it is killed.
class Child {
 public:
  SegmentDescriptor segment;
  explicit Child(const ChildOptions& o) {
    int fds[2];
    REQUIRE(::pipe(fds) == 0);
    pid_ = ::fork();
    if (pid_ == 0) offer(o, fds[1]);
    ::close(fds[1]);  // a child that dies early is then an end of file, not a silence
    uint64_t n = 0;
    REQUIRE(::read(fds[0], &n, sizeof n) == static_cast<ssize_t>(sizeof n));
    std::string text(n, '\0');
    REQUIRE(::read(fds[0], text.data(), n) == static_cast<ssize_t>(n));
    ::close(fds[0]);
    auto decoded = wire::decode<SegmentDescriptor>(text);
    REQUIRE(decoded.has_value());
    segment = *decoded;
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Alive, but says nothing: as a machine that hangs.
  void halt() {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() { ::kill(pid_, SIGCONT); }

 private:
  [[noreturn]] static void offer(const ChildOptions& o, int pipe) {
    if (o.uid != 0 && ::setuid(o.uid) != 0) ::_exit(1);
    auto engine = make_engine("child", o.transports);
    std::vector<std::byte> mine(o.application_memory ? o.bytes : 0);
    auto memory = o.application_memory ? engine->register_memory(mine) : engine->allocate(o.bytes);
    if (!memory) ::_exit(1);
    fill(memory->bytes(), 11);
    const std::string text = wire::encode(engine->describe());
    const uint64_t n = text.size();
    if (::write(pipe, &n, sizeof n) < 0 || ::write(pipe, text.data(), n) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  pid_t pid_ = 0;
};

inline Request read_of(SegmentHandle segment, uint64_t offset, std::span<std::byte> local) {
  Request r;
  r.segment = segment;
  r.offset = offset;
  r.local = local.data();
  r.bytes = local.size();
  return r;
}

// `n` reads of the same bytes, each into a part of `local` of its own: parts of memory that two
// reads fill at once would be a race of the test.
inline std::vector<Request> reads_of(SegmentHandle segment, uint64_t offset,
                                     std::span<std::byte> local, size_t n) {
  std::vector<Request> all;
  const size_t each = local.size() / n;
  for (size_t i = 0; i < n; ++i)
    all.push_back(read_of(segment, offset, local.subspan(i * each, each)));
  return all;
}

}  // namespace mc::xfer
