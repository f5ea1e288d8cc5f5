// The backends of the SSD tier against fio on the same disk: io_uring, O_DIRECT, 1 MiB, depth 32,
// taking turns. Writes are to new files that are synced at their end, on both sides; reads are
// checked against their checksums, by us only.
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>

#include "base/hash.h"
#include "bench/figure.h"
#include "bench/serving_peer.h"
#include "cmd/command.h"
#include "store/ssd/backend.h"

namespace mc::bench {
namespace {

namespace fs = std::filesystem;
using store::ssd::Backend;
constexpr uint64_t kValue = kMiB, kMemory = 64 * kMiB;
constexpr size_t kBucket = 256;  // objects of a write
constexpr int kSkipped = 77;

Result<std::string> output_of(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& w : words) line += "'" + w + "' ";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(line.c_str(), "r"), ::pclose);
  if (pipe == nullptr) return fail_errno("run %s", words[0].c_str());
  std::string text;
  std::array<char, 65536> buffer{};
  for (size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;)
    text.append(buffer.data(), n);
  if (text.empty()) return fail(Code::kUnavailable, "%s said nothing", words[0].c_str());
  return text;
}

Result<Measured> fio(bool read, const std::string& path, uint64_t bytes) {
  std::vector<std::string> words{"fio",
                                 "--name=x",
                                 "--filename=" + path,
                                 read ? "--rw=read" : "--rw=write",
                                 "--direct=1",
                                 "--ioengine=io_uring",
                                 "--bs=1M",
                                 "--iodepth=32",
                                 "--fixedbufs=1",
                                 "--size=" + std::to_string(bytes),
                                 "--output-format=json",
                                 "--thread"};
  if (!read) words.insert(words.end(), {"--end_fsync=1", "--fallocate=native"});
  MC_TRY(const std::string text, output_of(words));
  MC_TRY(const Json all, parse_json(text));
  const Json& way = all.at("jobs").at(0).at(read ? "read" : "write");
  return Measured(way.at("io_bytes").get<double>() / 1e6 / way.at("runtime").get<double>());
}

class Ours {
 public:
  Ours(const Clock& clock, Backend& backend, std::span<std::byte> memory)
      : clock_(clock), backend_(backend), memory_(memory) {
    for (size_t i = 0; i < memory.size() / kValue; ++i)
      checksums_.push_back(xxh3(memory.data() + i * kValue, kValue));
  }
  // `objects` new ones, a bucket at a time, each durable before the next; those of the turn before
  // are gone.
  Result<Measured> write(size_t objects) {
    backend_.commit_evict(backend_.begin_evict(backend_.usage().capacity));
    ++round_;
    std::vector<store::ssd::Save> saves(objects);
    for (size_t i = 0; i < objects; ++i) {
      const size_t m = i % checksums_.size();
      saves[i].object = {key(i), kValue, checksums_[m], Generation{round_}, 0, 0};
      saves[i].value = memory_.data() + m * kValue;
    }
    return gigabytes(clock_, objects * kValue, 1, [&]() -> Result<> {
      for (size_t at = 0; at < objects; at += kBucket)
        MC_TRY_(backend_.write(std::span(saves).subspan(at, std::min(kBucket, objects - at))));
      return {};
    });
  }
  Result<Measured> read(size_t objects) {
    const size_t at_once = memory_.size() / kValue;
    std::vector<store::ssd::Load> loads(objects);
    for (size_t i = 0; i < objects; ++i)
      loads[i] = {key(i), {}, memory_.subspan(i % at_once * kValue, kValue)};
    return gigabytes(clock_, objects * kValue, 1, [&]() -> Result<> {
      for (size_t at = 0; at < objects; at += at_once)
        backend_.read(std::span(loads).subspan(at, std::min(at_once, objects - at)));
      for (const auto& l : loads)
        if (!l.outcome) return fail(l.outcome.error());
      return {};
    });
  }

 private:
  std::string key(size_t i) const {
    return "bench/" + std::to_string(round_) + "/" + std::to_string(i);
  }
  const Clock& clock_;
  Backend& backend_;
  const std::span<std::byte> memory_;
  std::vector<uint64_t> checksums_;
  uint64_t round_ = 0;
};

Result<> figures(const Options& o, const std::string& kind, const std::string& folder,
                 std::span<std::byte> memory) {
  SteadyClock clock;
  const size_t objects = o.quick ? 512 : 1024;
  store::ssd::ScanReport report;
  store::ssd::BackendOptions options;
  options.kind = kind;
  options.evict = store::ssd::Evict::kFifo;
  options.capacity = 2 * objects * kValue;
  MC_TRY(auto disk, store::ssd::open_disk(folder + "/" + kind, {true, true}));
  store::ssd::use_memory(*disk, memory);
  MC_TRY(auto backend, store::ssd::open_backend(disk, options, clock, report));
  fill(memory, 1);
  Ours ours(clock, *backend, memory);
  const std::string path = folder + "/fio";
  MC_TRY_(compare(
      {"store-ssd", kind + " write 1MiB", "GB/s", "fio io_uring", 0.85}, o.turns(),
      [&] { return ours.write(objects); }, [&] { return fio(false, path, objects * kValue); }));
  MC_TRY_(ours.write(objects));
  return compare(
      {"store-ssd", kind + " read 1MiB", "GB/s", "fio io_uring", 0.9}, o.turns(),
      [&] { return ours.read(objects); },
      [&] { return fio(true, path + ".read", objects * kValue); });
}

Result<int> run(const Options& o) {
  if (!output_of({"fio", "--version"})) {
    std::fprintf(stderr, "skipped: no fio: run scripts/setup --bench\n");
    return kSkipped;
  }
  std::string folder = (fs::temp_directory_path() / "mc-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno("make %s", folder.c_str());
  const std::unique_ptr<const std::string, void (*)(const std::string*)> cleanup(
      &folder, [](const std::string* f) { fs::remove_all(*f); });
  void* mapped =
      ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return fail_errno("map %s", rounded_bytes_text(kMemory).c_str());
  const std::span memory(static_cast<std::byte*>(mapped), kMemory);
  for (const char* kind : {"bucket", "offset"}) MC_TRY_(figures(o, kind, folder, memory));
  return 0;
}

}  // namespace
}  // namespace mc::bench

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("store_ssd_bench", "the SSD tier against fio");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::bench::run(options); });
  return program.main(argc, argv);
}
