#include "xfer/memory/copy_choice.h"

#include <algorithm>
#include <limits>

#include "base/hash.h"

namespace mc::xfer {
namespace {

constexpr const char* kCopiesMagic = "mccopies 1";
constexpr size_t kCopyRoundsMost = 8, kCopyRoundsLeast = 2;
constexpr double kCopyLead = 0.97;
constexpr std::array<const char*, kCopyKinds> kCopyNames{"plain", "streaming", "string"};

std::string checked(const std::string& text) {
  return strf("%016llx\n", static_cast<unsigned long long>(xxh3(text.data(), text.size())));
}

}  // namespace

CopyChoice default_copies() {
  CopyChoice out;
  for (size_t i = 0; i < CopyCase::kCount; ++i)
    out.kinds[i] = CopyCase::of(i).cold ? CopyKind::kStreaming : CopyKind::kPlain;
  return out;
}

CopyChoice choose_copies(const std::function<double(CopyKind kind, const CopyCase& of)>& seconds,
                         const std::function<bool()>& go_on) {
  std::array<std::array<double, kCopyKinds>, CopyCase::kCount> least;
  for (auto& of : least) of.fill(std::numeric_limits<double>::infinity());
  std::array<size_t, CopyCase::kCount> rounds{};
  const auto measured = [&](size_t i) {
    for (size_t kind = 0; kind < kCopyKinds; ++kind) {
      if (!go_on()) return false;
      const double took = seconds(static_cast<CopyKind>(kind), CopyCase::of(i));
      least[i][kind] = std::min(least[i][kind], took);
    }
    ++rounds[i];
    return true;
  };
  for (bool more = true; more && rounds.back() < kCopyRoundsMost;)
    for (size_t i = 0; i < CopyCase::kCount && more; ++i) more = measured(i);
  CopyChoice out = default_copies();
  for (size_t i = 0; i < CopyCase::kCount; ++i) {
    if (rounds[i] < kCopyRoundsLeast) continue;
    const auto best = std::min_element(least[i].begin(), least[i].end());
    if (*best < kCopyLead * least[i][static_cast<size_t>(out.kinds[i])])
      out.kinds[i] = static_cast<CopyKind>(best - least[i].begin());
  }
  return out;
}

std::string print_copies(const CopyChoice& choice, const std::string& host) {
  std::string text = strf("%s\n%s\n", kCopiesMagic, host.c_str());
  for (const CopyKind kind : choice.kinds)
    text += strf("%s\n", kCopyNames[static_cast<size_t>(kind)]);
  return text + checked(text);
}

Result<CopyChoice> parse_copies(const std::string& text, const std::string& host) {
  const std::string head = strf("%s\n%s\n", kCopiesMagic, host.c_str());
  if (!text.starts_with(head)) return fail(Code::kCorrupt, "measured copies of another machine");
  CopyChoice out;
  size_t at = head.size();
  for (CopyKind& kind : out.kinds) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) return fail(Code::kCorrupt, "measured copies end early");
    const auto name = std::find(kCopyNames.begin(), kCopyNames.end(), text.substr(at, end - at));
    if (name == kCopyNames.end())
      return fail(Code::kCorrupt, "measured copies name an unknown kind");
    kind = static_cast<CopyKind>(name - kCopyNames.begin());
    at = end + 1;
  }
  if (text.substr(at) != checked(text.substr(0, at)))
    return fail(Code::kCorrupt, "measured copies fail their check");
  return out;
}

}  // namespace mc::xfer
