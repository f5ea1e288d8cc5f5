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
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "http/client.h"
#include "io/fd.h"
#include "io/loop.h"
#include "sched/prefix_index.h"
#include "serve/external/external_engine.h"
#include "serve/external/model_names.h"
#include "serve/external/text_affinity.h"

namespace mc::serve {

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
  // Whether an engine that is up has an adapter, or may load it, as no other that is up has it. "":
  // the model.
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
  const SentMark mark;  // of all requests to engines
  http::Client& client() { return client_; }
  TextAffinity& affinity() { return affinity_; }

 private:
  Result<> write() const;
  void save() const;
  void check(ExternalEngine& engine);
  void checked(ExternalEngine& engine, const Result<http::ClientResponse>& answer);
  void ask_bootstrap(ExternalEngine& engine);
  void end_check(ExternalEngine& engine, const Result<>& verdict);
  void down(ExternalEngine& engine, const std::string& why);
  Result<> serves(ExternalEngine& engine, const http::ClientResponse& answer) const;
  void gather_names();
  void ask_metrics(ExternalEngine& engine);

  io::Loop& loop_;
  sched::PrefixIndex& index_;
  const Slots slots_;
  const size_t blocks_max_;
  Metrics& metrics_;
  Counter& gaps_;
  http::Client client_;
  TextAffinity affinity_{1 << 18};  // pieces of texts
  std::map<std::string, std::unique_ptr<ExternalEngine>> engines_;
  ModelCatalog catalog_;
  struct {
    uint64_t registrations = 0, starts = 0;
  } count_;
  struct {
    std::string path;
    io::Fd lock;  // of the file beside it
  } state_;
};

}  // namespace mc::serve
