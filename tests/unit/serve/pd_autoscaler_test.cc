#include "serve/conductor/pd_autoscaler.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace pd_autoscaler_test {
namespace {

struct Folder {
  Folder() {
    char path[] = "/tmp/mc-pd-XXXXXX";
    REQUIRE(::mkdtemp(path) != nullptr);
    name = path;
  }
  ~Folder() { std::filesystem::remove_all(name); }
  std::string read(const std::string& file) const {
    std::stringstream text;
    text << std::ifstream(name + "/" + file).rdbuf();
    return text.str();
  }
  std::string name;
};

// Runs until the hook has nothing to do, at a time that stands still.
bool ended(ScaleHook& hook, Time now) {
  SteadyClock clock;
  io::Loop loop(clock);
  return until(loop, [&] {
    hook.tick(now);
    return !hook.running();
  });
}

PdAutoscalerOptions controlled() {
  PdAutoscalerOptions o;
  o.enabled = true;
  o.pd.interval = 10s;
  return o;
}

void run(PdAutoscaler& watch, const PoolLoads& loads, Time& now, Duration time) {
  for (const Time end = now + time; now < end; now += 500ms) watch.tick(loads, now);
}

}  // namespace

TEST_CASE("what is wanted follows the loads, and stays wanted while the cluster is not so") {
  Metrics metrics;
  PdAutoscaler watch(controlled(), metrics);
  Time now{1s};
  run(watch, {4, 4, 0.5, 0.5}, now, 15s);
  CHECK(watch.state()["move"] == "none");
  CHECK(watch.state()["reason"].get<std::string>().starts_with("balanced: "));
  run(watch, {4, 4, 0.2, 1.5}, now, 20s);
  CHECK(watch.state()["wanted"]["prefill"] == 3);
  CHECK(watch.state()["wanted"]["decode"] == 5);
  run(watch, {4, 4, 0.2, 1.5}, now, 30s);  // nobody moved; the controller cools down
  CHECK(watch.state()["wanted"]["prefill"] == 3);
  CHECK(watch.state()["factor"] > 1.25);
  const std::string text = metrics.text();
  CHECK(text.find(R"(mc_conductor_wanted_workers{role="decode"} 5)") != std::string::npos);
  CHECK(text.find(R"(mc_conductor_load{role="decode"} 1.5)") != std::string::npos);
  CHECK(text.find(R"(mc_conductor_pd_decisions_total{move="to_decode"} 1)") != std::string::npos);
}

TEST_CASE("without control the loads are published and nothing is decided") {
  Metrics metrics;
  PdAutoscaler watch({}, metrics);
  Time now{1s};
  run(watch, {4, 4, 0.2, 1.5}, now, 60s);
  CHECK(watch.state()["decode_load"] == 1.5);
  CHECK(!watch.state().contains("wanted"));
  for (const char* const move : {"none", "to_decode", "to_prefill"})
    CHECK(metrics.text().find(strf("pd_decisions_total{move=\"%s\"} 0\n", move)) !=
          std::string::npos);
}

TEST_CASE("the hook gets both numbers, one run at a time, the newest last") {
  const Folder folder;
  const Time now{1s};
  ScaleHook hook("echo $1 $2 >> " + folder.name + "/told");
  hook.tell(3, 5, now);
  CHECK(hook.running());
  hook.tell(4, 4, now);  // replaced before its turn
  hook.tell(5, 3, now);
  REQUIRE(ended(hook, now));
  CHECK(folder.read("told") == "3 5\n5 3\n");
}

TEST_CASE("a hook that does not end is killed; one that fails is logged, and no more") {
  const Time now{1s};
  ScaleHook hook("sleep 1000 & wait");
  hook.tell(1, 1, now);
  hook.tick(now + 1s);
  CHECK(hook.running());
  hook.tick(now + ScaleHook::kLimit);
  CHECK(!hook.running());
  ScaleHook fails("exit 3");
  fails.tell(1, 1, now);
  CHECK(ended(fails, now));
}

TEST_CASE("the conductor publishes its workers' loads and the wanted numbers") {
  ConductorOptions options = patient();
  options.pd.enabled = true;
  options.token_timeout = 10s;
  Cluster c(1, 1, options);
  c.p[0]->then = [&](const std::string& r) { c.d[0]->send(r, {65}, ""); };  // and goes on
  Heard heard;
  c.submit(heard);
  CHECK(until(c.loop, [&] {
    const Json pd = c.conductor->cluster()["pd"];
    return pd["decode_load"] > 0.0 && pd["prefill_load"] == 0.0;
  }));
  CHECK(c.conductor->cluster()["pd"]["enabled"] == true);
  options.pd.pd.band = 0.5;
  CHECK(options.check().error().what.find("--pd-deadband 0.5") != std::string::npos);
  options.pd = {};
  options.pd.scale_hook = "true";
  CHECK(options.check().error().what.find("--pd-control") != std::string::npos);
}

}  // namespace pd_autoscaler_test
