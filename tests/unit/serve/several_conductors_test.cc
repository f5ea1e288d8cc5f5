// Several conductors over the same workers: each counts what the others gave these, one decides.
#include "base/json.h"
#include "conductor_fakes.h"
#include "pair.h"
#include "serve/conductor/pd_autoscaler.h"

namespace mc::serve {
namespace several_conductors_test {
namespace {

using test::Cluster;
using test::Heard;

// Two conductors; their fake workers stand for the same ones.
struct Two {
  Two() : a(1, 2), b(1, 2) { a.p[0]->silent = b.p[0]->silent = true; }
  // A batch of five at one of them.
  void batch(Cluster& at) {
    const size_t before = at.d[0]->reserved.size() + at.d[1]->reserved.size();
    for (int i = 0; i < 5; ++i) at.submit(heard[next++], 400);
    REQUIRE(test::until(at.loop, [&] {
      return at.d[0]->reserved.size() + at.d[1]->reserved.size() == before + 5;
    }));
  }
  // The workers tell one conductor what the other gave them.
  static void tell(Cluster& of, Cluster& to) {
    for (size_t i = 0; i < 2; ++i) {
      to.d[i]->me.load.others_requests = of.d[i]->reserved.size();
      to.d[i]->me.load.others_tokens = 400 * of.d[i]->reserved.size();
      to.d[i]->beat();
    }
    REQUIRE(test::until(to.loop, [&] {
      uint64_t known = 0;
      const Json cluster = to.conductor->cluster();
      for (const Json& node : cluster["nodes"])
        if (node["role"] == "decode") known += node["others_requests"].get<uint64_t>();
      return known == 5;
    }));
  }
  Heard heard[10];
  size_t next = 0;
  Cluster a, b;
};

}  // namespace

TEST_CASE("F79: two conductors, one batch each: decode workers get equally many") {
  Two two;
  two.batch(two.a);
  Two::tell(two.a, two.b);
  two.batch(two.b);
  for (size_t i = 0; i < 2; ++i) {
    const size_t n = two.a.d[i]->reserved.size() + two.b.d[i]->reserved.size();
    CAPTURE(i);
    CHECK(n == 5);
  }
}

TEST_CASE("prompts that another conductor queued at a prefill worker count") {
  Cluster c(2);
  c.p[0]->me.load.others_ms = 60'000;
  c.p[0]->beat();
  REQUIRE(test::until(c.loop,
                      [&] { return c.conductor->cluster()["nodes"][1]["others_ms"] == 60'000; }));
  const sched::Decision d = c.conductor->dry_run(test::asking(prompt_of(400, 1)));
  CHECK(d.chosen.name == "p1");
  CHECK(d.candidates[0].queue_ms > 50'000);
}

TEST_CASE("workers tell each conductor what the others gave them") {
  SteadyClock clock;
  io::Loop loop{clock};
  Pair pair(loop);
  const auto prompt = prompt_of(5 * kBlock, 1);
  const auto target = pair.reserve("r", prompt);
  REQUIRE(target);
  const std::string mine = pair.c_server->address();
  CHECK(pair.decode->load().others_requests == 0);
  CHECK(pair.decode->load(mine).others_requests == 0);
  CHECK(pair.decode->load("another").others_requests == 1);
  CHECK(pair.decode->load("another").others_tokens == prompt.size());
  pair.abort_both("r");
  CHECK(pair.comes_to_rest());
  CHECK(pair.decode->load("another").others_requests == 0);
}

TEST_CASE("the conductor that started first leads, and the next one when it is gone") {
  ConductorOptions o = test::quick();
  o.pd.enabled = true;
  Cluster c(1, 1, o);  // its epoch is 42
  const auto leads = [&] { return c.conductor->cluster()["pd"]["leads"].get<bool>(); };
  const auto told = [&](std::vector<uint64_t> joined, bool wanted) {
    c.p[0]->me.joined = std::move(joined);
    c.p[0]->beat();
    return test::until(c.loop, [&] { return leads() == wanted; });
  };
  CHECK(leads());
  CHECK(told({41, 42}, false));
  CHECK(told({42}, true));
  CHECK(told({41}, false));
  CHECK(told({42, 43}, true));
}

TEST_CASE("F79: of two conductors one changes a role, and a new leader looks on first") {
  Metrics metrics;
  PdAutoscalerOptions o;
  o.enabled = true;
  o.pd.interval = 10s;
  PdAutoscaler first(o, metrics), second(o, metrics);
  bool gone = false;
  int moves[2] = {};
  second.leads = [&] { return gone; };
  first.on_move = [&](const sched::PdDecision&, Time) { return ++moves[0], std::string("p0"); };
  second.on_move = [&](const sched::PdDecision&, Time) { return ++moves[1], std::string("p0"); };
  const PoolLoads loads{4, 4, 0.1, 2};
  Time now{100s};
  const auto run = [&](Duration time) {
    for (const Time end = now + time; now < end; now += 500ms) {
      if (!gone) first.tick(loads, now);
      second.tick(loads, now);
    }
  };
  run(15s);
  CHECK(moves[0] == 1);
  CHECK(moves[1] == 0);
  gone = true;
  run(9s);
  CHECK(moves[1] == 0);
  run(5s);
  CHECK(moves[1] == 1);
}

TEST_CASE("a worker that waits for a role gets it from the leader, once it knows who that is") {
  Cluster c;
  const auto placed = [&] {
    const std::string text = c.metrics.text();
    return text.find("mc_conductor_placed_workers_total{role=\"prefill\"} 0\n") == text.npos ||
           text.find("mc_conductor_placed_workers_total{role=\"decode\"} 0\n") == text.npos;
  };
  test::FakeWorker worker(c.loop, c.conductor->control(), "w", "auto");
  c.serve_model(worker.me);
  const auto beat = [&](std::vector<uint64_t> joined) {
    worker.joined = false;
    worker.me.conductors = 2;
    worker.me.joined = std::move(joined);
    worker.beat();
    REQUIRE(test::until(c.loop, [&] { return worker.joined; }));
  };
  beat({});
  CHECK(!placed());
  beat({41, 42});
  CHECK(!placed());
  beat({42, 43});
  CHECK(placed());
}

}  // namespace several_conductors_test
}  // namespace mc::serve
