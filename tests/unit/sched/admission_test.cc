#include "sched/admission.h"

#include <doctest/doctest.h>

#include "sched/pd_control.h"
#include "sched/prefill_order.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace {
Time at(double s) { return Time{} + from_seconds(s); }

Cost slow_steps() {  // a step: 10 ms, and 10 ms for each other request
  cost::ModelSpec s = cost::tiny();
  s.cost.t0 = s.cost.t1 = 0.010;
  s.cost.t2 = 0;
  return Cost(s);
}

Decision accepted(double ttft_ms) {
  Decision d;
  d.verdict = Verdict::kAccept;
  d.chosen.ttft_ms = ttft_ms;
  return d;
}

Verdict ask(const char* kind, const DecodeForecast& f, double ttft_ms = 1000) {
  AdmissionOptions o;
  o.admission = kind;
  o.ttft_slo = 5s;
  o.tbt_slo = 45ms;
  return admit(accepted(ttft_ms), 100, o, f, 1, slow_steps(), at(0));
}
}  // namespace

TEST_CASE("a broken promise of the first token refuses at arrival, except with none") {
  const DecodeForecast f(12s);
  CHECK(ask("none", f, 9000) == Verdict::kAccept);
  for (const char* kind : {"baseline", "early", "predict"}) {
    CHECK(ask(kind, f, 9000) == Verdict::kTtft);
    CHECK(ask(kind, f, 4000) == Verdict::kAccept);
  }
}

TEST_CASE("early looks at what decodes now; predict at what will decode then") {
  DecodeForecast f(3s);
  // Five are being prefilled and will be there when this one comes; none decodes yet.
  for (uint64_t job = 0; job < 5; ++job) f.dispatched(job, 100, at(0.5));
  CHECK(ask("baseline", f) == Verdict::kAccept);
  CHECK(ask("early", f) == Verdict::kAccept);
  CHECK(ask("predict", f) == Verdict::kTbt);
  // All five decode now: refused by both. When the prompt takes long, they will be gone.
  for (uint64_t job = 0; job < 5; ++job) f.decoding(job, at(0));
  CHECK(f.now().requests == 5);
  CHECK(ask("early", f) == Verdict::kTbt);
  CHECK(ask("predict", f, 200) == Verdict::kTbt);
  CHECK(ask("predict", f, 4900) == Verdict::kAccept);
  CHECK(f.at(at(2.5), at(0)).requests == 5);
  CHECK(f.at(at(3.5), at(0)).requests == 0);
  CHECK(ask("early", f, 4900) == Verdict::kTbt);
  for (uint64_t job = 0; job < 5; ++job) f.ended(job, at(1));
  CHECK(f.now().requests == 0);
  CHECK(f.at(at(2), at(1)).requests == 0);
  // t_d is what nearly all took lately, whatever a few did.
  for (uint64_t job = 10; job < 110; ++job) {
    f.dispatched(job, 100, at(0));
    f.decoding(job, at(0));
    f.ended(job, job % 25 == 0 ? at(60) : at(0.01 * static_cast<double>(job)));
  }
  CHECK(f.decode_time() > 1s);
  CHECK(f.decode_time() < 2s);
}

TEST_CASE("a refusal says why and when to retry") {
  AdmissionOptions o;
  o.ttft_slo = 5s;
  o.tbt_slo = 45ms;
  DecodeForecast f(1500ms);
  const auto late = refusal(accepted(7500), Verdict::kTtft, 100, o, f, 1, slow_steps(), at(0));
  CHECK(late.retry_after == 2500ms);
  CHECK(late.why.find("7500.0 ms is over the promise of 5s") != std::string::npos);
  for (uint64_t job = 0; job < 10; ++job) f.dispatched(job, 100, at(0));
  for (uint64_t job = 0; job < 10; ++job) f.decoding(job, at(0));
  // Ten decode, for a second and a half: none of them will two seconds on.
  const auto busy = refusal(accepted(0), Verdict::kTbt, 100, o, f, 1, slow_steps(), at(0));
  CHECK(busy.retry_after == 2s);
  CHECK(busy.why.find("promise of 45ms") != std::string::npos);
  DecodeForecast ever(1000s);
  for (uint64_t job = 0; job < 10; ++job) ever.dispatched(job, 100, at(0));
  CHECK(refusal(accepted(0), Verdict::kTbt, 100, o, ever, 1, slow_steps(), at(0)).retry_after ==
        kForecast);
}

TEST_CASE("baseline checks the decode node when the prompt is computed") {
  AdmissionOptions o;
  o.admission = "baseline";
  o.tbt_slo = 45ms;
  DecodeView node;
  node.requests = 3;
  CHECK(admit_decode(node, 100, o, slow_steps()) == Verdict::kAccept);
  node.requests = 4;
  CHECK(admit_decode(node, 100, o, slow_steps()) == Verdict::kTbt);
  for (const char* other : {"none", "early", "predict"}) {  // they asked at arrival, if at all
    o.admission = other;
    CHECK(admit_decode(node, 100, o, slow_steps()) == Verdict::kAccept);
  }
}

TEST_CASE("short prompts go first, until a long one has waited long enough") {
  const std::vector<PrefillWork> work = {{.left_ms = 1000, .since = at(0)},
                                         {.left_ms = 10, .since = at(1)},
                                         {.left_ms = 5, .since = at(1), .ready = false}};
  CHECK(next_prefill(work, false, 0.1, at(2)) == 0);
  CHECK(next_prefill(work, true, 0.1, at(2)) == 1);
  const std::vector<PrefillWork> late = {{.left_ms = 1000, .since = at(0)},
                                         {.left_ms = 10, .since = at(20)}};
  CHECK(next_prefill(late, true, 0.1, at(20)) == 0);
  CHECK(next_prefill(late, true, 0, at(20)) == 1);
  CHECK(next_prefill(std::vector<PrefillWork>{}, true, 0.1, at(0)) == 0);
  CHECK(next_prefill(std::vector<PrefillWork>{{.ready = false}}, false, 0.1, at(0)) == 1);
}

TEST_CASE("one node moves to the busier side, not back at once, and never the last") {
  PdControl control({.interval = 10s, .cooldown = 60s, .band = 1.25, .busy = 0.6, .trim = 0.1});
  const auto decide = [&](double p, double d, size_t np, size_t nd, double s) {
    for (int i = 0; i < 10; ++i) control.sample(p, d);
    return control.decide(np, nd, at(s)).move;
  };
  CHECK(decide(0.5, 0.5, 4, 4, 0) == PdMove::kNone);
  CHECK(decide(0.1, 0.5, 4, 4, 5) == PdMove::kNone);  // unequal, but nobody is busy
  CHECK(decide(0.2, 1.5, 4, 4, 10) == PdMove::kToDecode);
  CHECK(control.deadline() == at(20));
  CHECK(decide(0.2, 1.5, 3, 5, 20) == PdMove::kNone);   // cooling down
  CHECK(decide(0.2, 1.5, 1, 7, 100) == PdMove::kNone);  // the last one
  CHECK(decide(1.5, 0.2, 4, 4, 200) == PdMove::kToPrefill);
  CHECK(pressure(0.9, 0.1, 1.25) == PdMove::kToPrefill);
  CHECK(pressure(0.1, 0.9, 1.25) == PdMove::kToDecode);
  CHECK(pressure(0.9, 0.8, 1.25) == PdMove::kNone);
  // Two nodes: moving one would double the donor's load and tip the balance over.
  CHECK(decide(0.9, 1.6, 2, 1, 300) == PdMove::kNone);
  CHECK(control.decide(2, 2, at(400)).reason == "no samples");
}

TEST_CASE("outliers do not move the mean") {
  CHECK(trimmed_mean({1, 1, 1, 1, 1, 1, 1, 1, 1, 1000}, 0.1) == doctest::Approx(1));
  CHECK(trimmed_mean({}, 0.1) == 0);
  CHECK(trimmed_mean({3}, 0.1) == 3);
}
