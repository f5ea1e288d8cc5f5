#include "sched/time_sums.h"

#include <algorithm>

#include "base/result.h"

namespace mc::sched {

// The first chunk that does not end before `e`.
std::vector<TimeSums::Chunk>::iterator TimeSums::chunk_of(const Entry& e) {
  return std::partition_point(chunks_.begin(), chunks_.end(),
                              [&](const Chunk& c) { return c.last < e; });
}

void TimeSums::add(Time at, uint64_t id, uint64_t tokens) {
  const Entry e{at, id, tokens};
  auto chunk = chunk_of(e);
  if (chunk == chunks_.end()) {
    if (chunks_.empty() || chunks_.back().entries.size() == kChunk) {
      chunks_.push_back({{e}, tokens, e});
      return;
    }
    --chunk;
  }
  auto& all = chunk->entries;
  all.insert(std::upper_bound(all.begin(), all.end(), e), e);
  chunk->tokens += tokens;
  chunk->last = all.back();
  if (all.size() <= kChunk) return;
  Chunk upper;
  upper.entries.assign(all.begin() + kChunk / 2, all.end());
  for (const Entry& moved : upper.entries) upper.tokens += moved.tokens;
  upper.last = all.back();
  all.resize(kChunk / 2);
  chunk->tokens -= upper.tokens;
  chunk->last = all.back();
  chunks_.insert(chunk + 1, std::move(upper));
}

void TimeSums::remove(Time at, uint64_t id) {
  const Entry e{at, id, 0};
  const auto chunk = chunk_of(e);
  MC_CHECK(chunk != chunks_.end());
  auto& all = chunk->entries;
  const auto found = std::lower_bound(all.begin(), all.end(), e);
  MC_CHECK(found != all.end() && found->at == at && found->id == id);
  chunk->tokens -= found->tokens;
  all.erase(found);
  if (all.empty())
    chunks_.erase(chunk);
  else
    chunk->last = all.back();
}

TimeSums::Sum TimeSums::until(Time at) const {
  Sum sum;
  for (const Chunk& c : chunks_) {
    if (c.last.at <= at) {
      sum.requests += c.entries.size();
      sum.tokens += c.tokens;
      continue;
    }
    for (const Entry& e : c.entries) {
      if (e.at > at) return sum;
      ++sum.requests;
      sum.tokens += e.tokens;
    }
  }
  return sum;
}

}  // namespace mc::sched
