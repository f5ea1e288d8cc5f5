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
  by_tag_[tags[first]].emplace(request, &at->second);
  auto same = first_at(first);
  if (same == firsts_.end() || same->block != first) same = firsts_.insert(same, {first, 0});
  ++same->requests;
}

std::vector<PendingPrefixes::First>::iterator PendingPrefixes::first_at(uint32_t block) {
  return std::partition_point(firsts_.begin(), firsts_.end(),
                              [&](const First& f) { return f.block < block; });
}

void PendingPrefixes::delay(uint64_t request, Time start) {
  if (const auto it = jobs_.find(request); it != jobs_.end())
    it->second.start = std::max(it->second.start, start);
}

void PendingPrefixes::end(uint64_t request) {
  const auto it = jobs_.find(request);
  if (it == jobs_.end()) return;
  const Job& job = it->second;
  const auto same = by_tag_.find(job.tags[job.first]);
  same->second.erase(request);
  if (same->second.empty()) by_tag_.erase(same);
  if (const auto first = first_at(job.first); --first->requests == 0) firsts_.erase(first);
  jobs_.erase(it);
}

std::vector<PendingPrefix> PendingPrefixes::find(std::span<const uint64_t> tags) const {
  std::vector<PendingPrefix> found;
  for (const auto& [first, requests] : firsts_) {
    if (first >= tags.size()) break;
    const auto same = by_tag_.find(tags[first]);
    if (same == by_tag_.end()) continue;
    size_t looked_at = 0;
    for (const auto& [request, job] : same->second) {
      if (job->first != first) continue;  // tags collide
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
