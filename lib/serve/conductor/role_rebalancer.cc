#include "serve/conductor/role_rebalancer.h"

#include <algorithm>

#include "base/log.h"

namespace mc::serve {
namespace {

constexpr size_t kAutosMax = 1024;

const char* role_name(bool prefill) { return prefill ? "prefill" : "decode"; }

Counter& placed_workers(Metrics& m, bool prefill) {
  return m.counter("mc_conductor_placed_workers_total",
                   "workers of the role auto that were given one", {{"role", role_name(prefill)}});
}

Counter& moved_workers(Metrics& m, bool to_prefill) {
  return m.counter("mc_conductor_moved_workers_total", "workers that --pd-control let change sides",
                   {{"role", role_name(to_prefill)}});
}

Counter& dismissed_workers(Metrics& m, bool prefill) {
  return m.counter("mc_conductor_dismissed_workers_total",
                   "workers that were told to drain and end", {{"role", role_name(prefill)}});
}

}  // namespace

RoleRebalancer::RoleRebalancer(io::Loop& loop, WorkerRegistry& workers, Metrics& metrics)
    : loop_(loop), workers_(workers), metrics_(metrics), moves_(workers.roster()) {
  for (const bool prefill : {true, false})  // there from the start, with 0
    for (const auto& counter : {placed_workers, moved_workers, dismissed_workers})
      (void)counter(metrics, prefill);
}

bool RoleRebalancer::decide_side(sched::PdMove pressure) const {
  size_t coming[2] = {};  // decode, prefill
  for (const auto& [node, p] : placing_) coming[p.prefill] += workers_.all().count(node) == 0;
  return moves_.joins_prefill(pressure, coming[true], coming[false]);
}

void RoleRebalancer::joined(const Heartbeat& beat, sched::PdMove pressure, Time now) {
  std::erase_if(placing_, [&](const auto& p) {
    return p.second.until <= now || workers_.find(p.first) != nullptr;
  });
  if (placing_.contains(beat.node) || beat.draining || placing_.size() >= kAutosMax) return;
  if (autos_.size() >= kAutosMax)
    std::erase_if(autos_, [](const auto& a) { return a.second->in_flight() == 0; });
  auto& client = autos_[beat.control];
  if (client == nullptr) {
    auto connected = rpc::Client::connect(loop_, beat.control);
    if (!connected) {
      log_warn("conductor", "worker %s waits for a role: %s", escape(beat.node).c_str(),
               connected.error().what.c_str());
      autos_.erase(beat.control);
      return;
    }
    client = std::move(*connected);
  }
  const bool prefill = decide_side(pressure);
  placing_[beat.node] = {prefill, now + kPatience};
  log_info("conductor", "worker %s waits for a role: %s (busier: %s; %zu prefill, %zu decode)",
           escape(beat.node).c_str(), role_name(prefill), sched::name(pressure),
           workers_.live(true), workers_.live(false));
  placed_workers(metrics_, prefill).add();
  send(*client, beat.node, SetRole{role_name(prefill), "auto"});
}

void RoleRebalancer::send(rpc::Client& client, const NodeId& node, const SetRole& m) {
  client.call(m, kPatience,
              [this, alive = std::weak_ptr<bool>(alive_), node, m](const Result<RoleSet>& set) {
                if (set || alive.expired()) return;
                log_warn("conductor", "worker %s did not take the role %s: %s",
                         escape(node).c_str(), m.role.c_str(), set.error().what.c_str());
                placing_.erase(node);
                moves_.fails(node);
              });
}

std::string RoleRebalancer::move(sched::PdMove where, const std::string& why, Time now) {
  const bool to_prefill = where == sched::PdMove::kToPrefill;
  const sched::FleetWorker* const chosen = moves_.move(where, now);
  if (chosen == nullptr) return {};
  Worker* const w = workers_.find(chosen->node);
  log_info("conductor", "%s worker %s is to be a %s worker: %s", role_name(w->prefill),
           w->node.c_str(), role_name(to_prefill), why.c_str());
  moved_workers(metrics_, to_prefill).add();
  send(*w->client, w->node, SetRole{role_name(to_prefill), role_name(!to_prefill)});
  return w->node;
}

Result<RoleRebalancer::Dismissed> RoleRebalancer::dismiss(const std::string& node,
                                                          const std::string& role,
                                                          sched::PdMove pressure, Time now) {
  Worker* w = nullptr;
  if (!node.empty()) {
    w = workers_.find(node);
    if (w == nullptr)
      return fail(Code::kNotFound, "no worker '%s': /cluster lists them", escape(node).c_str());
  } else {
    const bool prefill = role.empty() ? moves_.leaves_prefill(pressure) : role == "prefill";
    const sched::FleetWorker* const chosen = moves_.least_loaded(prefill, true, now);
    if (chosen == nullptr)
      return fail(Code::kNotFound, "no %s worker can be dismissed", role_name(prefill));
    w = workers_.find(chosen->node);
  }
  for (const auto& [name, other] : workers_.all())  // the halves of its process
    if (other->control == w->control && !other->draining && workers_.live(other->prefill) < 2)
      return fail(Code::kBusy, "worker %s is the only %s worker: start another first",
                  w->node.c_str(), role_name(other->prefill));
  for (const auto& [name, other] : workers_.all()) {
    if (other->control != w->control) continue;
    other->draining = true;
    workers_.roster().note(*other);
  }
  log_info("conductor", "%s worker %s is dismissed", role_name(w->prefill), w->node.c_str());
  dismissed_workers(metrics_, w->prefill).add();
  w->client->call(Dismiss{"scale-in"}, kPatience, [name = w->node](const Result<rpc::Empty>& done) {
    if (!done)
      log_warn("conductor", "dismissing worker %s: %s", name.c_str(), done.error().what.c_str());
  });
  return Dismissed{w->node, role_name(w->prefill)};
}

}  // namespace mc::serve
