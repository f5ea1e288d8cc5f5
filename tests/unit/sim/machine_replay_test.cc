// The same events give the same actions, in whichever program the machine runs.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <type_traits>

#include "base/random.h"
#include "sim/study/study.h"

namespace machine_replay_test {
namespace {

using namespace mc;
using namespace mc::sim;
using namespace std::chrono_literals;

constexpr uint64_t kDecodeTokens = 40 * 512;

trace::Trace busy_trace() {
  Random random(11);
  trace::Trace t;
  uint64_t next = 1, ms = 0;
  for (int i = 0; i < 300; ++i) {
    ms += random.below(120);
    trace::TraceRequest r;
    r.timestamp_ms = ms;
    for (uint64_t k = 1 + random.below(14); k > 0; --k) r.hash_ids.push_back(next++);
    r.input_length = r.hash_ids.size() * 512 - random.below(512);
    r.output_length = 1 + random.below(60);
    t.records.push_back(r);
  }
  return t;
}

std::string text(const sched::RequestAction& action) {
  std::string out = std::to_string(action.index());
  const auto at = [](const sched::AttemptRef& of) {
    return " " + std::to_string(of.request) + "-" + std::to_string(of.attempt);
  };
  if (const auto* s = std::get_if<sched::SendStep>(&action))
    out += at(s->of) + " " + name(s->step) + " " + s->to.node + " " + std::to_string(s->tokens);
  if (const auto* a = std::get_if<sched::AbortAt>(&action))
    out += at(a->of) + " " + a->at.node + " " + a->reason;
  if (const auto* d = std::get_if<sched::DecisionMade>(&action))
    out += at(d->of) + " " + sched::explain(d->choice.decision);
  if (const auto* m = std::get_if<sched::Measured>(&action)) out += strf(" %.17g", m->value);
  if (const auto* f = std::get_if<sched::FinishRequest>(&action))
    out += strf(" %llu %d %s %.17g", static_cast<unsigned long long>(f->request), f->status,
                f->error ? f->error->what.c_str() : "", f->progress.ttft_ms);
  return out;
}

std::string text(const std::vector<sched::RequestAction>& actions) {
  std::string out;
  for (const sched::RequestAction& a : actions) out += text(a) + "\n";
  return out;
}

struct Seen {
  std::optional<sched::RequestEvent> event;  // absent: a tick
  Time now{};
  std::string actions;
};

// A driver that hears events from a list. What it knows of its workers is what a heartbeat tells:
// the free blocks of the decode workers.
struct Listener {
  sched::Cost cost;
  sched::PrefixIndex index{1024};
  sched::Roster roster;
  std::map<std::string, sched::FleetWorker> workers;
  sched::Fleet fleet;
  sched::RequestMachine machine;
  std::map<uint64_t, std::pair<std::string, uint64_t>> held;  // request: decode worker, blocks
  std::map<uint64_t, uint64_t> tokens;                        // prompt and answer, by request
  std::set<std::pair<uint64_t, uint32_t>> reserved;           // attempts that will get blocks

  static sched::RequestOptions patient() {
    sched::RequestOptions o;
    o.step_timeout = o.pin_timeout = o.token_timeout = o.prefill_timeout = o.queue_timeout =
        std::chrono::hours(100'000);
    return o;
  }
  Listener(const cost::ModelSpec& spec, const SimOptions& o)
      : cost(spec),
        fleet({512, o.policy, o.admission}, cost, index, roster),
        machine(patient(), fleet) {
    roster.slots_changed(o.prefill + o.decode);
    for (uint64_t i = 0; i < o.prefill + o.decode; ++i) {
      const bool prefill = i < o.prefill;
      const std::string node =
          prefill ? "p" + std::to_string(i) : "d" + std::to_string(i - o.prefill);
      sched::FleetWorker& w = workers[node];
      w.node = node;
      w.prefill = prefill;
      w.slot = static_cast<sched::PrefixIndex::Slot>(i);
      w.blocks_total = w.blocks_free = prefill ? uint64_t{1} << 40 : kDecodeTokens / 512;
      roster.join(w);
    }
  }
  void beat(const std::string& node) {
    sched::FleetWorker& w = workers.at(node);
    w.blocks_free = w.blocks_total;
    for (const auto& [request, at] : held)  // also of those that ended, until their end is heard
      if (at.first == node) w.blocks_free -= std::min(w.blocks_free, at.second);
    w.reserved_blocks = 0;
    ++w.spoke;
    roster.note(w);
  }
  void free(uint64_t request) {
    const auto it = held.find(request);
    if (it == held.end()) return;
    const std::string node = it->second.first;
    held.erase(it);
    beat(node);
  }
  std::string hear(const Seen& seen) {
    std::vector<sched::RequestAction> out;
    if (!seen.event) {
      machine.tick(seen.now, out);
    } else {
      if (const auto* a = std::get_if<sched::RequestArrived>(&*seen.event))
        tokens[a->request] = a->ask.prompt_tokens + a->ask.max_tokens;
      if (const auto* t = std::get_if<sched::TokensArrived>(&*seen.event))
        if (!t->finish.empty()) free(t->of.request);
      machine.handle(*seen.event, seen.now, out);
    }
    for (const sched::RequestAction& action : out) {
      if (const auto* a = std::get_if<sched::AbortAt>(&action)) free(a->of.request);
      const auto* s = std::get_if<sched::SendStep>(&action);
      if (s == nullptr || s->step != sched::Step::kReserve) continue;
      const uint64_t need = fleet.blocks(tokens.at(s->of.request));
      if (reserved.contains({s->of.request, s->of.attempt}))
        held[s->of.request] = {s->to.node, need};
      beat(s->to.node);
    }
    return text(out);
  }
};

TEST_CASE("F80: the events of a simulated cluster give another machine the same actions") {
  for (const char* admission : {"none", "baseline", "predict"}) {
    CAPTURE(admission);
    SimOptions o;
    o.prefill = o.decode = 2;
    o.cache_tokens = 0;
    o.decode_tokens = kDecodeTokens;  // so few that requests wait, and go before others
    o.preempt = "off";                // the listener counts prompt and answer, as they are reserved
    o.queue_timeout = o.prefill_timeout = 0s;
    o.admission.admission = admission;
    o.admission.ttft_slo = 20s;
    o.admission.tbt_slo = 45ms;
    std::vector<Seen> all;
    o.watch = [&](const sched::RequestEvent* event, Time now,
                  const std::vector<sched::RequestAction>& actions) {
      all.push_back({event != nullptr ? std::optional(*event) : std::nullopt, now, text(actions)});
    };
    const trace::Trace t = busy_trace();
    const auto arrivals = trace::schedule(t, {});
    REQUIRE(arrivals);
    cost::ModelSpec spec = cost::tiny();
    spec.cost.t0 = 0.04;  // answers take seconds
    const auto result = simulate(t, *arrivals, spec, o);
    REQUIRE(result);
    size_t refused = 0;
    Listener other(spec, o);
    for (const Seen& seen : all) {
      const auto* a = seen.event ? std::get_if<sched::StepAnswered>(&*seen.event) : nullptr;
      if (a != nullptr && a->step == sched::Step::kReserve && a->outcome)
        other.reserved.emplace(a->of.request, a->of.attempt);
    }
    for (const Seen& seen : all) {
      REQUIRE(other.hear(seen) == seen.actions);
      REQUIRE(other.machine.broken() == "");
      refused += seen.actions.find("has no room") != std::string::npos;
    }
    CHECK(other.machine.in_flight() == 0);
    CHECK(all.size() > 6 * t.records.size() / 2);
    if (std::string(admission) == "none") CHECK(refused > 0);
  }
}

}  // namespace
}  // namespace machine_replay_test
