// Control messages between conductor, prefill and decode workers.
//
// The steps of one request:
//
//   1. conductor -> decode   Reserve      blocks for the prompt and the output; D announces where
//   2. conductor -> prefill  TxAllocate   blocks and locks for the prompt; right behind it
//                            Prefill      queues it
//   3. prefill   -> decode   layers of KV through the transfer engine, into the reserved blocks;
//                            or KvOffer, and D reads them; or P puts them in the pool
//   4. prefill   -> decode   KvReady      after the last byte (or KvFailed, with the first cause)
//   5. prefill   -> conductor            the reply of Prefill: how long each part took
//   6. decode    -> conductor TokenBatch  tokens of all its requests, one message a step
//   7. conductor -> prefill  TxCommit     at the first token: the blocks' keys are now cached
//   at any time conductor -> both  Abort
//
// A prefix that another prefill worker holds is fetched ahead of need (TransferKVCache,
// section 4.2) by paired transactions: TxAllocate with `pin_for_peer` locks it where it is and
// allocates nothing; the second one, with `remote_prefix`, has the chosen worker read it while it
// queues, and commit the first when it has it. What was read counts only if that commit finds the
// lock still there.
//
// Workers announce themselves with Heartbeat to every conductor they were told of; KV events ride
// in it, acknowledged by sequence number; a conductor that starts, or finds a gap, asks Snapshot.
//
// Thread: values. Source: Mooncake paper sections 3.1, 4 and 5.3 (Figure 9).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "rpc/envelope.h"
#include "serve/protocol/constraint.h"
#include "serve/protocol/sampling_controls.h"
#include "wire/codec.h"
#include "wire/release.h"
#include "xfer/core/messages.h"

namespace mc::serve {

using rpc::Empty;

inline constexpr size_t kPromptMax = 1 << 20;  // tokens of a prompt, and its blocks
inline constexpr size_t kJoinedMax = 1024;
inline constexpr size_t kUpdatesMax = 65536;    // sequences of one token-batch
inline constexpr size_t kEventsPerBeat = 8192;  // 300 KiB
inline constexpr size_t kSnapshotPage = 65536;  // 2 MiB
inline constexpr size_t kStopTokensMax = 4096;
inline constexpr size_t kStagesMax = 1024;  // of a pipeline
// What a worker does of Reserve's sampling.
inline constexpr uint32_t kControls = 1, kConstraints = 2;

// ---- conductor -> decode

struct Reservation {
  static constexpr const char* kName = "reservation";
  xfer::SegmentDescriptor segment;       // D's memory; empty buffers when the caller knows it
  std::vector<uint64_t> block_offsets;   // in D's segment, one per prompt block, in prompt order
  uint64_t guard_offset = 0, guard = 0;  // xfer::Guard of this reservation
  std::string control;                   // where P sends KvReady: "host:port"
  uint32_t ranks = 1;                    // that D's blocks are laid out for (kv_shape.h)
  // 1: D does Reserve's `controls`; 2: and its `constraint`. 0: its release does not know of them.
  uint32_t sampling = 0;
  uint32_t blocks_here = 0;  // leading blocks whose KV D has: P sends none of it
  bool continues = false;    // D does what Reserve's `answered` asks for
  static void fields(auto& a, auto& m) {
    a(m.segment, wire::at_most<kPromptMax>(m.block_offsets), m.guard_offset, m.guard, m.control,
      m.ranks, m.sampling, m.blocks_here, m.continues);
  }
};

struct Reserve {
  static constexpr const char* kName = "reserve";
  using Reply = Reservation;
  std::string request;    // unique id, given by the conductor
  std::string conductor;  // control address that wants the tokens
  std::vector<int32_t> prompt;
  uint32_t max_tokens = 0, min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_tokens;
  uint64_t seed = 0;
  double temperature = 0;
  uint32_t kv_deadline_ms = 0;  // KV that has not come by then fails the request
  std::string cache_salt;       // of the prompt's first block
  uint32_t top_k = 0;           // 0: all
  double top_p = 1;
  std::string prefill;  // control address of the worker that will compute the prompt
  uint64_t epoch = 0;   // of the process it is for, kStale at another; 0: any
  SamplingControls controls;
  Constraint constraint;
  // The last tokens of `prompt` that are the beginning of the answer, by another worker: penalties
  // and the constraint count them as such.
  uint32_t answered = 0;
  static void fields(auto& a, auto& m) {
    a(m.request, m.conductor, wire::at_most<kPromptMax>(m.prompt), m.max_tokens, m.min_tokens,
      m.ignore_eos, wire::at_most<kStopTokensMax>(m.stop_tokens), m.seed, m.temperature,
      m.kv_deadline_ms, m.cache_salt, m.top_k, m.top_p, m.prefill, m.epoch, m.controls,
      m.constraint, m.answered);
  }
};

// ---- conductor -> prefill

struct TxAllocated {
  static constexpr const char* kName = "tx-allocated";
  uint64_t tx = 0;
  uint32_t local_blocks = 0;  // full blocks found here
  uint32_t queued = 0;        // requests before this one
  double queue_ms = 0;        // the node's own estimate
  // With `pin_for_peer`: the pinned blocks.
  xfer::SegmentDescriptor segment;
  std::vector<uint64_t> block_offsets;
  uint32_t ranks = 1;  // of those
  // The blocks behind them that are computed here now: AwaitPrefix asks for these.
  uint32_t coming = 0;
  static void fields(auto& a, auto& m) {
    a(m.tx, m.local_blocks, m.queued, m.queue_ms, m.segment,
      wire::at_most<kPromptMax>(m.block_offsets), m.ranks, m.coming);
  }
};

struct RemotePrefix {   // leading blocks of a prompt at another prefill worker, locked there
  std::string control;  // of that worker
  uint64_t tx = 0;      // its transaction; 0: none
  xfer::SegmentDescriptor segment;
  std::vector<uint64_t> offsets;  // in the segment, one a block
  uint32_t ranks = 1;
  uint32_t coming = 0;   // blocks behind these that are being computed there
  uint32_t wait_ms = 0;  // for so long they may be waited for
  static void fields(auto& a, auto& m) {
    a(m.control, m.tx, m.segment, wire::at_most<kPromptMax>(m.offsets), m.ranks, m.coming,
      m.wait_ms);
  }
};

struct PrefixMore {
  static constexpr const char* kName = "prefix-more";
  std::vector<uint64_t> offsets;  // of the next blocks, locked too; in the same segment
  uint32_t coming = 0;            // blocks behind these that are being computed
  static void fields(auto& a, auto& m) { a(wire::at_most<kPromptMax>(m.offsets), m.coming); }
};

// Of a locked prefix: the blocks behind the first `have`. Answered when there are some, when none
// will come, or after wait_ms. It renews the lock's lease.
struct AwaitPrefix {
  static constexpr const char* kName = "await-prefix";
  using Reply = PrefixMore;
  uint64_t tx = 0;
  uint32_t have = 0;
  uint32_t wait_ms = 0;
  static void fields(auto& a, auto& m) { a(m.tx, m.have, m.wait_ms); }
};

struct TxAllocate {
  static constexpr const char* kName = "tx-allocate";
  using Reply = TxAllocated;
  std::string request;
  std::vector<int32_t> prompt;
  std::string cache_salt;
  Reservation target;
  uint32_t lease_ms = 30'000;  // not started or committed by then: rolled back
  uint32_t pin_for_peer = 0;   // above 0: only pin so many leading blocks, for another worker
  RemotePrefix remote_prefix;  // read these first
  int64_t priority = 0;        // lower ones are computed first
  // serve/protocol/cache_control.h: leading blocks that are a context, for how long; the others.
  uint32_t context_blocks = 0, keep_ms = 0;
  bool ephemeral = false;
  uint64_t epoch = 0;       // as in Reserve
  std::string conductor{};  // as in Reserve
  // With pin_for_peer: who computes the blocks may be on its way here for so long.
  uint32_t expect_ms = 0;
  // Of the decision: equal prompts of one conductor are computed in the order of these. 0: as they
  // come.
  uint64_t number = 0;
  static void fields(auto& a, auto& m) {
    a(m.request, wire::at_most<kPromptMax>(m.prompt), m.cache_salt, m.target, m.lease_ms,
      m.pin_for_peer, m.remote_prefix, m.priority, m.context_blocks, m.keep_ms, m.ephemeral,
      m.epoch, m.conductor, m.expect_ms, m.number);
  }
};

struct PrefillDone {
  static constexpr const char* kName = "prefill-done";
  uint32_t cached_tokens = 0;  // reused from earlier requests: local, pool and peers
  uint32_t pool_tokens = 0;    // of these, fetched from the pool
  double queue_ms = 0, load_ms = 0, prefill_ms = 0, transfer_ms = 0;
  uint64_t kv_bytes = 0;     // pushed to decode
  uint32_t peer_tokens = 0;  // of the cached ones, fetched from another prefill worker
  double fetch_ms = 0;       // of load_ms: asking the pool and fetching from it
  double peer_ms = 0;        // reading the peer's tokens, while the request queued
  static void fields(auto& a, auto& m) {
    a(m.cached_tokens, m.pool_tokens, m.queue_ms, m.load_ms, m.prefill_ms, m.transfer_ms,
      m.kv_bytes, m.peer_tokens, m.fetch_ms, m.peer_ms);
  }
};

// Starts (queues) an allocated transaction; answered when its KV is delivered. Without `tx` the one
// of `request`, so that it may follow TxAllocate at once: where that was refused, so is this.
struct Prefill {
  static constexpr const char* kName = "prefill";
  using Reply = PrefillDone;
  uint64_t tx = 0;
  std::string request{};
  static void fields(auto& a, auto& m) { a(m.tx, m.request); }
};

struct TxCommitted {
  static constexpr const char* kName = "tx-committed";
  uint64_t events_seq = 0;  // the node's event sequence number after the commit
  static void fields(auto& a, auto& m) { a(m.events_seq); }
};

struct TxCommit {
  static constexpr const char* kName = "tx-commit";
  using Reply = TxCommitted;
  uint64_t tx = 0;
  std::string request{};  // as in Prefill
  static void fields(auto& a, auto& m) { a(m.tx, m.request); }
};

// ---- conductor -> either

struct Abort {  // idempotent; unknown requests are fine
  static constexpr const char* kName = "abort";
  using Reply = Empty;
  std::string request, reason;
  static void fields(auto& a, auto& m) { a(m.request, m.reason); }
};

// Anyone -> worker: drains it, then gives it another role ("prefill", "decode", "both", "auto"),
// with which it joins its conductors again. Answered at once; heartbeats tell when. With `from`
// only if that is its role and it is to keep it (kStale): of two conductors one has its way.
struct RoleSet {
  static constexpr const char* kName = "role-set";
  std::string was, will_be;
  static void fields(auto& a, auto& m) { a(m.was, m.will_be); }
};

struct SetRole {
  static constexpr const char* kName = "set-role";
  using Reply = RoleSet;
  std::string role, from = {};
  static void fields(auto& a, auto& m) { a(m.role, m.from); }
};

struct Dismiss {  // anyone -> worker: it drains and ends, as on SIGTERM; answered at once
  static constexpr const char* kName = "dismiss";
  using Reply = Empty;
  std::string why;
  static void fields(auto& a, auto& m) { a(m.why); }
};

struct KvSnapshot {
  static constexpr const char* kName = "kv-snapshot";
  uint64_t epoch = 0, seq = 0;  // events up to seq are contained
  std::vector<BlockHash> blocks;
  uint64_t next = 0;    // ask again from here; 0: complete
  uint64_t digest = 0;  // as in Heartbeat, after event seq
  static void fields(auto& a, auto& m) {
    a(m.epoch, m.seq, wire::at_most<kSnapshotPage>(m.blocks), m.next, m.digest);
  }
};

struct Snapshot {
  static constexpr const char* kName = "snapshot";
  using Reply = KvSnapshot;
  uint64_t from = 0;
  static void fields(auto& a, auto& m) { a(m.from); }
};

// ---- prefill -> decode

// These bytes of P's blocks may be read; answered when D has them (or wants them no more), until
// when P keeps the blocks as they are.
struct KvOffer {
  static constexpr const char* kName = "kv-offer";
  using Reply = Empty;
  std::string request;
  uint64_t guard = 0;             // of the reservation
  xfer::SegmentDescriptor from;   // P's memory; no buffers when D was told with this request before
  std::vector<uint64_t> offsets;  // in it, one a block
  uint64_t first = 0;             // of the prompt's blocks: the one at offsets[0]
  uint64_t at = 0, bytes = 0;     // of each block: a layer, or all of it, as of one rank
  uint32_t ranks = 1;             // of P's blocks
  static void fields(auto& a, auto& m) {
    a(m.request, m.guard, m.from, wire::at_most<kPromptMax>(m.offsets), m.first, m.at, m.bytes,
      m.ranks);
  }
};

// Blocks of a prompt whose layers of one stage of a pipeline are in the pool.
struct PooledPart {
  uint32_t stage = 0;            // from 0, the head
  std::vector<uint32_t> blocks;  // of the prompt, ascending
  static void fields(auto& a, auto& m) { a(m.stage, wire::at_most<kPromptMax>(m.blocks)); }
};

struct KvReady {
  static constexpr const char* kName = "kv-ready";
  using Reply = Empty;
  std::string request;
  uint64_t guard = 0;
  std::vector<uint32_t> pool;  // blocks of the prompt, ascending, that D is to take from the pool
  // Of a pipeline of as many: the pool has parts of the blocks, each with the layers of a stage.
  // D takes these, and `pool` names every block that has one. 0: the pool has whole blocks.
  uint32_t stages = 0;
  std::vector<PooledPart> parts = {};
  static void fields(auto& a, auto& m) {
    a(m.request, m.guard, wire::at_most<kPromptMax>(m.pool), m.stages,
      wire::at_most<kStagesMax>(m.parts));
  }
};

struct KvFailed {
  static constexpr const char* kName = "kv-failed";
  using Reply = Empty;
  std::string request, reason;
  uint64_t guard = 0;
  static void fields(auto& a, auto& m) { a(m.request, m.reason, m.guard); }
};

// ---- decode -> conductor

struct TokenUpdate {
  std::string request;
  std::vector<int32_t> tokens;
  std::string finish;                              // "", "stop", "length", "error"
  std::string error;                               // of "error": what happened
  uint32_t kv_errors = 0;                          // blocks that did not verify
  double wait_ms = 0, load_ms = 0, decode_ms = 0;  // of the last update: D's part of the latency
  uint32_t first = 0;  // number of tokens[0] in the answer, from 1; 0: the next one
  std::vector<TokenLogprobs> logprobs;  // of each of `tokens`, where Reserve asked for them
  static void fields(auto& a, auto& m) {
    a(m.request, wire::at_most<kPromptMax>(m.tokens), m.finish, m.error, m.kv_errors, m.wait_ms,
      m.load_ms, m.decode_ms, m.first, wire::at_most<kPromptMax>(m.logprobs));
  }
};

// Sent again until it is answered, with the tokens since: the conductor takes each token once.
// Refused with kStale when tokens before these did not come; the worker sends those again too.
struct TokenBatch {
  static constexpr const char* kName = "token-batch";
  using Reply = Empty;
  NodeId node;
  std::vector<TokenUpdate> updates;
  static void fields(auto& a, auto& m) { a(m.node, wire::at_most<kUpdatesMax>(m.updates)); }
};

// ---- worker -> conductor

struct KvEvent {
  bool stored = true;  // or removed
  BlockHash hash;
  static void fields(auto& a, auto& m) { a(m.stored, m.hash); }
};

struct WorkerLoad {
  uint32_t waiting = 0, running = 0;
  uint64_t blocks_total = 0, blocks_free = 0, blocks_cached = 0;
  double queue_ms = 0;  // prefill: predicted time until a new request would start
  double tbt_ms = 0;    // decode: predicted step time of the present batch
  uint64_t queued_tokens = 0;
  // decode: above 0, answers take blocks as they grow: a request takes those of its prompt, and
  // growth - 1 blocks stay free. 0: it takes those of prompt and answer.
  uint64_t growth = 0;
  // What conductors other than the receiver gave it. decode: requests, and the tokens of
  // their contexts; prefill: the predicted time of their prompts.
  uint64_t others_requests = 0, others_tokens = 0;
  double others_ms = 0;
  static void fields(auto& a, auto& m) {
    a(m.waiting, m.running, m.blocks_total, m.blocks_free, m.blocks_cached, m.queue_ms, m.tbt_ms,
      m.queued_tokens, m.growth, m.others_requests, m.others_tokens, m.others_ms);
  }
};

struct HeartbeatAck {
  static constexpr const char* kName = "heartbeat-ack";
  uint64_t conductor_epoch = 0;
  uint64_t events_seen = 0;  // events up to here need not be sent again
  std::string control{};     // of the conductor, as its requests name it
  wire::Release release{};   // of the conductor
  static void fields(auto& a, auto& m) {
    a(m.conductor_epoch, m.events_seen, m.control, m.release);
  }
};

struct Heartbeat {
  static constexpr const char* kName = "heartbeat";
  using Reply = HeartbeatAck;
  NodeId node;
  std::string role;           // "prefill", "decode", or "auto": it waits for one of them
  uint64_t epoch = 0;         // start of this process; a new one means an empty cache
  std::string control, http;  // "host:port"
  std::string model, fingerprint;
  uint32_t block_tokens = 0;
  uint64_t context_max = 0;
  bool draining = false;
  WorkerLoad load;
  uint64_t events_first = 0;  // sequence number of events[0]; events are consecutive
  uint64_t events_last = 0;   // the newest there is, sent or not
  std::vector<KvEvent> events;
  // Of all that is stored after event events_last: the sum of mix64(tag) of the keys, by which a
  // conductor that has seen all events finds that it went wrong. Not digested: not told.
  bool digested = false;
  uint64_t digest = 0;
  // Prefill: the order of its queue (sched/prefill_order.h).
  bool srpf = false;
  double ageing = 0;
  uint8_t pool_reuse = 0;  // prefill: sched::PoolUse; a pipeline has blocks of its own: never
  // Prefill: it chooses a prompt anew after so many; 0: runs each to its end.
  uint32_t chunk_tokens = 0;
  uint32_t stages = 0;  // prefill: processes of its pipeline; 0 and 1: none
  // Conductors that it sends beats to, and the epochs of those that answered the last one.
  uint32_t conductors = 0;
  std::vector<uint64_t> joined;
  wire::Release release;  // of the worker
  static void fields(auto& a, auto& m) {
    a(m.node, m.role, m.epoch, m.control, m.http, m.model, m.fingerprint, m.block_tokens,
      m.context_max, m.draining, m.load, m.events_first, m.events_last,
      wire::at_most<kEventsPerBeat>(m.events), m.digested, m.digest, m.srpf, m.ageing, m.pool_reuse,
      m.chunk_tokens, m.stages, m.conductors, wire::at_most<kJoinedMax>(m.joined), m.release);
  }
};

}  // namespace mc::serve
