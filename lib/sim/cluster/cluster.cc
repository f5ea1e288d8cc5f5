#include "sim/cluster/cluster.h"

#include <algorithm>

#include "sim/cluster/cluster_state.h"

namespace mc::sim {
namespace {
constexpr Duration kTick = std::chrono::seconds(1);  // of the machine, as a conductor's
constexpr Duration kNoLimit = std::chrono::hours(100'000);
constexpr Duration kDelayMax = std::chrono::hours(1);  // virtual time is gone through tick by tick
constexpr uint64_t kChunkTokensMax = uint64_t{1} << 30;

double nic(const cost::ModelSpec& spec, const SimOptions& o) {
  return o.nic_gbps > 0 ? o.nic_gbps * 1e9 / 8 : spec.cost.transfer_bytes_per_s;
}

// A group of n nodes computes and loads reused KV n times as fast as one node.
cost::ModelSpec grouped(cost::ModelSpec spec, const SimOptions& o) {
  const auto n = static_cast<double>(o.cpp_group);
  spec.cost.c0 /= n;
  spec.cost.c1 /= n;
  spec.cost.c2 /= n;
  spec.cost.load_bytes_per_s *= n;
  if (o.nic_gbps > 0) spec.cost.transfer_bytes_per_s = nic(spec, o);  // as configured
  return spec;
}

// Simulated nodes are never silent, so what waits for their answers has no limit.
sched::RequestOptions patience(const SimOptions& o) {
  sched::RequestOptions r;
  r.step_timeout = r.pin_timeout = r.token_timeout = kNoLimit;
  r.prefill_timeout = o.prefill_timeout.count() > 0 ? o.prefill_timeout : kNoLimit;
  r.queue_timeout = o.queue_timeout.count() > 0 ? o.queue_timeout : kNoLimit;
  return r;
}

std::vector<std::string> names(const SimOptions& o) {
  const bool coupled = o.engine != "disaggregated";
  const uint64_t groups = o.prefill / o.cpp_group;
  std::vector<std::string> out;
  for (uint64_t i = 0; i < groups + o.decode; ++i)
    out.push_back(coupled      ? "n" + std::to_string(i)
                  : i < groups ? "p" + std::to_string(i)
                               : "d" + std::to_string(i - groups));
  return out;
}

Result<> check_delay(const char* flag, Duration delay) {
  if (delay.count() >= 0 && delay <= kDelayMax) return {};
  return fail(Code::kInvalid, "%s %s: want 0s to %s", flag, to_text(delay).c_str(),
              to_text(kDelayMax).c_str());
}

}  // namespace

Cluster::Cluster(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
                 const cost::ModelSpec& spec, const SimOptions& o)
    : trace_(trace),
      arrivals_(arrivals),
      o_(o),
      spec_(spec),
      group_spec_(grouped(spec, o)),
      cost_(group_spec_),
      index_(size_t{1} << 26),
      fleet_({block(), o.policy, o.admission}, cost_, index_, roster_),
      machine_(patience(o), fleet_),
      inbox_(machine_, o.watch, [this](const sched::RequestAction& a) { carry_out(a); }),
      groups_(o.prefill / o.cpp_group),
      network_(groups_ + o.decode, nic(spec, o)),
      control_(o.pd),
      moves_(roster_),
      coupled_(o.engine != "disaggregated"),
      pool_({.tokens = o.pool_tokens,
             .reuse = o.pool_reuse,
             .block_tokens = block(),
             .block_bytes = static_cast<uint64_t>(kv_bytes(block())),
             .memory_bytes_per_s = o.load_bytes_per_s,
             .groups = groups_,
             .group = o.cpp_group},
            cost_, network_) {
  fleet_.pool = [this] { return pool_.index(); };
  make_nodes();
  requests_.resize(arrivals.size());
  result_.requests.resize(arrivals.size());
  if (!arrivals.empty()) events_.push(start_ + arrivals[0].due, {Kind::kArrive, 0});
  if (o.sample.count() > 0) events_.push(start_, {Kind::kSample});
  plan_faults();
  plan_machines();
  if (o.pd_control && !coupled_) events_.push(start_, {Kind::kControl});
}

Result<SimResult> Cluster::run() {
  while (!events_.empty()) {
    if (result_.timeline.size() > kSamplesMax)
      return fail(Code::kInvalid,
                  "--sample %s: more than %zu lines of --timeline: sample less often",
                  to_text(o_.sample).c_str(), kSamplesMax);
    now_ = events_.next();
    index_.tick(now_);
    const Event event = events_.pop();
    // Looking changes nothing, and a tick little.
    result_.events += event.kind != Kind::kSample && event.kind != Kind::kTick;
    handle(event);
    if (!drained_.empty()) settle_roles();
  }
  finish();
  return std::move(result_);
}

void Cluster::make_nodes() {
  nodes_.resize(groups_ + o_.decode);
  roster_.slots_changed(nodes_.size());
  for (uint32_t i = 0; i < groups_; ++i)
    if (o_.cpp_group > 1) network_.widen(i, static_cast<double>(o_.cpp_group));
  for (const trace::Arrived& a : arrivals_)
    prompt_max_ = std::max(prompt_max_, trace::blocks(a.record->input_length, block()));
  const auto all = names(o_);
  if (coupled_) prefills_.emplace(coupled_policy(o_), all);
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    SimNode& n = nodes_[i];
    n.prefill = coupled_ || i < groups_;
    n.name = all[i];
    numbers_[n.name] = i;
    if (n.prefill) become_prefill(i);
    if (!n.prefill || coupled_) become_decode(i);
    pool_.mount(i, now_);
  }
}

void Cluster::become_prefill(uint32_t i) {
  SimNode& n = nodes_[i];
  n.prefill = true;
  if (!n.cache && cache_blocks() > 0)
    n.cache = std::make_unique<NodeCache>(
        NodeCacheOptions{.vram = o_.vram_tokens * o_.cpp_group / block(),
                         .dram = cache_blocks(),
                         .ssd = o_.ssd_tokens * o_.cpp_group / block(),
                         .block_tokens = block(),
                         .prompt_max = prompt_max_,
                         .rule = o_.cache_rule},
        i);
  if (n.cache)
    for (const uint64_t tag : n.cache->tags()) index_.add(slot(i), tag);
  if (coupled_) return requeue(i);
  n.prefiller.emplace(serve::Timing{group_spec_, 1}, prefill_chunk(o_, block()),
                      static_cast<uint32_t>(block()), order());
  n.prefill_at = Time::max();
  ++n.prefill_turn;
  join(i);
}

void Cluster::become_decode(uint32_t i) {
  SimNode& n = nodes_[i];
  if (!n.decoder) {
    DecoderOptions d;
    d.engine = !coupled_                ? Engine::kDisaggregated
               : o_.engine == "coupled" ? Engine::kCoupled
                                        : Engine::kChunked;
    d.capacity_tokens = o_.decode_tokens;
    d.join_share = o_.join_share;
    d.load_bytes_per_s = o_.load_bytes_per_s;
    d.chunk_tokens = o_.chunk_tokens;
    d.chunk_penalty = o_.chunk_penalty;
    if (!coupled_)
      d.memory = {.blocks = o_.decode_tokens / block(),
                  .block_tokens = static_cast<uint32_t>(block()),
                  .preempt = o_.preempt,
                  .watermark = o_.watermark,
                  .swap_bytes = o_.swap_memory.n,
                  .copy_bytes_per_s = o_.load_bytes_per_s,
                  .tbt_slo = o_.batch_tbt_slo};
    n.decoder = std::make_unique<Decoder>(spec_, d, o_.keep_gaps);
  }
  if (coupled_) return;
  n.prefill = false;
  join(i);
}

void Cluster::handle(const Event& e) {
  switch (e.kind) {
    case Kind::kArrive: return arrive(e.at);
    case Kind::kQueue: return now_on(e) ? enqueue(e.at) : void();
    case Kind::kPrefill: return e.turn == nodes_[e.at].prefill_turn ? prefill(e.at) : void();
    case Kind::kComputed: return now_on(e) ? computed(e.at) : void();
    case Kind::kFlow: return e.turn == flow_turn_ ? flows() : void();
    case Kind::kFetched: return now_on(e) ? fetched(e.at) : void();
    case Kind::kSent: return now_on(e) ? sent(e.at) : void();
    case Kind::kLoaded: return now_on(e) ? loaded(e.at) : void();
    case Kind::kStep: return e.turn == nodes_[e.at].turn ? step(e.at) : void();
    case Kind::kTick: return tick();
    case Kind::kSample: return sample();
    case Kind::kControl: return control();
    case Kind::kDown: return down(e.at);
    case Kind::kUp: return up(e.at);
    case Kind::kMachines: return resize(e.turn);
    case Kind::kPool: return pool_.tick(e.turn, now_) ? pool_moved() : void();
  }
}

void Cluster::arrive(uint32_t id) {
  if (id + 1 < arrivals_.size())
    events_.push(start_ + arrivals_[id + 1].due, {Kind::kArrive, id + 1});
  SimRequest& request = requests_[id];
  const trace::TraceRequest& r = *arrivals_[id].record;
  request.arrived = &arrivals_[id];
  request.due = now_;
  request.tokens = r.input_length;
  request.answer = std::max<uint64_t>(r.output_length, 1);
  request.hashes = block_hashes(r, block());
  ++unfinished_;
  trace::RequestResult& out = result_.requests[id];
  out.id = request.arrived->id;
  out.t_intended_ms = to_ms(now_ - start_);
  out.t_sent_ms = out.t_intended_ms;
  out.input = request.tokens;
  out.hash_blocks = r.hash_ids.size();
  coupled_ ? place_coupled(id) : submit(id);
  ++decided_;
  if (coupled_ || std::exchange(ticking_, true)) return;
  events_.push(now_ + kTick, {Kind::kTick});
}

// Deadlines pass, and who waits tries again.
void Cluster::tick() {
  inbox_.tick(now_);
  ticking_ = machine_.in_flight() > 0;
  if (ticking_) events_.push(now_ + kTick, {Kind::kTick});
}

void SimOptions::describe(OptionList& v) {
  v("engine", engine,
    "disaggregated: prefill and decode nodes; coupled: every node does both, prompts first; "
    "chunked: both, prompts in chunks beside decoding",
    kEngines);
  v("prefill", prefill, "prefill nodes");
  v("decode", decode, "decode nodes; coupled engines have the sum of both");
  v("cache-tokens", cache_tokens, "tokens of KV that each prefill node caches in DRAM; 0: none");
  v("vram-tokens", vram_tokens,
    "tokens of these also in VRAM, the last used; they need no loading");
  v("ssd-tokens", ssd_tokens, "tokens of KV on each prefill node's SSD, evicted from DRAM");
  v("ssd-rate", ssd_bytes_per_s,
    "bytes a second read from the SSD; reading begins while a prompt is queued");
  v("cache-rule", cache_rule,
    "lru: ignores the classes of requests; filter: keeps no blocks of ephemeral requests; "
    "semantic: filter, and the SSD holds contexts only; tiered: filter, and the SSD evicts "
    "contexts last",
    kCacheRules);
  v("decode-tokens", decode_tokens, "tokens of KV that a decode node has room for");
  v("preempt", preempt,
    "what becomes of the KV of the youngest answers when a decode node's blocks run out: copied to "
    "host memory while there is room (swap), computed again (recompute), or what is predicted to "
    "be faster (auto); off: each request takes the blocks of its prompt and its whole answer at "
    "once",
    serve::kPreemptModes);
  v("watermark", watermark,
    "share of a decode node's blocks that new requests leave free for answers that grow");
  v("swap-memory", swap_memory, "host memory of a decode node for the KV of preempted requests");
  v("batch-tbt-slo", batch_tbt_slo,
    "requests join a decode node's batch while the predicted time of its step stays within this, "
    "as with --tbt-slo of mc-decode; 0s: always");
  v("pool-tokens", pool_tokens,
    "tokens of KV that each node offers to the KV store's pool; 0: there is no pool");
  v("pool-reuse", pool_reuse,
    "when a prompt's blocks are read from the pool: where that is predicted to be faster than "
    "computing them (auto), always, or never",
    kPoolReuse);
  v("nic-gbps", nic_gbps, "Gbit/s of each node's NIC, each way; 0: the model's");
  v("overhead", overhead, "of a decision and its messages, part of every TTFT");
  v("policy", policy.policy, "how prefill nodes are chosen", sched::kPolicies);
  v("kvcache-balancing-threshold", policy.balancing_threshold,
    "fetch a longer prefix from elsewhere when it is this many times as long as the local one");
  admission.describe(v);
  v("prefill-order", prefill_order, "of a prefill node's queue", sched::kPrefillOrders);
  v("ageing", ageing, "of srpf: a second of waiting counts like this many seconds less to compute");
  v("chunk-tokens", prefill_chunk,
    "tokens after which a prefill node chooses anew, as of mc-prefill; up to whole blocks");
  v("cpp-group", cpp_group, "prefill nodes that compute a prompt together, as a pipeline");
  v("cpp-chunk", cpp_chunk, "tokens that go through that pipeline at once");
  v("rack-nodes", rack_nodes, "nodes of a rack, by their numbers, prefill first; 0: one rack");
  v("rack-latency", rack_latency, "added to transfers between racks");
  v("fault", fault, "a node that fails, and when it returns: p3@120s-180s, d0@5m");
  v("machines", machines,
    "how many nodes serve from a time on, as 12@8h; needs --pd-control and "
    "disaggregated nodes");
  v("pd-control", pd_control, "move nodes between prefill and decode as their loads change");
  v("pd-interval", pd.interval, "between decisions of --pd-control");
  v("pd-cooldown", pd.cooldown, "after a move");
  v("pd-deadband", pd.band, "imbalance that causes no move");
  v("queue-timeout", queue_timeout,
    "longest wait for room on the workers, then a request fails; 0: no limit");
  v("prefill-timeout", prefill_timeout,
    "longest wait for a prefill, its queue included, then a request begins anew; 0: no limit");
  v("chunk", chunk_tokens, "tokens of a chunk, for --engine chunked");
}

Result<> check(const SimOptions& o) {
  using ull = unsigned long long;
  if (o.prefill < 1 || (o.decode < 1 && o.engine == "disaggregated"))
    return fail(Code::kInvalid, "--prefill %llu, --decode %llu: want at least one node of each",
                static_cast<ull>(o.prefill), static_cast<ull>(o.decode));
  if (o.prefill > kNodesMax || o.decode > kNodesMax - o.prefill)
    return fail(Code::kInvalid, "--prefill %llu, --decode %llu: want %llu nodes in all at most",
                static_cast<ull>(o.prefill), static_cast<ull>(o.decode),
                static_cast<ull>(kNodesMax));
  if (o.nic_gbps != 0 && !(o.nic_gbps >= 0.001 && o.nic_gbps <= 1e6))
    return fail(Code::kInvalid, "--nic-gbps %g: want 0, or 0.001 to 1000000", o.nic_gbps);
  if (!(o.policy.balancing_threshold >= 1))
    return fail(Code::kInvalid, "--kvcache-balancing-threshold %g: want 1 or more",
                o.policy.balancing_threshold);
  if (!(o.ageing >= 0) || !(o.pd.band >= 1))
    return fail(Code::kInvalid, "--ageing %g, --pd-deadband %g: want at least 0 and 1", o.ageing,
                o.pd.band);
  if (o.chunk_tokens < 1 || o.chunk_tokens > kChunkTokensMax)
    return fail(Code::kInvalid, "--chunk %llu: want 1 to %llu", static_cast<ull>(o.chunk_tokens),
                static_cast<ull>(kChunkTokensMax));
  if (o.prefill_chunk < 1) return fail(Code::kInvalid, "--chunk-tokens 0: want at least 1");
  if (o.cache_tokens > 1'000'000'000 || o.decode_tokens < 1)
    return fail(
        Code::kInvalid,
        "--cache-tokens %llu, --decode-tokens %llu: want at most 1000000000, and at least 1",
        static_cast<ull>(o.cache_tokens), static_cast<ull>(o.decode_tokens));
  if (!(o.watermark >= 0 && o.watermark < 1))
    return fail(Code::kInvalid, "--watermark %g: want at least 0 and less than 1", o.watermark);
  if (o.batch_tbt_slo.count() < 0) return fail(Code::kInvalid, "--batch-tbt-slo is negative");
  if (o.pool_tokens > 1'000'000'000)
    return fail(Code::kInvalid, "--pool-tokens %llu: want at most 1000000000",
                static_cast<ull>(o.pool_tokens));
  if (o.pool_tokens > 0 && o.engine != "disaggregated")
    return fail(Code::kInvalid,
                "--pool-tokens %llu: coupled nodes read from no pool: not with --engine %s",
                static_cast<ull>(o.pool_tokens), o.engine.c_str());
  if (o.vram_tokens > o.cache_tokens || o.ssd_tokens > 100'000'000'000 ||
      !(o.ssd_bytes_per_s >= 1e6))
    return fail(
        Code::kInvalid,
        "--vram-tokens %llu, --ssd-tokens %llu, --ssd-rate %g: want at most --cache-tokens, "
        "100 G, and 1e6 bytes a second or more",
        static_cast<ull>(o.vram_tokens), static_cast<ull>(o.ssd_tokens), o.ssd_bytes_per_s);
  if (o.cpp_group < 1 || o.cpp_chunk < 1 || o.prefill % std::max<uint64_t>(o.cpp_group, 1) != 0)
    return fail(
        Code::kInvalid,
        "--cpp-group %llu, --cpp-chunk %llu: want 1 or more, and groups that divide the %llu "
        "prefill nodes",
        static_cast<ull>(o.cpp_group), static_cast<ull>(o.cpp_chunk), static_cast<ull>(o.prefill));
  if (o.cpp_group > 1 && (o.pd_control || o.engine != "disaggregated"))
    return fail(
        Code::kInvalid,
        "--cpp-group %llu: groups need fixed prefill nodes: not with --pd-control, not with "
        "--engine %s",
        static_cast<ull>(o.cpp_group), o.engine.c_str());
  MC_TRY_(check_delay("--rack-latency", o.rack_latency));
  if (o.rack_latency.count() > 0 && o.rack_nodes == 0)
    return fail(Code::kInvalid,
                "--rack-latency %s: all nodes are in one rack: say how many are with --rack-nodes",
                to_text(o.rack_latency).c_str());
  MC_TRY_(parse_faults(o));
  MC_TRY_(parse_machines(o));
  if (o.queue_timeout.count() < 0 || o.prefill_timeout.count() < 0)
    return fail(Code::kInvalid, "--queue-timeout and --prefill-timeout must not be negative");
  MC_TRY_(check_delay("--overhead", o.overhead));
  if (o.pd.interval.count() <= 0 || o.admission.decode_time.count() <= 0)
    return fail(Code::kInvalid, "--pd-interval and --decode-time must be above 0");
  return {};
}

Result<SimResult> simulate(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
                           const cost::ModelSpec& spec, const SimOptions& options) {
  MC_TRY_(check(options));
  if (options.pool_tokens > 0 && options.pool_tokens < trace.block_tokens)
    return fail(Code::kInvalid,
                "--pool-tokens %llu: want at least %llu, a block of the trace, or 0 for no pool",
                static_cast<unsigned long long>(options.pool_tokens),
                static_cast<unsigned long long>(trace.block_tokens));
  if (arrivals.size() >= UINT32_MAX) return fail(Code::kNoSpace, "too many requests");
  return Cluster(trace, arrivals, spec, options).run();
}

}  // namespace mc::sim
