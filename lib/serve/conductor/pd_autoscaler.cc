#include "serve/conductor/pd_autoscaler.h"

#include "base/json.h"
#include "base/log.h"

namespace mc::serve {
namespace {

Gauge& by_role(Metrics& metrics, const char* name, const char* help, bool prefill) {
  return metrics.gauge(name, help, {{"role", prefill ? "prefill" : "decode"}});
}

Counter& pd_decisions(Metrics& metrics, sched::PdMove move) {
  return metrics.counter("mc_conductor_pd_decisions_total", "of --pd-control",
                         {{"move", sched::name(move)}});
}

}  // namespace

void PdAutoscalerOptions::describe(OptionList& v) {
  v("pd-control", enabled, "keep prefill and decode workers in balance as loads change");
  v("pd-moves", moves, "workers change their roles, drained; off: only say how many are wanted",
    {"on", "off"});
  v("pd-interval", pd.interval, "between decisions of --pd-control");
  v("pd-cooldown", pd.cooldown, "after a move");
  v("pd-deadband", pd.band, "imbalance that is left alone");
  v("scale-hook", scale_hook,
    "shell command to run when the wanted workers change; $1 prefill, $2 decode");
}

Result<> PdAutoscalerOptions::check() const {
  if (!(pd.band >= 1)) return fail(Code::kInvalid, "--pd-deadband %g, want 1 or more", pd.band);
  if (pd.interval < PdAutoscaler::kIntervalMin)
    return fail(Code::kInvalid, "--pd-interval %s, want %s or more", to_text(pd.interval).c_str(),
                to_text(PdAutoscaler::kIntervalMin).c_str());
  if (!scale_hook.empty() && !enabled)
    return fail(Code::kInvalid, "--scale-hook without --pd-control is never called");
  return {};
}

PdAutoscaler::PdAutoscaler(const PdAutoscalerOptions& options, Metrics& metrics)
    : options_(options), control_(options.pd), hook_(options.scale_hook), metrics_(metrics) {
  using sched::PdMove;
  for (const PdMove move : {PdMove::kNone, PdMove::kToDecode, PdMove::kToPrefill})
    (void)pd_decisions(metrics_, move);  // there from the start, with 0
}

void PdAutoscaler::tick(const PoolLoads& loads, Time now) {
  hook_.tick(now);
  if (now < sample_at_) return;
  if (first_ == Time{}) first_ = now;
  sample_at_ = now + kSample;
  loads_ = loads;
  for (const bool prefill : {true, false})
    by_role(metrics_, "mc_conductor_load", "mean load of the workers of a role; 1 is full", prefill)
        .set(prefill ? loads.prefill : loads.decode);
  if (!options_.enabled || loads.prefill_nodes == 0 || loads.decode_nodes == 0) return;
  if (leads && !leads()) return control_.hold(now);
  if (is_moving && is_moving(now)) return control_.hold(now);
  control_.sample(loads.prefill, loads.decode);
  if (now >= control_.deadline() && now - first_ >= options_.pd.interval) decide(loads, now);
}

void PdAutoscaler::decide(const PoolLoads& loads, Time now) {
  last_ = control_.decide(loads.prefill_nodes, loads.decode_nodes, now);
  pd_decisions(metrics_, last_.move).add();
  log_info("conductor", "prefill and decode: %s: %s", sched::name(last_.move),
           last_.reason.c_str());
  size_t prefill = loads.prefill_nodes, decode = loads.decode_nodes;
  const bool moves = options_.moves == "on" && on_move && last_.move != sched::PdMove::kNone;
  if (moves && on_move(last_, now).empty()) last_.move = sched::PdMove::kNone;
  if (last_.move == sched::PdMove::kToDecode) --prefill, ++decode;
  if (last_.move == sched::PdMove::kToPrefill) ++prefill, --decode;
  // What was asked for stays wanted until the cluster is so, or something else is decided.
  const bool moved = last_.move != sched::PdMove::kNone;
  if (!moved && wanted_prefill_ + wanted_decode_ == prefill + decode) return;
  if (prefill == wanted_prefill_ && decode == wanted_decode_) return;
  const bool told = wanted_prefill_ + wanted_decode_ > 0 || moved;
  wanted_prefill_ = prefill;
  wanted_decode_ = decode;
  for (const bool p : {true, false})
    by_role(metrics_, "mc_conductor_wanted_workers", "workers that --pd-control wants", p)
        .set(static_cast<double>(p ? prefill : decode));
  if (told) hook_.tell(prefill, decode, now);
}

sched::PdMove PdAutoscaler::pressure() const {
  return sched::pressure(loads_.prefill, loads_.decode, options_.pd.band);
}

Json PdAutoscaler::state() const {
  Json j = {{"enabled", options_.enabled},
            {"prefill_load", loads_.prefill},
            {"decode_load", loads_.decode}};
  if (!options_.enabled) return j;
  j["factor"] = last_.factor;
  j["move"] = sched::name(last_.move);
  j["reason"] = last_.reason;
  j["moves"] = options_.moves;
  j["leads"] = !leads || leads();
  j["wanted"] = {{"prefill", wanted_prefill_}, {"decode", wanted_decode_}};
  return j;
}

}  // namespace mc::serve
