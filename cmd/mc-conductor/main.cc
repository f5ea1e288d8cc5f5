// mc-conductor: scheduler and OpenAI API. The work is in lib/serve and lib/sched.
#include <malloc.h>

#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "cmd/command.h"
#include "cmd/daemon.h"
#include "cmd/mc-conductor/chat.h"
#include "cmd/mc-conductor/set_role.h"
#include "io/signals.h"
#include "serve/frontend/api_server.h"
#include "telemetry/tracer.h"

namespace mc {
namespace {

struct Options {
  serve::ApiServerOptions api;
  Duration drain_timeout = std::chrono::seconds(30);
  serve::ConductorOptions conductor;
  telemetry::OtlpOptions otlp;
  std::string record;
  void describe(OptionList& v) {
    conductor.describe(v);
    api.describe(v);
    otlp.describe(v);
    v("record", record,
      "trace for mc-replay that gets a line for each answered request: its time, lengths and "
      "hashes of its blocks; empty: none");
    v("drain-timeout", drain_timeout, "on SIGTERM, how long requests in flight may go on");
  }
};

// SIGTERM: no new requests; ends when those in flight have, or at the timeout, or at the second
// signal. Counts what it cut.
class Drain {
 public:
  Drain(io::Loop& loop, Duration timeout) : loop_(loop), timeout_(timeout) {}

  void signal(int n, serve::Conductor& conductor, serve::ApiServer& api) {
    if (n > 1) return cut(conductor, api, "a second signal came");
    in_flight_ = conductor.in_flight();
    log_info("conductor", "draining %zu requests", in_flight_);
    conductor.drain();
    loop_.after(timeout_,
                [this, &conductor, &api] { cut(conductor, api, "the drain took too long"); });
    loop_.every(std::chrono::milliseconds(20), [this, &conductor, &api] {
      const bool sent = api.open_exchanges() == 0 || cut_;  // to the last byte
      if (conductor.in_flight() == 0 && sent) loop_.stop();
    });
  }
  int exit_code() const {
    log_info("conductor", "drained %zu, cut %zu", in_flight_ - std::min(in_flight_, count_),
             count_);
    return count_ > 0 ? 1 : 0;
  }

 private:
  void cut(serve::Conductor& conductor, serve::ApiServer& api, const char* why) {
    cut_ = true;
    // What a client did not read to its end is cut too, though the conductor is done with it.
    count_ += std::max(conductor.in_flight(), api.open_exchanges());
    conductor.cancel_all(strf("the conductor ends: %s", why));
  }
  io::Loop& loop_;
  const Duration timeout_;
  size_t in_flight_ = 0, count_ = 0;
  bool cut_ = false;
};

// Every option's value and where it came from, for /config.
std::string config_json(const OptionList& list) {
  Json out = Json::object();
  for (const Option& o : list.all()) out[o.name] = {{"value", o.get()}, {"origin", o.origin}};
  return dump_json(out, 2) + "\n";
}

Result<int> serve_cluster(const Options& options, const DaemonOptions& daemon,
                          const std::string& config) {
  MC_TRY_(daemon.load());
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  Drain drain(loop, options.drain_timeout);
  std::unique_ptr<telemetry::Tracer> tracer;
  std::unique_ptr<serve::RequestRecorder> recorder;
  std::unique_ptr<serve::Conductor> conductor;
  std::unique_ptr<serve::ApiServer> api;
  io::Signals signals(
      loop, [&](int n) { drain.signal(n, *conductor, *api); }, [&] { api->reread_keys(); });
  const auto epoch = static_cast<uint64_t>(wall_now_ns());
  MC_TRY(tracer,
         telemetry::Tracer::open(options.otlp, "mc-conductor", "conductor", clock, metrics));
  serve::ConductorOptions conductor_options = options.conductor;
  serve::ApiServerOptions api_options = options.api;
  conductor_options.tracer = api_options.tracer = tracer.get();
  if (!options.record.empty()) {
    MC_TRY(recorder, serve::RequestRecorder::open(options.record, conductor_options.block_size));
  }
  conductor_options.recorder = recorder.get();
  MC_TRY(conductor, configured(serve::Conductor::open(loop, conductor_options, epoch, metrics)));
  MC_TRY(api, configured(serve::ApiServer::open(loop, api_options, *conductor, metrics, config)));
  Endpoints me;
  me.name = me.role = "conductor";
  me.epoch = epoch;
  me.control = conductor->control();
  me.http = api->http();
  MC_TRY_(daemon.ready(me));
  MC_TRY_(loop.run());
  daemon.stopping();
  return drain.exit_code();
}

// A prompt of 131,072 tokens is a body of most of a megabyte, ids of half of one, and messages of
// as much. By default each such piece of memory goes back to the kernel when it is freed, and half
// of the time of such a request is spent on faults that bring it back.
void keep_freed_memory() {
  constexpr int kKept = 64 << 20;         // bytes, at the end of each heap
  constexpr int kMappedAlone = 32 << 20;  // pieces from this size on; glibc takes no more
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_MMAP_THRESHOLD, kMappedAlone);
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::keep_freed_memory();
  mc::Options options;
  options.api.runtime_folder = mc::runtime_folder();
  mc::DaemonOptions daemon;
  mc::Program program("mc-conductor", "scheduler and OpenAI API of an mc cluster");
  program.options(options);
  program.options(daemon);
  program.example("mc-conductor --model tiny", "serve the OpenAI API on 127.0.0.1:8000");
  program.example("mc-conductor --policy random --seed 7", "choose prefill workers at random");
  program.example("mc-conductor --api-keys keys.json", "serve tenants that have keys");
  program.example("mc-conductor --ttft-slo 2s --tbt-slo 100ms",
                  "refuse (HTTP 429) what cannot be answered in time");
  mc::add_chat(program);
  mc::add_set_role(program);
  program.exit_status(1, "it failed, or requests were cut when it ended");
  program.run_with([&](mc::Context&) {
    return mc::serve_cluster(options, daemon, mc::config_json(program.list()));
  });
  return program.main(argc, argv);
}
