// One external engine: what it is, how it is, what it has to do, and how long that takes.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "http/client.h"
#include "sched/cost.h"
#include "sched/ledger.h"
#include "sched/prefill_rate.h"
#include "serve/external/engine_metrics.h"
#include "serve/external/event_stream.h"
#include "serve/external/external_cache.h"
#include "serve/external/external_registration.h"
#include "serve/external/outliers.h"

namespace mc::serve {

// Names of LoRA adapters of an engine's model.
using AdapterNames = std::set<std::string>;

// Tells a conductor's requests from those of others, by a name that it draws.
class SentMark {
 public:
  SentMark();
  std::string via() const { return "1.1 " + name_; }
  // Whether a request with that Via is its own, which some engine sent back.
  bool in(std::string_view via) const { return via.find(name_) != via.npos; }

 private:
  std::string name_;
};

// Of one request on one engine.
struct AnswerTimes {
  Time sent{}, began{};
  bool alone = false;     // the engine had nothing else of ours when it was sent
  double prefill_ms = 0;  // where the answer began with its first token; 0: that is not known
};

struct ExternalEngine {
  ExternalOptions options;
  std::string via;  // what tells our requests from others'
  // Its first header is Via.
  http::ClientRequest request(const char* method, const std::string& path) const;
  bool up = false, checking = false, known = false;  // known: its models were checked
  bool doubted = false;                              // its last check failed
  bool asks_models = false;                          // the check under way
  Time models_at{};                                  // when it was asked for them
  AdapterNames adapters;  // as it listed them last: they stay its model's names while it is down
  std::string bootstrap_engine;  // its name at its bootstrap server, for a concurrent pair
  bool names_blocks = false;     // as a sequential first half it has handed over blocks by name
  // It cannot say a prompt's tokens, or those with pictures among them, and is not asked before.
  Time no_tokens_until{}, no_render_until{};
  std::string why = "not asked yet";  // when it is not up
  Time checked{};
  Duration check_after{};     // asked again this long after `checked`
  uint64_t start = 0;         // another number each time that it comes up
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

Json external_json(const ExternalEngine& engine, Time now);  // for /cluster

}  // namespace mc::serve
