// Remembers the last requests: every decision with its candidates, and each outcome.
//
// Bounded: `keep` requests, of each kDecisionsMax decisions, of each kCandidatesMax candidates.
// Thread: one owner.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json_fwd.h"
#include "sched/policy.h"
#include "serve/protocol/generate.h"

namespace mc::serve {

// The decision with its candidates' predicted times.
Json decision_json(const sched::Decision& decision);
// Where the time of a request went.
Json progress_json(const Progress& progress);

class DecisionLog {
 public:
  static constexpr size_t kDecisionsMax = 4;    // of a request, the last
  static constexpr size_t kCandidatesMax = 16;  // of a decision, the best
  explicit DecisionLog(size_t keep) : keep_(keep) {}

  // `job` is unique, `id` the client's; `decode` empty: refused.
  void decided(uint64_t job, const std::string& id, uint64_t tokens, sched::Decision decision,
               const std::string& decode);
  void ended(uint64_t job, const Progress& progress, int status, const std::string& code,
             const std::string& what);
  Json find(const std::string& id) const;  // the last of that id; null: not kept
  size_t size() const { return records_.size(); }

 private:
  struct Choice {
    sched::Decision decision;
    std::string decode;
  };
  struct Outcome {
    Progress progress;
    int status = 0;
    std::string code, what;
  };
  struct Record {
    std::string id;
    uint64_t tokens = 0;
    int64_t at_ns = 0;
    uint64_t decisions = 0;
    std::vector<Choice> choices;
    std::optional<Outcome> outcome;
  };
  size_t keep_;
  std::map<uint64_t, Record> records_;  // by job: oldest first
  std::unordered_map<std::string, uint64_t> last_;
};

}  // namespace mc::serve
