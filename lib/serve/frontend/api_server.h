// Serves the conductor's HTTP API: OpenAI's for clients, state and metrics for operators.
//
//   POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages; behind each /render,
//   or /count_tokens behind messages; /tokenize, /detokenize   GET /v1/models, /v1/models/ID
//   POST /v1/embeddings and others: external engines answer these
//   GET /live, /ready, /health, /metrics, /cluster, /config
//   GET /debug/route?prompt=TEXT (or POST a completion): what would be decided now
//   GET /explain/ID: what was decided for a request
//   POST /admin/scale-in (serve/frontend/admin_routes.h)   GET / for people
//   (serve/frontend/dashboard.h); /register, /query and others (serve/frontend/registry_routes.h)
//
// With --api-keys every route needs a key (401), except `/`, /live, /ready, /health, /metrics and
// /cluster. /debug/route, /explain, /config, /admin and the registry's need an admin's key (403).
// Each tenant has its limits (429) and its caches (serve/frontend/tenants.h). Who registers engines
// or dismisses workers has an admin's key or asks over --admin-socket: a loopback address shows
// nothing, as proxies and web pages have it too. With --monitor-key /metrics and /cluster need that
// key or an admin's; without it they name no tenant to others. The server speaks plain HTTP: put a
// TLS proxy before it.
//
// Long texts are parsed and tokenized on threads (serve/frontend/text_work.h), and what cannot fit
// the context is refused before: a body by its bytes (413), a prompt by those of its text (400).
//
// The status of an answer is known with its first token: before that a failure is an HTTP status,
// after it an error event. Headers of an answer: x-request-id (the client's, when it sent one),
// x-mc-prefill, x-mc-decode, and x-mc-cached-tokens when it is known by then. The last usage always
// has the cached tokens, and in "mc" where the time went.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "http/server.h"
#include "serve/conductor/conductor.h"
#include "serve/external/passed_paths.h"
#include "serve/frontend/engine_tokens.h"
#include "serve/frontend/openai_proxied.h"
#include "serve/frontend/tenants.h"
#include "serve/frontend/text_work.h"
#include "telemetry/tracer.h"

namespace mc::serve {

struct ApiServerOptions {
  std::string http = "127.0.0.1:8000";
  uint32_t connections = 4096;
  std::string api_keys{};
  std::string monitor_key{};
  std::string admin_socket{};
  std::vector<std::string> http_names{};
  bool http_without_keys = false;
  std::string runtime_folder{};  // of the default socket, no option; "": none
  uint64_t seed = fresh_seed();  // of the seeds that requests do not name, no option
  std::vector<std::string> cors_origins{};
  std::vector<std::string> pass{};
  bool coalesce = false;
  std::string tool_call_parser = "auto";
  Duration tokenize_wait = std::chrono::milliseconds(100);
  double otlp_ratio = 1;
  Bytes bodies_max = http::ServerOptions().bodies_max;    // no option
  Bytes answers_max = http::ServerOptions().answers_max;  // no option
  telemetry::Tracer* tracer = nullptr;  // outlives the server; no option; nullptr: no spans
  void describe(OptionList& v);
};

// Names requests, and draws for those that have no seed.
class RequestIds {
 public:
  explicit RequestIds(uint64_t seed);
  void next() { ++next_; }  // a request came
  // The client's own, when it sent one that may stand in a log and a header.
  std::string of(const http::Exchange& x) const;
  uint64_t seed() { return seeds_.next(); }

 private:
  const std::string prefix_;
  uint64_t next_ = 0;  // requests so far
  Random seeds_;
};

class ApiServer {
 public:
  // `conductor` outlives it; `config` is what /config answers, JSON. Errors: kUnavailable when the
  // port is in use; kInvalid for an address beyond loopback without keys; kInvalid, kNotFound,
  // kDenied of the files of keys.
  static Result<std::unique_ptr<ApiServer>> open(io::Loop& loop, const ApiServerOptions& options,
                                                 Conductor& conductor, Metrics& metrics,
                                                 std::string config = "{}\n");
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // Reads the file of keys again, as the server does itself within a second of a change. A file
  // with errors is logged, and the present keys stay.
  void reread_keys();

  const std::string& http() const { return http_->address(); }
  size_t unread() const { return http_->unread(); }  // bytes of answers, by its clients
  const std::string& admin_socket() const { return http_->local_socket(); }  // "": none
  size_t open_exchanges() const { return http_->open_exchanges(); }

 private:
  struct Answer;  // one request while it is answered
  static constexpr const char* kJsonType = "application/json";
  ApiServer(io::Loop& loop, const ApiServerOptions& options, Conductor& conductor, Metrics& metrics,
            Tenants tenants, PassedPaths passed, std::string config);
  void watch_keys();
  static void count(Metrics& metrics, int status, const std::string& reason);
  void refuse(const http::Exchange& x, const ApiError& e, http::Headers extra = {}) const;

  // api_routes.cc
  struct Route;
  struct Pages;
  bool is_monitor(const http::Exchange& x) const;
  void refuse_key(const http::Exchange& x) const;
  std::optional<Tenants::Index> enter_admin(const http::Exchange& x, bool changes);
  std::optional<Tenants::Index> tenant_of(const http::Exchange& x);
  std::optional<Tenants::Index> enter(const http::Exchange& x, const Route* route);
  const Route* route_of(const std::string& path) const;
  void dispatch(const http::Exchange& x);

  // api_completion.cc
  telemetry::OpenSpan begin_span(const http::Exchange& x);
  void completion(const http::Exchange& x, Tenants::Index tenant);
  void read_request(const http::Exchange& x, Tenants::Index tenant, const std::string& path,
                    std::function<void(tl::expected<ParsedRequest, ApiError>*)> then);

  io::Loop& loop_;
  Conductor& conductor_;
  Metrics& metrics_;
  telemetry::Tracer* const tracer_;
  const double trace_ratio_;
  const bool coalesce_;
  const size_t crowded_;  // bytes of answers unread in all; above them each client is left fewer
  const PassedPaths passed_;
  Tenants tenants_;
  std::optional<ApiKey> monitor_key_;
  struct {
    const std::string file;
    std::string stamp;  // of the file when it was read
    io::Loop::Handle timer = 0;
  } keys_;
  const std::string config_;
  ApiLimits limits_;
  std::unique_ptr<http::Server> http_;
  TextWork texts_;  // goes before http_, as it holds exchanges
  EngineTokens engine_tokens_;
  RequestIds ids_;
  const int64_t created_;
};

}  // namespace mc::serve
