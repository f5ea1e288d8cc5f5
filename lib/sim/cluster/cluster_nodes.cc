// What prefill and decode nodes do: compute, fetch, send, load and decode.
#include <algorithm>

#include "sim/cluster/cluster_state.h"

namespace mc::sim {

// The prompt reaches its prefill node, which begins to fetch the remote prefix.
void Cluster::enqueue(uint32_t id) {
  SimRequest& request = requests_[id];
  SimNode& n = nodes_[request.prefill];
  request.stage = Stage::kQueued;
  request.queued = now_;
  const uint64_t local = n.cache ? n.cache->look(request.hashes, request.tokens).blocks() : 0;
  if (request.from != kNowhere) fetch(id, local);
  const uint64_t reused = std::max(request.fetched_blocks, local);
  const sched::PrefillWork mine{.left_ms = cost_.prefill_ms(request.tokens, reused * block()),
                                .since = now_,
                                .ready = !request.fetching};
  sched::StepAnswered answer{.of = ref(id), .step = sched::Step::kAllocate};
  answer.queue_ms = queue_ms(n, mine);
  n.queue.push_back(id);
  n.work.push_back(mine);
  tell(std::move(answer));
  start(request.prefill);
}

// Until the node would begin with it, by its own estimate.
double Cluster::queue_ms(const SimNode& n, const sched::PrefillWork& mine) const {
  double ms = n.computing() ? std::max(to_ms(requests_[n.occupant].freed - now_), 0.0) : 0;
  for (const sched::PrefillWork& w : n.work)
    if (sched::stays_before(w, mine, order())) ms += w.left_ms;
  return ms;
}

void Cluster::fetch(uint32_t id, uint64_t local_blocks) {
  SimRequest& request = requests_[id];
  const SimNode& source = nodes_[request.from];
  const uint64_t pinned = request.pinned_tokens / block();
  if (pinned <= local_blocks || source.down || !source.prefill) return;
  request.fetched_blocks = pinned;
  request.fetched_tokens = (pinned - local_blocks) * block();
  request.fetching = true;
  const double bytes = kv_bytes(request.fetched_tokens);
  request.flow = network_.start(request.from, request.prefill, bytes, now_);
  flow_of_[request.flow] = id;
  ++result_.fetches;
  result_.fetched_bytes += bytes;
  result_.moved_bytes += bytes;
  reflow();
}

void Cluster::start(uint32_t node) {
  SimNode& n = nodes_[node];
  if (n.down || n.computing()) return;
  const size_t at = sched::next_prefill(n.work, order().srpf, order().ageing, now_);
  if (at == n.work.size()) return;
  const uint32_t id = n.queue[at];
  n.queue.erase(n.queue.begin() + static_cast<std::ptrdiff_t>(at));
  n.work.erase(n.work.begin() + static_cast<std::ptrdiff_t>(at));
  SimRequest& request = requests_[id];
  const NodeCache::Found found = reuse(n, request);
  request.started = now_;
  request.stage = Stage::kComputing;
  n.occupant = id;
  double seconds = cost::prefill_seconds(group_spec_, request.tokens, request.reused);
  if (request.reused == found.blocks() * block()) {  // else a longer prefix was fetched
    result_.hit_vram_blocks += found.vram;
    result_.hit_ssd_blocks += found.ssd;
    seconds += tier_seconds(found, to_seconds(now_ - request.queued));
  }
  n.busy_s += seconds;
  const double tail = tail_seconds(request.tokens, request.reused);
  request.freed = now_ + from_seconds(seconds);
  if (o_.cpp_group > 1) events_.push(request.freed, {Kind::kFree, id, request.attempt});
  events_.push(now_ + from_seconds(seconds + tail), {Kind::kComputed, id, request.attempt});
}

// Reserves room for the prompt. Returns the blocks of it that were cached.
NodeCache::Found Cluster::reuse(SimNode& n, SimRequest& request) {
  result_.full_blocks += request.hashes.size();
  if (!n.cache) return {};
  const NodeCache::Found found = n.cache->look(request.hashes, request.tokens);
  request.tx = n.cache->begin(request.hashes, request.tokens, now_);
  const uint64_t most = serve::reusable_blocks(request.tokens, block());
  const uint64_t reused = std::max(found.blocks(), std::min(request.fetched_blocks, most));
  result_.hit_full_blocks += reused;
  request.reused = reused * block();
  return found;
}

// What the tiers change in the cost of a reused prefix: blocks in VRAM need no loading, blocks on
// the SSD must be read first. Reading began when the prompt was queued.
double Cluster::tier_seconds(const NodeCache::Found& found, double waited_s) const {
  const double spared = kv_bytes(found.vram * block()) / group_spec_.cost.load_bytes_per_s;
  const double read =
      kv_bytes(found.ssd * block()) / (o_.ssd_bytes_per_s * static_cast<double>(o_.cpp_group));
  return std::max(read - waited_s, 0.0) - spared;
}

// The time a group needs after its first stage: the last chunk passes through the other stages.
double Cluster::tail_seconds(uint64_t tokens, uint64_t reused) const {
  if (o_.cpp_group == 1) return 0;
  const uint64_t last = std::min(o_.cpp_chunk, tokens - reused);
  const double stage = cost::prefill_seconds(group_spec_, tokens, tokens - last) -
                       cost::prefill_seconds(group_spec_, tokens, tokens);
  return static_cast<double>(o_.cpp_group - 1) * std::max(stage, 0.0);
}

// Caches the prompt's blocks, and updates the index with blocks added and evicted.
void Cluster::publish(uint32_t node, SimRequest& request) {
  SimNode& n = nodes_[node];
  if (!n.cache) return;
  n.cache->end(request.tx, request.hashes, request.arrived->record->cache_class);
  for (const NodeCache::Change& c : n.cache->changes())
    c.stored ? index_.add(slot(node), c.tag) : index_.remove(slot(node), c.tag);
  std::vector<BlockHash>().swap(request.hashes);
}

// The node can begin the next prompt.
void Cluster::freed(uint32_t id) {
  const uint32_t node = requests_[id].prefill;
  if (nodes_[node].occupant == id) nodes_[node].occupant = kNowhere;
  start(node);
}

// The prompt is computed, and its KV is sent.
void Cluster::computed(uint32_t id) {
  SimRequest& request = requests_[id];
  const uint32_t node = request.prefill;
  request.computed = now_;
  publish(node, request);
  result_.prefill_busy_s += to_seconds(request.freed - request.started);
  request.stage = Stage::kMoving;
  request.from = node;
  request.flow = network_.start(node, request.decode, kv_bytes(request.tokens), now_);
  flow_of_[request.flow] = id;
  result_.moved_bytes += kv_bytes(request.tokens);
  reflow();
  if (o_.cpp_group == 1) freed(id);
}

void Cluster::flows() {
  for (const Network::FlowId flow : network_.finished(now_)) {
    const uint32_t id = flow_of_.at(flow);
    flow_of_.erase(flow);
    requests_[id].flow = 0;
    crossed(id);
  }
  reflow();
}

// The last byte was sent. Between racks it arrives a little later.
void Cluster::crossed(uint32_t id) {
  SimRequest& request = requests_[id];
  const bool fetch = request.fetching;
  const Time there = now_ + way(request.from, fetch ? request.prefill : request.decode);
  if (there > now_)
    return events_.push(there, {fetch ? Kind::kFetched : Kind::kSent, id, request.attempt});
  fetch ? fetched(id) : sent(id);
}

void Cluster::fetched(uint32_t id) {
  SimRequest& request = requests_[id];
  request.fetching = false;
  request.fetch_took = now_ - request.queued;
  SimNode& n = nodes_[request.prefill];
  for (size_t i = 0; i < n.queue.size(); ++i)
    if (n.queue[i] == id) n.work[i].ready = true;
  start(request.prefill);
}

// The fetch of the prefix fails: the prefill node computes it.
void Cluster::unfetch(uint32_t id) {
  SimRequest& request = requests_[id];
  cancel_flow(request);
  request.fetched_blocks = request.fetched_tokens = 0;
  fetched(id);
}

// All KV is at the decode node, which loads it while the prefill node answers.
void Cluster::sent(uint32_t id) {
  SimRequest& request = requests_[id];
  request.stage = Stage::kLoading;
  const double load_s = kv_bytes(request.tokens) / o_.load_bytes_per_s;
  events_.push(now_ + from_seconds(load_s), {Kind::kLoaded, id, request.attempt});
  sched::StepAnswered answer{.of = ref(id), .step = sched::Step::kPrefill};
  answer.times = {.cached_tokens = static_cast<uint32_t>(request.reused),
                  .peer_tokens = static_cast<uint32_t>(request.fetched_tokens),
                  .queue_ms = to_ms(request.started - request.queued),
                  .prefill_ms = to_ms(request.freed - request.started),
                  .transfer_ms = to_ms(now_ - request.computed),
                  .peer_ms = to_ms(request.fetch_took),
                  .kv_bytes = static_cast<uint64_t>(kv_bytes(request.tokens))};
  tell(std::move(answer));
  if (request.stage == Stage::kOutside) ++result_.rejected_after_prefill;
}

void Cluster::loaded(uint32_t id) {
  SimRequest& request = requests_[id];
  request.ready = now_;
  request.stage = Stage::kDecoding;
  nodes_[request.decode].decoder->ready({id, request.tokens, request.answer, request.reused}, now_);
  restep(request.decode);
}

void Cluster::restep(uint32_t node) {
  SimNode& n = nodes_[node];
  ++n.turn;
  if (n.decoder->deadline() != Time::max())
    events_.push(n.decoder->deadline(), {Kind::kStep, node, n.turn});
}

// Of an answer the machine hears of the first token, and of all others with the last.
void Cluster::step(uint32_t node) {
  std::vector<Decoded> ended;
  std::vector<uint64_t> begun;
  SimNode& n = nodes_[node];
  n.decoder->tick(now_, ended, &begun);
  if (coupled_) {
    for (const Decoded& d : ended) done_coupled(d);
    return restep(node);
  }
  for (const Decoded& d : ended) n.untold += d.blocks;
  if (n.free_blocks() != n.worker.blocks_free) speak(n);
  for (const uint64_t id : begun) {
    SimRequest& request = requests_[id];
    request.told = true;
    tell(sched::TokensArrived{
        .of = ref(static_cast<uint32_t>(id)), .first = 1, .count = 1, .finish = "", .error = ""});
  }
  restep(node);
  for (const Decoded& d : ended) {
    const auto id = static_cast<uint32_t>(d.id);
    SimRequest& request = requests_[id];
    note(d);
    n.untold -= d.blocks;
    release(request);
    const uint32_t first = request.told ? 2 : 1;
    tell(sched::TokensArrived{.of = ref(id),
                              .first = first,
                              .count = static_cast<uint32_t>(request.answer + 1 - first),
                              .finish = "length",
                              .error = ""});
  }
}

// The times of a request that has all its tokens.
void Cluster::note(const Decoded& d) {
  const auto id = static_cast<uint32_t>(d.id);
  const SimRequest& request = requests_[id];
  trace::RequestResult& out = result_.requests[id];
  out.output = request.answer;
  out.cached = request.reused;
  out.prefill = nodes_[request.prefill].name;
  out.decode = nodes_[request.decode].name;
  out.queue_ms = to_ms(request.started - request.due);
  out.prefill_ms = to_ms(request.computed - request.started);
  out.transfer_ms = to_ms(request.ready - request.computed);
  out.first_step_ms = to_ms(d.first_token - request.ready);
  out.ttft_ms = to_ms(d.first_token - request.due);
  out.e2e_ms = to_ms(now_ - request.due);
  for (const double gap : d.gaps_list) out.gaps_ms.push_back(gap * 1e3);
  if (d.tbt_s) out.given_tbt_ms = *d.tbt_s * 1e3;
}

}  // namespace mc::sim
