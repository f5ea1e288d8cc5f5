// Orders requests that wait for one prefix at the same prefill worker.
//
// A request may go to a worker because another one is to fetch its prefix to there. As long as that
// one waits for the pin at the holder, or for its decode worker, this one would come first, and
// compute the prefix once more. So it comes behind.
//
// Thread: one owner. Pure.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "sched/request/request_events.h"

namespace mc::sched {

struct RequestRecord;

class Followers {
 public:
  using Find = std::function<RequestRecord*(const AttemptRef&)>;  // nullptr: that attempt is over
  explicit Followers(Find find) : find_(std::move(find)) {}

  void add(const RequestRecord& fetches);  // a prefix, which it begins with
  // Its decode worker has reserved. True: it goes behind one that fetches what it waits for.
  bool follows(RequestRecord& r, uint64_t block_tokens);
  // Takes out those whose first has gone to its prefill worker, or will not. In their order.
  std::vector<RequestRecord*> freed();
  bool fetches(const AttemptRef& attempt) const;  // and was not sent to its prefill worker yet

 private:
  const Find find_;
  std::vector<AttemptRef> fetching_;  // some may have ended
  std::map<AttemptRef, std::vector<AttemptRef>> behind_;
};

}  // namespace mc::sched
