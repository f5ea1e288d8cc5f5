// Transfers by rdma against perftest on the same emulated NICs, taking turns: the bandwidth of
// writes and reads, each over one block again and again, as perftest does it; the latency of small
// writes; what registering memory costs; four capped NICs against the sum of their rates; and what
// a pool of 64 queue pairs has to make anew for 1000 peers.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/hash.h"
#include "base/random.h"
#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "xfer/transports/rdma/open.h"

namespace mc::bench {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMemory = 64 * kMiB;
constexpr Duration kBudget = std::chrono::seconds(60);
constexpr int kSkipped = 77;
constexpr size_t kNics = 4;
constexpr uint64_t kCap = 400'000'000;  // of each NIC, bytes a second

struct RdmaOptions : Options {
  std::string only;
  void describe(OptionList& v) {
    Options::describe(v);
    v("only", only, "only figures whose name begins so, such as 'write 64KiB'");
  }
  bool wants(const std::string& name) const { return name.starts_with(only); }
};

struct Case {
  const char* name;
  xfer::Op op;
  uint64_t block, bytes;  // of a turn
};

// Runs a program with the emulator's library, as a host of the fabric; its standard output.
class Child {
 public:
  Child(const std::vector<std::string>& words, int host) {
    if (::pipe(fds_) != 0) return;
    pid_ = ::fork();
    if (pid_ != 0) {
      ::close(fds_[1]);
      return;
    }
    ::setenv("VERBS_EMU_HOST", std::to_string(host).c_str(), 1);
    ::dup2(fds_[1], 1);
    ::dup2(fds_[1], 2);
    ::close(fds_[0]);
    std::vector<char*> argv;
    for (const auto& w : words) argv.push_back(const_cast<char*>(w.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ~Child() { (void)end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Result<std::string> end() {
    if (pid_ <= 0) return text_;
    std::array<char, 65536> buffer{};
    for (ssize_t n = 0; (n = ::read(fds_[0], buffer.data(), buffer.size())) > 0;)
      text_.append(buffer.data(), static_cast<size_t>(n));
    ::close(fds_[0]);
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      return fail(Code::kUnavailable, "a program failed: %s", text_.c_str());
    return text_;
  }

 private:
  int fds_[2] = {-1, -1};
  pid_t pid_ = 0;
  std::string text_;
};

Result<std::string> output_of(const std::vector<std::string>& words) {
  return Child(words, 0).end();
}

// The numbers of perftest's one row of results.
Result<std::vector<double>> row_of(const std::string& text) {
  std::istringstream lines(text);
  bool header = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("#bytes") != std::string::npos) {
      header = true;
      continue;
    }
    std::istringstream words(line);
    std::vector<double> row;
    for (double v = 0; header && words >> v;) row.push_back(v);
    if (row.size() >= 4) return row;
  }
  return fail(Code::kCorrupt, "no result in: %s", text.c_str());
}

Result<std::vector<double>> perftest(const std::string& tool, uint64_t size, uint64_t n) {
  static int port = 10000 + ::getpid() % 20000;  // below those that clients are given
  const std::vector<std::string> words{tool, "-F",
                                       "-d", "emu0",
                                       "-s", std::to_string(size),
                                       "-n", std::to_string(n),
                                       "-p", std::to_string(++port)};
  Child server(words, 0);
  auto with = words;
  with.push_back("localhost");
  Result<std::string> text = fail(Code::kUnavailable, "%s", "not tried");
  for (int attempt = 0; attempt < 200 && !text; ++attempt) {
    text = Child(with, 1).end();  // until the server listens
    if (!text && text.error().what.find("Couldn't connect") == std::string::npos) break;
  }
  MC_TRY(const std::string result, text);
  MC_TRY_(server.end());
  return row_of(result);
}

void on_host_0(xfer::EngineOptions& options) {
  ::setenv("VERBS_EMU_HOST", "0", 1);
  options.transports = {"rdma"};
}

class Ours {
 public:
  static Result<std::unique_ptr<Ours>> open(const Clock& clock, const ServingPeer& peer,
                                            std::vector<std::string> nics) {
    auto ours = std::unique_ptr<Ours>(new Ours(clock));
    xfer::EngineOptions options;
    options.node = "bench";
    options.transports = {"rdma"};
    options.nics = std::move(nics);
    options.share_table = "";
    MC_TRY(ours->engine_, xfer::Engine::open(clock, options, ours->metrics_));
    MC_TRY(ours->memory_, ours->engine_->allocate(kMemory));
    fill(ours->memory_.bytes(), 3);
    MC_TRY(ours->segment_, ours->engine_->open_segment(peer.segment));
    return ours;
  }
  // GB/s of blocks at one place, again and again.
  Result<Measured> bandwidth(const Case& c) {
    const std::vector<xfer::Request> requests(
        static_cast<size_t>(std::clamp<uint64_t>(16 * kMiB / c.block, 2, 128)),
        request(c.op, c.block));
    const uint64_t rounds = std::max<uint64_t>(1, c.bytes / c.block / requests.size());
    return gigabytes(clock_, c.block * requests.size(), rounds, [&]() -> Result<> {
      const xfer::BatchId batch = engine_->allocate_batch();
      Result<> outcome = engine_->submit(batch, requests);
      if (outcome) outcome = engine_->wait(batch, kBudget);
      engine_->free_batch(batch);
      return outcome;
    });
  }
  // Microseconds of a write that is waited for.
  Result<Measured> latency(uint64_t bytes, size_t n) {
    const xfer::Request r = request(xfer::Op::kWrite, bytes);
    const Time start = clock_.now();
    for (size_t i = 0; i < n; ++i) MC_TRY_(engine_->transfer_sync(r, kBudget));
    return Measured(to_seconds(clock_.now() - start) * 1e6 / static_cast<double>(n));
  }
  // The same from memory of the application that nobody registered: it is, for each write.
  Result<Measured> unregistered(uint64_t bytes, size_t n) {
    std::vector<std::byte> own(bytes, std::byte{3});
    xfer::Request r = request(xfer::Op::kWrite, bytes);
    r.local = own.data();
    const Time start = clock_.now();
    for (size_t i = 0; i < n; ++i) MC_TRY_(engine_->transfer_sync(r, kBudget));
    return Measured(to_seconds(clock_.now() - start) * 1e6 / static_cast<double>(n));
  }
  Result<> check() {
    xfer::Request r = request(xfer::Op::kWrite, kMemory);
    MC_TRY_(engine_->transfer_sync(r, kBudget));
    const uint64_t sum = xxh3(memory_.data(), memory_.size());
    std::memset(memory_.data(), 0, memory_.size());
    r.op = xfer::Op::kRead;
    MC_TRY_(engine_->transfer_sync(r, kBudget));
    if (xxh3(memory_.data(), memory_.size()) == sum) return {};
    return fail(Code::kCorrupt, "what was read is not what was written");
  }

 private:
  explicit Ours(const Clock& clock) : clock_(clock) {}
  xfer::Request request(xfer::Op op, uint64_t bytes) const {
    xfer::Request r;
    r.op = op;
    r.local = memory_.data();
    r.bytes = bytes;
    r.segment = segment_;
    return r;
  }
  const Clock& clock_;
  Metrics metrics_;
  std::unique_ptr<xfer::Engine> engine_;
  xfer::Memory memory_;
  xfer::SegmentHandle segment_ = 0;
};

Result<> one_nic(const Clock& clock, const RdmaOptions& o, const ServingPeer& peer) {
  MC_TRY(auto ours, Ours::open(clock, peer, {"emu0"}));
  const uint64_t scale = o.quick ? 1 : 3;
  const size_t turns = o.quick ? 5 : o.turns();  // perftest takes a second and more to begin
  const std::vector<Case> cases{
      {"write 64KiB", xfer::Op::kWrite, 64 * kKiB, scale * 512 * kMiB},
      {"write 1MiB", xfer::Op::kWrite, kMiB, scale * 512 * kMiB},
      {"write 64MiB", xfer::Op::kWrite, 64 * kMiB, scale * 512 * kMiB},
      {"read 64KiB", xfer::Op::kRead, 64 * kKiB, scale * 512 * kMiB},
      {"read 1MiB", xfer::Op::kRead, kMiB, scale * 512 * kMiB},
      {"read 64MiB", xfer::Op::kRead, 64 * kMiB, scale * 512 * kMiB},
  };
  for (const Case& c : cases) {
    if (!o.wants(c.name)) continue;
    const std::string tool = c.op == xfer::Op::kWrite ? "ib_write_bw" : "ib_read_bw";
    MC_TRY_(compare(
        {"xfer-rdma", c.name, "GB/s", tool, 0.9}, turns, [&] { return ours->bandwidth(c); },
        [&]() -> Result<Measured> {
          const uint64_t n = std::max<uint64_t>(c.bytes / c.block, 5);
          MC_TRY(const auto row, perftest(tool, c.block, n));
          return Measured(row[3] * 1048576 / 1e9);  // MiB a second, on average
        }));
  }
  // What it costs here to register memory for each write. The emulator pins no page: what a NIC's
  // driver needs for that comes on top.
  if (o.wants("write 64KiB, known memory")) {
    const size_t writes = o.quick ? 2'000 : 10'000;
    MC_TRY_(compare(
        {"xfer-rdma", "write 64KiB, known memory", "us", "unknown, no page pinned", 1, true}, turns,
        [&] { return ours->latency(64 * kKiB, writes); },
        [&] { return ours->unregistered(64 * kKiB, writes); }));
  }
  const size_t n = o.quick ? 20'000 : 100'000;
  if (!o.wants("write 64B")) return ours->check();
  MC_TRY_(compare(
      {"xfer-rdma", "write 64B", "us", "ib_write_lat", 0.667, true}, turns,
      [&] { return ours->latency(64, n); },
      [&]() -> Result<Measured> {
        MC_TRY(const auto row, perftest("ib_write_lat", 64, n));
        if (row.size() < 6)
          return fail(Code::kCorrupt, "ib_write_lat gives %zu numbers", row.size());
        return Measured(row[5]);  // on average
      }));
  return ours->check();
}

Result<> four_nics(const Clock& clock, const RdmaOptions& o, const ServingPeer& peer,
                   const std::string& emulator) {
  std::vector<std::string> nics;
  for (size_t i = 0; i < kNics; ++i) {
    nics.push_back("emu" + std::to_string(i));
    for (const char* host : {"0", "1"})
      MC_TRY_(output_of({emulator, "set", std::string(host) + ":" + nics.back(),
                         "rate=" + std::to_string(kCap)}));
  }
  MC_TRY(auto ours, Ours::open(clock, peer, nics));
  for (const xfer::Op op : {xfer::Op::kWrite, xfer::Op::kRead}) {
    const Case c{op == xfer::Op::kWrite ? "write, 4 capped NICs" : "read, 4 capped NICs", op,
                 16 * kMiB, (o.quick ? 512 : 1024) * kMiB};
    if (!o.wants(c.name)) continue;
    MC_TRY_(compare(
        {"xfer-rdma", c.name, "GB/s", "the sum of their rates", 0.9}, o.turns(),
        [&] { return ours->bandwidth(c); },
        []() -> Result<Measured> { return Measured(kNics * kCap / 1e9); }));
  }
  return ours->check();
}

// Queue pairs made for 64-byte writes to a thousand peers (one process under as many names), of
// which the k-th gets 1/k of the requests of the first.
Result<Measured> queue_pairs_made(const Clock& clock, const RdmaOptions& o, const ServingPeer& peer,
                                  xfer::Eviction eviction) {
  constexpr size_t kPeers = 1000;
  Metrics metrics;
  xfer::EngineOptions options;
  options.node = "bench";
  options.transports = {"rdma"};
  options.nics = {"emu0"};
  options.endpoints = 64;
  options.eviction = eviction;
  options.share_table = "";
  MC_TRY(const auto engine, xfer::Engine::open(clock, options, metrics));
  MC_TRY(const xfer::Memory memory, engine->allocate(4096));
  std::vector<xfer::SegmentHandle> segments(kPeers);
  std::vector<double> until(kPeers);
  xfer::SegmentDescriptor descriptor = peer.segment;
  double sum = 0;
  for (size_t k = 0; k < kPeers; ++k) {
    descriptor.node = "peer-" + std::to_string(k);
    MC_TRY(segments[k], engine->open_segment(descriptor));
    until[k] = sum += 1. / static_cast<double>(k + 1);
  }
  Random random(4);
  xfer::Request r;
  r.op = xfer::Op::kWrite;
  r.local = memory.data();
  r.bytes = 64;
  for (int i = 0; i < (o.quick ? 5'000 : 50'000); ++i) {
    const auto at = std::lower_bound(until.begin(), until.end(), random.uniform() * sum);
    r.segment = segments[static_cast<size_t>(at - until.begin())];
    MC_TRY_(engine->transfer_sync(r, kBudget));
  }
  if (metrics.gauge("mc_xfer_rdma_endpoints", "").value() > options.endpoints)
    return fail(Code::kInternal, "more than %u queue pairs are held", options.endpoints);
  return Measured(
      static_cast<double>(metrics.counter("mc_xfer_rdma_connections_total", "").value()));
}

Result<> many_peers(const Clock& clock, const RdmaOptions& o, const ServingPeer& peer) {
  if (!o.wants("1000 peers, 64 queue pairs")) return {};
  return compare(
      {"xfer-rdma", "1000 peers, 64 queue pairs", "made", "first in, first out", 1.1, true}, 1,
      [&] { return queue_pairs_made(clock, o, peer, xfer::Eviction::kSieve); },
      [&] { return queue_pairs_made(clock, o, peer, xfer::Eviction::kFifo); });
}

Result<int> run(const RdmaOptions& o) {
  for (const char* tool : {"ib_write_bw", "ib_read_bw", "ib_write_lat"})
    if (!output_of({"sh", "-c", std::string("command -v ") + tool})) {
      std::fprintf(stderr, "skipped: no %s: apt-get install perftest\n", tool);
      return kSkipped;
    }
  const std::string emulator =
      fs::read_symlink("/proc/self/exe").parent_path() / "verbs-emulator" / "verbs-emulator";
  const std::string fabric = "/dev/shm/mc-bench." + std::to_string(::getpid());
  ::setenv("VERBS_EMU_FABRIC", fabric.c_str(), 1);
  const std::unique_ptr<const std::string, void (*)(const std::string*)> cleanup(
      &fabric, [](const std::string* f) { fs::remove(*f); });
  MC_TRY_(output_of({emulator, "create", "hosts=2", "nics=" + std::to_string(kNics)}));
  SteadyClock clock;
  MC_TRY(const auto peer, ServingPeer::start(clock, kMemory, on_host_0));
  // As perftest's server: on one NIC.
  MC_TRY(const auto narrow, ServingPeer::start(clock, kMemory, [](xfer::EngineOptions& options) {
           on_host_0(options);
           options.nics = {"emu0"};
         }));
  ::setenv("VERBS_EMU_HOST", "1", 1);
  MC_TRY_(many_peers(clock, o, *narrow));
  MC_TRY_(one_nic(clock, o, *narrow));
  MC_TRY_(four_nics(clock, o, *peer, emulator));
  return 0;
}

// The emulator's library must be found when it is loaded: this program starts itself again.
bool with_emulator(char** argv) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path() / "verbs-emulator";
  const char* path = ::getenv("LD_LIBRARY_PATH");
  if (path != nullptr && std::string(path).find(folder.string()) != std::string::npos) return true;
  if (!fs::exists(folder / "libibverbs.so.1")) return false;
  ::setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  ::execv("/proc/self/exe", argv);
  return false;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  if (!mc::bench::with_emulator(argv)) {
    std::fprintf(stderr, "skipped: built without libibverbs-dev\n");
    return mc::bench::kSkipped;
  }
  mc::bench::RdmaOptions options;
  mc::Program program("xfer_rdma_bench", "rdma transfers against perftest");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
