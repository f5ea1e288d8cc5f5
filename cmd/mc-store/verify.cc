#include <sys/stat.h>

#include "base/json.h"
#include "cmd/mc-store/verbs.h"
#include "store/offload/file_storage.h"
#include "store/ssd/aligned_buffer.h"

namespace mc::store {
namespace {

constexpr uint64_t kAtOnce = 64 * kMiB;
constexpr int kDamaged = 4;

struct VerifyOptions {
  TierOptions tier;
  void describe(OptionList& v) { tier.describe(v); }
};

struct Scrub {
  uint64_t objects = 0, bytes = 0;
  std::vector<std::string> damaged;
};

// Reads every value and compares it with its checksum.
Scrub scrub(ssd::Backend& backend) {
  Scrub out;
  const auto objects = backend.objects();
  for (size_t at = 0; at < objects.size();) {
    std::vector<ssd::Load> loads;
    std::vector<uint64_t> places;
    uint64_t bytes = 0;
    for (; at < objects.size() && (loads.empty() || bytes + objects[at].bytes <= kAtOnce); ++at) {
      loads.push_back({objects[at].key, objects[at].generation, {}});
      places.push_back(bytes);
      bytes += ssd::align_up(objects[at].bytes);
    }
    ssd::AlignedBuffer memory(bytes);
    for (size_t i = 0; i < loads.size(); ++i)
      loads[i].into = {memory.data() + places[i],
                       (i + 1 < loads.size() ? places[i + 1] : bytes) - places[i]};
    backend.read(loads);
    for (const ssd::Load& l : loads) {
      ++out.objects;
      if (l.outcome)
        out.bytes += l.outcome->bytes;
      else
        out.damaged.push_back(l.outcome.error().what);
    }
  }
  return out;
}

Result<int> run_verify(const VerifyOptions& o, const Context& context) {
  if (o.tier.folder.empty()) return fail(Code::kInvalid, "say which folder with --ssd DIR");
  MC_TRY(const ssd::BackendOptions options, o.tier.backend_options());
  struct stat info {};  // to open a disk makes its folder
  if (::stat(o.tier.folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return fail(Code::kInvalid, "--ssd %s: no such folder", escape(o.tier.folder).c_str());
  SteadyClock clock;
  MC_TRY(auto disk, ssd::open_disk(o.tier.folder, {o.tier.uring, true}));
  ssd::ScanReport found;
  MC_TRY(auto backend, ssd::open_backend(disk, options, clock, found));
  Scrub read = scrub(*backend);
  read.damaged.insert(read.damaged.begin(), found.damaged.begin(), found.damaged.end());
  const uint64_t damaged = read.damaged.size() + found.damaged_count - found.damaged.size();
  if (context.json) {
    put(dump_json({{"objects", read.objects},
                   {"bytes", read.bytes},
                   {"damaged", damaged},
                   {"unfinished", found.unfinished},
                   {"what", read.damaged}}) +
        "\n");
  } else {
    for (const std::string& what : read.damaged) put("damaged: " + escape(what) + "\n");
    put(strf("%llu object(s) of %s read, %llu damaged, %llu unfinished write(s) cleaned up\n",
             static_cast<unsigned long long>(read.objects), rounded_bytes_text(read.bytes).c_str(),
             static_cast<unsigned long long>(damaged),
             static_cast<unsigned long long>(found.unfinished)));
  }
  return damaged > 0 ? kDamaged : 0;
}

}  // namespace

void add_verify(Program& program) {
  program.verb<VerifyOptions>(
      "verify", "read all of an SSD tier that no node uses, and compare checksums",
      [](Verb& v, VerifyOptions& o) {
        v.example("mc-store verify --ssd /mnt/nvme/mc --ssd-size 100GiB",
                  "with the --ssd options of mc-store serve");
        v.exit_status(4, "something is damaged");
        v.run_with([&o](Context& context) { return run_verify(o, context); });
      });
}

}  // namespace mc::store
