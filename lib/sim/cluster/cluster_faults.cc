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

void Cluster::down(uint32_t node) {
  SimNode& n = nodes_[node];
  if (n.down) return;
  ++result_.failures;
  n.down = true;
  n.leaving = false;
  if (n.computing()) {
    const Duration took = now_ - n.prefiller->since();
    n.busy_s += to_seconds(took);
    if (!n.prefiller->given_up())
      requests_[static_cast<uint32_t>(n.prefiller->runs())].spent += took;
  }
  n.prefiller.reset();
  n.coming.clear();
  n.behind.clear();
  ++n.prefill_turn;
  ++n.epoch;
  if (n.cache) n.cache->lose_memory();
  if (coupled_) {
    index_.retire(slot(node));
    index_.sweep(SIZE_MAX);
    return down_coupled(node);
  }
  for (uint32_t id = 0; id < requests_.size(); ++id) {
    const SimRequest& request = requests_[id];
    if (request.fetching && request.from == node && request.prefill != node) unfetch(id);
  }
  pool_.unmount(node, now_);
  pool_moved();
  if (n.decoder) n.decoder->drop();
  ++n.turn;
  leave(node, "it failed", false);
  reflow();
}

void Cluster::up(uint32_t node) {
  SimNode& n = nodes_[node];
  if (!n.down || n.away) return;
  n.down = false;
  pool_.mount(node, now_);
  n.prefill ? become_prefill(node) : become_decode(node);
}

void Cluster::cancel_flow(SimRequest& request) {
  if (request.flow == 0) return;
  network_.cancel(request.flow, now_);
  flow_of_.erase(request.flow);
  request.flow = 0;
  reflow();
}

}  // namespace mc::sim
