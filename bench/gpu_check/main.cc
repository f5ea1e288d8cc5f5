// gpu-check [--quick] [--device cuda:0|stand-in] [NAME...]: checks, then figures. Results are on
// stdout, one JSON line each, as bench/run prints them; progress is on stderr. Exit: 0 all that ran
// is right, 1 something is not, 2 usage, 77 there is no such device (the reason is on stderr).
#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "base/units.h"
#include "bench/gpu_check/check.h"
#include "device/cuda.h"
#include "device/named.h"

namespace mc::gpu_check {

Result<> finish(device::Stream& stream, const std::function<Result<>()>& submit) {
  MC_TRY_(submit());
  MC_TRY(const auto event, stream.record());
  return event->wait();
}

Result<> same(std::span<const std::byte> got, std::span<const std::byte> want, const char* what) {
  if (got.size() == want.size() && std::memcmp(got.data(), want.data(), got.size()) == 0) return {};
  const auto [at, other] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
  return fail(Code::kCorrupt, "%s: byte %td of %zu differs", what, at - got.begin(), got.size());
}

std::vector<std::byte> noise(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  Random random(seed);
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t word = random.next();
    std::memcpy(&out[at], &word, 8);
  }
  for (; at < bytes; ++at) out[at] = static_cast<std::byte>(random.next());
  return out;
}

namespace {

using CaseLists = std::vector<std::vector<Case>>;
CaseLists checks() {
  return {copy_checks(),      kernel_checks(),   library_checks(),
          attention_checks(), sampling_checks(), graph_checks()};
}
CaseLists figures() {
  return {copy_figures(),      kernel_figures(),   library_figures(),
          attention_figures(), sampling_figures(), graph_figures()};
}
std::vector<Case> all_of(const CaseLists& lists) {
  std::vector<Case> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

struct Arguments {
  std::string device = "cuda:0";
  std::vector<std::string> names;
  bool quick = false, share = false;
};

int usage(const std::string& what) {
  std::fprintf(stderr,
               "gpu-check: %s\nusage: gpu-check [--quick] [--device cuda:0|stand-in] [NAME...]\n",
               what.c_str());
  for (const auto& list : {all_of(checks()), all_of(figures())})
    for (const Case& c : list) std::fprintf(stderr, "  %-16s %s\n", c.name, c.what);
  return 2;
}

bool known(const std::string& name) {
  for (const auto& list : {all_of(checks()), all_of(figures())})
    for (const Case& c : list)
      if (c.name == name) return true;
  return false;
}

// 1: one of them is wrong.
int run(const std::vector<Case>& cases, const Bench& bench, const Arguments& a, bool told) {
  int status = 0;
  for (const Case& c : cases) {
    if (!a.names.empty() && std::count(a.names.begin(), a.names.end(), c.name) == 0) continue;
    std::fprintf(stderr, "%s: %s\n", c.name, c.what);
    const auto outcome = c.run(bench);
    const bool skipped = !outcome && outcome.error().code == Code::kUnsupported;
    if (!outcome)
      std::fprintf(stderr, "  %s: %s\n", skipped ? "skipped" : "WRONG",
                   outcome.error().what.c_str());
    if (!outcome && !skipped) status = 1;
    if (!told && outcome) continue;
    Json line = {{"check", c.name}, {"outcome", outcome ? "ok" : skipped ? "skipped" : "wrong"}};
    if (!outcome) line["why"] = outcome.error().what;
    std::printf("%s\n", dump_json(line).c_str());
    std::fflush(stdout);
  }
  return status;
}

int check(const Arguments& a) {
  const SteadyClock clock;
  std::fprintf(stderr, "%s\n", device::cuda_summary().c_str());
  const auto device = device::open_named(a.device, clock);
  if (!device) {
    std::fprintf(stderr, "gpu-check: %s\n", device.error().what.c_str());
    return device.error().code == Code::kInvalid ? 2 : 77;
  }
  const device::Info& info = (*device)->info();
  std::fprintf(stderr, "%s: %s, %s, sm_%u%s%s\n", info.location().c_str(), info.name.c_str(),
               rounded_bytes_text(info.bytes).c_str(), info.capability,
               info.note.empty() ? "" : "; ", info.note.c_str());
  const Bench bench{*device, clock, a.quick};
  const int wrong = run(all_of(checks()), bench, a, true);
  return wrong != 0 ? wrong : run(all_of(figures()), bench, a, false);
}

}  // namespace
}  // namespace mc::gpu_check

int main(int argc, char** argv) {
  using namespace mc::gpu_check;
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") {
      a.quick = true;
    } else if (word == "--device" && i + 1 < argc) {
      a.device = argv[++i];
    } else if (word == "--share") {
      a.share = true;
    } else if (known(word)) {
      a.names.push_back(word);
    } else {
      return usage("unknown name or option '" + word + "'");
    }
  }
  return a.share ? share_until_stdin_closes(a.device) : check(a);
}
