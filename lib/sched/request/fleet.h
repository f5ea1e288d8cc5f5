// What the life of requests has to do with the cluster: choosing nodes, and what they have to do.
//
// Every charge is made before anything is sent, so that the next request of the same burst sees it.
// A charge names a worker as it joined: once that is gone nothing is refunded to its successor.
//
// External engines are behind an interface: a driver asks them over HTTP, they pair up, and they
// have blocks of their own.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sched/admission.h"
#include "sched/cost.h"
#include "sched/index/pending_prefixes.h"
#include "sched/policy.h"
#include "sched/pool/pool_index.h"
#include "sched/prefix_index.h"
#include "sched/request/candidate_index.h"
#include "sched/request/fleet_views.h"
#include "sched/request/progress.h"
#include "sched/request/roster.h"

namespace mc::sched {

// A request, as far as its life depends on it.
struct RequestAsk {
  uint64_t tokens = 0;  // of the prompt, as an external engine counts them where one may do it
  uint64_t prompt_tokens = 0;  // of the prompt, as our workers count them
  uint32_t max_tokens = 0;     // still to come
  uint32_t answered = 0;       // of prompt_tokens: its answer so far, which other workers began
  int64_t priority = 0;        // lower first
  size_t tenant = 0;
  bool streams = false;                 // an external engine's answer begins with its first token
  double share = 1;                     // of its tenant, relative to others'
  std::optional<RequestError> refusal;  // why own workers cannot: only external engines may
};

// Nodes that a request does not go to: what has failed it, unless nothing else is left, and what
// had no room for it.
struct Exclusions {
  std::set<std::string> avoid, full;
};

// An engine, and the one that decodes what it computes; empty: itself.
struct EnginePair {
  std::string engine, decode;
  bool at_once = false;  // both get the request at the same time
  bool operator==(const EnginePair&) const = default;
};

class EngineFleet {  // external engines
 public:
  virtual ~EngineFleet() = default;
  virtual size_t size() const = 0;
  virtual size_t up() const = 0;
  virtual bool is_up(const std::string& engine) const = 0;
  // Adds the engines that know the model of this request.
  virtual void add(uint64_t request, const Exclusions& out, View& to, Time now) const = 0;
  // It goes to that engine, as decided. `until`: it is expected to have computed the prompt.
  virtual EnginePair charge(uint64_t request, const Decision& decision, const Exclusions& out,
                            Time now, Time until) = 0;
  virtual void computed(uint64_t request, const EnginePair& pair, Time now) = 0;  // its prompt is
  // Its answer ended, or was given up. `answered`: what the prompt left in the cache stays.
  virtual void refund(uint64_t request, const EnginePair& pair, bool answered, Time now) = 0;
};

// Where a request goes.
struct Choice {
  Decision decision;
  WorkerRef prefill, decode;  // without when the decision is no, or an external engine
  WorkerRef source;  // of a longer match, to be fetched from, now or as it appears; no node: none
  uint64_t number = 0;  // of the decision: prefill workers compute in the order of these
};

struct FleetOptions {
  uint64_t block_tokens = 256;
  PolicyOptions policy;
  AdmissionOptions admission;
};

class Fleet {
 public:
  Fleet(FleetOptions options, Cost& cost, PrefixIndex& index, Roster& roster);

  std::function<const PoolIndex*()> pool;  // what the KV store has; unset, nullptr: nothing
  EngineFleet* engines = nullptr;          // outlives it; nullptr: there are none

  // For a request that arrived then. Nothing is charged.
  Choice choose(uint64_t request, const RequestAsk& ask, std::span<const uint64_t> tags,
                const Exclusions& out, Time arrived, Time now);
  // Own workers as a decision sees them; `out`: nullptr: none is left out.
  View view(const RequestAsk& ask, std::span<const uint64_t> tags, const Exclusions* out,
            Time now) const;
  // The same decision for a view that exists.
  Decision decide(const View& view, const RequestAsk& ask, Time arrived, Time now) const;
  Refusal refusal(const Decision& decision, Verdict verdict, uint64_t tokens, Time arrived,
                  Time now) const;
  // Its prompt is computed: there is no place in its decode worker's batch any more.
  bool decode_refuses(const WorkerRef& decode, uint64_t prompt_tokens) const;

  // A request begins on its workers. Returns: the guess that its prefix will be cached there.
  PrefixIndex::Guess charge(uint64_t request, const RequestAsk& ask, const Choice& choice,
                            std::span<const uint64_t> tags, Time now);
  void queued(uint64_t request, const WorkerRef& prefill, double queue_ms, Time now);
  void computed(uint64_t request, const WorkerRef& prefill, Time now);  // or given up there
  void answering(uint64_t request, const WorkerRef& decode, uint64_t prompt_tokens, Time now);
  void generated(const WorkerRef& decode, uint64_t tokens);
  // What it has on its decode worker: all tokens of its context. `answering`: it had begun.
  void decoded(uint64_t request, const WorkerRef& decode, uint64_t prompt_tokens,
               uint64_t output_tokens, bool answering, Time now);

  // How many times a decode worker told its blocks; and that it gave none to a request charged
  // then.
  uint64_t spoke(const WorkerRef& decode);
  void not_reserved(const WorkerRef& decode, const RequestAsk& ask, uint64_t spoke);

  DecodeNeed need(const RequestAsk& ask) const;
  uint64_t blocks(uint64_t tokens) const {
    return (tokens + options_.block_tokens - 1) / options_.block_tokens;
  }
  uint64_t largest(bool prefill) const;  // blocks of the largest worker
  uint64_t decisions() const { return decisions_; }
  void decided() { ++decisions_; }

  const FleetOptions& options() const { return options_; }
  Cost& cost() { return cost_; }
  PrefixIndex& index() { return index_; }
  Roster& roster() const { return roster_; }
  const DecodeForecast& forecast() const { return forecast_; }
  size_t pending() const { return pending_.size(); }  // prefixes under computation

 private:
  AdmissionOptions promises(Time arrived, Time now) const;
  void weigh_fetches(View& view, const Matches& matches, Time now) const;
  void note_pending(View& view, std::span<const PendingPrefix> pending, Time now) const;
  std::optional<View> short_view(const RequestAsk& ask, std::span<const uint64_t> tags, Time now);
  WorkerRef source_for(const Candidate& chosen, std::span<const uint64_t> tags,
                       const FleetWorker& reader, Time now) const;

  const FleetOptions options_;
  Cost& cost_;
  PrefixIndex& index_;
  Roster& roster_;
  DecodeForecast forecast_;
  CandidateIndex candidates_;
  PendingPrefixes pending_;
  uint64_t decisions_ = 0;  // requests that were given nodes, or refused
};

}  // namespace mc::sched
