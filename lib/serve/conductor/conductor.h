// Executes the life of requests: sends what the request machine asks for, and tells it what comes.
//
// lib/sched/request decides all: who serves a request, who waits, who is tried again, how it ends.
// The conductor has sockets, messages, metrics and logs. Of a request it keeps what messages need:
// its prompt, its ResponseSink, and what a worker's answer carries for another worker.
//
// The steps are Reserve -> TxAllocate -> Prefill -> tokens -> TxCommit (serve/protocol/messages.h).
// The conductor keeps no state that the workers do not have.
//
// Thread: the loop's. Source: Mooncake paper sections 3, 4 and 5.3 (Figure 9).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "sched/request/request_machine.h"
#include "serve/conductor/decision_log.h"
#include "serve/conductor/external_fleet.h"
#include "serve/conductor/pd_autoscaler.h"
#include "serve/conductor/pool_view.h"
#include "serve/conductor/proxied_attempt.h"
#include "serve/conductor/request_recorder.h"
#include "serve/conductor/request_spans.h"
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
  Duration answer_timeout = std::chrono::minutes(10);    // of an engine's, where it is no stream
  Duration pair_wait = std::chrono::seconds(10);         // for a half after the other's answer
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
  uint32_t explain_last = 1024;  // requests whose decisions are kept
  Duration held_timeout = sched::RequestOptions().held_timeout;  // no option
  // No options, and they outlive the conductor; nullptr: no spans, no recording.
  telemetry::Tracer* tracer = nullptr;
  RequestRecorder* recorder = nullptr;
  void describe(OptionList& v);
  Result<> check() const;
};

// How a request that is cancelled counts, in HTTP's terms: its client left, it has all it needs (a
// stop string came), or it shares the end of another.
struct CancelledAs {
  int status = 499;
  std::string reason = "client_gone";
};

struct InHand {  // what came with an event
  const TokenUpdate* update = nullptr;
  std::string_view bytes{};
};

// What the life of a request depends on.
sched::RequestAsk ask_of(const GenerateRequest& request);
std::vector<uint64_t> tags_of(const GenerateRequest& request, uint64_t block_size);

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

  // Reads no more of an external engine's answer, or goes on. The engine is not late while it is
  // held; a client for which it is held too long is given up.
  void hold(Id id, bool held);

  void drain();                                // refuses new requests
  void cancel_all(const std::string& reason);  // on_done with 503 for each
  size_t in_flight() const { return machine_.in_flight(); }

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
  struct Job {  // what the messages of a request need
    GenerateRequest ask;
    std::shared_ptr<ResponseSink> sink;
    Time arrived{};
    telemetry::OpenSpan span;             // from its arrival to its end
    const Progress* reported = nullptr;   // while its sink hears of it
    std::vector<int32_t> told;            // of own workers: its answer so far
    std::vector<int32_t> prompt() const;  // with that
    // Of the attempt.
    sched::AttemptRef of;
    std::optional<Reservation> reservation;
    RemotePrefix remote_prefix;
    std::unique_ptr<ProxiedAttempt> proxied;
    EngineExchange turned_away;  // the last that was full
  };
  struct Instruments;  // its metrics

  Conductor(io::Loop& loop, ConductorOptions options, ModelInfo model, uint64_t epoch,
            Metrics& metrics, std::unique_ptr<rpc::Server> server);

  // conductor_actions.cc: gives the machine an event, and carries out what it asks for.
  void run(const sched::RequestEvent& event, const InHand& hand = {});
  // `before`: when the machine began to decide.
  void carry_out(const std::vector<sched::RequestAction>& actions, const InHand& hand, Time before);
  template <class Action>
  void carry_out(const Action& action, const InHand& hand);
  Job* find(const sched::AttemptRef& attempt);
  void ended(Job& job, const Progress& progress, const SpanOutcome& outcome,
             const std::string& how);
  void make_room();
  void log_decision(const Job& job, const sched::DecisionMade& made);
  void log_end(const Job& job, const Progress& progress, const std::string& how) const;
  // conductor_steps.cc: messages to workers and from them
  void reserve(Job& job, const sched::SendStep& step);
  void pin(Job& job, const sched::SendStep& step);
  void allocate(Job& job, const sched::SendStep& step);
  void prefill(Job& job, const sched::SendStep& step);
  void commit(const sched::SendStep& step);
  void send_commits(const sched::WorkerRef& to, Duration later = {});
  void abort_at(const sched::WorkerRef& ref, const std::string& wire, const std::string& reason);
  void answered(sched::StepAnswered answer, const char* op);
  Result<rpc::Empty> tokens(const TokenBatch& batch);
  bool update(const TokenUpdate& u, const NodeId& from);
  std::string wire(const sched::AttemptRef& attempt) const;
  sched::AttemptRef attempt_of(const std::string& wire) const;
  // Calls `then` with the job if its attempt is still the one that asked.
  template <class M>
  void call(Job& job, const sched::SendStep& step, const M& message,
            std::function<void(Job&, const Result<typename M::Reply>&)> then);
  // conductor_external.cc: requests to external engines
  void ask_engine(Job& job, const ExternalEngine& engine, std::string body, bool first_half);
  void on_upstream_bytes(Job& job, std::string_view chunk, bool first_half);
  void on_upstream_done(Job& job, const Result<http::ClientResponse>& answer, bool first_half);
  sched::UpstreamEnded computed_half(Job& job);
  sched::UpstreamEnded complete_answer(Job& job);
  void stop_exchange(Job& job);

  void tick();
  PoolLoads loads() const;

  io::Loop& loop_;
  const ConductorOptions options_;
  const uint64_t epoch_;
  const Time started_;
  Metrics& metrics_;
  sched::Cost cost_;
  const model::Tokenizer tokenizer_;
  const model::ChatFormat chat_;
  sched::PrefixIndex index_;
  std::unique_ptr<rpc::Server> rpc_;
  WorkerRegistry workers_;
  std::unique_ptr<PoolView> pool_;
  std::unique_ptr<ExternalEngines> external_;
  std::unique_ptr<ExternalFleet> engines_;
  sched::Fleet fleet_;
  sched::RequestMachine machine_;
  std::unique_ptr<Instruments> instruments_;
  std::unordered_map<Id, std::unique_ptr<Job>> jobs_;
  DecisionLog decisions_;
  PdAutoscaler autoscaler_;
  RoleRebalancer rebalancer_;
  Id next_id_ = 1;
  mutable bool was_ready_ = false;
  struct {
    io::Loop::Handle timer = 0;
    Time last{};
  } ticks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace mc::serve
