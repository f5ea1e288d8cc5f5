// A request machine on workers and engines that exist in name only.
#pragma once
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cost/model_spec.h"
#include "sched/request/request_machine.h"

namespace mc::sched::test {

using namespace std::chrono_literals;

// Engines that compute what they decode, and two pairs: `half` and `meets`, decoded by `full`;
// the second gets the request with it at once.
struct FakeEngines : EngineFleet {
  std::map<std::string, bool> ups;  // by name
  std::map<uint64_t, EnginePair> charged;
  static bool half(const std::string& name) { return name == "half" || name == "meets"; }
  size_t size() const override { return ups.size(); }
  size_t up() const override {
    size_t n = 0;
    for (const auto& [name, up] : ups) n += up ? 1 : 0;
    return n;
  }
  bool is_up(const std::string& engine) const override {
    const auto it = ups.find(engine);
    return it != ups.end() && it->second;
  }
  void add(uint64_t, const Exclusions& out, View& to, Time) const override {
    for (const auto& [name, up] : ups) {
      if (name == "full") continue;
      PrefillView v;
      v.name = name;
      v.usable = up && !out.full.contains(name) && (!half(name) || !out.full.contains("full"));
      v.whole = true;
      to.prefill.push_back(v);
    }
  }
  EnginePair charge(uint64_t request, const Decision& d, const Exclusions&, Time, Time) override {
    CHECK(!charged.contains(request));
    const std::string& name = d.chosen.name;
    return charged[request] = {name, half(name) ? "full" : "", name == "meets"};
  }
  void computed(uint64_t request, const EnginePair&, Time) override {
    CHECK(charged.contains(request));
  }
  void refund(uint64_t request, const EnginePair& pair, bool, Time) override {
    REQUIRE(charged.contains(request));
    CHECK(charged[request] == pair);
    charged.erase(request);
  }
};

struct RequestSite {
  static constexpr uint64_t kBlock = 16;

  explicit RequestSite(RequestOptions o = {}, AdmissionOptions admission = {},
                       uint64_t index = 1024)
      : options(o),
        index_(index),
        fleet({.block_tokens = kBlock, .policy = {}, .admission = admission}, cost, index_, roster),
        machine(options, fleet) {
    fleet.engines = &engines;
  }
  FleetWorker& join(const std::string& node, bool prefill, uint64_t blocks = 1000) {
    auto worker = std::make_unique<FleetWorker>();
    worker->node = node;
    worker->prefill = prefill;
    worker->epoch = ++epochs;
    worker->blocks_total = worker->blocks_free = blocks;
    if (prefill) worker->slot = static_cast<PrefixIndex::Slot>(slots++);
    roster.slots_changed(slots);
    roster.join(*worker);
    return *(workers[node] = std::move(worker));
  }
  // `again`: the same process, heard of once more.
  WorkerRef leave(const std::string& node, bool changed_role = false, bool again = false) {
    std::unique_ptr<FleetWorker> gone = std::move(workers[node]);
    workers.erase(node);
    roster.leave(*gone);
    if (again) join(node, gone->prefill).epoch = gone->epoch;
    handle(WorkerGone{gone->ref(), gone->prefill, "silent", changed_role});
    return gone->ref();
  }
  void handle(const RequestEvent& event) {
    machine.handle(event, now, out);
    CHECK(machine.broken() == "");
  }
  void tick(Duration later = 0ms) {
    now += later;
    machine.tick(now, out);
    CHECK(machine.broken() == "");
  }
  uint64_t arrive(uint64_t tokens = 40, int64_t priority = 0, uint32_t max_tokens = 8,
                  size_t tenant = 0, uint64_t prompt = 0) {
    RequestArrived e{.request = ++requests};
    e.ask.tokens = e.ask.prompt_tokens = tokens;
    e.ask.max_tokens = max_tokens;
    e.ask.priority = priority;
    e.ask.tenant = tenant;
    for (uint64_t i = 0; i < tokens / kBlock; ++i)
      e.tags.push_back(1000 * (prompt > 0 ? prompt : requests) + i);
    handle(e);
    return requests;
  }
  void answer(const AttemptRef& of, Step step, Result<> outcome = {}) {
    StepAnswered e{.of = of, .step = step, .outcome = std::move(outcome)};
    e.times.prefill_ms = 5;
    handle(e);
  }
  void tokens(const AttemptRef& of, uint32_t count, const std::string& finish = {}) {
    handle(TokensArrived{.of = of, .count = count, .finish = finish, .error = "it broke"});
  }

  // The actions of a kind, of all so far.
  template <class Action>
  std::vector<Action> all() const {
    std::vector<Action> found;
    for (const RequestAction& a : out)
      if (const auto* one = std::get_if<Action>(&a)) found.push_back(*one);
    return found;
  }
  std::vector<SendStep> sent(Step step) const {
    std::vector<SendStep> found;
    for (const SendStep& s : all<SendStep>())
      if (s.step == step) found.push_back(s);
    return found;
  }
  // The attempt that was begun last, of that request.
  AttemptRef attempt(uint64_t request) const {
    AttemptRef last;
    for (const SendStep& s : all<SendStep>())
      if (s.of.request == request) last = s.of;
    for (const ProxyTo& p : all<ProxyTo>())
      if (p.of.request == request) last = p.of;
    REQUIRE(last.request == request);
    return last;
  }
  const FinishRequest* finished(uint64_t request) const {
    const FinishRequest* found = nullptr;
    for (const RequestAction& a : out)
      if (const auto* f = std::get_if<FinishRequest>(&a); f != nullptr && f->request == request) {
        CHECK(found == nullptr);
        found = f;
      }
    return found;
  }
  size_t aborts(const std::string& node) const {
    size_t n = 0;
    for (const AbortAt& a : all<AbortAt>()) n += a.at.node == node ? 1 : 0;
    return n;
  }
  std::optional<RequestState> state(uint64_t request) const { return machine.state(request); }
  // To the state before the first token.
  AttemptRef prefilling(uint64_t request) {
    const AttemptRef a = attempt(request);
    answer(a, Step::kReserve);
    answer(a, Step::kAllocate);
    return a;
  }
  void serve(uint64_t request) {
    const AttemptRef a = prefilling(request);
    answer(a, Step::kPrefill);
    tokens(a, 1, "length");
  }
  // Nothing is charged to anyone.
  void check_clean() const {
    CHECK(machine.in_flight() == 0);
    CHECK(machine.waiting() == 0);
    CHECK(machine.deadline() == Time::max());
    CHECK(engines.charged.empty());
    CHECK(fleet.forecast().now().requests == 0);
    CHECK(fleet.pending() == 0);
    for (const auto& [node, w] : workers) {
      CHECK(w->requests == 0);
      CHECK(w->context_tokens == 0);
      CHECK(w->answering == 0);
      CHECK(w->answering_tokens == 0);
      CHECK(w->ledger.jobs() == 0);
      CHECK(w->ledger.tokens() == 0);
    }
  }

  RequestOptions options;
  Time now{100s};
  Cost cost{cost::tiny()};
  PrefixIndex index_;
  Roster roster;
  FakeEngines engines;
  Fleet fleet;
  RequestMachine machine;
  std::map<std::string, std::unique_ptr<FleetWorker>> workers;
  std::vector<RequestAction> out;
  uint64_t requests = 0, epochs = 0;
  size_t slots = 0;
};

}  // namespace mc::sched::test
