// Fails nodes and brings them back, at the times of --fault.
#include <algorithm>

#include "base/units.h"
#include "sim/cluster/cluster_state.h"

namespace mc::sim {
namespace {

constexpr size_t kFaultsMax = 10'000;

Result<uint32_t> node_of(const std::string& name, const SimOptions& o) {
  const bool coupled = o.engine != "disaggregated";
  const uint64_t groups = o.prefill / std::max<uint64_t>(o.cpp_group, 1);
  const auto number = parse_number(name.substr(std::min<size_t>(1, name.size())));
  const char kind = name.empty() ? '\0' : name[0];
  const uint64_t first = kind == 'd' ? groups : 0;
  const uint64_t count = coupled       ? (kind == 'n' ? o.prefill + o.decode : 0)
                         : kind == 'p' ? groups
                         : kind == 'd' ? o.decode
                                       : 0;
  if (!number || *number < 0 || *number != std::floor(*number) ||
      *number >= static_cast<double>(count))
    return fail(
        Code::kInvalid, "no node '%s': there are %s", escape(name).c_str(),
        coupled
            ? strf("n0 to n%llu", static_cast<unsigned long long>(o.prefill + o.decode - 1)).c_str()
            : strf("p0 to p%llu and d0 to d%llu", static_cast<unsigned long long>(groups - 1),
                   static_cast<unsigned long long>(o.decode - 1))
                  .c_str());
  return static_cast<uint32_t>(first + static_cast<uint64_t>(*number));
}

}  // namespace

Result<std::vector<Fault>> parse_faults(const SimOptions& o) {
  if (o.fault.size() > kFaultsMax)
    return fail(Code::kInvalid, "--fault is given %zu times: want at most %zu", o.fault.size(),
                kFaultsMax);
  std::vector<Fault> out;
  for (const std::string& text : o.fault) {
    const size_t at = text.find('@');
    if (at == std::string::npos)
      return fail(Code::kInvalid, "--fault %s: want NODE@FROM or NODE@FROM-TO, as p3@120s-180s",
                  escape(text).c_str());
    const auto wrong = [&](const std::string& why) {
      return fail(Code::kInvalid, "--fault %s: %s", escape(text).c_str(), why.c_str());
    };
    Fault f;
    const auto node = node_of(text.substr(0, at), o);
    if (!node) return wrong(node.error().what);
    f.node = *node;
    const size_t dash = std::min(text.find('-', at), text.size());
    const auto from = parse_duration(text.substr(at + 1, dash - at - 1));
    if (!from) return wrong(from.error().what);
    f.from = *from;
    if (dash < text.size()) {
      const auto to = parse_duration(text.substr(dash + 1));
      if (!to) return wrong(to.error().what);
      if (*to <= *from) return wrong("it is back before it fails");
      f.to = *to;
    }
    for (const Fault& other : out)
      if (other.node == f.node && f.from < other.to.value_or(Duration::max()) &&
          other.from < f.to.value_or(Duration::max()))
        return wrong("the node is down then already: give each node's faults apart");
    out.push_back(f);
  }
  return out;
}

void Cluster::plan_faults() {
  const auto faults = parse_faults(o_);
  MC_CHECK(faults.has_value());  // check() saw them
  for (const Fault& f : *faults) {
    events_.push(start_ + f.from, {Kind::kDown, f.node});
    if (f.to) events_.push(start_ + *f.to, {Kind::kUp, f.node});
  }
}

// Whether the request loses something that it has or needs on that node.
bool Cluster::lost_with(const SimRequest& request, uint32_t node) const {
  switch (request.stage) {
    case Stage::kOutside: return false;
    case Stage::kSent:
    case Stage::kQueued:
    case Stage::kComputing: return request.prefill == node;
    case Stage::kMoving: return request.prefill == node || request.decode == node;
    case Stage::kLoading:
    case Stage::kDecoding: return request.decode == node;
  }
  return false;
}

void Cluster::down(uint32_t node) {
  SimNode& n = nodes_[node];
  if (n.down) return;
  ++result_.failures;
  leave(node);
  n.down = true;
  n.draining = n.leaving = false;
  index_.retire(slot(node));
  index_.sweep(SIZE_MAX);
  std::vector<uint32_t> again, without;
  for (uint32_t id = 0; id < requests_.size(); ++id) {
    SimRequest& request = requests_[id];
    if (request.stage == Stage::kOutside) continue;
    if (lost_with(request, node)) {
      again.push_back(id);
    } else {
      if (request.fetching && request.from == node) unfetch(id);
      if (request.stage < Stage::kMoving && request.decode == node) without.push_back(id);
    }
  }
  for (const uint32_t id : again) abandon(id, node);
  if (n.decoder) n.decoder->drop();
  ++n.turn;
  n.coming = n.coming_tokens = n.coming_reserved = n.on_the_way = n.on_the_way_tokens = 0;
  n.requests = 0;
  n.ledger = {};
  n.ledger.set_order(order());
  n.work.clear();
  n.queue.clear();
  n.computing = false;
  if (n.cache) n.cache->lose_memory();
  reflow();
  for (const uint32_t id : without) {
    const uint32_t other = idlest_decoder();
    if (other == kNowhere)
      requests_[id].decode = kNowhere;  // asked again when its prompt is computed
    else
      promise_decode(requests_[id], other);
  }
  result_.restarted += again.size();
  for (const uint32_t id : again) coupled_ ? place_coupled(id) : place(id);
}

void Cluster::up(uint32_t node) {
  SimNode& n = nodes_[node];
  if (!n.down || n.away) return;
  n.down = false;
  if (n.prefill) become_prefill(node);
  if (!n.prefill || coupled_) become_decode(node);
  if (n.cache)
    for (const uint64_t tag : n.cache->tags()) index_.add(slot(node), tag);
}

// Removes the node from the candidates for new requests.
void Cluster::leave(uint32_t node) {
  prefills_.drop(node);
  decodes_.drop(node);
  decode_nodes_ -= !nodes_[node].prefill || coupled_;
}

void Cluster::cancel_flow(SimRequest& request) {
  if (request.flow == 0) return;
  network_.cancel(request.flow, now_);
  flow_of_.erase(request.flow);
  request.flow = 0;
}

// Releases what the request holds on nodes other than the failed one, so that it can restart.
void Cluster::abandon(uint32_t id, uint32_t node) {
  SimRequest& request = requests_[id];
  if (request.stage == Stage::kComputing) {
    SimNode& p = nodes_[request.prefill];
    p.busy_s -= std::max(to_seconds(request.computed - now_), 0.0);
    result_.wasted_prefill_s += to_seconds(std::min(now_, request.computed) - request.started);
  } else if (request.stage > Stage::kComputing && !coupled_) {
    result_.wasted_prefill_s += to_seconds(request.computed - request.started);
  }
  if (request.stage <= Stage::kMoving) cancel_flow(request);
  if (!coupled_ && request.stage < Stage::kDecoding && request.decode != node &&
      request.decode != kNowhere) {
    if (request.stage >= Stage::kMoving) {
      --nodes_[request.decode].on_the_way;
      nodes_[request.decode].on_the_way_tokens -= request.tokens;
    }
    arrived_there(request);
    settle_role(request.decode);
  }
  if (forecasts()) forecast_.ended(id, now_);
  ++request.attempt;
  request.stage = Stage::kOutside;
  request.fetching = false;
  request.fetched_blocks = request.reused = 0;
  request.guess = 0;
  request.tx = 0;
  fill(request);
}

// The fetch of the prefix fails: the prefill node computes it.
void Cluster::unfetch(uint32_t id) {
  SimRequest& request = requests_[id];
  cancel_flow(request);
  request.fetched_blocks = 0;
  fetched(id);
}

}  // namespace mc::sim
