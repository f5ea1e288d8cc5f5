// Pure: decides which faults to inject into which slices, and when. A script is JSON lines, one
// rule each:
//
//   {"at": "2s", "for": "500ms", "peer": "node-b", "error": "completion", "share": 0.2}
//   {"transport": "tcp", "delay": "5ms", "jitter": "1ms", "bandwidth": "100MiB"}
//   {"op": "write", "skip": 10, "count": 1, "drop": true}
//   {"transport": "shm", "op": "write", "skip": 1, "count": 1, "stop": true}
//
// Times count from the plan's start. Every rule that matches a slice applies: of delays the
// longest, of errors and drops the first. The same seed, clock and order of slices give the same
// faults.
//
// Errors: kInvalid names the line and what is wrong.
// Thread: one at a time (its owner's mutex).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "base/random.h"
#include "base/result.h"
#include "base/time.h"
#include "xfer/core/request.h"

namespace mc::xfer::fault {

inline constexpr size_t kRulesMax = 1024;

struct Rule {
  Duration at{}, lasts{};       // from when, and for how long; 0: to the end
  std::string transport, peer;  // "": all
  std::string op;               // "read", "write" or "": both
  uint64_t skip = 0,
           count = 0;          // of the slices that fit: leave the first, then take so many; 0: all
  double share = 1;            // of those, at random
  Duration delay{}, jitter{};  // hold a slice for delay + [0, jitter)
  Bytes bandwidth{0};          // a second, of all that the rule takes; 0: no cap
  bool drop = false;           // never answered: fails when the peer timeout passes
  bool stop = false;           // shm, rdma: SIGSTOP between the check of the guard and the bytes
  std::string error;           // "submit": refused, "completion": moved, then said to have failed
  void describe(OptionList& v);
};

struct Traffic {
  std::string_view transport, peer;
  Op op = Op::kRead;
  uint64_t bytes = 0;
};

enum class FaultAction : uint8_t { kPass, kStop, kDrop, kFailSubmit, kFailCompletion };
struct Verdict {
  Time release{};  // not before
  FaultAction action = FaultAction::kPass;
};

class Plan {
 public:
  // `text`: the script; `where` names it in errors. Empty lines and `//` comments are skipped.
  static Result<Plan> parse(std::string_view text, const std::string& where);
  void start(Time now, uint64_t seed);
  Verdict decide(const Traffic& traffic, Time now);
  size_t rules() const { return rules_.size(); }

 private:
  struct Active {
    Rule rule;
    uint64_t seen = 0;
    Time free{};  // when the capped link is idle again
  };
  bool takes(Active& a, const Traffic& traffic, Time now);
  std::vector<Active> rules_;
  Time start_{};
  Random random_{1};
};

}  // namespace mc::xfer::fault
