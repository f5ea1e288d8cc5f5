// Holds the private state of a simulated cluster, for cluster*.cc.
//
// The requests of a cluster with prefill and decode nodes are driven by sched::RequestMachine, as
// the live conductor's are (cluster_requests.cc). The rest here is what its workers do: compute,
// send and decode. Coupled nodes are engines of another kind (cluster_coupled.cc).
//
// Thread: one owner. Pure: time is what the events say.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>

#include "sched/prefix_index.h"
#include "sched/request/request_machine.h"
#include "sched/request/role_moves.h"
#include "sched/shortlist.h"
#include "serve/kvcache/block_manager.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/events.h"
#include "sim/cluster/machine_inbox.h"
#include "sim/cluster/node_pool.h"
#include "sim/cluster/prefiller.h"
#include "sim/pool/network.h"

namespace mc::sim {

inline constexpr uint32_t kNowhere = UINT32_MAX;

enum class Kind : uint8_t {
  kArrive,
  kQueue,
  kPrefill,
  kComputed,
  kFlow,
  kFetched,
  kSent,
  kLoaded,
  kStep,
  kTick,
  kSample,
  kControl,
  kDown,
  kUp,
  kMachines,
  kPool
};
struct Event {
  Kind kind;
  uint32_t at = 0;    // request or node
  uint64_t turn = 0;  // of a request: its attempt
};

enum class Stage : uint8_t { kOutside, kSent, kQueued, kComputing, kMoving, kLoading, kDecoding };

struct SimRequest {
  const trace::Arrived* arrived = nullptr;
  std::vector<BlockHash> hashes;  // of full blocks
  uint64_t tokens = 0, answer = 0;
  // Of the attempt.
  uint32_t attempt = 0;  // 0: none
  uint32_t prefill = 0, decode = 0;
  uint64_t prefill_joined = 0, decode_joined = 0;  // sched::WorkerRef::joined of both
  bool reserved = false;                           // it has, or had, blocks of the decode node
  uint64_t pinned_tokens = 0;                      // of its remote prefix
  CacheHold pinned;                                // at the node that has it, until it was fetched
  CacheHold held;  // at the prefill node: what is here or comes, until it begins
  uint64_t fetched_blocks = 0, fetched_tokens = 0;
  bool fetching = false, told = false;  // told: its first token
  bool prepared = false;                // its turn has come, and no other prompt's KV is waited for
  PoolRead pool;
  uint32_t from = kNowhere;  // of the flow
  Network::FlowId flow = 0;
  Stage stage = Stage::kOutside;
  serve::TxId tx = 0;
  uint64_t reused = 0;
  Duration fetch_took{0};
  Duration spent{0};  // computing, until the node was free or another overtook it
  Time due{}, queued{}, started{}, freed{}, computed{}, ready{};
  Duration overtaken() const { return freed - started - spent; }  // so long others computed
  uint64_t coming(uint64_t block_tokens) const {  // leading blocks from elsewhere, or that came
    return std::min(fetched_blocks, serve::reusable_blocks(tokens, block_tokens));
  }
};

// Of a node's prompts. What goes through a group's pipeline at once is a chunk of it.
inline uint32_t prefill_chunk(const SimOptions& o, uint64_t block_tokens) {
  return whole_blocks(o.cpp_group > 1 ? o.cpp_chunk : o.prefill_chunk, block_tokens);
}

struct SimNode {
  std::string name;
  bool prefill = false, down = false;
  bool leaving = false, away = false;  // away: --machines removed it
  uint64_t epoch = 0;                  // of its process: it failed so many times
  sched::FleetWorker worker;           // as the conductor knows it; coupled nodes: in no roster
  // Prefill.
  std::unique_ptr<NodeCache> cache;
  std::optional<Prefiller> prefiller;
  std::vector<uint32_t> coming;  // prompts whose KV comes from another node, or the pool
  std::vector<uint32_t> behind;  // those that wait for it too
  uint64_t prefill_turn = 0;     // of its newest event
  Time prefill_at{};             // when that is
  bool computing() const { return prefiller && prefiller->running(); }
  NodeCache::Found look(const SimRequest& request) const {
    return cache ? cache->look(request.hashes, request.tokens) : NodeCache::Found{};
  }
  // Of the prompt so many blocks are computed: others may reuse them here.
  void keep(const SimRequest& request, uint64_t blocks) {
    if (cache) cache->computed(request.tx, blocks, request.arrived->record->cache_class);
  }
  // What is here of the prompt stays, and there is room for what comes, up to `blocks` in all.
  void hold(SimRequest& request, uint64_t blocks, Time now) {
    request.held.take(cache.get(), request.hashes, request.tokens, blocks, now);
  }
  // What came of it is here, for others too. Returns the leading blocks that it can reuse.
  uint64_t came(const SimRequest& request, uint64_t block_tokens) {
    const uint64_t blocks = request.coming(block_tokens);
    request.held.came(blocks, request.arrived->record->cache_class);
    return std::max(look(request).blocks(), blocks);
  }
  // KV for the prompt came, or will not: who waited for it looks again.
  void arrived(uint32_t id, Time now) {
    if (std::erase(coming, id) == 0) return;
    for (const uint32_t other : std::exchange(behind, {})) prefiller->again(other, now);
  }
  double busy_s = 0;
  // Decode.
  std::unique_ptr<Decoder> decoder;
  uint64_t turn = 0;    // of the newest step event
  uint64_t untold = 0;  // blocks of requests whose end the machine does not know yet
  uint64_t free_blocks() const {
    const uint64_t available = decoder->memory()->available();
    return available - std::min(untold, available);
  }
};

inline sched::PrefixIndex::Slot slot(uint32_t node) {
  return static_cast<sched::PrefixIndex::Slot>(node);
}

inline sched::PolicyOptions coupled_policy(const SimOptions& o) {
  sched::PolicyOptions options = o.policy;
  if (options.policy == "kvcache") options.policy = "local";  // coupled nodes do not fetch
  return options;
}

class Cluster {
 public:
  Cluster(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
          const cost::ModelSpec& spec, const SimOptions& o);

  Result<SimResult> run();  // once

 private:
  void make_nodes();
  uint64_t block() const { return trace_.block_tokens; }
  uint64_t cache_blocks() const { return o_.cache_tokens * o_.cpp_group / block(); }
  uint32_t rack(uint32_t node) const {
    return o_.rack_nodes == 0 ? 0 : static_cast<uint32_t>(node / o_.rack_nodes);
  }
  Duration way(uint32_t a, uint32_t b) const {  // in addition to the time that bandwidth takes
    return rack(a) != rack(b) ? o_.rack_latency : Duration{0};
  }
  double kv_bytes(uint64_t tokens) const {
    return static_cast<double>(tokens * spec_.kv_bytes_per_token());
  }

  void become_prefill(uint32_t i);
  void become_decode(uint32_t i);
  void join(uint32_t i);
  void leave(uint32_t i, const char* why, bool changed_role);
  void drain(uint32_t i, bool draining);
  void handle(const Event& e);
  bool now_on(const Event& e) const { return e.turn == requests_[e.at].attempt; }

  // Arrival and routing.
  void arrive(uint32_t id);
  sched::PrefillOrder order() const {
    return {o_.prefill_order == "srpf" && !coupled_, o_.ageing, prefill_chunk(o_, block())};
  }

  // The machine: events to it, and what it asks for.
  SimRequest& of(const sched::AttemptRef& attempt) {
    return requests_[static_cast<uint32_t>(attempt.request - 1)];
  }
  sched::AttemptRef ref(uint32_t id) const { return {id + 1, requests_[id].attempt}; }
  void submit(uint32_t id);
  void tell(sched::RequestEvent event) { inbox_.put(std::move(event), now_); }
  void tick();
  void carry_out(const sched::RequestAction& action);
  void send(const sched::SendStep& step);
  void reserve(const sched::SendStep& step);
  void speak(SimNode& decode);
  void release(SimRequest& request);
  bool there(const SimRequest& request, bool prefill) const;
  void abandon(uint32_t id);

  // Prefill.
  void enqueue(uint32_t id);
  bool prepare(uint32_t node, uint32_t id, uint64_t here);
  void start(uint32_t node);
  void begin(SimNode& n, uint32_t id, const NodeCache::Found& found);
  void resume(SimNode& n, const Prefiller::Head& head);
  void prefill(uint32_t node);
  void tell_index(uint32_t node);
  void reuse(SimNode& n, SimRequest& request, const NodeCache::Found& found);
  void fetch(uint32_t id, uint64_t local_blocks);
  void publish(uint32_t node, SimRequest& request);
  void computed(uint32_t id);

  // Network and decode.
  void reflow() {
    if (const auto at = network_.deadline()) events_.push(*at, {Kind::kFlow, 0, ++flow_turn_});
  }

  void flows();
  void crossed(uint32_t id);
  void fetched(uint32_t id);
  void unfetch(uint32_t id);
  void sent(uint32_t id);
  void loaded(uint32_t id);
  void restep(uint32_t node);
  void step(uint32_t node);
  void note(const Decoded& d);
  void ended(uint32_t id, int http, const std::string& reason);

  void pool_moved();

  // Coupled nodes.
  std::vector<uint32_t> weigh(const sched::Matches& matches, const sched::Ask& ask,
                              sched::View& view);
  void place_coupled(uint32_t id);
  void done_coupled(const Decoded& d);
  void requeue(uint32_t i);
  void down_coupled(uint32_t node);

  // Failures.
  void plan_faults();
  void plan_machines();
  void resize(uint64_t machines);
  bool take_away();
  bool bring_back();
  void down(uint32_t node);
  void up(uint32_t node);
  void cancel_flow(SimRequest& request);

  // Samples, control.
  Sample measure() const;
  bool over() const { return unfinished_ == 0 && result_.requests.size() == decided_; }

  void sample() {
    result_.timeline.push_back(measure());
    if (o_.count_copies) {
      for (const SimNode& n : nodes_)
        if (n.cache) result_.copies.add(n.cache->tags());
      result_.copies.end_sample();
    }
    if (!over()) events_.push(now_ + o_.sample, {Kind::kSample});
  }

  void control();
  void move(const sched::PdDecision& d);
  void settle_roles();
  void finish();

  const trace::Trace& trace_;
  const std::vector<trace::Arrived>& arrivals_;
  const SimOptions& o_;
  const cost::ModelSpec& spec_;       // of a node
  const cost::ModelSpec group_spec_;  // of a group of prefill nodes
  sched::Cost cost_;
  sched::PrefixIndex index_;
  sched::Roster roster_;
  sched::Fleet fleet_;
  sched::RequestMachine machine_;
  MachineInbox inbox_;
  bool ticking_ = false;
  const uint64_t groups_;
  Network network_;
  sched::PdControl control_;
  sched::RoleMoves moves_;
  const bool coupled_;
  std::optional<sched::PrefillShortlist> prefills_;  // coupled nodes
  std::vector<SimNode> nodes_;
  std::vector<uint32_t> drained_;                      // those that drain
  std::unordered_map<std::string, uint32_t> numbers_;  // of nodes, by name
  std::vector<SimRequest> requests_;
  std::unordered_map<Network::FlowId, uint32_t> flow_of_;
  NodePool pool_;
  Events<Event> events_;
  uint64_t prompt_max_ = 1, flow_turn_ = 0, decided_ = 0, unfinished_ = 0, rejected_ = 0;
  const Time start_{};
  Time now_{}, last_{};  // last: when a request ended
  SimResult result_;
};

}  // namespace mc::sim
