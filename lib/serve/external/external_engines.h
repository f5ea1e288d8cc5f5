// Registers external engines: servers of the OpenAI API that publish events as vLLM does.
//
// An engine prefills and decodes, or is one half of a pair whose connector moves the KV (`role`,
// `kv_group`). The conductor schedules it like its own workers and proxies requests to it.
// External engines send no heartbeats. A check runs once a second: first of the models that the
// engine serves, then of its health. An engine that does not answer gets no requests; its cache is
// forgotten, and its events are replayed. One that answers, but wrongly, has its
// next check ever later, up to a minute; after a new registration it comes at once.
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
#include "io/loop.h"
#include "sched/ledger.h"
#include "sched/prefix_index.h"
#include "serve/external/event_stream.h"
#include "serve/external/external_cache.h"

namespace mc::serve {

struct ExternalOptions {
  std::string name;                // instance_id
  std::string url;                 // "http://host:port"; empty: only indexed, gets no requests
  std::string model;               // as it calls it
  std::string tenant = "default";  // for /query
  std::string events, replay;      // of its publisher; empty: its cache is not known
  uint32_t block_tokens = 0;       // 0: as its first event says
  uint64_t rank = 0;               // data parallel
  // "both"; or "prefill", which hands its KV to any engine of role "decode" in the same group.
  std::string role = "both";
  std::string kv_group = "default";
  bool posted = false;  // by POST /register: kept in the state file, where there is one
};

// What POST /register takes:
//   {"instance_id", "url", "modelname", "endpoint", "replay_endpoint", "block_size", "tenant_id",
//    "dp_rank", "type", "role", "kv_group"}
// Errors: kInvalid, naming the member.
Result<ExternalOptions> parse_external(const Json& json);
Json registration_json(const ExternalOptions& options);  // what parse_external() reads
// A file with a list of those.
Result<std::vector<ExternalOptions>> read_external(const std::string& path);

struct ExternalEngine {
  ExternalOptions options;
  bool up = false, checking = false, known = false;  // known: its models were checked
  std::string why = "not asked yet";                 // when it is not up
  Time checked{};
  Duration check_after{};     // asked again this long after `checked`
  uint64_t registration = 0;  // an answer to an older one of the same name is not its own
  std::unique_ptr<ExternalCache> cache;
  std::unique_ptr<EventStream> stream;
  // What this conductor gave it to do.
  sched::Ledger ledger;
  uint64_t assigned = 0, requests = 0, context_tokens = 0;
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
  size_t up() const;  // engines that can get requests
  // The engine to decode what `prefill` computes: the least loaded that is up and `may`.
  using May = std::function<bool(const std::string& name)>;
  ExternalEngine* partner(const ExternalEngine& prefill, const May& may) const;
  void tick(Time now);
  http::Client& client() { return client_; }

 private:
  Result<> write() const;
  void save() const;
  void check(ExternalEngine& engine);
  void checked(ExternalEngine& engine, const Result<http::ClientResponse>& answer);
  void down(ExternalEngine& engine, const std::string& why);
  Result<> serves(const ExternalEngine& engine, const http::ClientResponse& answer) const;

  io::Loop& loop_;
  sched::PrefixIndex& index_;
  const Slots slots_;
  const std::string model_;
  const size_t blocks_max_;
  Counter& gaps_;
  http::Client client_;
  std::map<std::string, std::unique_ptr<ExternalEngine>> engines_;
  uint64_t registrations_ = 0;
  std::string state_file_;
};

Json external_json(const ExternalEngine& engine, Time now);  // for /cluster

}  // namespace mc::serve
