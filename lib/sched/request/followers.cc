#include "sched/request/followers.h"

#include "sched/request/request_record.h"

namespace mc::sched {

void Followers::add(const RequestRecord& r) {
  std::erase_if(fetching_, [&](const AttemptRef& attempt) { return !fetches(attempt); });
  fetching_.push_back(r.ref());
}

bool Followers::fetches(const AttemptRef& attempt) const {
  const RequestRecord* const r = find_(attempt);
  return r != nullptr && r->state == RequestState::kReserving && r->source != SourceSide::kNone;
}

bool Followers::follows(RequestRecord& r, uint64_t block_tokens) {
  const Candidate& c = r.choice.decision.chosen;
  const uint64_t missing = (c.local_tokens - c.pending_tokens) / block_tokens;  // the first block
  if (c.pending_tokens == 0 || r.source != SourceSide::kNone || missing >= r.tags.size())
    return false;
  for (const AttemptRef& attempt : fetching_) {
    if (!fetches(attempt)) continue;
    const RequestRecord& first = *find_(attempt);
    if (first.prefill_at() != r.prefill_at() || missing >= first.tags.size() ||
        first.tags[missing] != r.tags[missing])
      continue;
    r.behind = attempt;
    behind_[attempt].push_back(r.ref());
    return true;
  }
  return false;
}

std::vector<RequestRecord*> Followers::freed() {
  std::vector<RequestRecord*> all;
  for (auto it = behind_.begin(); it != behind_.end();) {
    if (fetches(it->first)) {
      ++it;
      continue;
    }
    for (const AttemptRef& attempt : it->second)
      if (RequestRecord* const r = find_(attempt); r != nullptr && r->behind == it->first)
        all.push_back(r);
    it = behind_.erase(it);
  }
  return all;
}

}  // namespace mc::sched
