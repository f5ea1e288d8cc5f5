// Random lives: workers go and return, replies are lost, late and doubled. After every event the
// machine is sound; every request ends once; at the end nothing is charged or owed to anyone.
#include <map>
#include <set>

#include "base/random.h"
#include "request_site.h"
#include "sched/request/request_machine.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_machine_random_test {
namespace {

// Carries out actions, and checks that none is too many.
struct Life : RequestSite {
  static RequestOptions short_times() {
    RequestOptions o;
    o.retries = 2;
    o.queue_max = 3;
    o.step_timeout = 50ms;
    o.pin_timeout = 20ms;
    o.prefill_timeout = o.token_timeout = 200ms;
    o.answer_timeout = 500ms;
    o.held_timeout = 300ms;
    o.queue_timeout = 300ms;
    o.slack = 10ms;
    o.continues = true;
    return o;
  }
  explicit Life(uint64_t seed, const AdmissionOptions& admission)
      : RequestSite(short_times(), admission, 64), random(seed) {}

  struct Party {  // of an attempt: what it was sent, and what became of it
    bool prefill = false, source = false;
    int aborts = 0;
  };
  static void must(bool holds) {  // cheaper than a check that is counted
    if (!holds) REQUIRE(holds);
  }
  using Key = std::tuple<uint64_t, uint32_t, std::string, uint64_t>;

  void run() {
    for (const auto& [node, prefill] :
         std::map<std::string, bool>{{"p0", true}, {"p1", true}, {"d0", false}, {"d1", false}})
      join(node, prefill, 1 + random.below(8));
    if (random.chance(0.5))
      engines.ups = {{"e0", true}, {"half", true}, {"meets", true}, {"full", true}};
    for (int i = 0; i < 30; ++i) {
      step();
      check();
    }
    for (int i = 0; machine.in_flight() > 0; ++i) {
      must(i < 1000);
      must(machine.deadline() < Time::max());
      now = std::max(now, machine.deadline());
      machine.tick(now, out);
      check();
    }
    for (uint64_t r = 1; r <= requests; ++r) must(ended[r] == 1);
    for (const auto& [key, party] : parties) {
      must(party.aborts <= 1);
      // Whom nobody told the end knew it: it is gone, it sent the last token, its prompt is cached.
      const auto& [request, attempt, node, joined] = key;
      const bool over = gone.contains({node, joined}) || answered.contains({request, attempt}) ||
                        (party.prefill && steps.contains({request, attempt, Step::kCommit}));
      if (!(party.aborts == 1 || over || party.source))
        FAIL("request " << request << "-" << attempt << ": " << node << " is owed an end");
    }
    check_clean();
  }

  void sound() {
    if (const std::string wrong = machine.broken(); !wrong.empty()) FAIL(wrong);
  }
  void check() {
    sound();
    while (!out.empty()) {
      std::vector<RequestAction> todo;
      std::swap(todo, out);
      for (const RequestAction& a : todo) std::visit([&](const auto& one) { carry_out(one); }, a);
      if (random.chance(0.3)) {
        machine.handle(RoomFreed{}, now, out);
        sound();
      }
    }
  }
  Party& party(const AttemptRef& of, const WorkerRef& w) {
    return parties[{of.request, of.attempt, w.node, w.joined}];
  }
  void carry_out(const SendStep& s) {
    must(ended[s.of.request] == 0);
    must(s.budget > 0ms);
    const auto key = std::tuple(s.of.request, s.of.attempt, s.step);
    must(steps.insert(key).second);  // none twice
    const auto sent = [&](Step step) { return steps.contains({s.of.request, s.of.attempt, step}); };
    if (s.step == Step::kAllocate) must(sent(Step::kReserve));
    if (s.step == Step::kCommit) must(begun.contains({s.of.request, s.of.attempt}));
    if (s.step != Step::kCommit) {
      Party& to = party(s.of, s.to);
      must(to.aborts == 0);
      to.prefill = to.prefill || s.step == Step::kAllocate;
      to.source = to.source || s.step == Step::kPin;
      attempts[s.of.request] = s.of;
      open.push_back(s);
    }
  }
  void carry_out(const AbortAt& a) { ++party(a.of, a.at).aborts; }
  void carry_out(const ProxyTo& p) {
    must(ended[p.of.request] == 0);
    proxied.push_back(p);
  }
  void carry_out(const StopProxy& p) {
    std::erase_if(proxied, [&](const ProxyTo& q) { return q.of == p.of; });
  }
  void carry_out(const DeliverTokens& d) { must(ended[d.of.request] == 0); }
  void carry_out(const DeliverBytes& d) { must(ended[d.of.request] == 0); }
  void carry_out(const PassOn& d) { must(ended[d.of.request] == 0); }
  void carry_out(const FinishRequest& f) {
    must(++ended[f.request] == 1);
    if (!f.error) answered.insert({f.request, attempts[f.request].attempt});
  }
  void carry_out(const DecisionMade&) {}
  void carry_out(const TriedAgain& t) { must(ended[t.request] == 0); }
  void carry_out(const Measured&) {}
  void carry_out(const EngineAnswered&) {}

  void step() {
    now += Duration(random.below(15'000'000));
    const uint64_t what = random.below(100);
    if (what < 20) {
      arrive_one();
    } else if (what < 65 && !open.empty()) {
      answer_one();
    } else if (what < 75 && !proxied.empty()) {
      answer_engine();
    } else if (what < 85 && !prefilled.empty()) {
      some_tokens();
    } else if (what < 89) {
      worker();
    } else if (what < 92 && requests > 0) {
      const uint64_t r = 1 + random.below(requests);
      if (machine.state(r)) ended[r] = 1;
      machine.handle(RequestCancelled{r, "gone"}, now, out);
    } else if (what < 93) {
      machine.handle(ClockStoodStill{Duration(random.below(1'000'000))}, now, out);
    } else {
      machine.tick(now, out);
    }
  }
  void arrive_one() {
    RequestArrived e{.request = ++requests};
    e.ask.tokens = e.ask.prompt_tokens = 1 + random.below(90);
    e.ask.max_tokens = static_cast<uint32_t>(1 + random.below(40));
    e.ask.priority = static_cast<int64_t>(random.below(3));
    e.ask.tenant = random.below(3);
    const uint64_t prompt = random.below(3);
    for (uint64_t i = 0; i < e.ask.tokens / kBlock; ++i) e.tags.push_back(100 * prompt + i);
    ended[requests] = 0;
    machine.handle(e, now, out);
  }
  Result<> outcome() {
    const uint64_t n = random.below(10);
    if (n == 0) return fail(Code::kNoSpace, "no blocks");
    if (n == 1) return fail(Code::kUnavailable, "it ended");
    return {};
  }
  // Answers a step, loses its answer, or leaves it for a second one.
  void answer_one() {
    const size_t at = random.below(open.size());
    const SendStep s = open[at];
    if (!random.chance(0.1)) open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    if (random.chance(0.1)) return;
    StepAnswered e{.of = s.of, .step = s.step, .outcome = outcome()};
    e.times.cached_tokens = static_cast<uint32_t>(random.below(100));
    e.times.prefill_ms = 1;
    if (s.step == Step::kPrefill) prefilled.push_back(s.of);
    if (s.step == Step::kAllocate && random.chance(0.3)) prefilled.push_back(s.of);
    machine.handle(e, now, out);
  }
  void some_tokens() {
    const AttemptRef of = prefilled[random.below(prefilled.size())];
    const uint64_t next = machine.next_token(of);
    TokensArrived e{.of = of};
    e.count = static_cast<uint32_t>(random.below(4));
    if (random.chance(0.5) && next > 0) e.first = static_cast<uint32_t>(1 + random.below(next + 1));
    const uint64_t end = random.below(12);
    e.finish = end == 0 ? "length" : end == 1 ? "stop" : end == 2 ? "error" : "";
    if (next > 0) begun.insert({of.request, of.attempt});
    machine.handle(e, now, out);
    if (machine.state(of.request) == RequestState::kFinishing)
      answered.insert({of.request, of.attempt});
    check();
    machine.handle(TokensComplete{"d0"}, now, out);
  }
  void answer_engine() {
    const size_t at = random.below(proxied.size());
    const ProxyTo p = proxied[at];
    const bool first_half = !p.pair.decode.empty() && !p.second;
    if (!first_half && random.chance(0.2))
      return machine.handle(UpstreamHeld{p.of, random.chance(0.5)}, now, out);
    if (!first_half && random.chance(0.5))
      return machine.handle(UpstreamData{.of = p.of, .tokens = 1, .good = random.chance(0.9)}, now,
                            out);
    proxied.erase(proxied.begin() + static_cast<std::ptrdiff_t>(at));
    static constexpr int kStatus[] = {200, 200, 200, 429, 503, 500, 400, 302};
    UpstreamEnded e{.of = p.of, .first_half = first_half, .outcome = outcome()};
    e.status = kStatus[random.below(std::size(kStatus))];
    machine.handle(e, now, out);
  }
  void worker() {
    const std::string node = std::vector<std::string>{"p0", "p1", "d0", "d1"}[random.below(4)];
    if (!workers.contains(node)) {
      join(node, node[0] == 'p', 1 + random.below(8));
      return;
    }
    FleetWorker& w = *workers[node];
    if (random.chance(0.3)) {
      w.draining = !w.draining;
      return;
    }
    if (random.chance(0.3)) {
      w.reserved_blocks = 0;
      w.blocks_free = random.below(w.blocks_total + 1);
      return;
    }
    std::unique_ptr<FleetWorker> old = std::move(workers[node]);
    workers.erase(node);
    roster.leave(*old);
    gone.insert({node, old->joined});
    if (random.chance(0.5)) join(node, old->prefill, 1 + random.below(8)).epoch = old->epoch;
    machine.handle(WorkerGone{old->ref(), old->prefill, "silent", random.chance(0.2)}, now, out);
  }

  Random random;
  std::map<uint64_t, int> ended;
  std::map<Key, Party> parties;
  std::map<uint64_t, AttemptRef> attempts;           // the last of each
  std::set<std::pair<uint64_t, uint32_t>> answered;  // to the end
  std::set<std::pair<std::string, uint64_t>> gone;
  std::set<std::tuple<uint64_t, uint32_t, Step>> steps;
  std::set<std::pair<uint64_t, uint32_t>> begun;
  std::vector<SendStep> open;
  std::vector<ProxyTo> proxied;
  std::vector<AttemptRef> prefilled;
};

}  // namespace

TEST_CASE(
    "10,000 random lives: sound after every event, every request ends once, nothing is left") {
  for (uint64_t seed = 0; seed < fewer(10'000); ++seed) {
    CAPTURE(seed);
    AdmissionOptions admission;
    if (seed % 4 == 1) {
      admission.admission = "baseline";
      admission.tbt_slo = 1ms;
    }
    if (seed % 4 == 2) {
      admission.admission = "predict";
      admission.ttft_slo = 100ms;
      admission.tbt_slo = 100ms;
    }
    Life(seed, admission).run();
  }
}

}  // namespace request_machine_random_test
