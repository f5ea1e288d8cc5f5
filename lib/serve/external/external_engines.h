// Registers external engines: servers of the OpenAI API that publish events as vLLM does.
//
// An engine prefills and decodes, or is one half of a pair whose connector moves the KV (`role`,
// `kv_group`). The conductor schedules it like its own workers and proxies requests to it.
// External engines send no heartbeats. A check runs once a second: first of the models that the
// engine serves, and again every ten seconds, for its adapters; else of its health. An engine that
// two checks in a row find unwell, or that cannot be connected to, gets no requests; its cache is
// forgotten, and its events are replayed. One that answers, but wrongly, has its next check ever
// later, up to a minute; after a new registration it comes at once. One whose answers fail gets no
// requests for a while (serve/external/outliers.h), and keeps its cache.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "http/client.h"
#include "io/loop.h"
#include "sched/cost.h"
#include "sched/ledger.h"
#include "sched/prefill_rate.h"
#include "sched/prefix_index.h"
#include "serve/external/engine_metrics.h"
#include "serve/external/event_stream.h"
#include "serve/external/external_cache.h"
#include "serve/external/model_names.h"
#include "serve/external/outliers.h"
#include "serve/external/text_affinity.h"

namespace mc::serve {

struct ExternalOptions {
  std::string name;     // instance_id
  std::string url;      // "http://host:port" or https; empty: only indexed, gets no requests
  std::string ca_file;  // https: certificates to trust; empty: the system's
  std::string model;    // as it calls it
  std::string serves;   // the same model, as we call it; empty: the conductor's own
  std::string tenant = "default";  // for /query
  std::string events, replay;      // of its publisher; empty: its cache is not known
  uint32_t block_tokens = 0;       // 0: as its first event says
  uint64_t rank = 0;               // data parallel
  // "both"; or "prefill", which hands its KV to any engine of role "decode" in the same group.
  std::string role = "both";
  std::string kv_group = "default";
  std::string api_key;  // sent to it as a bearer's; in no log and no answer of ours
  bool posted = false;  // by POST /register: kept in the state file, where there is one
};

// What POST /register takes:
//   {"instance_id", "url", "model", "modelname", "endpoint", "replay_endpoint", "block_size",
//   "tenant_id",
//    "dp_rank", "type", "role", "kv_group", "api_key"}
// Errors: kInvalid, naming the member.
Result<ExternalOptions> parse_external(const Json& json);
Json registration_json(const ExternalOptions& options);  // what parse_external() reads
// A file with a list of those; there "key_file" may name a file with the key, of mode 0600.
Result<std::vector<ExternalOptions>> read_external(const std::string& path);

// Names of LoRA adapters of an engine's model.
using AdapterNames = std::set<std::string>;

// Of one request on one engine.
struct AnswerTimes {
  Time sent{}, began{};
  bool alone = false;     // the engine had nothing else of ours when it was sent
  double prefill_ms = 0;  // where the answer began with its first token; 0: that is not known
};

struct ExternalEngine {
  ExternalOptions options;
  http::ClientRequest request(const char* method, const std::string& path) const;
  bool up = false, checking = false, known = false;  // known: its models were checked
  bool doubted = false;                              // its last check failed
  bool asks_models = false;                          // the check under way
  Time models_at{};                                  // when it was asked for them
  AdapterNames adapters;
  Time no_tokens_until{};             // it cannot say a prompt's tokens, and is not asked before
  std::string why = "not asked yet";  // when it is not up
  Time checked{};
  Duration check_after{};     // asked again this long after `checked`
  uint64_t registration = 0;  // an answer to an older one of the same name is not its own
  std::unique_ptr<ExternalCache> cache;
  std::unique_ptr<EventStream> stream;
  OutlierWatch outliers;
  bool told_ejected = false;  // in the log
  // What this conductor gave it to do.
  sched::Ledger ledger;
  uint64_t assigned = 0, requests = 0, context_tokens = 0;
  // What it takes for it, and what it says of itself.
  sched::PrefillRate rate;
  double step_ms = 0;  // between two tokens; 0: not known
  Time answered_at{};  // when it last began an answer
  EngineMetrics metrics;
  Time metrics_at{}, no_metrics_until{};
  bool asks_metrics = false;
  double wait_ms(Time now) const;  // until a new request would start, by our ledger and its own
  void begins(AnswerTimes& times, bool first_token, Time now);
  // An answer is complete. `cached`: of the prompt's tokens; `output`: tokens after the first.
  void learn(const AnswerTimes& times, const sched::Cost& cost, uint64_t tokens, uint64_t cached,
             uint64_t output, Time now);
};

class ExternalEngines {
 public:
  using Slot = sched::PrefixIndex::Slot;
  struct Slots {  // of the index, shared with our own workers
    std::function<Slot()> take;
    std::function<void(Slot)> give;
  };
  // `model`: the conductor's, which an engine must serve under its own name for it.
  ExternalEngines(io::Loop& loop, sched::PrefixIndex& index, Slots slots, std::string model,
                  size_t blocks_max, Metrics& metrics);
  ~ExternalEngines();
  // Adds the registrations of that file, if it exists, and writes those posted from now on to it.
  // Errors: kInvalid for a damaged file.
  Result<> keep_in(const std::string& path);
  ExternalEngines(const ExternalEngines&) = delete;
  ExternalEngines& operator=(const ExternalEngines&) = delete;

  // Replaces an engine of that name. Errors: kInvalid; kBusy when there are too many.
  Result<> add(const ExternalOptions& options);
  bool remove(const std::string& name);
  ExternalEngine* find(const std::string& name);
  const std::map<std::string, std::unique_ptr<ExternalEngine>>& all() const { return engines_; }
  // Engines that can get requests, for that model; "": for any.
  size_t up(const std::string& model = {}) const;
  // Whether an engine has an adapter, or may load it, as no other that is up has it. "": the model.
  bool has_adapter(const ExternalEngine& engine, const std::string& adapter) const;
  ModelCatalog& catalog() { return catalog_; }
  const ModelCatalog& catalog() const { return catalog_; }
  // The engine to decode what `prefill` computes: the least loaded that is up and `may`.
  using May = std::function<bool(const std::string& name)>;
  ExternalEngine* partner(const ExternalEngine& prefill, const May& may) const;
  void tick(Time now);
  // It answered a request, or failed to: one that fails often is ejected, if at least as many of
  // the same model and role are left.
  void answered(ExternalEngine& engine, bool well, Time now);
  size_t ejected(Time now) const;
  static constexpr size_t kAffinityPieces = 1 << 18;
  http::Client& client() { return client_; }
  TextAffinity& affinity() { return affinity_; }

 private:
  Result<> write() const;
  void save() const;
  void check(ExternalEngine& engine);
  void checked(ExternalEngine& engine, const Result<http::ClientResponse>& answer);
  void down(ExternalEngine& engine, const std::string& why);
  Result<> serves(ExternalEngine& engine, const http::ClientResponse& answer) const;
  void gather_names();
  void ask_metrics(ExternalEngine& engine);
  void failed_check(ExternalEngine& engine, const std::string& why);

  io::Loop& loop_;
  sched::PrefixIndex& index_;
  const Slots slots_;
  const size_t blocks_max_;
  Metrics& metrics_;
  Counter& gaps_;
  http::Client client_;
  TextAffinity affinity_{kAffinityPieces};
  std::map<std::string, std::unique_ptr<ExternalEngine>> engines_;
  ModelCatalog catalog_;
  uint64_t registrations_ = 0;
  std::string state_file_;
};

Json external_json(const ExternalEngine& engine, Time now);  // for /cluster

}  // namespace mc::serve
