#include "sched/request/fleet_views.h"

namespace mc::sched {

uint64_t blocks_reserved(const FleetWorker& w, const DecodeNeed& need) {
  return w.growth > 0 ? need.prompt : need.whole;
}

int64_t room_of(const FleetWorker& w) {
  const auto n = [](uint64_t blocks) { return static_cast<int64_t>(blocks); };
  const uint64_t kept = w.growth > 0 ? w.growth - 1 : 0;
  return n(w.blocks_free) - n(w.reserved_blocks) - n(kept);
}

PrefillView prefill_view(const FleetWorker& w, uint32_t match, double work_ms, int64_t priority,
                         uint64_t blocks, Time now) {
  return {.name = w.node,
          .usable = !w.draining && blocks <= w.blocks_total,
          .match = match,
          .queue_ms = w.ledger.wait_ms(now, work_ms, priority),
          .queued_tokens = w.ledger.tokens(),
          .requests = w.requests,
          .assigned = w.assigned,
          .congestion = w.congestion.factor(now),
          .pool = w.pool,
          .pipeline = w.pipeline};
}

DecodeView decode_view(const FleetWorker& w, const DecodeNeed& need) {
  return {.name = w.node,
          .usable = !w.draining && need.whole <= w.blocks_total,
          .room = room_of(w) >= static_cast<int64_t>(blocks_reserved(w, need)),
          .requests = w.requests + w.others_requests,
          .context_tokens = w.context_tokens + w.others_tokens};
}

}  // namespace mc::sched
