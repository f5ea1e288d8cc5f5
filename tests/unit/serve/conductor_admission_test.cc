#include <doctest/doctest.h>

#include "base/json.h"
#include "conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace conductor_admission_test {
namespace {

ConductorOptions promising(const char* admission, Duration tbt) {
  ConductorOptions options = patient();
  options.token_timeout = 5s;
  options.admission.admission = admission;
  options.admission.tbt_slo = tbt;
  return options;
}

// Between the steps of one and of two requests: with one that decodes there is no place for more.
Duration room_for_one() {
  const sched::Cost cost(cost::tiny());
  return from_seconds((cost.step_ms(1, 40) + cost.step_ms(2, 80)) / 2e3);
}

uint64_t wasted(const Cluster& c) { return c.conductor->cluster()["wasted_prefill_ms"]; }

// One request that decodes, and goes on to.
struct Busy : Cluster {
  explicit Busy(const char* admission) : Cluster(1, 1, promising(admission, room_for_one())) {
    p[0]->done.prefill_ms = 30;
    p[0]->then = [this](const std::string& r) { d[0]->send(r, {65}, ""); };
    submit(first);
    REQUIRE(until(loop, [&] { return first.tokens.size() == 1; }));
    p[0]->then = nullptr;
  }
  Heard first;
};

}  // namespace

TEST_CASE("baseline computes a prompt before it finds no place to decode, and counts the waste") {
  Busy c("baseline");
  Heard second;
  c.submit(second, 40, 1000);
  REQUIRE(c.finish(second));
  REQUIRE(second.failed);
  CHECK(second.failed->status == 429);
  CHECK(second.failed->code == "tbt_slo");
  CHECK(second.failed->what.find("d0") != std::string::npos);
  CHECK(second.failed->retry_after_s >= 1);
  CHECK(c.p[0]->prefills.size() == 2);
  CHECK(wasted(c) == 30);
  REQUIRE(until(c.loop, [&] { return c.d[0]->aborted.size() == 1; }));
  CHECK(c.metrics.text().find(R"(mc_conductor_requests_total{code="429",reason="tbt_slo"} 1)") !=
        std::string::npos);
}

TEST_CASE("early and predict refuse it on arrival, and waste nothing") {
  for (const char* admission : {"early", "predict"}) {
    CAPTURE(admission);
    Busy c(admission);
    Heard second;
    c.submit(second, 40, 1000);
    REQUIRE(second.done);
    REQUIRE(second.failed);
    CHECK(second.failed->code == "tbt_slo");
    CHECK(second.failed->what.find("predicted TBT") != std::string::npos);
    CHECK(c.p[0]->prefills.size() == 1);
    CHECK(wasted(c) == 0);
  }
}

TEST_CASE("none takes it") {
  Busy c("none");
  c.p[0]->then = [&](const std::string& r) { c.answer(r); };
  Heard second;
  c.submit(second, 40, 1000);
  REQUIRE(c.finish(second));
  CHECK(!second.failed);
}

TEST_CASE("a place is free again when its request ended") {
  Busy c("early");
  c.d[0]->send(c.d[0]->reserved[0].request, {}, "length");  // no step, so no time to learn
  REQUIRE(c.finish(c.first));
  c.p[0]->then = [&](const std::string& r) { c.answer(r); };
  Heard second;
  c.submit(second, 40, 1000);
  REQUIRE(c.finish(second));
  CHECK(!second.failed);
}

TEST_CASE("more requests than may wait for room are refused with 429") {
  ConductorOptions options = quick();
  options.queue_max = 1;
  Cluster c(1, 1, options);
  c.d[0]->full = true;
  Heard waits, refused;
  c.submit(waits);
  REQUIRE(until(c.loop, [&] { return c.conductor->cluster()["waiting"] == 1; }));
  c.submit(refused);
  REQUIRE(refused.failed);
  CHECK(refused.failed->status == 429);
  CHECK(refused.failed->code == "queue_full");
  REQUIRE(c.finish(waits));
  CHECK(waits.failed->status == 503);
  CHECK(waits.failed->code == "no_capacity");
}

TEST_CASE("every policy of the simulator serves live") {
  for (const std::string& policy : sched::kPolicies) {
    CAPTURE(policy);
    ConductorOptions options = patient();
    options.policy.policy = policy;
    Cluster c(2, 2, options);
    Heard heard[4];
    for (int i = 0; i < 4; ++i) c.submit(heard[i], 40, 1000 * i);
    for (Heard& h : heard) {
      REQUIRE(c.finish(h));
      CHECK(!h.failed);
    }
    CHECK(c.conductor->cluster()["policy"] == policy);
    if (policy == "rr" || policy == "count") {
      CHECK(c.p[0]->prefills.size() == 2);
    }
  }
}

TEST_CASE("who waits for room goes by priority, then by arrival") {
  ConductorOptions options = patient();
  options.queue_timeout = 10s;
  Cluster c(1, 1, options);
  c.d[0]->full = true;
  Heard heard[3];
  const auto submit = [&](int i, int64_t priority) {
    GenerateRequest g;
    g.id = "r" + std::to_string(i);
    g.prompt = {1, 2, 3};
    g.priority = priority;
    c.conductor->submit(std::move(g), heard[i].sink());
    REQUIRE(until(c.loop, [&] { return c.conductor->cluster()["waiting"] == i + 1; }));
  };
  submit(0, 5);
  submit(1, 5);
  submit(2, -1);
  std::vector<std::string> order;
  c.p[0]->then = [&](const std::string& request) {
    order.push_back(request);
    c.answer(request);
  };
  c.d[0]->full = false;
  for (Heard& h : heard) REQUIRE(c.finish(h));
  REQUIRE(order.size() == 3);
  CHECK(order[0].starts_with("2a-3-"));  // the conductor's epoch, and its third request
  CHECK(order[1].starts_with("2a-1-"));
  CHECK(order[2].starts_with("2a-2-"));
}

TEST_CASE("F68: a request that fits is served while one before it waits for room") {
  ConductorOptions options = patient();
  options.queue_timeout = options.token_timeout = 30s;
  Cluster c(1, 1, options);
  FakeDecode& d = *c.d[0];
  d.server->on<Reserve>([&d](const Reserve& m, const rpc::Call&) -> Result<Reservation> {
    d.reserved.push_back(m);
    if (d.full && m.prompt.size() > 100) return fail(Code::kNoSpace, "no blocks");
    Reservation r;
    r.control = d.server->address();
    return r;
  });
  d.full = true;
  Heard large, small;
  c.submit(large, 600);
  REQUIRE(until(c.loop, [&] { return c.conductor->cluster()["waiting"] == 1; }));
  c.submit(small, 8, 5000);
  REQUIRE(c.finish(small));
  CHECK(!small.failed);
  CHECK(!large.done);
  REQUIRE(until(c.loop, [&] { return c.conductor->cluster()["waiting"] == 1; }));
  const auto decisions = [&] {
    const std::string text = c.metrics.text(), name = "mc_conductor_decision_seconds_count ";
    return std::stoul(text.substr(text.find(name) + name.size()));
  };
  const auto before = decisions();
  d.full = false;
  REQUIRE(c.finish(large));
  CHECK(!large.failed);
  CHECK(decisions() > before);  // also of what begins because time passed
}

TEST_CASE("what was predicted is compared with what came") {
  Cluster c;
  c.p[0]->done.queue_ms = 2500;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  const std::string text = c.metrics.text();
  // Nothing queued was predicted: 2.5 s too little.
  CHECK(text.find(R"(mc_conductor_part_error_seconds_bucket{part="queue",le="-1"} 1)") !=
        std::string::npos);
  CHECK(text.find(R"(mc_conductor_part_error_seconds_bucket{part="queue",le="-10"} 0)") !=
        std::string::npos);
  CHECK(text.find("mc_conductor_ttft_error_seconds_count 1") != std::string::npos);
  CHECK(text.find("mc_conductor_tbt_error_seconds_count 1") != std::string::npos);
}

}  // namespace conductor_admission_test
