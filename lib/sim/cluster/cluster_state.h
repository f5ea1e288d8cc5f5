// Holds the private state of a simulated cluster, for cluster*.cc.
//
// Thread: one owner. Pure: time is what the events say.
#pragma once
#include <cmath>
#include <memory>
#include <unordered_map>

#include "sched/ledger.h"
#include "sched/prefix_index.h"
#include "sched/shortlist.h"
#include "serve/kvcache/block_manager.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/events.h"
#include "sim/cluster/network.h"

namespace mc::sim {

using sched::Verdict;

inline constexpr uint32_t kNowhere = UINT32_MAX;

enum class Kind : uint8_t {
  kArrive,
  kQueue,
  kFree,
  kComputed,
  kFlow,
  kFetched,
  kLoaded,
  kStep,
  kSample,
  kControl,
  kDown,
  kUp,
  kMachines
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
  std::vector<uint64_t> tags;
  uint64_t tokens = 0, answer = 0;
  uint32_t prefill = 0, decode = 0;
  double predicted_ttft_ms = 0;
  uint64_t fetched_blocks = 0;
  bool fetching = false;
  uint32_t from = 0;  // of the flow
  Network::FlowId flow = 0;
  Stage stage = Stage::kOutside;
  uint64_t attempt = 0;
  sched::PrefixIndex::Guess guess = 0;
  serve::TxId tx = 0;
  uint64_t reused = 0;
  Time due{}, queued{}, started{}, computed{}, ready{};
};

struct SimNode {
  std::string name;
  bool prefill = false, draining = false, down = false;
  bool leaving = false, away = false;  // away: --machines removed it
  // Prefill.
  std::unique_ptr<NodeCache> cache;
  sched::Ledger ledger;
  std::vector<sched::PrefillWork> work;
  std::vector<uint32_t> queue;  // their requests, in the order of work
  bool computing = false;
  uint64_t requests = 0, assigned = 0;
  double busy_s = 0;
  // Decode.
  std::unique_ptr<Decoder> decoder;
  uint64_t turn = 0;                                            // of the newest step event
  uint64_t coming = 0, coming_tokens = 0, coming_reserved = 0;  // sent here, not yet there
  uint64_t on_the_way = 0, on_the_way_tokens = 0;  // of these, whose KV is moving or loading
};

class Cluster {
 public:
  Cluster(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
          const cost::ModelSpec& spec, const SimOptions& o)
      : trace_(trace),
        arrivals_(arrivals),
        o_(o),
        spec_(spec),
        group_spec_(grouped(spec, o)),
        cost_(group_spec_),
        index_(size_t{1} << 26),
        groups_(o.prefill / o.cpp_group),
        network_(groups_ + o.decode, nic(spec, o)),
        forecast_(o.admission.decode_time),
        control_(o.pd),
        coupled_(o.engine != "disaggregated"),
        prefills_(routing(o), names()),
        decodes_(cost_, names()) {
    make_nodes();
    requests_.resize(arrivals.size());
    result_.requests.resize(arrivals.size());
    if (!arrivals.empty()) events_.push(start_ + arrivals[0].due, {Kind::kArrive, 0});
    if (o.sample.count() > 0) events_.push(start_, {Kind::kSample});
    plan_faults();
    plan_machines();
    if (o.pd_control && !coupled_) events_.push(start_, {Kind::kControl});
  }

  SimResult run();

 private:
  static double nic(const cost::ModelSpec& spec, const SimOptions& o) {
    return o.nic_gbps > 0 ? o.nic_gbps * 1e9 / 8 : spec.cost.transfer_bytes_per_s;
  }

  std::vector<std::string> names() const;
  void make_nodes();
  uint64_t block() const { return trace_.block_tokens; }
  uint64_t cache_blocks() const { return o_.cache_tokens * o_.cpp_group / block(); }
  uint32_t rack(uint32_t node) const {
    return o_.rack_nodes == 0 ? 0 : node / static_cast<uint32_t>(o_.rack_nodes);
  }
  // A group of n nodes computes and loads reused KV n times as fast as one node.
  static cost::ModelSpec grouped(cost::ModelSpec spec, const SimOptions& o) {
    const auto n = static_cast<double>(o.cpp_group);
    spec.cost.c0 /= n;
    spec.cost.c1 /= n;
    spec.cost.c2 /= n;
    spec.cost.load_bytes_per_s *= n;
    if (o.nic_gbps > 0) spec.cost.transfer_bytes_per_s = nic(spec, o);  // as configured
    return spec;
  }
  Duration way(uint32_t a, uint32_t b) const {  // in addition to the time that bandwidth takes
    return rack(a) != rack(b) ? o_.rack_latency : Duration{0};
  }
  double kv_bytes(uint64_t tokens) const {
    return static_cast<double>(tokens * spec_.kv_bytes_per_token());
  }

  void become_prefill(uint32_t i);
  void become_decode(uint32_t i);
  void handle(const Event& e);
  bool now_on(const Event& e) const { return e.turn == requests_[e.at].attempt; }

  // Arrival and routing.
  void arrive(uint32_t id);
  void fill(SimRequest& request) const;
  bool fits(uint64_t tokens) const {
    return o_.cache_tokens == 0 || trace::blocks(tokens, block()) <= cache_blocks();
  }

  static sched::PolicyOptions routing(const SimOptions& o) {
    sched::PolicyOptions options = o.policy;
    if (o.engine != "disaggregated" && options.policy == "kvcache")
      options.policy = "local";  // coupled nodes do not fetch
    return options;
  }
  sched::PrefillOrder order() const { return {o_.prefill_order == "srpf" && !coupled_, o_.ageing}; }
  std::vector<sched::PrefillShortlist::Listed> all_prefills() const;
  std::vector<uint32_t> weigh(const sched::Matches& matches, const sched::Ask& ask,
                              sched::View& view);
  sched::DecodeView decode_view(uint32_t i, uint64_t tokens, uint64_t answer) const;
  static uint64_t reserved(const SimNode& n) {
    return n.decoder->reserved() + n.decoder->waiting_tokens() + n.coming_reserved;
  }
  void place(uint32_t id);

  // Whether the admission policy uses the forecast of decode load.
  bool forecasts() const {
    return o_.admission.admission == "early" || o_.admission.admission == "predict";
  }
  void foresee(const SimRequest& request, sched::Decision& d) const;
  void charge(uint32_t id, const sched::Decision& d);
  void fetch(uint32_t id, const sched::Decision& d);
  uint32_t holder(const SimRequest& request, const sched::Matches& matches, uint64_t blocks) const;
  sched::PrefixIndex::Slot slot(uint32_t node) const {
    return static_cast<sched::PrefixIndex::Slot>(node);
  }

  // Prefill.
  void enqueue(uint32_t id);
  void start(uint32_t node);
  bool cacheable(const SimRequest& request) const {
    return o_.cache_rule == "lru" ||
           request.arrived->record->cache_class != trace::CacheClass::kEphemeral;
  }
  NodeCache::Found reuse(SimNode& n, SimRequest& request);
  double tier_seconds(const NodeCache::Found& found, double waited_s) const;
  double tail_seconds(uint64_t tokens, uint64_t reused) const;
  void freed(uint32_t id);
  uint32_t idlest_decoder() const;
  void promise_decode(SimRequest& request, uint32_t node);
  void publish(uint32_t node, SimRequest& request);
  void computed(uint32_t id);
  void replace_decode(SimRequest& request);

  // Network and decode.
  void reflow() {
    if (const auto at = network_.deadline()) events_.push(*at, {Kind::kFlow, 0, ++flow_turn_});
  }

  void flows();
  void crossed(uint32_t id);
  void fetched(uint32_t id);
  void unfetch(uint32_t id);
  void arrived_there(const SimRequest& request);
  void loaded(uint32_t id);
  void restep(uint32_t node);
  void step(uint32_t node);
  void done(Decoded& d);
  void reject(uint32_t id, Verdict verdict);

  // Coupled nodes.
  void place_coupled(uint32_t id);

  // Failures.
  void plan_faults();
  void plan_machines();
  void resize(uint64_t machines);
  bool take_away();
  bool bring_back();
  uint32_t least_loaded(bool prefill) const;
  void part(uint32_t node);
  void down(uint32_t node);
  void up(uint32_t node);
  void leave(uint32_t node);
  bool lost_with(const SimRequest& request, uint32_t node) const;
  void abandon(uint32_t id, uint32_t node);
  void cancel_flow(SimRequest& request);

  // Orders of nodes, samples, control.
  void requeue(uint32_t i);
  void reload(uint32_t i);

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
  void settle_role(uint32_t i);
  void finish();

  const trace::Trace& trace_;
  const std::vector<trace::Arrived>& arrivals_;
  const SimOptions& o_;
  const cost::ModelSpec& spec_;       // of a node
  const cost::ModelSpec group_spec_;  // of a group of prefill nodes
  sched::Cost cost_;
  sched::PrefixIndex index_;
  const uint64_t groups_;
  Network network_;
  sched::DecodeForecast forecast_;
  sched::PdControl control_;
  const bool coupled_;
  sched::PrefillShortlist prefills_;
  sched::DecodeShortlist decodes_;
  std::vector<SimNode> nodes_;
  std::vector<SimRequest> requests_;
  size_t decode_nodes_ = 0;
  std::unordered_map<Network::FlowId, uint32_t> flow_of_;
  Events<Event> events_;
  uint64_t prompt_max_ = 1;  // blocks
  uint64_t flow_turn_ = 0, decided_ = 0, unfinished_ = 0, rejected_ = 0;
  const Time start_{};
  Time now_{}, last_{};  // last: when a request ended
  SimResult result_;
};

}  // namespace mc::sim
