// How long a node with 100,000 objects on its disk takes from its start to the first value that is
// read from there, and until the master knows them all; against the budget of 2 seconds.
#include <filesystem>

#include "base/hash.h"
#include "base/random.h"
#include "bench/store_pool.h"
#include "store/ssd/backend.h"

namespace mc {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kValue = 4096, kSize = 4 * kGiB;
constexpr size_t kBatch = 500;

std::string key_of(size_t i) { return "object-" + std::to_string(i); }

Result<> fill(const std::string& folder, const std::string& kind, size_t objects,
              std::span<std::byte> memory, const Clock& clock) {
  store::ssd::ScanReport report;
  store::ssd::BackendOptions options;
  options.kind = kind;
  options.capacity = kSize;
  MC_TRY(auto disk, store::ssd::open_disk(folder, {true, true}));
  store::ssd::use_memory(*disk, memory);
  MC_TRY(auto backend, store::ssd::open_backend(disk, options, clock, report));
  for (size_t at = 0; at < objects; at += kBatch) {
    std::vector<store::ssd::Save> saves;
    for (size_t i = at; i < std::min(at + kBatch, objects); ++i) {
      std::byte* value = memory.data() + (i - at) * kValue;
      const uint64_t word = mix64(i);
      std::memcpy(value, &word, sizeof word);
      saves.push_back({{key_of(i), kValue, xxh3(value, kValue), Generation{i + 1}, 0, 0}, value});
    }
    MC_TRY_(backend->write(saves));
  }
  return {};
}

struct Started {
  double first_s = 0, all_s = 0;
};

Result<Started> restart(const std::string& bin, const std::string& folder, const std::string& kind,
                        size_t objects, const Clock& clock) {
  bench::StorePool pool(bin, clock);
  MC_TRY(const std::string address, pool.master("master"));
  store::ClientOptions o;
  o.master = address;
  MC_TRY(const auto reader, bench::StoreClient::open(clock, "reader", o));
  store::Client* const client = reader->client.get();
  std::vector<std::byte> value(kValue);
  const size_t some = objects / 2;
  Started out;
  const Time began = clock.now(), deadline = began + std::chrono::seconds(60);
  MC_TRY_(pool.node("n", address,
                    {"--size", "64MiB", "--ssd", folder + "/" + kind, "--ssd-size",
                     std::to_string(kSize), "--ssd-backend", kind}));
  while (out.all_s == 0) {
    if (clock.now() > deadline) return fail(Code::kTimeout, "not whole within 60 s");
    ::poll(nullptr, 0, 5);
    if (out.first_s == 0 && client->get(key_of(some), value)) {
      out.first_s = to_seconds(clock.now() - began);
      uint64_t word = 0;
      std::memcpy(&word, value.data(), sizeof word);
      if (word != mix64(some)) return fail(Code::kCorrupt, "other bytes than were written");
    }
    const auto stat = client->stat();
    if (stat && stat->disk_objects == objects && out.first_s > 0)
      out.all_s = to_seconds(clock.now() - began);
  }
  return out;
}

Result<int> run(const bench::StoreOptions& o) {
  const SteadyClock clock;
  const size_t objects = o.quick ? 20'000 : 100'000, turns = o.quick ? 3 : 7;
  std::string folder = (fs::temp_directory_path() / "mc-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno("make %s", folder.c_str());
  const std::unique_ptr<const std::string, void (*)(const std::string*)> cleanup(
      &folder, [](const std::string* f) {
        std::error_code ignored;
        fs::remove_all(*f, ignored);
      });
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, kBatch * kValue)), std::free);
  if (memory == nullptr) return fail(Code::kNoSpace, "no memory for %zu values", kBatch);
  const std::span bytes(memory.get(), kBatch * kValue);
  for (const std::string kind : {"bucket", "offset"}) {
    MC_TRY_(fill(folder + "/" + kind, kind, objects, bytes, clock));
    std::vector<double> all;
    MC_TRY_(bench::compare(
        {"store-restart", kind + ", first value", "s", "2 seconds", 1, true}, turns,
        [&]() -> Result<bench::Measured> {
          MC_TRY(const Started s, restart(o.bin, folder, kind, objects, clock));
          all.push_back(s.all_s);
          return bench::Measured(s.first_s);
        },
        [] { return Result<bench::Measured>(2.0); }));
    size_t turn = 0;
    MC_TRY_(bench::compare(
        {"store-restart", kind + ", all " + std::to_string(objects), "s", "2 seconds", 1, true},
        turns, [&] { return Result<bench::Measured>(all[turn++]); },
        [] { return Result<bench::Measured>(2.0); }));
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  return mc::bench::store_main(argc, argv, "store_restart_bench",
                               "from the start of a node to what is on its disk", mc::run);
}
