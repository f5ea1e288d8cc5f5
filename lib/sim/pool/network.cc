#include "sim/pool/network.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace mc::sim {

Network::Network(size_t nodes, double nic_bytes_per_s)
    : capacity_(nodes, nic_bytes_per_s), out_(nodes), in_(nodes), sent_(nodes), received_(nodes) {
  MC_CHECK(nic_bytes_per_s > 0);
}

void Network::widen(size_t node, double factor) { capacity_[node] *= factor; }

void Network::settle(Flow& f, Time now) const {
  const double moved = std::min(f.left, f.rate * to_seconds(now - f.since));
  f.left -= moved;
  f.moved += moved;
  f.since = now;
}

void Network::set_rate(FlowId id, Flow& f, double share, Time now) {
  ends_.erase({f.ends, id});
  f.rate = std::max(share, 1.0);
  f.ends = now + from_seconds(f.left / f.rate) + Duration(1);
  ends_.insert({f.ends, id});
}

// Most flows share no NIC.
void Network::reshare(size_t from, size_t to, Time now) {
  const auto &leaving = out_[from], &entering = in_[to];
  if (leaving.empty() && entering.empty()) return;
  if (leaving.size() != 1 || leaving != entering) return reshare_connected(from, to, now);
  Flow& alone = flows_.at(leaving[0]);
  settle(alone, now);
  set_rate(leaving[0], alone, std::min(capacity_[from], capacity_[to]), now);
}

// Recomputes the rates of all flows connected to the given NICs through shared NICs: repeatedly,
// the NIC with the least rate for each of its flows fixes theirs.
void Network::reshare_connected(size_t from, size_t to, Time now) {
  std::vector<size_t> out_nics{from}, in_nics{to};
  std::vector<FlowId> ids;
  std::set<size_t> seen_out(out_nics.begin(), out_nics.end());
  std::set<size_t> seen_in(in_nics.begin(), in_nics.end());
  std::set<FlowId> seen;
  while (!out_nics.empty() || !in_nics.empty()) {
    const bool out = !out_nics.empty();
    auto& todo = out ? out_nics : in_nics;
    const size_t nic = todo.back();
    todo.pop_back();
    for (const FlowId id : out ? out_[nic] : in_[nic]) {
      if (!seen.insert(id).second) continue;
      const Flow& f = flows_.at(id);
      if (seen_out.insert(f.from).second) out_nics.push_back(f.from);
      if (seen_in.insert(f.to).second) in_nics.push_back(f.to);
    }
  }
  struct Nic {
    double room;
    size_t unfixed = 0;
    double share() const { return room / static_cast<double>(unfixed); }
  };
  std::unordered_map<size_t, Nic> out, in;
  for (const FlowId id : seen) {
    Flow& f = flows_.at(id);
    settle(f, now);
    ++out.try_emplace(f.from, Nic{capacity_[f.from]}).first->second.unfixed;
    ++in.try_emplace(f.to, Nic{capacity_[f.to]}).first->second.unfixed;
    ids.push_back(id);
  }
  while (!ids.empty()) {
    double least = INFINITY;
    for (const FlowId id : ids) {
      const Flow& f = flows_.at(id);
      least = std::min({least, out.at(f.from).share(), in.at(f.to).share()});
    }
    const double edge = least * (1 + 1e-9);
    std::vector<FlowId> fixed;
    for (const FlowId id : ids) {
      const Flow& f = flows_.at(id);
      if (std::min(out.at(f.from).share(), in.at(f.to).share()) <= edge) fixed.push_back(id);
    }
    for (const FlowId id : fixed) {
      Flow& f = flows_.at(id);
      set_rate(id, f, least, now);
      for (Nic* nic : {&out.at(f.from), &in.at(f.to)}) {
        nic->room = std::max(nic->room - least, 0.0);
        --nic->unfixed;
      }
    }
    std::erase_if(ids,
                  [&](FlowId id) { return std::binary_search(fixed.begin(), fixed.end(), id); });
  }
}

Network::FlowId Network::start(size_t from, size_t to, double bytes, Time now) {
  MC_CHECK(from != to && bytes > 0);
  const FlowId id = next_++;
  flows_[id] = {from, to, bytes, 0, now, now, 0};
  out_[from].push_back(id);
  in_[to].push_back(id);
  reshare(from, to, now);
  return id;
}

std::optional<Time> Network::deadline() const {
  if (ends_.empty()) return std::nullopt;
  return ends_.begin()->first;
}

void Network::remove(FlowId id) {
  const Flow& f = flows_.at(id);
  std::erase(out_[f.from], id);
  std::erase(in_[f.to], id);
  sent_[f.from] += f.moved;
  received_[f.to] += f.moved;
  ends_.erase({f.ends, id});
  flows_.erase(id);
}

std::vector<Network::FlowId> Network::finished(Time now) {
  std::vector<FlowId> ended;
  while (!ends_.empty() && ends_.begin()->first <= now) {
    const FlowId id = ends_.begin()->second;
    Flow& f = flows_.at(id);
    f.moved += f.left;
    const size_t from = f.from, to = f.to;
    remove(id);
    ended.push_back(id);
    reshare(from, to, now);
  }
  return ended;
}

void Network::cancel(FlowId id, Time now) {
  const auto at = flows_.find(id);
  if (at == flows_.end()) return;
  settle(at->second, now);
  const size_t from = at->second.from, to = at->second.to;
  remove(id);
  reshare(from, to, now);
}

double Network::rate_out(size_t node) const {
  double sum = 0;
  for (const FlowId id : out_[node]) sum += flows_.at(id).rate;
  return sum;
}

double Network::rate_in(size_t node) const {
  double sum = 0;
  for (const FlowId id : in_[node]) sum += flows_.at(id).rate;
  return sum;
}

}  // namespace mc::sim
