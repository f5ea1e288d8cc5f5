#include <algorithm>
#include <tuple>

#include "sim/cluster/cluster_state.h"

namespace mc::sim {
namespace {
constexpr Duration kGuessSlack = std::chrono::seconds(2);
}  // namespace

SimResult Cluster::run() {
  while (!events_.empty()) {
    now_ = events_.next();
    index_.tick(now_);
    const Event event = events_.pop();
    result_.events += event.kind != Kind::kSample;  // looking changes nothing
    handle(event);
  }
  finish();
  return std::move(result_);
}

std::vector<std::string> Cluster::names() const {
  std::vector<std::string> out;
  for (uint64_t i = 0; i < groups_ + o_.decode; ++i)
    out.push_back(coupled_      ? "n" + std::to_string(i)
                  : i < groups_ ? "p" + std::to_string(i)
                                : "d" + std::to_string(i - groups_));
  return out;
}

void Cluster::make_nodes() {
  nodes_.resize(groups_ + o_.decode);
  for (uint32_t i = 0; i < groups_; ++i)
    if (o_.cpp_group > 1) network_.widen(i, static_cast<double>(o_.cpp_group));
  for (const trace::Arrived& a : arrivals_)
    prompt_max_ = std::max(prompt_max_, trace::blocks(a.record->input_length, block()));
  const auto all = names();
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    SimNode& n = nodes_[i];
    n.prefill = coupled_ || i < groups_;
    n.name = all[i];
    if (n.prefill) become_prefill(i);
    if (!n.prefill || coupled_) become_decode(i);
  }
}

void Cluster::become_prefill(uint32_t i) {
  SimNode& n = nodes_[i];
  n.prefill = true;
  n.ledger.set_order(order());
  if (!n.cache && cache_blocks() > 0)
    n.cache = std::make_unique<NodeCache>(
        NodeCacheOptions{.vram = o_.vram_tokens * o_.cpp_group / block(),
                         .dram = cache_blocks(),
                         .ssd = o_.ssd_tokens * o_.cpp_group / block(),
                         .block_tokens = block(),
                         .prompt_max = prompt_max_,
                         .rule = o_.cache_rule},
        i);
  requeue(i);
}

void Cluster::become_decode(uint32_t i) {
  SimNode& n = nodes_[i];
  if (!coupled_) n.prefill = false;
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
    n.decoder = std::make_unique<Decoder>(spec_, d, o_.keep_gaps);
  }
  ++decode_nodes_;
  reload(i);
}

void Cluster::handle(const Event& e) {
  switch (e.kind) {
    case Kind::kArrive: return arrive(e.at);
    case Kind::kQueue: return now_on(e) ? enqueue(e.at) : void();
    case Kind::kFree: return now_on(e) ? freed(e.at) : void();
    case Kind::kComputed: return now_on(e) ? computed(e.at) : void();
    case Kind::kFlow: return e.turn == flow_turn_ ? flows() : void();
    case Kind::kFetched: return now_on(e) ? fetched(e.at) : void();
    case Kind::kLoaded: return now_on(e) ? loaded(e.at) : void();
    case Kind::kStep: return e.turn == nodes_[e.at].turn ? step(e.at) : void();
    case Kind::kSample: return sample();
    case Kind::kControl: return control();
    case Kind::kDown: return down(e.at);
    case Kind::kUp: return up(e.at);
    case Kind::kMachines: return resize(e.turn);
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
  ++unfinished_;
  fill(request);
  trace::RequestResult& out = result_.requests[id];
  out.id = request.arrived->id;
  out.t_intended_ms = to_ms(now_ - start_);
  out.t_sent_ms = out.t_intended_ms;
  out.input = request.tokens;
  out.hash_blocks = r.hash_ids.size();
  coupled_ ? place_coupled(id) : place(id);
  ++decided_;
}

void Cluster::fill(SimRequest& request) const {
  request.hashes = block_hashes(*request.arrived->record, block());
  request.tags.clear();
  for (const BlockHash& h : request.hashes) request.tags.push_back(h.tag());
}

sched::DecodeView Cluster::decode_view(uint32_t i, uint64_t tokens, uint64_t answer) const {
  const SimNode& n = nodes_[i];
  return {.name = n.name,
          .usable = !n.draining,
          .room = reserved(n) + tokens + answer <= o_.decode_tokens,
          .requests = n.decoder->running() + n.decoder->waiting() + n.coming,
          .context_tokens = n.decoder->context() + n.decoder->waiting_tokens() + n.coming_tokens};
}

// Where short prompts overtake, the queue differs for each prompt, so nodes have no fixed order.
std::vector<sched::PrefillShortlist::Listed> Cluster::all_prefills() const {
  std::vector<sched::PrefillShortlist::Listed> out;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const SimNode& n = nodes_[i];
    if (n.prefill && !n.down) out.push_back({i, !n.draining});
  }
  return out;
}

// The candidate prefill nodes, and the view of them for choose().
std::vector<uint32_t> Cluster::weigh(const sched::Matches& matches, const sched::Ask& ask,
                                     sched::View& view) {
  std::vector<uint32_t> nodes;
  const uint64_t most = ask.tokens == 0 ? 0 : (ask.tokens - 1) / block();  // reusable
  for (const auto& [i, usable] :
       order().srpf ? all_prefills() : prefills_.pick(matches, ask, now_)) {
    const SimNode& n = nodes_[i];
    const uint64_t match = matches.of(slot(i));
    const double work_ms =
        order().srpf ? cost_.prefill_ms(ask.tokens, std::min(match, most) * block()) : 0;
    nodes.push_back(i);
    view.prefill.push_back({.name = n.name,
                            .usable = usable && fits(ask.tokens),
                            .match = static_cast<uint32_t>(match),
                            .queue_ms = n.ledger.wait_ms(now_, work_ms, 0),
                            .queued_tokens = n.ledger.tokens(),
                            .requests = n.requests,
                            .assigned = n.assigned});
  }
  return nodes;
}

void Cluster::place(uint32_t id) {
  SimRequest& request = requests_[id];
  const auto matches = index_.matches(request.tags, nodes_.size());
  const sched::Ask ask{.tokens = request.tokens, .block_tokens = block(), .number = decided_};
  sched::View view;
  const auto prefills = weigh(matches, ask, view);
  const auto decode = decodes_.pick(request.tokens + request.answer);
  if (decode) view.decode.push_back(decode_view(*decode, request.tokens, request.answer));
  sched::Decision d = sched::choose(view, ask, o_.policy, cost_);
  if (d.verdict != Verdict::kAccept) return reject(id, d.verdict);
  request.prefill = prefills[d.prefill];
  request.decode = *decode;
  request.from =
      d.chosen.fetch_ms > 0 ? holder(request, matches, d.chosen.reused_tokens / block()) : kNowhere;
  foresee(request, d);
  const Verdict verdict =
      sched::admit(d, request.tokens, o_.admission, forecast_, decode_nodes_, cost_, now_);
  if (verdict != Verdict::kAccept) return reject(id, verdict);
  request.predicted_ttft_ms = d.ttft_ms() + to_ms(o_.overhead);
  charge(id, d);
  if (request.from != kNowhere) fetch(id, d);
  request.stage = Stage::kSent;
  events_.push(now_ + o_.overhead, {Kind::kQueue, id, request.attempt});
}

// Adds the times that choose() leaves out because they are similar on every node: the tail of a
// pipeline, reading from an SSD, the latency between racks, loading KV, and the first step.
void Cluster::foresee(const SimRequest& request, sched::Decision& d) const {
  sched::Candidate& c = d.chosen;
  const double fetch_ms =
      request.from == kNowhere ? 0 : c.fetch_ms + to_ms(way(request.from, request.prefill));
  const double start_ms = std::max(c.queue_ms, fetch_ms);
  double later_s = tail_seconds(request.tokens, c.reused_tokens) +
                   kv_bytes(request.tokens) / o_.load_bytes_per_s +
                   to_seconds(way(request.prefill, request.decode));
  const SimNode& n = nodes_[request.prefill];
  if (request.from == kNowhere && n.cache && o_.ssd_tokens + o_.vram_tokens > 0)
    later_s += tier_seconds(n.cache->look(request.hashes, request.tokens), start_ms / 1e3);
  c.ttft_ms += start_ms - std::max(c.queue_ms, c.fetch_ms) + later_s * 1e3 + d.tbt_ms;
}

// Runs before any other decision: the next request of the same burst must see this charge.
void Cluster::charge(uint32_t id, const sched::Decision& d) {
  SimRequest& request = requests_[id];
  SimNode& p = nodes_[request.prefill];
  p.ledger.charge(id + 1, d.chosen.prefill_ms, request.tokens - d.chosen.reused_tokens, now_);
  ++p.assigned;
  ++p.requests;
  requeue(request.prefill);
  promise_decode(request, request.decode);
  const Time until = now_ + from_seconds(d.ttft_ms() / 1e3) + o_.overhead + kGuessSlack;
  if (p.cache && cacheable(request))
    request.guess = index_.guess(slot(request.prefill), request.tags, until);
  const double joins_ms = request.predicted_ttft_ms - d.tbt_ms;
  if (forecasts()) forecast_.dispatched(id, request.tokens, now_ + from_seconds(joins_ms / 1e3));
}

void Cluster::promise_decode(SimRequest& request, uint32_t node) {
  request.decode = node;
  SimNode& n = nodes_[node];
  ++n.coming;
  n.coming_tokens += request.tokens;
  n.coming_reserved += request.tokens + request.answer;
  reload(node);
}

// The node that holds so many blocks and has the least used NIC, in this rack if possible. Ties:
// the first.
uint32_t Cluster::holder(const SimRequest& request, const sched::Matches& matches,
                         uint64_t blocks) const {
  using Key = std::tuple<bool, size_t, uint32_t>;
  std::optional<Key> best;
  const auto look = [&](uint32_t i) {
    const Key key{rack(i) != rack(request.prefill), network_.sending(i), i};
    if (i != request.prefill && (!best || key < *best)) best = key;
    return best && !std::get<0>(*best) && std::get<1>(*best) == 0;  // none is better
  };
  for (const auto& [node, length] : matches.few)
    if (length >= blocks) look(node);
  for (int at = 0; at < static_cast<int>(matches.levels.size()); ++at)
    if (matches.level_length(at) >= blocks)
      matches.each(at, [&](sched::HolderSet::Slot node) {
        return matches.of(node) >= blocks && look(node);
      });
  return best ? std::get<2>(*best) : kNowhere;
}

void Cluster::fetch(uint32_t id, const sched::Decision& d) {
  SimRequest& request = requests_[id];
  const double bytes = kv_bytes(d.chosen.reused_tokens - d.chosen.local_tokens);
  request.fetched_blocks = d.chosen.reused_tokens / block();
  request.fetching = true;
  request.flow = network_.start(request.from, request.prefill, bytes, now_);
  flow_of_[request.flow] = id;
  ++result_.fetches;
  result_.fetched_bytes += bytes;
  result_.moved_bytes += bytes;
  reflow();
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
  v("nic-gbps", nic_gbps, "Gbit/s of each node's NIC, each way; 0: the model's");
  v("overhead", overhead, "of a decision and its messages, part of every TTFT");
  v("policy", policy.policy, "how prefill nodes are chosen", sched::kPolicies);
  v("kvcache-balancing-threshold", policy.balancing_threshold,
    "fetch a longer prefix from elsewhere when it is this many times as long as the local one");
  admission.describe(v);
  v("prefill-order", prefill_order, "of a prefill node's queue", sched::kPrefillOrders);
  v("ageing", ageing, "of srpf: a second of waiting counts like this many seconds less to compute");
  v("cpp-group", cpp_group, "prefill nodes that compute a prompt together, as a pipeline");
  v("cpp-chunk", cpp_chunk, "tokens that go through that pipeline at once");
  v("rack-nodes", rack_nodes, "nodes of a rack, by their numbers, prefill first; 0: one rack");
  v("rack-latency", rack_latency, "added to transfers between racks");
  v("fault", fault, "a node that fails, and when it returns: p3@120s-180s, d0@5m");
  v("machines", machines, "how many nodes serve from a time on, as 12@8h; needs --pd-control");
  v("pd-control", pd_control, "move nodes between prefill and decode as their loads change");
  v("pd-interval", pd.interval, "between decisions of --pd-control");
  v("pd-cooldown", pd.cooldown, "after a move");
  v("pd-deadband", pd.band, "imbalance that causes no move");
  v("chunk", chunk_tokens, "tokens of a chunk, for --engine chunked");
}

Result<> check(const SimOptions& o) {
  using ull = unsigned long long;
  const auto nodes = o.prefill + o.decode;
  if (o.prefill < 1 || (o.decode < 1 && o.engine == "disaggregated"))
    return fail(Code::kInvalid, "%llu prefill and %llu decode nodes: want at least one of each",
                static_cast<ull>(o.prefill), static_cast<ull>(o.decode));
  if (nodes > kNodesMax)
    return fail(Code::kInvalid, "%llu nodes: %llu at most", static_cast<ull>(nodes),
                static_cast<ull>(kNodesMax));
  if (!(o.nic_gbps >= 0) || o.nic_gbps > 1e6)
    return fail(Code::kInvalid, "--nic-gbps %g: want 0 to 1000000", o.nic_gbps);
  if (!(o.policy.balancing_threshold >= 1))
    return fail(Code::kInvalid, "--kvcache-balancing-threshold %g: want 1 or more",
                o.policy.balancing_threshold);
  if (!(o.ageing >= 0) || !(o.pd.band >= 1))
    return fail(Code::kInvalid, "--ageing %g, --pd-deadband %g: want at least 0 and 1", o.ageing,
                o.pd.band);
  if (o.chunk_tokens < 1) return fail(Code::kInvalid, "--chunk 0: want at least 1");
  if (o.cache_tokens > 1'000'000'000 || o.decode_tokens < 1)
    return fail(
        Code::kInvalid,
        "--cache-tokens %llu, --decode-tokens %llu: want at most 1000000000, and at least 1",
        static_cast<ull>(o.cache_tokens), static_cast<ull>(o.decode_tokens));
  if (o.vram_tokens > o.cache_tokens || o.ssd_tokens > 100'000'000'000 || !(o.ssd_bytes_per_s >= 1))
    return fail(
        Code::kInvalid,
        "--vram-tokens %llu, --ssd-tokens %llu, --ssd-rate %g: want at most --cache-tokens, "
        "100 G, and 1 byte a second or more",
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
  if (o.rack_latency.count() < 0) return fail(Code::kInvalid, "--rack-latency is negative");
  if (o.rack_latency.count() > 0 && o.rack_nodes == 0)
    return fail(Code::kInvalid,
                "--rack-latency %s: all nodes are in one rack: say how many are with --rack-nodes",
                to_text(o.rack_latency).c_str());
  MC_TRY_(parse_faults(o));
  MC_TRY_(parse_machines(o));
  if (o.overhead.count() < 0 || o.pd.interval.count() <= 0 || o.admission.decode_time.count() <= 0)
    return fail(Code::kInvalid,
                "--overhead must not be negative, --pd-interval and --decode-time must be above 0");
  return {};
}

Result<SimResult> simulate(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
                           const cost::ModelSpec& spec, const SimOptions& options) {
  MC_TRY_(check(options));
  if (arrivals.size() >= UINT32_MAX) return fail(Code::kNoSpace, "too many requests");
  return Cluster(trace, arrivals, spec, options).run();
}

}  // namespace mc::sim
