// Lets requests go before one that waits for room, if that is not served later for it.
//
// The first that waits has a reservation on the node where it is expected to have room the soonest:
// from a time `from` on, when enough of what is there has ended, with `spare` blocks to spare. What
// goes behind it on that node ends by then, or takes no more than the spare blocks. Answers are
// taken to be as long as they may be.
#include <algorithm>

#include "sched/request/request_record.h"

namespace mc::sched {
namespace {

constexpr size_t kChoicesMax = 4;  // looked at for one request

uint64_t blocks_at(const FleetWorker& w, const Fleet& fleet, const RequestAsk& ask) {
  const DecodeNeed need = fleet.need(ask);
  return w.prefill ? need.prompt : blocks_reserved(w, need);
}

Time ends_at(const FleetWorker& w, const RequestAsk& ask, const Decision& d, Time computed,
             uint64_t output) {
  if (w.prefill) return computed;
  const auto left =
      static_cast<double>(ask.max_tokens - std::min<uint64_t>(output, ask.max_tokens));
  return computed + from_seconds(left * d.tbt_ms / 1e3);
}

Reservation reserve_at(const FleetWorker& w, const Fleet& fleet, const RequestRecord& head,
                       const std::vector<const RequestRecord*>& running, Time now) {
  struct Held {
    Time until;
    int64_t blocks;
  };
  std::vector<Held> held;
  int64_t all = 0;
  for (const RequestRecord* r : running) {
    const bool there = w.prefill ? r->prefill_at() == w.ref() && r->counts_at_prefill()
                                 : r->decode_at() == w.ref() && r->on_workers();
    if (!there) continue;
    const Decision& d = r->choice.decision;
    const Time computed = has_token(*r) ? now : r->begun + from_seconds(d.ttft_ms() / 1e3);
    held.push_back({std::max(now, ends_at(w, r->ask, d, computed, r->own_tokens())),
                    static_cast<int64_t>(blocks_at(w, fleet, r->ask))});
    all += held.back().blocks;
  }
  std::sort(held.begin(), held.end(),
            [](const Held& a, const Held& b) { return a.until < b.until; });
  const auto need = static_cast<int64_t>(blocks_at(w, fleet, head.ask));
  int64_t free = w.prefill ? static_cast<int64_t>(w.blocks_total) - all : room_of(w);
  Reservation r{w.ref(), now, 0};
  for (const Held& h : held) {
    if (free >= need) break;
    free += h.blocks;
    r.from = h.until;
  }
  r.spare = std::max<int64_t>(free - need, 0);  // others may hold what is missing
  return r;
}

}  // namespace

Reservation reserve(MachineTurn& t, const RequestRecord& head,
                    const std::vector<const RequestRecord*>& running) {
  Reservation kept;
  for (const std::string& node : head.out.full)
    if (const FleetWorker* const w = t.fleet.roster().find(node))
      if (const Reservation r = reserve_at(*w, t.fleet, head, running, t.now); r.from < kept.from)
        kept = r;
  return kept;
}

std::optional<Choice> fits_behind(MachineTurn& t, const RequestRecord& head,
                                  const Reservation& kept, RequestRecord& behind) {
  Roster& roster = t.fleet.roster();
  const auto delays = [&](const FleetWorker& w, const Choice& c) {
    const auto need = static_cast<int64_t>(blocks_at(w, t.fleet, behind.ask));
    if (!w.prefill && room_of(w) < need) return true;  // it would only be asked in vain
    return w.ref() == kept.at && need > kept.spare &&
           ends_at(w, behind.ask, c.decision, t.now + from_seconds(c.decision.ttft_ms() / 1e3), 0) >
               kept.from;
  };
  Exclusions out = behind.out;
  out.full.clear();
  for (size_t i = 0; i < kChoicesMax; ++i) {
    Choice c = t.fleet.choose(behind.id, behind.ask, behind.tags, out, behind.arrived, t.now);
    if (c.decision.verdict != Verdict::kAccept) return std::nullopt;
    if (const Candidate& chosen = c.decision.chosen; chosen.whole) {
      if (!head.out.full.contains(chosen.name)) return c;
      out.full.insert(chosen.name);
      continue;
    }
    const bool prefill = delays(*roster.find(c.prefill), c);
    if (!prefill && !delays(*roster.find(c.decode), c)) return c;
    out.full.insert(prefill ? c.prefill.node : c.decode.node);
  }
  return std::nullopt;
}

}  // namespace mc::sched
