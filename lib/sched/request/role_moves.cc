#include "sched/request/role_moves.h"

#include <algorithm>
#include <string_view>
#include <tuple>

namespace mc::sched {

bool RoleMoves::joins_prefill(PdMove pressure, size_t coming_prefill, size_t coming_decode) const {
  const size_t prefill = roster_.live(true) + coming_prefill;
  const size_t decode = roster_.live(false) + coming_decode;
  if (prefill == 0 || decode == 0) return prefill == 0;
  if (pressure != PdMove::kNone) return pressure == PdMove::kToPrefill;
  return prefill <= decode;
}

bool RoleMoves::leaves_prefill(PdMove pressure) const {
  const bool prefill = pressure == PdMove::kNone ? roster_.live(true) > roster_.live(false)
                                                 : pressure == PdMove::kToDecode;
  return roster_.live(prefill) < 2 ? !prefill : prefill;
}

bool RoleMoves::one_of_two(const FleetWorker& worker) const {
  return std::any_of(roster_.all().begin(), roster_.all().end(), [&](const auto& other) {
    return other.second != &worker && other.second->control == worker.control;
  });
}

FleetWorker* RoleMoves::least_loaded(bool prefill, bool halves, Time now) const {
  FleetWorker* best = nullptr;
  const auto key = [&](const FleetWorker& w) {
    return std::tuple(w.requests, w.ledger.wait_ms(now), w.blocks_cached, std::string_view(w.node));
  };
  for (const auto& [node, w] : roster_.all())
    if (w->prefill == prefill && !w->draining && (halves || !one_of_two(*w)) &&
        (best == nullptr || key(*w) < key(*best)))
      best = w;
  return best;
}

bool RoleMoves::moving(Time now) {
  if (moving_.node.empty()) return false;
  const FleetWorker* const w = roster_.look_up(moving_.node);
  // A driver never asks while a worker is between its roles: one that is not known is gone.
  const bool moves = w != nullptr && w->epoch == moving_.epoch && w->prefill != moving_.to_prefill;
  if (!moves || now >= moving_.until) moving_.node.clear();
  return !moving_.node.empty();
}

FleetWorker* RoleMoves::move(PdMove where, Time now) {
  if (where == PdMove::kNone || moving(now)) return nullptr;
  const bool to_prefill = where == PdMove::kToPrefill;
  FleetWorker* const w = least_loaded(!to_prefill, false, now);
  if (w == nullptr || roster_.live(!to_prefill) < 2) return nullptr;
  moving_ = {w->node, w->epoch, to_prefill, now + kDrainMax};
  roster_.note(*w);
  w->draining = true;
  return w;
}

void RoleMoves::fails(const std::string& node) {
  if (moving_.node == node) moving_.node.clear();
}

}  // namespace mc::sched
