// Chooses the prefill and the decode node of a request.
//
// choose() is a function of its arguments: the same view, request and options give the same
// decision, and the decision carries the numbers it was made from.
//
// `kvcache` is Algorithm 1 in predicted milliseconds. For each prefill node
//   TTFT = max(queue, fetch, wait) + pool + prefill(n, reused) + transfer(n) to the decode node
// where `reused` begins with the node's own match, or with the best match of any node if that one
// is more than `balancing_threshold` times as long and fetching it from there is the fastest. It
// goes on with the blocks that the pool has next, as far as fetching them (`pool`) is faster than
// computing them: memory's before those of slow disks. The pool serves all nodes alike, with every
// policy: a worker fetches from it when the request's turn has come. A match that covers less than
// kTrivial of the prompt (a shared system prompt) does not make a node better than another, nor
// does what engines take for any prompt. Ties: shortest queue (a fetch can hide the queue), fewest
// queued tokens, fewest requests so far, first name.
//
// A match counts too while its last blocks are being computed: `wait` is the time until they are
// there, on the node itself or read from elsewhere as they appear. What is computed again instead
// takes time from others, so that has to be sooner by kAgain of the time it takes.
//
//   local     as kvcache without fetching: every node reuses what it holds itself
//   load      the shortest queue, without looking at caches
//   count     the node with the fewest requests
//   p2c       the shorter queue of two drawn at random
//   random    any node
//   rr        the next node
//   weighted  the least sum of queued tokens and of `prefix_weight` times the prompt's tokens that
//             the node does not hold: what many routers do, for comparison
//
// The decode node is always the one with the least predicted time between tokens, among those with
// room.
//
// Thread: values. Pure. Source: Mooncake paper, Algorithm 1; design, serving-peers 1a.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/result.h"
#include "sched/cost.h"
#include "sched/pool/pool_index.h"
#include "sched/prefill_rate.h"

namespace mc::sched {

struct PolicyOptions {
  std::string policy = "kvcache";
  double balancing_threshold = 2.0;
  double prefix_weight = 1;  // of `weighted`
  uint64_t seed = 0;
  void describe(OptionList& v);
};
inline const std::vector<std::string> kPolicies = {"kvcache", "local",  "load", "count",
                                                   "p2c",     "random", "rr",   "weighted"};

struct PrefillView {
  std::string name;
  bool usable = true;  // alive, not draining, not excluded
  uint32_t match = 0;  // blocks of the prompt it holds, from the first on
  // The last of these blocks that are being computed or fetched, and the time until they are there.
  uint32_t pending = 0;
  double ready_ms = 0;
  double queue_ms = 0;  // until a new request would start
  uint64_t queued_tokens = 0;
  uint64_t requests = 0;        // there now
  uint64_t assigned = 0;        // so far
  double congestion = 1;        // its transfers take so many times what others' do
  double fetch_congestion = 1;  // so do its fetches from the node with the longest match
  // An external engine: it decodes what it prefills, so no KV is transferred, and it exchanges no
  // blocks with other nodes.
  bool whole = false;
  uint64_t block_tokens = 0;          // of its blocks; 0: as in Ask
  uint64_t context_tokens = 0;        // whole: of its requests
  const PrefillRate* rate = nullptr;  // its own times, instead of those of all workers
  PoolUse pool = PoolUse::kNever;
  Pipeline pipeline{};
};

struct DecodeView {
  std::string name;
  bool usable = true;
  bool room = true;  // blocks for this request are expected to be free
  uint64_t requests = 0;
  uint64_t context_tokens = 0;
};

struct View {
  std::vector<PrefillView> prefill;
  std::vector<DecodeView> decode;
  PoolMatch pool{};  // what the pool has of the prompt
  // There now, on the least busy node of those that hold the most of the prompt.
  uint64_t holder_requests = 0;
};

struct Ask {
  uint64_t tokens = 0;        // of the prompt
  uint64_t block_tokens = 0;  // a block
  uint64_t number = 0;        // of requests before this one: the state of `rr` and `random`
};

struct Candidate {
  std::string name;
  bool whole = false;           // needs no decode node
  uint64_t local_tokens = 0;    // held by the node
  uint64_t peer_tokens = 0;     // fetched from the node with the longest match: the next ones
  uint64_t pending_tokens = 0;  // of both, not there yet
  std::string peer;             // whose pending blocks are fetched; empty: of whom holds the most
  uint64_t reused_tokens = 0;   // these, and what it fetches from the pool after them
  // Fetched from the pool, by the tier that has them.
  uint64_t pool_memory_tokens = 0, pool_disk_tokens = 0;
  uint64_t pool_tokens() const { return pool_memory_tokens + pool_disk_tokens; }
  double queue_ms = 0, fetch_ms = 0, pool_ms = 0, prefill_ms = 0, transfer_ms = 0;
  double wait_ms = 0;        // until the pending tokens are there
  double again_ms = 0;       // of prefill_ms: for tokens that another node computes now
  double first_step_ms = 0;  // with add_first_step
  double fixed_ms = 0;       // of prefill_ms: what an external engine takes for any prompt
  double ttft_ms = 0;
};

enum class Verdict { kAccept, kNoPrefill, kNoDecode, kTtft, kTbt };
const char* name(Verdict verdict);  // "accept", "no_prefill", "no_decode", "ttft_slo", "tbt_slo"

struct Decision {
  Verdict verdict = Verdict::kNoPrefill;
  size_t prefill = 0, decode = 0;  // indexes into the view, when accepted; whole: no decode
  Candidate chosen;
  double tbt_ms = 0;
  double margin_ms = 0;  // to the second best TTFT, 0 when there is none
  // What could have been reused: the longest match, and what the pool has after it, or of the
  // prompt.
  uint64_t best_tokens = 0;
  Cost::PoolTokens pool{};  // what is fetched from the pool, by where it is
  std::vector<Candidate> candidates;
  std::string reason;  // one phrase
  double ttft_ms() const { return chosen.ttft_ms; }
};

// Where a candidate's reused tokens are: "512 local, 256 from a peer, 1024 from the pool's memory".
std::string reuse_text(const Candidate& candidate);

// A prefix is computed again only if that is sooner by this share of the time it takes again.
inline constexpr double kAgain = 0.5;

// Whether the best match covers less than a tenth of the prompt, so that matches do not count.
bool is_trivial(uint64_t best_tokens, uint64_t tokens);
// Which of n usable nodes `random`, `rr` and (two of them) `p2c` take.
std::pair<size_t, size_t> draw(const PolicyOptions& options, const Ask& ask, size_t n);

// In a large cluster: sched/shortlist.h finds the nodes that are worth weighing.
Decision choose(const View& view, const Ask& ask, const PolicyOptions& options, const Cost& cost);

// Counts the step that gives the first token, which is alike for all that need a decode node.
void add_first_step(Decision& decision, const Cost& cost);

// A decision for people: one line.
std::string explain(const Decision& decision);
// The candidates for people, best first, `most` at most: "p0 0.0+0.0+1.5+0.1=1.6 ms (512 tokens)",
// its queue, fetches (from a peer and the pool), prefill, and transfer with the first step.
std::string candidates_text(const Decision& decision, size_t most);

}  // namespace mc::sched
