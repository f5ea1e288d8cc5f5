// Simulates a serving cluster in virtual time, with the live programs' own decisions.
// The life of a request is the live conductor's: sched::RequestMachine and sched::Fleet decide,
// charge, wait, backfill, retry and learn. Prefill queue, decode batch, P/D control and block
// manager are those of the live programs too. Nodes, NICs and engines are simulated. The same
// trace, options and seed give the same results, bit by bit.
//
// What is modelled. A request arrives and is decided at once. Its decode node locks the blocks of
// the prompt, or has no room. It joins its prefill node's queue after `overhead`; a longer
// prefix held elsewhere is fetched over the network from then on. The queue chooses what is
// computed, anew at each chunk (sim/cluster/prefiller.h). A prompt reuses what the node's cache (a
// serve::BlockManager) holds when it starts. Its KV then crosses the network, is loaded, and joins
// the decode batch between steps. TTFT ends with the first step's token. Nothing of this is
// overlapped, as in the calibration. Answers take blocks as they grow, and the youngest make room
// for the oldest (sim/cluster/decoder_memory.h). With engine coupled or chunked every node computes
// prompts and decodes; see decoder.h.
//
// Caches have tiers and know the class of a request (sim/cluster/node_cache.h). With cpp_group,
// groups of prefill nodes compute long prompts as a pipeline of chunks: a group is one node with
// the caches and NICs of all, busy until its first stage is free. Across racks a transfer ends
// later by rack_latency.
//
// Nodes fail and return by script (`fault`). A failed node loses its memory and keeps its SSD. The
// machine hears of it at once.
//
// The number of serving nodes may change by script (`machines`). Which side an added node joins,
// and which node leaves or changes sides, says the live conductor's own object (sched::RoleMoves).
// A removed node leaves when its requests have finished; its cache goes with it. A node that
// changes sides keeps its cache, which serves again when it returns to prefill.
//
// With pool_tokens every node offers memory to the KV store's pool, whose tables, leases and
// eviction are the live master's (sim/pool/pool.h). What a prompt computed is put into it. A prompt
// whose turn has come reads what is worth it, while others compute (sim/cluster/node_pool.h).
//
// Not modelled: memory pressure of prefill engines, disks of the pool, messages that are lost or
// late. Of an answer the machine hears the first token, and all others with the last: it learns no
// step times.
//
// A request's cost grows with the cluster where the live conductor's does: nodes with a congested
// link or a corrected queue are weighed one by one (sched/request/candidate_index.h).
//
// Thread: one owner. Pure: no clock, no I/O.
// Source: Mooncake, sections 4 and 5.1; timing: cost/model_spec.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/result.h"
#include "cost/model_spec.h"
#include "sched/admission.h"
#include "sched/pd_control.h"
#include "sched/policy.h"
#include "sched/prefill_order.h"
#include "sim/cluster/decoder.h"
#include "sim/cluster/machine_inbox.h"
#include "sim/cluster/node_cache.h"
#include "sim/cluster/replication.h"
#include "trace/play/player.h"
#include "trace/report/report.h"

namespace mc::sim {

inline const std::vector<std::string> kEngines = {"disaggregated", "coupled", "chunked"};
inline const std::vector<std::string> kPoolReuse = {"auto", "always", "never"};
inline constexpr uint64_t kNodesMax = 30'000;
inline constexpr size_t kSamplesMax = 4'000'000;  // of a timeline: an hour of milliseconds

struct SimOptions {
  std::string engine = "disaggregated";
  uint64_t prefill = 8, decode = 8;      // coupled, chunked: their sum is the number of nodes
  uint64_t cache_tokens = 3'000'000;     // of KV that each node caches in DRAM; 0: none
  uint64_t vram_tokens = 0;              // copies of these in VRAM, which need no loading
  uint64_t ssd_tokens = 0;               // on the SSD of each node
  double ssd_bytes_per_s = 6e9;          // reading from it
  std::string cache_rule = "lru";        // of kCacheRules
  uint64_t decode_tokens = 1'200'000;    // of KV that a decode node computes on
  std::string preempt = "auto";          // of serve::kPreemptModes
  double watermark = 0.01;               // share of the blocks that a reservation leaves free
  Bytes swap_memory{uint64_t{1} << 30};  // of a decode node, for the KV of preempted requests
  Duration batch_tbt_slo{0};             // of a decode node's batch; 0: all join that may
  uint64_t pool_tokens = 0;              // of KV that each node offers to the store's pool; 0: none
  std::string pool_reuse = "auto";       // of kPoolReuse
  double nic_gbps = 0;                   // of each node, both ways; 0: the model's
  Duration overhead{std::chrono::milliseconds(50)};  // of a decision and its messages
  double load_bytes_per_s = 101e9;                   // of KV into fast memory
  double join_share = 0.7;
  uint64_t chunk_tokens = 1536;
  double chunk_penalty = 1.22;
  sched::PolicyOptions policy;
  sched::AdmissionOptions admission;
  std::string prefill_order = "fcfs";
  double ageing = 0.1;
  uint64_t prefill_chunk = 1024;
  uint64_t cpp_group = 1;             // prefill nodes that compute a prompt together
  uint64_t cpp_chunk = 1024;          // tokens that go through their pipeline at once
  uint64_t rack_nodes = 0;            // in a rack, in order of their numbers; 0: all
  Duration rack_latency{0};           // added to transfers between racks
  std::vector<std::string> fault;     // NODE@FROM[-TO], as p3@120s-180s
  std::vector<std::string> machines;  // N@TIME, as 12@8h: so many nodes from then on
  bool pd_control = false;
  sched::PdOptions pd;
  // A request is given up when it waits longer for room, and begins anew when its prompt takes
  // longer, queueing included. 0: no limit.
  Duration queue_timeout{std::chrono::seconds(30)}, prefill_timeout{std::chrono::seconds(120)};
  Duration sample{0};  // of the timeline; 0: none
  bool keep_gaps = false;
  bool count_copies = false;  // of blocks, at each sample
  MachineWatch watch;         // of the requests' machine; unset: nobody

  void describe(OptionList& v);
};

struct Sample {  // of the timeline
  double at_s = 0;
  uint64_t prefill_nodes = 0, decode_nodes = 0;
  // Means over nodes, relative to the SLOs (30 s and 100 ms without one), each at most 2. A prefill
  // node that computes counts 1, its queue up to 1 more; a decode node counts the time of its step.
  double prefill_load = 0, decode_load = 0;
  uint64_t queued = 0, decoding = 0, rejected = 0;  // rejected: so far
};

struct Move {
  double at_s = 0;
  std::string node, to, reason;
};

struct Fault {
  uint32_t node = 0;  // its number: prefill nodes first
  Duration from{0};
  std::optional<Duration> to;  // when it returns
};
Result<std::vector<Fault>> parse_faults(const SimOptions& options);

struct Machines {
  uint64_t count = 0;
  Duration from{0};
};
Result<std::vector<Machines>> parse_machines(const SimOptions& options);

struct SimResult {
  std::vector<trace::RequestResult> requests;  // in order of the trace
  double prefill_busy_s = 0;                   // computing prompts, all nodes
  double wasted_prefill_s = 0;                 // of prompts refused or lost after their prefill
  uint64_t rejected_after_prefill = 0;
  uint64_t fetches = 0;
  double fetched_bytes = 0, moved_bytes = 0;         // moved: fetches and prefill to decode
  uint64_t full_blocks = 0, hit_full_blocks = 0;     // of prompts that were computed
  uint64_t hit_vram_blocks = 0, hit_ssd_blocks = 0;  // of hit_full_blocks
  // The store's pool: prefixes that were read from it, their blocks, and what was put into it.
  uint64_t pool_reads = 0, pool_blocks = 0, pool_evicted = 0;
  double pool_read_bytes = 0, pool_put_bytes = 0;
  uint64_t failures = 0, restarted = 0;  // of nodes; requests restarted because of them
  double duration_s = 0;
  uint64_t events = 0;
  double steps = 0, token_steps = 0;                // of decode
  uint64_t preemptions = 0, preempted_to_host = 0;  // others were computed again
  std::vector<Sample> timeline;
  std::vector<Move> moves;
  Copies copies;
  std::vector<double> prefill_busy_share;  // by node
};

// Requires: `arrivals` is trace::schedule() of `trace`. Errors: kInvalid for invalid options.
Result<SimResult> simulate(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
                           const cost::ModelSpec& spec, const SimOptions& options);

Result<> check(const SimOptions& options);

}  // namespace mc::sim
