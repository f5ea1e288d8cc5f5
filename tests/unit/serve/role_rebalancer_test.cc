// Workers are placed, moved and dismissed by a conductor; the workers are fakes that obey.
#include "serve/conductor/role_rebalancer.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace role_rebalancer_test {
namespace {

// Takes the role it is given at once.
struct Willing : FakeWorker {
  Willing(io::Loop& l, const std::string& conductor, const NodeId& node, const char* role)
      : FakeWorker(l, conductor, node, role) {
    server->on<SetRole>([this](const SetRole& m, const rpc::Call&) -> Result<RoleSet> {
      told.push_back(m);
      if (refuses) return fail(Code::kStale, "another conductor was first");
      const std::string was = me.role;
      me.role = m.role;
      beat();
      return RoleSet{was, m.role};
    });
    server->on<Dismiss>([this](const Dismiss& m, const rpc::Call&) -> Result<rpc::Empty> {
      dismissed = m.why;
      return rpc::Empty{};
    });
    server->on<Snapshot>([](const Snapshot&, const rpc::Call&) {
      KvSnapshot s;
      s.epoch = 1;
      return Result<KvSnapshot>(s);
    });
    live();
  }
  bool refuses = false;
  std::vector<SetRole> told;
  std::string dismissed;
};

struct Site {
  explicit Site(ConductorOptions options = patient()) {
    conductor = *Conductor::open(loop, options, 42, metrics);
  }
  Willing& add(const NodeId& node, const char* role) {
    workers.push_back(std::make_unique<Willing>(loop, conductor->control(), node, role));
    return *workers.back();
  }
  size_t of(const char* role) {
    size_t n = 0;
    const Json cluster = conductor->cluster();
    for (const Json& w : cluster["nodes"]) n += w["role"] == role && w["draining"] == false;
    return n;
  }
  bool are(size_t prefill, size_t decode) {
    return until(loop, [&] { return of("prefill") == prefill && of("decode") == decode; });
  }
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::unique_ptr<Conductor> conductor;
  std::vector<std::unique_ptr<Willing>> workers;
};

}  // namespace

TEST_CASE("workers without a role get one: both sides first, then the smaller") {
  Site s;
  for (const char* name : {"a0", "a1", "a2", "a3"}) {
    s.add(name, "auto");
    REQUIRE(until(s.loop, [&] { return s.of("prefill") + s.of("decode") == s.workers.size(); }));
  }
  CHECK(s.of("prefill") == 2);
  CHECK(s.of("decode") == 2);
  for (const auto& w : s.workers) {
    REQUIRE(w->told.size() == 1);
    CHECK(w->told[0].from == "auto");
  }
  CHECK(s.conductor->not_ready().empty());
  // Several at once are counted before they have joined.
  Site crowd;
  for (int i = 0; i < 8; ++i) crowd.add("a" + std::to_string(i), "auto");
  CHECK(crowd.are(4, 4));
  CHECK(crowd.metrics.text().find(R"(mc_conductor_placed_workers_total{role="decode"} 4)") !=
        std::string::npos);
}

TEST_CASE(
    "a worker that another conductor placed is left alone, and asked again if it still waits") {
  Site s;
  Willing& w = s.add("a0", "auto");
  w.refuses = true;
  REQUIRE(until(s.loop, [&] { return w.told.size() >= 2; }));
  w.me.role = "decode";  // what the other one said
  CHECK(s.are(0, 1));
}

TEST_CASE("one that goes back to wait for a role is placed anew") {
  Site s;
  Willing& w = s.add("a0", "auto");
  REQUIRE(s.are(1, 0));
  s.add("p1", "prefill");
  REQUIRE(s.are(2, 0));
  w.me.role = "auto";
  REQUIRE(s.are(1, 1));
  CHECK(w.told.back().role == "decode");
}

TEST_CASE("a loaded side takes a worker from the other, the one with the least to finish") {
  ConductorOptions o = quick();
  o.pd.enabled = true;
  o.pd.pd.interval = 1s;
  o.pd.pd.cooldown = 60s;
  o.admission.admission = "none";
  o.admission.tbt_slo = 1ms;  // any step is too long
  o.token_timeout = 30s;
  Cluster c(3, 1, o);
  std::vector<SetRole> told;
  for (auto& p : c.p)
    p->server->on<SetRole>([&](const SetRole& m, const rpc::Call&) -> Result<RoleSet> {
      told.push_back(m);
      return RoleSet{"prefill", "decode"};  // and drains
    });
  for (auto& p : c.p) p->then = [&](const std::string& r) { c.d[0]->send(r, {65}, ""); };
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return !told.empty(); }));
  CHECK(told[0].role == "decode");
  CHECK(told[0].from == "prefill");
  const Json pd = c.conductor->cluster()["pd"];
  CHECK(pd["wanted"]["prefill"] == 2);
  CHECK(pd["wanted"]["decode"] == 2);
  CHECK(c.metrics.text().find(R"(mc_conductor_moved_workers_total{role="decode"} 1)") !=
        std::string::npos);
}

TEST_CASE("a worker that dies while it changes its role keeps no other from moving") {
  ConductorOptions o = quick();
  o.pd.enabled = true;
  o.pd.pd.interval = o.pd.pd.cooldown = 1s;
  o.admission.admission = "none";
  o.admission.tbt_slo = 1ns;  // any step is too long
  o.token_timeout = o.prefill_timeout = 60s;
  Cluster c(4, 1, o);
  std::vector<NodeId> told;
  for (auto& p : c.p) {
    p->then = [&](const std::string& r) { c.d[0]->send(r, {65}, ""); };
    p->server->on<SetRole>([&told, &p](const SetRole&, const rpc::Call&) -> Result<RoleSet> {
      told.push_back(p->me.node);
      p->loop.cancel(p->timer);  // it took the role, and is never heard again
      return RoleSet{"prefill", "decode"};
    });
  }
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return told.size() == 2; }));
  CHECK(told[0] != told[1]);
}

TEST_CASE("a request goes on when its worker has another role, even without retries") {
  ConductorOptions o = quick();
  o.retries = 0;
  Cluster c(2, 1, o);
  c.p[0]->silent = true;
  Heard heard;
  c.submit(heard);
  REQUIRE(until(c.loop, [&] { return !c.p[0]->prefills.empty(); }));
  c.p[0]->me.role = "decode";
  c.p[0]->beat();
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  CHECK(heard.progress.prefill == "p1");
}

TEST_CASE("one is dismissed: the one named, or the idler side's; never the last of its side") {
  Site s;
  s.add("d0", "decode");
  Willing& p0 = s.add("p0", "prefill");
  Willing& p1 = s.add("p1", "prefill");
  REQUIRE(s.are(2, 1));
  CHECK(s.conductor->scale_in("nobody", "").error().code == Code::kNotFound);
  CHECK(s.conductor->scale_in("d0", "").error().code == Code::kBusy);
  CHECK(s.conductor->scale_in("", "decode").error().what.find("d0") != std::string::npos);
  const auto gone = s.conductor->scale_in("", "");
  REQUIRE(gone);
  CHECK(gone->role == "prefill");
  CHECK(s.of("prefill") == 1);  // nothing new goes there from now on
  Willing& told = gone->node == "p0" ? p0 : p1;
  REQUIRE(until(s.loop, [&] { return !told.dismissed.empty(); }));
  told.me.draining = true;
  REQUIRE(told.tells());
  CHECK(s.conductor->scale_in("", "").error().code == Code::kBusy);
}

}  // namespace role_rebalancer_test
