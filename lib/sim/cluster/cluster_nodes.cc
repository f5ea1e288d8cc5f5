// What prefill and decode nodes do: compute, fetch, send, load and decode.
#include <algorithm>

#include "sim/cluster/cluster_state.h"

namespace mc::sim {
namespace {

// What the tiers change in the cost of a reused prefix: blocks in VRAM need no loading, blocks on
// the SSD must be read first. Reading began when the prompt was queued.
double tier_seconds(const NodeCache::Found& found, double waited_s, double block_bytes,
                    const cost::ModelSpec& group, const SimOptions& o) {
  const double spared = static_cast<double>(found.vram) * block_bytes / group.cost.load_bytes_per_s;
  const double read = static_cast<double>(found.ssd) * block_bytes /
                      (o.ssd_bytes_per_s * static_cast<double>(o.cpp_group));
  return std::max(read - waited_s, 0.0) - spared;
}

// The time a group needs after its first stage: the last chunk passes through the other stages.
double tail_seconds(uint64_t tokens, uint64_t reused, const cost::ModelSpec& group,
                    const SimOptions& o) {
  const uint64_t last = std::min(o.cpp_chunk, tokens - reused);
  const double stage = cost::prefill_seconds(group, tokens, tokens - last) -
                       cost::prefill_seconds(group, tokens, tokens);
  return static_cast<double>(o.cpp_group - 1) * std::max(stage, 0.0);
}

}  // namespace

// The prompt reaches its prefill node, which begins to fetch the remote prefix.
void Cluster::enqueue(uint32_t id) {
  SimRequest& request = requests_[id];
  SimNode& n = nodes_[request.prefill];
  request.stage = Stage::kQueued;
  request.queued = now_;
  n.hold(request, 0, now_);
  const uint64_t local = n.look(request).blocks();
  if (request.from != kNowhere) fetch(id, local);
  if (!request.fetching) request.pinned.drop();
  sched::StepAnswered answer{.of = ref(id), .step = sched::Step::kAllocate};
  answer.queue_ms = to_ms(n.prefiller->queue_time(now_, request.tokens, local * block()));
  n.prefiller->push(id, request.tokens, std::max(local, request.coming(block())) * block(),
                    !request.fetching, now_);
  tell(std::move(answer));
  start(request.prefill);
}

void Cluster::fetch(uint32_t id, uint64_t local_blocks) {
  SimRequest& request = requests_[id];
  const SimNode& source = nodes_[request.from];
  const uint64_t pinned = request.pinned_tokens / block();
  if (pinned <= local_blocks || source.down || !source.prefill) return;
  request.fetched_blocks = pinned;
  request.fetched_tokens = (pinned - local_blocks) * block();
  request.fetching = true;
  SimNode& n = nodes_[request.prefill];
  n.coming.push_back(id);
  n.hold(request, request.coming(block()), now_);
  const double bytes = kv_bytes(request.fetched_tokens);
  request.flow = network_.start(request.from, request.prefill, bytes, now_);
  flow_of_[request.flow] = id;
  ++result_.fetches;
  result_.fetched_bytes += bytes;
  result_.moved_bytes += bytes;
  reflow();
}

// The prompt's turn has come, and `here` blocks of it are here. False: it has to wait for KV.
bool Cluster::prepare(uint32_t node, uint32_t id, uint64_t here) {
  SimNode& n = nodes_[node];
  SimRequest& request = requests_[id];
  const uint64_t most = serve::reusable_blocks(request.tokens, block());
  const auto brings = [&](uint32_t other) {
    return serve::brings_next(requests_[other].hashes, request.hashes, here, most);
  };
  if (std::any_of(n.coming.begin(), n.coming.end(), brings)) {
    n.prefiller->waits(id);
    n.behind.push_back(id);
    return false;
  }
  request.prepared = true;
  if (!pool_.read({id, node, request.tokens, request.hashes}, here, request.pool, now_)) {
    n.prefiller->loaded(id);
    return true;
  }
  n.prefiller->loads(id);
  n.coming.push_back(id);
  n.hold(request, request.pool.end, now_);
  pool_moved();
  return false;
}

// If the node is free, it computes what its queue chooses.
void Cluster::start(uint32_t node) {
  SimNode& n = nodes_[node];
  if (n.down || !n.prefiller) return;
  while (const auto head = n.prefiller->head(now_)) {
    if (head->started) {
      resume(n, *head);
      break;
    }
    const auto id = static_cast<uint32_t>(head->id);
    SimRequest& request = requests_[id];
    const NodeCache::Found found = n.look(request);
    const uint64_t here = std::max(found.blocks(), request.coming(block()));
    if (!request.prepared && !prepare(node, id, here)) continue;
    const uint64_t reused = here * block();
    if (reused == head->done) {
      begin(n, id, found);
      break;
    }
    n.prefiller->found(id, reused);  // it may have lost its place
  }
  if (n.prefiller->deadline() == n.prefill_at) return;
  n.prefill_at = n.prefiller->deadline();
  ++n.prefill_turn;
  if (n.computing()) events_.push(n.prefill_at, {Kind::kPrefill, node, n.prefill_turn});
}

void Cluster::begin(SimNode& n, uint32_t id, const NodeCache::Found& found) {
  SimRequest& request = requests_[id];
  reuse(n, request, found);
  request.started = now_;
  request.stage = Stage::kComputing;
  double seconds = cost::prefill_seconds(group_spec_, request.tokens, request.reused);
  if (request.reused == found.blocks() * block()) {  // else a longer prefix was fetched
    result_.hit_vram_blocks += found.vram;
    result_.hit_ssd_blocks += found.ssd;
    seconds +=
        tier_seconds(found, to_seconds(now_ - request.queued), kv_bytes(block()), group_spec_, o_);
  }
  n.prefiller->begin(now_, from_seconds(seconds));
}

// A prompt that others overtook goes on, behind what they computed of it. A group's goes on where
// it was, as a live pipeline's does.
void Cluster::resume(SimNode& n, const Prefiller::Head& head) {
  SimRequest& request = requests_[static_cast<uint32_t>(head.id)];
  uint64_t done = head.done;
  if (n.cache && o_.cpp_group == 1) done = std::max(done, n.cache->rematch(request.tx) * block());
  request.reused += done - head.done;
  result_.hit_full_blocks += (done - head.done) / block();
  n.prefiller->resume(now_, done);
}

// The prompt that the node computed is at its end, or others go before it.
void Cluster::prefill(uint32_t node) {
  SimNode& n = nodes_[node];
  const auto id = static_cast<uint32_t>(n.prefiller->runs());
  const Prefiller::Outcome outcome = n.prefiller->tick(now_);
  if (outcome == Prefiller::Outcome::kRuns) return start(node);
  SimRequest& request = requests_[id];
  const Duration took = now_ - n.prefiller->since();
  n.busy_s += to_seconds(took);
  if (outcome == Prefiller::Outcome::kGivenUp) return start(node);
  request.spent += took;
  request.freed = now_;
  if (outcome == Prefiller::Outcome::kOvertaken) {
    n.keep(request, n.prefiller->done(now_) / block());
  } else if (o_.cpp_group == 1) {
    return computed(id);
  } else {
    const double tail = tail_seconds(request.tokens, request.reused, group_spec_, o_);
    events_.push(now_ + from_seconds(tail), {Kind::kComputed, id, request.attempt});
  }
  start(node);
}

// Reserves room for the prompt. `found`: what is cached of it.
void Cluster::reuse(SimNode& n, SimRequest& request, const NodeCache::Found& found) {
  result_.full_blocks += request.hashes.size();
  if (n.cache) request.tx = n.cache->begin(request.hashes, request.tokens, now_);
  request.held.drop();
  const uint64_t reused = std::max(found.blocks(), request.coming(block()));
  result_.hit_full_blocks += reused;
  request.reused = reused * block();
}

// Caches the prompt's blocks, and updates the index with blocks added and evicted.
void Cluster::publish(uint32_t node, SimRequest& request) {
  SimNode& n = nodes_[node];
  if (!n.cache) return;
  n.cache->end(request.tx, request.hashes, request.arrived->record->cache_class);
  tell_index(node);
  std::vector<BlockHash>().swap(request.hashes);
}

void Cluster::tell_index(uint32_t node) {
  for (const NodeCache::Change& c : nodes_[node].cache->changes())
    c.stored ? index_.add(slot(node), c.tag) : index_.remove(slot(node), c.tag);
}

// The prompt is computed, and its KV is sent.
void Cluster::computed(uint32_t id) {
  SimRequest& request = requests_[id];
  const uint32_t node = request.prefill;
  request.computed = now_;
  pool_.put({id, node, request.tokens, request.hashes}, request.reused / block(),
            request.arrived->record->cache_class, now_);
  pool_moved();
  publish(node, request);
  result_.prefill_busy_s += to_seconds(request.spent);
  request.stage = Stage::kMoving;
  request.from = node;
  request.flow = network_.start(node, request.decode, kv_bytes(request.tokens), now_);
  flow_of_[request.flow] = id;
  result_.moved_bytes += kv_bytes(request.tokens);
  reflow();
  if (o_.cpp_group == 1) start(node);
}

// Reads from the pool ended, or something else of it changed.
void Cluster::pool_moved() {
  if (pool_.index() == nullptr) return;
  for (const PoolTraffic::Read& read : pool_.ended()) {
    SimRequest& request = requests_[read.request];
    request.pool.took = now_ - request.pool.begun;
    if (read.whole) {
      const uint64_t blocks = request.pool.end - request.pool.first;
      request.fetched_blocks = request.pool.end;
      request.pool.tokens = blocks * block();
      result_.pool_blocks += blocks;
    }
    SimNode& n = nodes_[request.prefill];
    n.arrived(read.request, now_);
    n.prefiller->came(read.request, n.came(request, block()) * block(), now_);
    start(request.prefill);
  }
  reflow();
  if (unfinished_ == 0) return;  // its deadlines count while there are requests
  if (const auto wake = pool_.wake(now_)) events_.push(wake->at, {Kind::kPool, 0, wake->number});
}

void Cluster::flows() {
  for (const Network::FlowId flow : network_.finished(now_)) {
    if (pool_.arrived(flow, now_)) continue;
    const uint32_t id = flow_of_.at(flow);
    flow_of_.erase(flow);
    requests_[id].flow = 0;
    crossed(id);
  }
  pool_moved();
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
  request.pinned.drop();
  SimNode& n = nodes_[request.prefill];
  n.arrived(id, now_);
  n.prefiller->came(id, n.came(request, block()) * block(), now_);
  start(request.prefill);
}

// The fetch of the prefix fails: the prefill node computes it.
void Cluster::unfetch(uint32_t id) {
  SimRequest& request = requests_[id];
  cancel_flow(request);
  request.fetched_blocks = request.fetched_tokens = 0;
  nodes_[request.prefill].hold(request, 0, now_);
  fetched(id);
}

// All KV is at the decode node, which loads it while the prefill node answers.
void Cluster::sent(uint32_t id) {
  SimRequest& request = requests_[id];
  request.stage = Stage::kLoading;
  const double load_s = kv_bytes(request.tokens) / o_.load_bytes_per_s;
  events_.push(now_ + from_seconds(load_s), {Kind::kLoaded, id, request.attempt});
  sched::StepAnswered answer{.of = ref(id), .step = sched::Step::kPrefill};
  answer.times = {
      .cached_tokens = static_cast<uint32_t>(request.reused),
      .pool_tokens = static_cast<uint32_t>(request.pool.tokens),
      .peer_tokens = static_cast<uint32_t>(request.fetched_tokens),
      .queue_ms = to_ms(request.started - request.queued - request.pool.took + request.overtaken()),
      .load_ms = to_ms(request.pool.took),
      .prefill_ms = to_ms(request.spent),
      .transfer_ms = to_ms(now_ - request.computed),
      .fetch_ms = to_ms(request.pool.took),
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

// The times of a request that has all its tokens. What it read from the pool counts as transfer, as
// in the report of a live run.
void Cluster::note(const Decoded& d) {
  const auto id = static_cast<uint32_t>(d.id);
  const SimRequest& request = requests_[id];
  trace::RequestResult& out = result_.requests[id];
  out.output = request.answer;
  out.cached = request.reused;
  out.prefill = nodes_[request.prefill].name;
  out.decode = nodes_[request.decode].name;
  out.queue_ms = to_ms(request.started - request.due + request.overtaken() - request.pool.took);
  out.prefill_ms = to_ms(request.computed - request.started - request.overtaken());
  out.transfer_ms = to_ms(request.ready - request.computed + request.pool.took);
  out.first_step_ms = to_ms(d.first_token - request.ready);
  out.ttft_ms = to_ms(d.first_token - request.due);
  out.e2e_ms = to_ms(now_ - request.due);
  for (const double gap : d.gaps_list) out.gaps_ms.push_back(gap * 1e3);
  if (d.tbt_s) out.given_tbt_ms = *d.tbt_s * 1e3;
}

}  // namespace mc::sim
