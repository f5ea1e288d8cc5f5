// Adds and removes nodes at the times of --machines, and picks their sides.
#include <algorithm>

#include "base/units.h"
#include "sim/cluster/cluster_state.h"

namespace mc::sim {
namespace {
constexpr size_t kTurnsMax = 10'000;
}

Result<std::vector<Machines>> parse_machines(const SimOptions& o) {
  if (o.machines.size() > kTurnsMax)
    return fail(Code::kInvalid, "--machines is given %zu times: want at most %zu",
                o.machines.size(), kTurnsMax);
  if (!o.machines.empty() && !o.pd_control)
    return fail(Code::kInvalid,
                "--machines needs --pd-control, which picks the side of each node: give both");
  if (!o.machines.empty() && o.engine != "disaggregated")
    return fail(Code::kInvalid, "--machines needs --engine disaggregated: %s nodes have no side",
                o.engine.c_str());
  const uint64_t all = o.prefill + o.decode;
  std::vector<Machines> out;
  for (const std::string& text : o.machines) {
    const size_t at = text.find('@');
    const auto count = parse_number(text.substr(0, at));
    const auto from = parse_duration(at == std::string::npos ? "" : text.substr(at + 1));
    if (!count || !from || *count != std::floor(*count))
      return fail(Code::kInvalid, "--machines %s: want N@TIME, as 12@8h", escape(text).c_str());
    if (*count < 2 || *count > static_cast<double>(all))
      return fail(Code::kInvalid,
                  "--machines %s: want from 2 to the %llu of --prefill and --decode",
                  escape(text).c_str(), static_cast<unsigned long long>(all));
    out.push_back({static_cast<uint64_t>(*count), *from});
  }
  return out;
}

void Cluster::plan_machines() {
  const auto plan = parse_machines(o_);
  MC_CHECK(plan.has_value());  // check() saw it
  for (const Machines& m : *plan) events_.push(start_ + m.from, {Kind::kMachines, 0, m.count});
}

void Cluster::resize(uint64_t machines) {
  const auto serving = [&] {
    return static_cast<uint64_t>(std::count_if(
        nodes_.begin(), nodes_.end(), [](const SimNode& n) { return !n.away && !n.leaving; }));
  };
  while (serving() < machines && bring_back()) {
  }
  while (serving() > machines && take_away()) {
  }
}

// Keeps a node that was about to leave; otherwise adds one to the busier side.
bool Cluster::bring_back() {
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].leaving) continue;
    nodes_[i].leaving = false;
    drain(i, false);
    return true;
  }
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    SimNode& n = nodes_[i];
    if (!n.away) continue;
    const Sample s = measure();  // of those that serve already
    const bool decode =
        !moves_.joins_prefill(sched::pressure(s.prefill_load, s.decode_load, o_.pd.band));
    n.away = n.down = false;
    pool_.mount(i, now_);
    result_.moves.push_back({to_seconds(now_ - start_), n.name, decode ? "decode" : "prefill",
                             "more machines: to the busier side"});
    decode ? become_decode(i) : become_prefill(i);
    return true;
  }
  return false;
}

// Removes a node from the idler side; from the other side if the idler has a single node left.
bool Cluster::take_away() {
  const Sample s = measure();
  const bool prefill =
      moves_.leaves_prefill(sched::pressure(s.prefill_load, s.decode_load, o_.pd.band));
  if (roster_.live(prefill) < 2) return false;
  const uint32_t node = numbers_.at(moves_.least_loaded(prefill, true, now_)->node);
  SimNode& n = nodes_[node];
  n.leaving = true;
  drain(node, true);
  result_.moves.push_back(
      {to_seconds(now_ - start_), n.name, "away", "fewer machines: from the idler side"});
  return true;
}

}  // namespace mc::sim
