// Transfers to and from a file segment against fio on the same file: io_uring, O_DIRECT, the same
// block size, depth and kind of memory (anonymous, one block for each operation under way), taking
// turns. Reads of 4 KiB are at random places, 1 MiB goes in order. Both sides go through the whole
// file, half of it apart: what the disk's own cache has of one turn serves neither of them sooner.
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "base/hash.h"
#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"

namespace mc::bench {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kFile = 1024 * kMiB, kMemory = 8 * kMiB;
constexpr Duration kBudget = std::chrono::seconds(60);
constexpr int kSkipped = 77;

struct Case {
  const char* name;
  xfer::Op op;
  uint64_t block;
  uint32_t depth;
  uint64_t bytes;  // a turn
};

// What a program printed; an error when it failed.
Result<std::string> output_of(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const auto& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  int fds[2];
  if (::pipe(fds) != 0) return fail_errno("pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(fds[1], 1);
    ::close(fds[0]);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(fds[1]);
  std::string text;
  std::array<char, 65536> buffer{};
  for (ssize_t n = 0; (n = ::read(fds[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(n));
  ::close(fds[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(Code::kUnavailable, "%s ended with %d", words[0].c_str(), WEXITSTATUS(status));
  return text;
}

// `turn`: of so many, from 0 on.
Result<Measured> fio(const Case& c, const std::string& path, uint64_t turn) {
  const bool read = c.op == xfer::Op::kRead;
  const bool random = c.block < kMiB;
  const std::string way = std::string(random ? "rand" : "") + (read ? "read" : "write");
  const uint64_t from = random ? 0 : (turn * c.bytes + kFile / 2) % kFile;
  const uint64_t size = random ? kFile : std::min(c.bytes, kFile - from);
  MC_TRY(const std::string text,
         output_of({"fio", "--name=x", "--filename=" + path, "--rw=" + way, "--direct=1",
                    "--ioengine=io_uring", "--bs=" + std::to_string(c.block),
                    "--iodepth=" + std::to_string(c.depth), "--offset=" + std::to_string(from),
                    "--size=" + std::to_string(size), "--io_size=" + std::to_string(c.bytes),
                    "--randseed=" + std::to_string(turn + 1), "--norandommap",
                    "--output-format=json", "--thread"}));
  MC_TRY(const Json all, parse_json(text));
  const Json& job = all.at("jobs").at(0);
  const double bytes = job.at(read ? "read" : "write").at("io_bytes").get<double>();
  const double ms = job.at(read ? "read" : "write").at("runtime").get<double>();
  const double cpu = (job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>()) / 100;
  return Measured(bytes / 1e6 / ms, cpu * ms * 1e6 / (bytes / 1024));
}

// One turn of ours: at depth 1 one transfer after another, else batches of many.
class Ours {
 public:
  Ours(const Clock& clock, xfer::Engine& engine, const xfer::Memory& file,
       std::span<std::byte> memory)
      : clock_(clock), engine_(engine), file_(file), memory_(memory) {}
  Result<Measured> turn(const Case& c) {
    const size_t n = static_cast<size_t>(c.bytes / c.block);
    std::vector<xfer::Request> requests(n);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t place = c.block < kMiB ? random_.next() % (kFile / c.block) : next_++;
      requests[i].op = c.op;
      requests[i].local = memory_.data() + i * c.block % memory_.size();
      requests[i].bytes = c.block;
      requests[i].segment = engine_.self();
      requests[i].offset = file_.offset() + place * c.block % kFile;
    }
    return gigabytes(clock_, c.bytes, 1, [&]() -> Result<> {
      if (c.depth > 1) return batches(requests);
      for (const auto& r : requests) MC_TRY_(engine_.transfer_sync(r, kBudget));
      return {};
    });
  }

 private:
  Result<> batches(std::span<const xfer::Request> requests) {
    const xfer::BatchId batch = engine_.allocate_batch();
    Result<> outcome = engine_.submit(batch, requests);
    if (outcome) outcome = engine_.wait(batch, kBudget);
    engine_.free_batch(batch);
    return outcome;
  }
  const Clock& clock_;
  xfer::Engine& engine_;
  const xfer::Memory& file_;
  const std::span<std::byte> memory_;
  Random random_{7};
  uint64_t next_ = 0;
};

Result<> check_contents(xfer::Engine& engine, const xfer::Memory& file, std::span<std::byte> memory,
                        const std::string& path) {
  xfer::Request r;
  r.op = xfer::Op::kRead;
  r.local = memory.data();
  r.bytes = memory.size();
  r.segment = engine.self();
  r.offset = file.offset();
  MC_TRY_(engine.transfer_sync(r, kBudget));
  MC_TRY(const std::string tail, output_of({"head", "-c", std::to_string(memory.size()), path}));
  if (xxh3(tail) != xxh3(memory.data(), memory.size()))
    return fail(Code::kCorrupt, "what was read is not what %s holds", path.c_str());
  return {};
}

Result<int> run(const Options& o) {
  if (!output_of({"fio", "--version"})) {
    std::fprintf(stderr, "skipped: no fio: run scripts/setup --bench\n");
    return kSkipped;
  }
  SteadyClock clock;
  const uint64_t scale = o.quick ? 1 : 2;
  const std::vector<Case> cases{
      {"read 1MiB depth 8", xfer::Op::kRead, kMiB, 8, scale * 512 * kMiB},
      {"write 1MiB depth 8", xfer::Op::kWrite, kMiB, 8, scale * 512 * kMiB},
      {"read 1MiB depth 1", xfer::Op::kRead, kMiB, 1, scale * 256 * kMiB},
      {"read 4KiB depth 1", xfer::Op::kRead, 4 * kKiB, 1, scale * 16 * kMiB},
      {"read 4KiB depth 32", xfer::Op::kRead, 4 * kKiB, 32, scale * 128 * kMiB},
  };
  std::string folder = (fs::temp_directory_path() / "mc-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno("make %s", folder.c_str());
  const std::string path = folder + "/segment";
  const std::unique_ptr<const std::string, void (*)(const std::string*)> cleanup(
      &folder, [](const std::string* f) { fs::remove_all(*f); });
  void* mapped =
      ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return fail_errno("map %s", rounded_bytes_text(kMemory).c_str());
  const std::span all(static_cast<std::byte*>(mapped), kMemory);
  for (const Case& c : cases) {
    Metrics metrics;
    xfer::EngineOptions options;
    options.node = "bench";
    options.file_depth = c.depth;
    MC_TRY(auto engine, xfer::Engine::open(clock, options, metrics));
    MC_TRY(const xfer::Memory file, engine->register_file(path, kFile));
    const std::span<std::byte> memory = all.first(c.depth * c.block);
    fill(memory, 1);
    Ours ours(clock, *engine, file, memory);
    if (&c == &cases.front())  // no block is written for the first time when it is measured
      MC_TRY_(ours.turn({"", xfer::Op::kWrite, kMiB, 8, kFile}));
    uint64_t turn = 0;
    MC_TRY_(compare(
        {"xfer-file", c.name, "GB/s", "fio io_uring", 0.95}, o.turns(),
        [&] { return ours.turn(c); }, [&] { return fio(c, path, turn++); }));
    MC_TRY_(check_contents(*engine, file, memory, path));
  }
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("xfer_file_bench", "file segments against fio");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
