#include "sched/index/pending_prefixes.h"

#include <algorithm>
#include <tuple>

namespace mc::sched {
namespace {

// Blocks that both prompts begin with: a tag stands for all blocks up to it. Many share no more
// than is known.
uint32_t common_blocks(std::span<const uint64_t> a, std::span<const uint64_t> b, uint32_t known) {
  size_t low = known, high = std::min(a.size(), b.size());
  if (low >= high || a[low] != b[low]) return known;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (a[middle - 1] == b[middle - 1])
      low = middle;
    else
      high = middle - 1;
  }
  return static_cast<uint32_t>(low);
}

}  // namespace

bool PendingPrefixes::Found::operator<(const Found& o) const {
  return std::tie(o.last, ready, *name) < std::tie(last, o.ready, *o.name);
}

uint32_t PendingPrefixes::number_of(const std::string& node) {
  if (const auto it = numbers_.find(node); it != numbers_.end()) return it->second;
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(nodes_.size()));
    nodes_.emplace_back();
    places_.push_back(0);
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  nodes_[number].name = node;
  return numbers_[node] = number;
}

void PendingPrefixes::begin(uint64_t request, const std::string& node,
                            std::span<const uint64_t> tags, uint32_t first, Time start,
                            Duration work) {
  end(request);
  if (first >= tags.size()) return;
  const uint32_t number = number_of(node);
  ++nodes_[number].jobs;
  const auto [at, fresh] =
      jobs_.try_emplace(request, Job{number, {tags.begin(), tags.end()}, first, start, work});
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
  if (Node& node = nodes_[job.node]; --node.jobs == 0) {
    numbers_.erase(node.name);
    free_.push_back(job.node);
  }
  jobs_.erase(it);
}

void PendingPrefixes::look_at(const Job& job, std::span<const uint64_t> tags,
                              std::vector<Found>& found) const {
  const Found here{job.node, &nodes_[job.node].name, job.first,
                   common_blocks(tags, job.tags, job.first + 1), job.start + job.work};
  uint32_t& place = places_[job.node];
  if (place == 0) {
    found.push_back(here);
    place = static_cast<uint32_t>(found.size());
    return;
  }
  Found& known = found[place - 1];
  const uint32_t first = std::min(known.first, here.first);
  if (here < known) known = here;
  known.first = first;
}

std::vector<PendingPrefix> PendingPrefixes::find(std::span<const uint64_t> tags) const {
  std::vector<Found> found;
  for (const auto& [first, requests] : firsts_) {
    if (first >= tags.size()) break;
    const auto same = by_tag_.find(tags[first]);
    if (same == by_tag_.end()) continue;
    size_t looked_at = 0;
    for (const auto& [request, job] : same->second) {
      if (job->first != first) continue;  // tags collide
      if (++looked_at > kLookedAt) break;
      look_at(*job, tags, found);
    }
  }
  for (const Found& f : found) places_[f.node] = 0;
  const size_t n = std::min(found.size(), kFoundMax);
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(n), found.end());
  std::vector<PendingPrefix> first;
  for (size_t i = 0; i < n; ++i)
    first.push_back({*found[i].name, found[i].first, found[i].last, found[i].ready});
  return first;
}

}  // namespace mc::sched
