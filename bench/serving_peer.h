// Another process that offers memory, for the transfer benchmarks. Start it before any thread.
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/figure.h"
#include "io/file.h"
#include "wire/codec.h"
#include "xfer/engine.h"

namespace mc::bench {

class ServingPeer {
 public:
  // `set_up` runs in the other process, before its engine opens.
  using SetUp = std::function<void(xfer::EngineOptions&)>;
  static Result<std::unique_ptr<ServingPeer>> start(const Clock& clock, uint64_t bytes,
                                                    const SetUp& set_up = {}) {
    int fds[2];
    if (::pipe(fds) != 0) return fail_errno("pipe");
    auto peer = std::unique_ptr<ServingPeer>(new ServingPeer(::fork()));
    if (peer->pid_ == 0) {
      serve(clock, bytes, set_up, fds[1]);
      ::_exit(1);
    }
    ::close(fds[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(fds[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    ::close(fds[0]);
    MC_TRY(peer->segment, wire::decode<xfer::SegmentDescriptor>(text));
    return peer;
  }
  ~ServingPeer() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ServingPeer(const ServingPeer&) = delete;
  ServingPeer& operator=(const ServingPeer&) = delete;

  pid_t pid() const { return pid_; }
  xfer::SegmentDescriptor segment;

 private:
  explicit ServingPeer(pid_t pid) : pid_(pid) {}
  static void serve(const Clock& clock, uint64_t bytes, const SetUp& set_up, int pipe) {
    Metrics metrics;
    xfer::EngineOptions options;
    options.node = "peer";
    if (set_up) set_up(options);
    auto engine = xfer::Engine::open(clock, options, metrics);
    if (!engine) return;
    auto memory = (*engine)->allocate(bytes);
    if (!memory) return;
    const std::string text = wire::encode((*engine)->describe());
    if (::write(pipe, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return;
    ::close(pipe);
    for (;;) ::pause();
  }
  pid_t pid_;
};

// CPU seconds of another process so far, to the clock tick.
inline double cpu_of(pid_t pid) {
  const auto text = io::read_file("/proc/" + std::to_string(pid) + "/stat");
  unsigned long long user = 0, system = 0;
  if (text)
    std::sscanf(text->c_str() + text->rfind(')'),
                ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// GB/s of work that moves `bytes`, and what it costs both processes.
inline Result<Measured> measured(const Clock& clock, pid_t peer, uint64_t bytes,
                                 const std::function<Result<>()>& work) {
  const double cpu = cpu_seconds() + cpu_of(peer);
  const Time start = clock.now();
  MC_TRY_(work());
  const double seconds = to_seconds(clock.now() - start), n = static_cast<double>(bytes);
  return Measured(n / 1e9 / seconds, (cpu_seconds() + cpu_of(peer) - cpu) * 1e9 / (n / 1024));
}

inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  Random random(seed);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
}

}  // namespace mc::bench
