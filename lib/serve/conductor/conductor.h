// Schedules requests on a prefill and a decode worker, and drives each to its end.
//
// lib/sched chooses the workers. The steps are Reserve -> TxAllocate -> Prefill -> tokens ->
// TxCommit (serve/protocol/messages.h). The request's ResponseSink gets the tokens. The conductor
// keeps no state that the workers do not have.
//
// Every step has a deadline. After a failure before the first token the request starts again on
// other workers, `retries` times. A request that finds no room waits, `queue_timeout` at most; one
// that no worker could ever hold gets 400. A failure after the first token ends the request with
// its reason. The conductor informs both workers of every end. A request that is predicted to
// break an SLO gets 429 and the time of a retry (sched/admission.h).
//
// Thread: the loop's. Source: Mooncake paper sections 3, 4 and 5.3 (Figure 9).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "base/options.h"
#include "io/loop.h"
#include "rpc/server.h"
#include "sched/admission.h"
#include "sched/cost.h"
#include "sched/policy.h"
#include "sched/prefix_index.h"
#include "serve/conductor/candidate_index.h"
#include "serve/conductor/decision_log.h"
#include "serve/conductor/pd_autoscaler.h"
#include "serve/conductor/pool_view.h"
#include "serve/conductor/role_rebalancer.h"
#include "serve/conductor/worker_registry.h"
#include "serve/external/answer_events.h"
#include "serve/external/answer_model.h"
#include "serve/external/external_engines.h"
#include "serve/protocol/generate.h"
#include "serve/protocol/messages.h"
#include "serve/protocol/model_info.h"
#include "telemetry/tracer.h"

namespace mc::serve {

struct ConductorOptions {
  std::string listen = "127.0.0.1:5560";
  EngineChoice choice;        // what the workers compute, and with what
  uint64_t block_size = 256;  // tokens
  sched::PolicyOptions policy;
  sched::AdmissionOptions admission{.admission = "predict"};
  uint32_t retries = 1;
  Duration worker_ttl = std::chrono::seconds(3);
  Duration snapshot_timeout = std::chrono::seconds(10);
  Duration step_timeout = std::chrono::seconds(5);       // Reserve, TxAllocate, TxCommit
  Duration prefill_timeout = std::chrono::seconds(120);  // queueing included
  Duration token_timeout = std::chrono::seconds(30);     // to the next token
  Duration tx_lease = std::chrono::seconds(30);  // of what a prefill worker keeps for a request
  Duration queue_timeout = std::chrono::seconds(30);  // waiting for room
  uint32_t queue_max = 4096;                          // requests waiting for room
  uint64_t index_blocks = uint64_t{1} << 24;
  std::string master;            // of the KV store that the workers use; empty: none
  std::string models;            // file of models beside the own
  std::string external_engines;  // file of external engines
  std::string external_state;    // where those registered by POST are kept
  PdAutoscalerOptions pd;
  uint32_t explain_last = 1024;         // requests whose decisions are kept
  telemetry::Tracer* tracer = nullptr;  // outlives the conductor; no option; nullptr: no spans
  void describe(OptionList& v);
  Result<> check() const;
};

// How a request that is cancelled counts, in HTTP's terms: its client left, it has all it needs (a
// stop string came), or it shares the end of another.
struct CancelledAs {
  int status = 499;
  std::string reason = "client_gone";
};

class Conductor {
 public:
  // `epoch`: the start of this process, larger than any before it.
  // Errors: kUnavailable when the port is in use; kInvalid, kNotFound for options and model.
  static Result<std::unique_ptr<Conductor>> open(io::Loop& loop, const ConductorOptions& options,
                                                 uint64_t epoch, Metrics& metrics);
  ~Conductor();  // aborts the requests in flight on the workers; calls no sink
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  using Id = uint64_t;
  // Calls the sink on later turns, or at once when it refuses. The id is for cancel().
  Id submit(GenerateRequest request, ResponseSink sink);
  // Ends a request without calling its sink, and aborts it on both workers. Ignores unknown ids.
  void cancel(Id id, const std::string& why, const CancelledAs& as = {});

  void drain();                                // refuses new requests
  void cancel_all(const std::string& reason);  // on_done with 503 for each
  size_t in_flight() const { return jobs_.size(); }

  std::string not_ready() const;  // empty when ready, otherwise the reason
  const std::string& control() const { return rpc_->address(); }
  const cost::ModelSpec& spec() const { return cost_.spec(); }
  const model::Tokenizer& tokenizer() const { return tokenizer_; }
  const model::ChatFormat& chat() const { return chat_; }
  Json cluster() const;  // for /cluster: workers, loads, index, policy, totals
  // The decision for such a prompt now; route() adds every candidate, for /debug/route.
  sched::Decision dry_run(const GenerateRequest& request) const;
  Json route(const GenerateRequest& request) const;
  // The decisions for one of the last `explain_last` requests; null for any other.
  Json explain(const std::string& id) const;
  Json health() const;
  uint64_t block_size() const { return options_.block_size; }
  ExternalEngines& external() { return *external_; }
  const ExternalEngines& external() const { return *external_; }
  // The number of leading blocks that each prefill worker holds.
  std::map<std::string, uint32_t> held(std::span<const uint64_t> tags) const;
  void update_metrics();  // gauges; before they are printed
  // Drains and ends a worker: the one named, or the least loaded of `role`, or of the idler side.
  Result<RoleRebalancer::Dismissed> scale_in(const std::string& node, const std::string& role);

 private:
  enum class State {
    kWaiting,
    kReserving,
    kAllocating,
    kPrefilling,
    kAnswering,
    kEnding,
    kProxying
  };
  struct WorkerRef {  // one process of a worker; `epoch` excludes older ones of its name
    NodeId node;
    uint64_t epoch = 0;
  };
  struct ProxiedAttempt {     // an attempt on an external engine
    std::string engine;       // empty: there is none
    std::string decode;       // a pair's other half; empty: the engine itself
    bool prefilling = false;  // a pair's first half is at work
    const std::string& asked() const { return prefilling || decode.empty() ? engine : decode; }
    http::Client::Id http = 0;
    int status = 0;
    std::string type, held, tail;  // of the answer; an error's text; its end, with the usage
    std::string retry_after;       // where it is full
    bool begun = false;
    bool streams() const { return type.starts_with("text/event-stream"); }
    AnswerEvents events;
    size_t since_pace = 0;  // bytes since the deadline moved
    AnswerTimes times;
    telemetry::OpenSpan span;           // of one of its requests
    std::optional<AnswerModel> rename;  // where the engine has its own name for the model
  };
  struct Job {
    Id id = 0;
    GenerateRequest ask;
    ResponseSink sink;
    std::vector<uint64_t> tags;
    Time arrived{}, deadline = Time::max();
    State state = State::kWaiting;
    uint32_t failures = 0;
    std::set<NodeId> avoid;  // failed this request: only if there is no other
    std::set<NodeId> full;   // had no room when asked
    WorkerRef lost;          // ended while it was asked
    Progress progress;
    // The attempt.
    uint32_t attempt = 0;
    std::string wire;  // its id between us and the workers
    sched::Decision decision;
    NodeId chosen_decode;  // where there is one
    WorkerRef prefill, decode;
    std::optional<Reservation> reservation;
    WorkerRef source;  // of a longer match, for the prefill worker to fetch; no node: none
    bool asked_source = false, answered_source = false;
    RemotePrefix remote_prefix;
    sched::PrefixIndex::Guess guess = 0;
    bool reserved = false, allocated = false;  // asked for: an Abort is due
    bool charged = false, prefilled = false, committed = false;
    bool answering = false;  // counted among what its decode worker decodes
    Time first_token{};
    telemetry::OpenSpan span;     // from its arrival to its end
    double prefill_parts_ms = 0;  // from its arrival at the prefill worker until its KV was sent
    ProxiedAttempt proxied;
    std::unique_ptr<ProxiedAttempt> turned_away;  // the last engine that said it is full
    int passed_status = 200;                      // of an engine's answer
    void pass_on(const ProxiedAttempt& refused);
    std::pair<int64_t, Id> turn() const { return {ask.priority, id}; }
  };
  struct Instruments;  // its metrics

  Conductor(io::Loop& loop, ConductorOptions options, ModelInfo model, uint64_t epoch,
            Metrics& metrics, std::unique_ptr<rpc::Server> server);
  uint64_t blocks_needed(bool prefill, uint64_t tokens, uint32_t max_tokens) const;
  sched::View view(const std::vector<uint64_t>& tags, const GenerateRequest& ask,
                   const Job* job) const;
  // A view that gives the same decision, of few workers where possible.
  sched::View short_view(const Job& job);
  void decide(Job& job);
  sched::AdmissionOptions promises(const Job& job) const;
  bool decode_refuses(const Job& job) const;

  // conductor_flow.cc: the life of a job, in order
  void start(Job& job);
  void refuse(Job& job);
  void refuse_computed(Job& job);
  RequestError too_large(const Job& job) const;
  void wait_for_room(Job& job);
  WorkerRef source_of(const Job& job) const;
  void reserve(Job& job);
  void pin_for_peer(Job& job);
  void allocate(Job& job);
  void allocated(Job& job, const TxAllocated& allocated);
  void prefilled(Job& job, const PrefillDone& done);
  void learn(const Job& job, const PrefillDone& done);
  Result<rpc::Empty> tokens(const TokenBatch& batch);
  void update(Job& job, const TokenUpdate& update);
  bool first_token(Job& job);
  void commit(Job& job);
  void send_commits(Worker& worker);
  void finished(Job& job);
  // conductor_external.cc: the same on an external engine
  void add_external(sched::View& v, const GenerateRequest& ask, const Job* job) const;
  void proxy(Job& job);
  ExternalEngine* partner(const ExternalEngine& prefill, const Job* job) const;
  void ask_engine(Job& job, const ExternalEngine& engine, std::string body);
  void start_decode_half(Job& job);
  void on_upstream_bytes(Job& job, std::string_view chunk);
  void on_upstream_done(Job& job, const Result<http::ClientResponse>& answer);
  void release_external(Job& job);
  // conductor_failures.cc: how a job ends
  void step_failed(Job& job, const WorkerRef& where, const char* op, const Error& error);
  void fail_attempt(Job& job, const std::set<NodeId>& avoid, RequestError why);
  void release(Job& job, const std::string& reason);
  void abort_at(const WorkerRef& ref, const std::string& wire, const std::string& reason);
  void end(Job& job, const std::optional<RequestError>& failed);
  void worker_gone(const Worker& worker, const std::string& why);
  void tick();
  PoolLoads loads() const;
  void expired(Job& job);
  void next_waiting();
  void make_room();
  void log_decision(const Job& job);
  void log_end(const Job& job, const std::string& how) const;

  // Calls `then` with the job if its attempt is still the one that asked.
  template <class M>
  void call(Job& job, const WorkerRef& ref, const M& message, Duration budget,
            std::function<void(Job&, const Result<typename M::Reply>&)> then);

  io::Loop& loop_;
  const ConductorOptions options_;
  const uint64_t epoch_;
  const Time started_;
  Metrics& metrics_;
  sched::Cost cost_;
  const model::Tokenizer tokenizer_;
  const model::ChatFormat chat_;
  sched::PrefixIndex index_;
  sched::DecodeForecast forecast_;
  std::unique_ptr<rpc::Server> rpc_;
  WorkerRegistry workers_;
  CandidateIndex candidates_;
  std::unique_ptr<PoolView> pool_;
  std::unique_ptr<ExternalEngines> external_;
  std::unique_ptr<Instruments> instruments_;
  std::map<Id, std::unique_ptr<Job>> jobs_;
  std::unordered_map<std::string, Id> by_wire_;
  std::set<std::pair<int64_t, Id>> waiting_;  // for room, by priority, oldest first
  DecisionLog decisions_;
  PdAutoscaler autoscaler_;
  RoleRebalancer rebalancer_;
  Id next_id_ = 1;
  uint64_t decided_ = 0;
  bool draining_ = false;
  mutable bool was_ready_ = false;
  struct {
    io::Loop::Handle timer = 0;
    Time last{};
  } ticks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace mc::serve
