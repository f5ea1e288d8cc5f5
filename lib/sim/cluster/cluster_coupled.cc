// Engines that compute and decode on every node, for comparison. Their requests have no steps: one
// node takes each.
#include "sim/cluster/cluster_state.h"

namespace mc::sim {

// The candidate nodes, and the view of them for choose().
std::vector<uint32_t> Cluster::weigh(const sched::Matches& matches, const sched::Ask& ask,
                                     sched::View& view) {
  std::vector<uint32_t> nodes;
  for (const auto& [i, usable] : prefills_->pick(matches, ask, now_)) {
    const SimNode& n = nodes_[i];
    nodes.push_back(i);
    view.prefill.push_back({.name = n.name,
                            .usable = usable,
                            .match = matches.of(slot(i)),
                            .queue_ms = n.worker.ledger.wait_ms(now_),
                            .queued_tokens = n.worker.ledger.tokens(),
                            .requests = n.worker.requests,
                            .assigned = n.worker.assigned});
  }
  return nodes;
}

void Cluster::place_coupled(uint32_t id) {
  SimRequest& request = requests_[id];
  if (request.hashes.empty()) request.hashes = block_hashes(*request.arrived->record, block());
  if (cache_blocks() > 0 && trace::blocks(request.tokens, block()) > cache_blocks())
    return ended(id, 400, "context_length_exceeded");
  std::vector<uint64_t> tags;
  for (const BlockHash& h : request.hashes) tags.push_back(h.tag());
  const sched::Ask ask{.tokens = request.tokens, .block_tokens = block(), .number = decided_};
  sched::View view;
  const auto nodes = weigh(index_.matches(tags, nodes_.size()), ask, view);
  view.decode.push_back({.name = "all"});
  const sched::Decision d = sched::choose(view, ask, coupled_policy(o_), cost_);
  if (d.verdict != sched::Verdict::kAccept) return ended(id, 503, "no_capacity");
  request.stage = Stage::kDecoding;
  request.prefill = request.decode = nodes[d.prefill];
  SimNode& n = nodes_[request.prefill];
  ++n.worker.requests;
  ++n.worker.assigned;
  reuse(n, request, n.look(request));
  n.worker.ledger.charge(id + 1, cost_.prefill_ms(request.tokens, request.reused),
                         request.tokens - request.reused, now_);
  requeue(request.prefill);
  publish(request.prefill, request);
  n.decoder->ready({id, request.tokens, request.answer, request.reused}, now_);
  restep(request.prefill);
}

void Cluster::done_coupled(const Decoded& d) {
  const auto id = static_cast<uint32_t>(d.id);
  SimRequest& request = requests_[id];
  SimNode& n = nodes_[request.prefill];
  request.ready = request.computed = d.first_token;
  request.freed = d.first_token;
  request.spent = from_seconds(d.busy_s);
  request.started = d.first_token - request.spent;
  result_.prefill_busy_s += d.busy_s;
  --n.worker.requests;
  n.worker.ledger.finish(id + 1, now_);
  n.busy_s += d.busy_s;
  requeue(request.prefill);
  note(d);
  ended(id, 200, "");
}

// Updates its rank among the nodes.
void Cluster::requeue(uint32_t i) {
  const SimNode& n = nodes_[i];
  if (n.down) return prefills_->drop(i);
  prefills_->put(i,
                 sched::CandidateRank::of(n.worker.ledger, n.worker.requests, n.worker.assigned));
}

// The node failed: its requests begin anew elsewhere.
void Cluster::down_coupled(uint32_t node) {
  SimNode& n = nodes_[node];
  n.worker = {};
  requeue(node);
  for (const uint64_t id : n.decoder->drop()) {
    SimRequest& request = requests_[id];
    request.stage = Stage::kOutside;
    request.reused = 0;
    request.tx = 0;
    ++result_.restarted;
    place_coupled(static_cast<uint32_t>(id));
  }
  ++n.turn;
}

}  // namespace mc::sim
