#include "sched/index/pending_prefixes.h"

#include <algorithm>
#include <tuple>

namespace mc::sched {
namespace {

// Blocks that both prompts begin with: a tag stands for all blocks up to it.
uint32_t common_blocks(std::span<const uint64_t> a, std::span<const uint64_t> b, uint32_t known) {
  size_t low = known, high = std::min(a.size(), b.size());
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (a[middle - 1] == b[middle - 1])
      low = middle;
    else
      high = middle - 1;
  }
  return static_cast<uint32_t>(low);
}

auto before(const PendingPrefix& p) { return std::tuple(UINT32_MAX - p.last, p.ready, p.node); }

}  // namespace

void PendingPrefixes::begin(uint64_t request, const std::string& node,
                            std::span<const uint64_t> tags, uint32_t first, Time start,
                            Duration work) {
  end(request);
  if (first >= tags.size()) return;
  const auto [at, fresh] =
      jobs_.try_emplace(request, Job{node, {tags.begin(), tags.end()}, first, start, work});
  by_first_[first][tags[first]].emplace(request, &at->second);
}

void PendingPrefixes::delay(uint64_t request, Time start) {
  if (const auto it = jobs_.find(request); it != jobs_.end())
    it->second.start = std::max(it->second.start, start);
}

void PendingPrefixes::end(uint64_t request) {
  const auto it = jobs_.find(request);
  if (it == jobs_.end()) return;
  const Job& job = it->second;
  const auto firsts = by_first_.find(job.first);
  const auto same = firsts->second.find(job.tags[job.first]);
  same->second.erase(request);
  if (same->second.empty()) firsts->second.erase(same);
  if (firsts->second.empty()) by_first_.erase(firsts);
  jobs_.erase(it);
}

std::vector<PendingPrefix> PendingPrefixes::find(std::span<const uint64_t> tags) const {
  std::vector<PendingPrefix> found;
  for (const auto& [first, by_tag] : by_first_) {
    if (first >= tags.size()) break;
    const auto same = by_tag.find(tags[first]);
    if (same == by_tag.end()) continue;
    size_t looked_at = 0;
    for (const auto& [request, job] : same->second) {
      if (++looked_at > kLookedAt) break;
      const PendingPrefix here{job->node, first, common_blocks(tags, job->tags, first + 1),
                               job->start + job->work};
      const auto known = std::find_if(found.begin(), found.end(),
                                      [&](const PendingPrefix& p) { return p.node == here.node; });
      if (known == found.end())
        found.push_back(here);
      else if (before(here) < before(*known))
        *known = {here.node, std::min(known->first, first), here.last, here.ready};
      else
        known->first = std::min(known->first, first);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const PendingPrefix& a, const PendingPrefix& b) { return before(a) < before(b); });
  if (found.size() > kFoundMax) found.resize(kFoundMax);
  return found;
}

}  // namespace mc::sched
