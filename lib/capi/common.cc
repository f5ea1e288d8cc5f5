#include "capi/common.h"

#include "base/log.h"
#include "device/cuda.h"
#include "io/thread.h"

namespace mc::capi {
namespace {

thread_local std::string last_error;

}  // namespace

void Settings::describe(OptionList& v) {
  v("listen", listen, "control address; port 0 takes a free one");
  v("cluster-key", cluster_key, "file with the cluster's secret");
  v("addresses", engine.addresses, "tell peers the addresses of registered memory");
  v("devices", devices, "whose memory may be registered", {"auto", "none", "cuda", "stand-in"});
  v("log-level", log_level, "error, warn, info or debug");
  engine.describe(v);
  store.describe(v);
  store.put.describe(v);
}

mc_code report(const Error& error) {
  last_error = error.what;
  return static_cast<mc_code>(error.code);
}

mc_code report(const Result<>& outcome) { return outcome ? MC_OK : report(outcome.error()); }

Result<> in_its_process(const ProcessMark& mark) {
  if (mark.here()) return {};
  return fail(Code::kUnsupported, "not after fork: open it in the child");
}

Result<> need(const void* argument, const char* name) {
  if (argument == nullptr) return fail(Code::kInvalid, "%s is NULL", name);
  return {};
}

Result<std::unique_ptr<mc_engine>> open_engine(const char* node, const mc_options* options,
                                               bool of_store) {
  MC_TRY_(need(node, "the name"));
  Settings settings = options == nullptr ? Settings{} : options->settings;
  if (of_store) settings.devices = "none";  // its clients read what they put, and check it
  MC_TRY_(io::spare_files(kSpareFiles));
  auto e = std::make_unique<mc_engine>(std::move(settings));
  MC_TRY_(set_up_logs(node, e->settings.log_level, "text"));
  MC_TRY_(rpc::load_cluster_key(e->settings.cluster_key));
  e->settings.engine.node = node;
  MC_TRY(e->engine, xfer::Engine::open(e->clock, e->settings.engine, e->metrics));
  MC_TRY_(e->devices.open_named(*e->engine, e->clock));
  MC_TRY(e->server, rpc::Server::open(e->loop, e->settings.listen, e->metrics));
  serve(*e->engine, *e->server);
  e->address = e->server->address();
  MC_TRY(e->control, io::start_thread([loop = &e->loop] {
           if (auto ran = loop->run(); !ran)
             log_error("capi", "the control endpoint stopped: %s", ran.error().what.c_str());
         }));
  return e;
}

}  // namespace mc::capi

extern "C" uint32_t mc_abi_version(void) { return 0u << 16 | 3u; }
extern "C" uint64_t mc_features(void) {
  const uint64_t has = MC_FEATURE_QUEUE | MC_FEATURE_BLOCKS | MC_FEATURE_LEND | MC_FEATURE_RANGES |
                       MC_FEATURE_ADDRESSES | MC_FEATURE_NOTICES | MC_FEATURE_PREPARED;
  return mc::device::has_cuda_driver() ? has | MC_FEATURE_CUDA : has;
}
extern "C" const char* mc_last_error(void) { return mc::capi::last_error.c_str(); }
