// mc-master: the metadata service of the KV store. The work is in lib/store.
#include "base/log.h"
#include "base/random.h"
#include "cmd/command.h"
#include "cmd/daemon.h"
#include "io/signals.h"
#include "store/service/master_service.h"
#include "telemetry/step_spans.h"

namespace mc {
namespace {

Result<int> serve(const store::MasterServiceOptions& options, const telemetry::OtlpOptions& otlp,
                  const DaemonOptions& daemon) {
  MC_TRY_(daemon.load());
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<telemetry::Tracer> tracer;  // outlives the answers that wait in the loop
  io::Loop loop(clock);
  std::unique_ptr<store::MasterService> service;
  io::Signals signals(loop, [&](int n) {
    if (n > 1 || service == nullptr) return loop.stop();
    service->leave([&] { loop.stop(); });
  });
  // Its thread starts when signals are the loop's.
  const std::string& name = options.advertise.empty() ? options.listen : options.advertise;
  MC_TRY(tracer, telemetry::Tracer::open(otlp, "mc-master", name, clock, metrics));
  // Masters keep no state. Epochs grow because time does, and nodes and clients remember them.
  const auto epoch = static_cast<uint64_t>(wall_now_ns() / 1'000'000'000);
  rpc::Server::BeginAnswer trace;
  if (tracer != nullptr)
    trace = [&](const std::string& id) { return telemetry::answer_step(*tracer, id, clock); };
  MC_TRY(service,
         store::MasterService::open(loop, options, epoch, fresh_seed(), metrics, std::move(trace)));
  Endpoints me;
  me.name = me.role = "master";
  me.epoch = epoch;
  me.control = service->control();
  me.http = service->http();
  me.events = service->events();
  me.replay = service->control();
  MC_TRY_(daemon.ready(me));
  MC_TRY_(loop.run());
  daemon.stopping();
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::store::MasterServiceOptions options;
  mc::telemetry::OtlpOptions otlp;
  mc::DaemonOptions daemon;
  mc::Program program("mc-master", "metadata service of the mc KV store");
  program.options(options);
  program.options(otlp);
  program.options(daemon);
  program.example("mc-master", "serve on 127.0.0.1:5550, with /metrics and /state on 5551");
  program.example("mc-master --listen 127.0.0.1:0 --http 127.0.0.1:0 --announce master.json",
                  "serve on free ports and write them to a file");
  program.example(
      "mc-master --ha etcd://127.0.0.1:2379 --listen 127.0.0.1:5552 --http 127.0.0.1:5553",
      "one of several masters, whose leader etcd elects");
  program.run_with([&](mc::Context&) { return mc::serve(options, otlp, daemon); });
  return program.main(argc, argv);
}
