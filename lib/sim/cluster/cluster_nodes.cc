#include <algorithm>

#include "sched/load.h"
#include "sim/cluster/cluster_state.h"

namespace mc::sim {

void Cluster::enqueue(uint32_t id) {
  SimNode& n = nodes_[requests_[id].prefill];
  requests_[id].stage = Stage::kQueued;
  requests_[id].queued = now_;
  n.queue.push_back(id);
  n.work.push_back({.left_ms = cost_.prefill_ms(requests_[id].tokens, 0),
                    .since = now_,
                    .ready = !requests_[id].fetching});
  if (n.cache && o_.prefill_order != "fcfs")
    n.work.back().left_ms = cost_.prefill_ms(
        requests_[id].tokens,
        std::max(requests_[id].fetched_blocks,
                 n.cache->look(requests_[id].hashes, requests_[id].tokens).blocks()) *
            block());
  start(requests_[id].prefill);
}

void Cluster::start(uint32_t node) {
  SimNode& n = nodes_[node];
  if (n.computing) return;
  const size_t at = sched::next_prefill(n.work, order().srpf, order().ageing, now_);
  if (at == n.work.size()) return;
  const uint32_t id = n.queue[at];
  n.queue.erase(n.queue.begin() + static_cast<std::ptrdiff_t>(at));
  n.work.erase(n.work.begin() + static_cast<std::ptrdiff_t>(at));
  SimRequest& request = requests_[id];
  const NodeCache::Found found = reuse(n, request);
  request.started = now_;
  request.stage = Stage::kComputing;
  n.computing = true;
  double seconds = cost::prefill_seconds(group_spec_, request.tokens, request.reused);
  if (request.reused == found.blocks() * block()) {  // else a longer prefix was fetched
    result_.hit_vram_blocks += found.vram;
    result_.hit_ssd_blocks += found.ssd;
    seconds += tier_seconds(found, to_seconds(now_ - request.queued));
  }
  n.busy_s += seconds;
  const double tail = tail_seconds(request.tokens, request.reused);
  request.computed = now_ + from_seconds(seconds);
  if (o_.cpp_group > 1) events_.push(request.computed, {Kind::kFree, id, request.attempt});
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
  if (n.cache) {
    n.cache->end(request.tx, request.hashes, request.arrived->record->cache_class);
    for (const NodeCache::Change& c : n.cache->changes())
      c.stored ? index_.add(slot(node), c.tag) : index_.remove(slot(node), c.tag);
  }
  if (request.guess) index_.withdraw(request.guess);
  std::vector<BlockHash>().swap(request.hashes);
  std::vector<uint64_t>().swap(request.tags);
}

// If the chosen decode node changes sides, another one takes the request.
void Cluster::replace_decode(SimRequest& request) {
  const SimNode& chosen = nodes_[request.decode];
  if (!chosen.prefill && !chosen.draining) return;
  const uint32_t best = idlest_decoder();
  if (best == kNowhere) return;  // it drains, but it is the only one
  arrived_there(request);
  promise_decode(request, best);
}

uint32_t Cluster::idlest_decoder() const { return decodes_.pick(0).value_or(kNowhere); }

// The node can begin the next prompt.
void Cluster::freed(uint32_t id) {
  const uint32_t node = requests_[id].prefill;
  nodes_[node].ledger.finish(id + 1, now_);
  nodes_[node].computing = false;
  requeue(node);
  start(node);
}

void Cluster::computed(uint32_t id) {
  SimRequest& request = requests_[id];
  const uint32_t node = request.prefill;
  SimNode& n = nodes_[node];
  const bool alone = o_.cpp_group == 1;
  if (alone) request.computed = now_;
  const double seconds = to_seconds(request.computed - request.started);  // that the node was busy
  request.computed = now_;
  publish(node, request);
  if (alone) n.ledger.finish(id + 1, now_);
  --n.requests;
  if (alone) n.computing = false;
  requeue(node);
  result_.prefill_busy_s += seconds;
  if (request.decode == kNowhere) {
    const uint32_t best = idlest_decoder();
    if (best == kNowhere) {
      result_.wasted_prefill_s += seconds;
      reject(id, Verdict::kNoDecode);
      start(node);
      return settle_role(node);
    }
    promise_decode(request, best);
  }
  replace_decode(request);
  const SimNode& q = nodes_[request.decode];
  // Requests whose KV is in transfer have a place in the batch.
  sched::DecodeView there = decode_view(request.decode, 0, 0);
  there.requests = q.decoder->running() + q.decoder->waiting() + q.on_the_way;
  there.context_tokens = q.decoder->context() + q.decoder->waiting_tokens() + q.on_the_way_tokens;
  if (const Verdict v = sched::admit_decode(there, request.tokens, o_.admission, cost_);
      v != Verdict::kAccept) {
    ++result_.rejected_after_prefill;
    result_.wasted_prefill_s += seconds;
    arrived_there(request);
    reject(id, v);
  } else {
    ++nodes_[request.decode].on_the_way;
    nodes_[request.decode].on_the_way_tokens += request.tokens;
    request.stage = Stage::kMoving;
    request.from = node;
    request.flow = network_.start(node, request.decode, kv_bytes(request.tokens), now_);
    flow_of_[request.flow] = id;
    result_.moved_bytes += kv_bytes(request.tokens);
    reflow();
  }
  start(node);
  settle_role(node);
}

void Cluster::flows() {
  for (const Network::FlowId flow : network_.finished(now_)) {
    const uint32_t id = flow_of_.at(flow);
    flow_of_.erase(flow);
    crossed(id);
  }
  reflow();
}

// The last byte was sent. Between racks it arrives a little later.
void Cluster::crossed(uint32_t id) {
  SimRequest& request = requests_[id];
  const bool fetch = request.fetching;
  const Time there = now_ + way(request.from, fetch ? request.prefill : request.decode);
  if (!fetch) {
    cost_.learn_transfer(static_cast<uint64_t>(kv_bytes(request.tokens)),
                         to_ms(now_ - request.computed), true);
    request.stage = Stage::kLoading;
    const double seconds = kv_bytes(request.tokens) / o_.load_bytes_per_s;
    events_.push(there + from_seconds(seconds), {Kind::kLoaded, id, request.attempt});
  } else if (there == now_) {
    fetched(id);
  } else {
    events_.push(there, {Kind::kFetched, id, request.attempt});
  }
}

void Cluster::fetched(uint32_t id) {
  SimRequest& request = requests_[id];
  request.fetching = false;
  SimNode& n = nodes_[request.prefill];
  for (size_t i = 0; i < n.queue.size(); ++i)
    if (n.queue[i] == id) n.work[i].ready = true;
  start(request.prefill);
}

void Cluster::arrived_there(const SimRequest& request) {
  SimNode& n = nodes_[request.decode];
  --n.coming;
  n.coming_tokens -= request.tokens;
  n.coming_reserved -= request.tokens + request.answer;
  reload(request.decode);
}

void Cluster::loaded(uint32_t id) {
  SimRequest& request = requests_[id];
  request.ready = now_;
  request.stage = Stage::kDecoding;
  --nodes_[request.decode].on_the_way;
  nodes_[request.decode].on_the_way_tokens -= request.tokens;
  arrived_there(request);
  if (forecasts()) forecast_.decoding(id, now_);
  nodes_[request.decode].decoder->ready({id, request.tokens, request.answer, request.reused}, now_);
  reload(request.decode);
  restep(request.decode);
}

void Cluster::restep(uint32_t node) {
  SimNode& n = nodes_[node];
  ++n.turn;
  if (n.decoder->deadline() != Time::max())
    events_.push(n.decoder->deadline(), {Kind::kStep, node, n.turn});
}

void Cluster::step(uint32_t node) {
  std::vector<Decoded> ended;
  nodes_[node].decoder->tick(now_, ended);
  for (Decoded& d : ended) done(d);
  if (!coupled_) reload(node);
  restep(node);
  settle_role(node);
}

void Cluster::done(Decoded& d) {
  const auto id = static_cast<uint32_t>(d.id);
  SimRequest& request = requests_[id];
  trace::RequestResult& out = result_.requests[id];
  if (coupled_) {
    request.ready = d.first_token;
    request.computed = d.first_token;
    request.started = d.first_token - from_seconds(d.busy_s);
    result_.prefill_busy_s += d.busy_s;
    SimNode& n = nodes_[request.prefill];
    --n.requests;
    n.ledger.finish(id + 1, now_);
    n.busy_s += d.busy_s;
    requeue(request.prefill);
  }
  request.stage = Stage::kOutside;
  out.status = trace::Status::kOk;
  out.http = 200;
  out.output = request.answer;
  out.cached = request.reused;
  out.prefill = nodes_[request.prefill].name;
  out.decode = nodes_[request.decode].name;
  out.queue_ms = to_ms(request.started - request.due);
  out.prefill_ms = to_ms(request.computed - request.started);
  out.transfer_ms = to_ms(request.ready - request.computed);
  out.first_step_ms = to_ms(d.first_token - request.ready);
  if (request.predicted_ttft_ms > 0) out.predicted_ttft_ms = request.predicted_ttft_ms;
  out.ttft_ms = to_ms(d.first_token - request.due);
  out.e2e_ms = to_ms(now_ - request.due);
  for (const double gap : d.gaps_list) out.gaps_ms.push_back(gap * 1e3);
  if (d.tbt_s) out.given_tbt_ms = *d.tbt_s * 1e3;
  if (forecasts()) forecast_.ended(id, now_);
  last_ = now_;
  --unfinished_;
}

void Cluster::reject(uint32_t id, Verdict verdict) {
  trace::RequestResult& out = result_.requests[id];
  requests_[id].stage = Stage::kOutside;
  const bool slo = verdict == Verdict::kTtft || verdict == Verdict::kTbt;
  out.status = slo ? trace::Status::kRejected : trace::Status::kFailed;
  out.http = slo ? 429 : 503;
  out.reason = verdict == Verdict::kNoPrefill && !fits(requests_[id].tokens) ? "too_large"
                                                                             : sched::name(verdict);
  if (forecasts()) forecast_.ended(id, now_);
  last_ = now_;
  --unfinished_;
  ++rejected_;
}

void Cluster::place_coupled(uint32_t id) {
  SimRequest& request = requests_[id];
  if (!fits(request.tokens)) return reject(id, Verdict::kNoPrefill);
  const sched::Ask ask{.tokens = request.tokens, .block_tokens = block(), .number = decided_};
  sched::View view;
  const auto nodes = weigh(index_.matches(request.tags, nodes_.size()), ask, view);
  view.decode.push_back({.name = "all"});
  const sched::Decision d = sched::choose(view, ask, routing(o_), cost_);
  if (d.verdict != Verdict::kAccept) return reject(id, d.verdict);
  request.stage = Stage::kDecoding;
  request.prefill = request.decode = nodes[d.prefill];
  SimNode& n = nodes_[request.prefill];
  ++n.requests;
  ++n.assigned;
  reuse(n, request);
  n.ledger.charge(id + 1, cost_.prefill_ms(request.tokens, request.reused),
                  request.tokens - request.reused, now_);
  requeue(request.prefill);
  publish(request.prefill, request);
  n.decoder->ready({id, request.tokens, request.answer, request.reused}, now_);
  restep(request.prefill);
}

// Updates its rank among the prefill nodes.
void Cluster::requeue(uint32_t i) {
  const SimNode& n = nodes_[i];
  if (n.prefill && !n.down && !n.draining)
    prefills_.put(i, sched::CandidateRank::of(n.ledger, n.requests, n.assigned));
  else
    prefills_.drop(i);
}

// Updates its rank among the decode nodes.
void Cluster::reload(uint32_t i) {
  const SimNode& n = nodes_[i];
  if (coupled_) return;
  if (n.prefill || n.down || n.draining) return decodes_.drop(i);
  const sched::DecodeView v = decode_view(i, 0, 0);
  decodes_.put(i, v.requests, v.context_tokens,
               static_cast<int64_t>(o_.decode_tokens) - static_cast<int64_t>(reserved(n)));
}

Sample Cluster::measure() const {
  Sample s;
  s.at_s = to_seconds(now_ - start_);
  s.rejected = rejected_;
  for (const SimNode& n : nodes_) {
    if (n.down) continue;
    if (n.prefill) {
      ++s.prefill_nodes;
      s.prefill_load +=
          sched::prefill_load(n.ledger.wait_ms(now_), n.computing, o_.admission.ttft_slo);
      s.queued += n.requests;
    }
    if (n.decoder && (!n.prefill || coupled_)) {
      ++s.decode_nodes;
      const uint64_t batch = n.decoder->running() + n.decoder->waiting();
      const double step = cost_.step_ms(batch, n.decoder->context() + n.decoder->waiting_tokens());
      s.decode_load += sched::decode_load(step, o_.admission.tbt_slo);
      s.decoding += batch;
    }
  }
  if (s.prefill_nodes) s.prefill_load /= static_cast<double>(s.prefill_nodes);
  if (s.decode_nodes) s.decode_load /= static_cast<double>(s.decode_nodes);
  return s;
}

void Cluster::control() {
  const Sample s = measure();
  control_.sample(s.prefill_load, s.decode_load);
  if (now_ >= control_.deadline()) {
    const auto d = control_.decide(s.prefill_nodes, s.decode_nodes, now_);
    if (d.move != sched::PdMove::kNone) move(d);
  }
  if (!over()) events_.push(now_ + std::chrono::seconds(1), {Kind::kControl});
}

// The node of that side with the least work left, among those that stay.
uint32_t Cluster::least_loaded(bool prefill) const {
  uint32_t found = kNowhere;
  double least = INFINITY;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const SimNode& n = nodes_[i];
    if (n.prefill != prefill || n.down || n.draining) continue;
    const double load =
        prefill ? n.ledger.wait_ms(now_) : static_cast<double>(n.decoder->running() + n.coming);
    if (load >= least) continue;
    least = load;
    found = i;
  }
  return found;
}

// The node with the least work left drains, then changes sides. One node moves at a time.
void Cluster::move(const sched::PdDecision& d) {
  const bool from_prefill = d.move == sched::PdMove::kToDecode;
  for (const SimNode& n : nodes_)
    if (n.draining && !n.leaving) return;
  const uint32_t donor = least_loaded(from_prefill);
  if (donor == kNowhere) return;
  nodes_[donor].draining = true;
  result_.moves.push_back({to_seconds(now_ - start_), nodes_[donor].name,
                           from_prefill ? "decode" : "prefill", d.reason});
  requeue(donor);
  reload(donor);
  settle_role(donor);
}

void Cluster::settle_role(uint32_t i) {
  SimNode& n = nodes_[i];
  if (!n.draining) return;
  const bool busy = n.prefill ? n.requests > 0
                              : n.on_the_way > 0 || n.decoder->running() + n.decoder->waiting() > 0;
  if (busy) return;
  if (n.leaving) return part(i);
  n.draining = false;
  if (n.prefill) {
    prefills_.drop(i);
    become_decode(i);
  } else {
    decodes_.drop(i);
    --decode_nodes_;
    become_prefill(i);
  }
}

void Cluster::finish() {
  MC_CHECK(unfinished_ == 0);
  result_.duration_s = to_seconds(last_ - start_);
  for (const SimNode& n : nodes_) {
    if (n.decoder) {
      result_.steps += static_cast<double>(n.decoder->steps());
      result_.token_steps += static_cast<double>(n.decoder->token_steps());
    }
    if (n.prefill)
      result_.prefill_busy_share.push_back(result_.duration_s > 0 ? n.busy_s / result_.duration_s
                                                                  : 0);
  }
}

}  // namespace mc::sim
