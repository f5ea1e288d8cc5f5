#include <unistd.h>

#include "cmd/mc-store/verbs.h"
#include "rpc/socket.h"

namespace mc::store {
namespace {

// A progress line on a terminal, for work that takes longer than a moment.
void show_progress(uint64_t done, uint64_t total) {
  std::fprintf(stderr, "\r%s of %s%s", rounded_bytes_text(done).c_str(),
               rounded_bytes_text(total).c_str(), done == total ? "\n" : "");
}

}  // namespace

void ClientVerb::describe(OptionList& v) {
  client.describe(v);
  v("cluster-key", cluster_key,
    "file (mode 0600) with the secret all processes of a cluster share");
}

Result<std::unique_ptr<Session>> Session::open(const ClientVerb& options, bool progress) {
  MC_TRY_(rpc::load_cluster_key(options.cluster_key));
  auto session = std::make_unique<Session>();
  xfer::EngineOptions engine;
  engine.node = "mc-store-" + std::to_string(::getpid());
  if (!options.transports.empty()) engine.transports = options.transports;
  MC_TRY(session->engine_, xfer::Engine::open(session->clock_, engine, session->metrics_));
  ClientOptions client = options.client;
  if (progress && ::isatty(STDERR_FILENO) == 1) client.progress = show_progress;
  MC_TRY(session->client_,
         Client::open(*session->engine_, session->clock_, client, session->metrics_));
  return session;
}

}  // namespace mc::store
