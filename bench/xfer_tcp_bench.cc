// tcp transfers to another process against a raw socket stream, as iperf3 makes one: the sender
// writes the same buffer in large steps, the receiver reads into the same memory; same number of
// streams and the same congestion control.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "io/fd.h"

namespace mc::bench {
namespace {

constexpr uint64_t kMemory = 64 * kMiB;
constexpr size_t kStep = 1 * kMiB;

// A child that reads streams to their end, forever.
class RawSink {
 public:
  static Result<std::unique_ptr<RawSink>> start() {
    io::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof address;
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), n) != 0 ||
        ::listen(listener.get(), 16) != 0 ||
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &n) != 0)
      return fail_errno("listen for the raw stream");
    auto sink = std::unique_ptr<RawSink>(new RawSink);
    sink->address_ = address;
    sink->pid_ = ::fork();
    if (sink->pid_ == 0) serve(listener.get());
    return sink;
  }
  ~RawSink() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RawSink(const RawSink&) = delete;
  RawSink& operator=(const RawSink&) = delete;

  Result<io::Fd> connect() const {
    io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (const char* name : {"reno", "cubic"})
      if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name,
                       static_cast<socklen_t>(std::strlen(name))) == 0)
        break;
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0)
      return fail_errno("connect the raw stream");
    return fd;
  }

 private:
  RawSink() = default;
  [[noreturn]] static void serve(int listener) {
    std::vector<std::thread> threads;
    for (;;) {
      const int fd = ::accept(listener, nullptr, nullptr);
      threads.emplace_back([fd] {
        std::vector<std::byte> into(kStep);
        uint64_t left = 0;
        // Each burst: its length, then its bytes, then one byte back.
        while (::recv(fd, &left, sizeof left, MSG_WAITALL) == static_cast<ssize_t>(sizeof left)) {
          while (left > 0) {
            const ssize_t n = ::recv(fd, into.data(), std::min<uint64_t>(left, into.size()), 0);
            if (n <= 0) ::_exit(1);
            left -= static_cast<uint64_t>(n);
          }
          const char done = 1;
          if (::send(fd, &done, 1, MSG_NOSIGNAL) != 1) ::_exit(1);
        }
        ::close(fd);
      });
    }
  }
  sockaddr_in address_{};
  pid_t pid_ = 0;
};

Result<> burst(int fd, std::span<const std::byte> bytes) {
  const uint64_t length = bytes.size();
  if (::send(fd, &length, sizeof length, MSG_NOSIGNAL | MSG_MORE) < 0) return fail_errno("send");
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), std::min(bytes.size(), kStep), MSG_NOSIGNAL);
    if (n < 0) return fail_errno("send");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  char done = 0;
  if (::recv(fd, &done, 1, MSG_WAITALL) != 1) return fail(Code::kUnavailable, "raw stream ended");
  return {};
}

Result<> raw_round(const std::vector<io::Fd>& streams, std::span<const std::byte> bytes) {
  std::vector<std::thread> threads;
  std::vector<Result<>> outcomes(streams.size());
  const size_t part = bytes.size() / streams.size();
  for (size_t i = 1; i < streams.size(); ++i)
    threads.emplace_back(
        [&, i] { outcomes[i] = burst(streams[i].get(), bytes.subspan(i * part, part)); });
  outcomes[0] = burst(streams[0].get(), bytes.first(part));
  for (auto& t : threads) t.join();
  for (auto& outcome : outcomes) MC_TRY_(std::move(outcome));
  return {};
}

Result<int> run(const Options& o) {
  SteadyClock clock;
  MC_TRY(auto sink, RawSink::start());
  MC_TRY(auto peer, ServingPeer::start(clock, kMemory));
  for (const uint32_t streams : {1u, 2u}) {
    Metrics metrics;
    xfer::EngineOptions options;
    options.node = "bench";
    options.transports = {"tcp"};
    options.connections = streams;
    MC_TRY(auto engine, xfer::Engine::open(clock, options, metrics));
    MC_TRY(const auto segment, engine->open_segment(peer->segment));
    MC_TRY(const xfer::Memory local, engine->allocate(kMemory));
    fill(local.bytes(), 1);
    const std::vector<std::byte> want(local.bytes().begin(), local.bytes().end());
    std::vector<io::Fd> raw;
    for (uint32_t i = 0; i < streams; ++i) {
      MC_TRY(io::Fd fd, sink->connect());
      raw.push_back(std::move(fd));
    }
    const size_t rounds = o.quick ? 6 : 16;
    for (const auto op : {xfer::Op::kWrite, xfer::Op::kRead}) {
      xfer::Request r;
      r.op = op;
      r.segment = segment;
      r.local = local.data();
      r.bytes = kMemory;
      auto ours = [&] {
        return gigabytes(clock, kMemory, rounds,
                         [&] { return engine->transfer_sync(r, std::chrono::seconds(20)); });
      };
      auto theirs = [&] {
        return gigabytes(clock, kMemory, rounds, [&] { return raw_round(raw, want); });
      };
      const std::string n = " x" + std::to_string(streams);
      MC_TRY_(compare({"xfer-tcp", (op == xfer::Op::kWrite ? "write" : "read") + (" 64MiB" + n),
                       "GB/s", "raw stream 64MiB" + n},
                      o.turns(), ours, theirs));
      if (std::memcmp(local.data(), want.data(), kMemory) != 0)
        return fail(Code::kCorrupt, "contents differ after tcp transfers");
    }
  }
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_tcp_bench", "tcp transfers against a raw socket stream");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
