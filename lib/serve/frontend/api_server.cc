#include "serve/frontend/api_server.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "http/cross_origin.h"
#include "io/address.h"
#include "io/limits.h"
#include "serve/answers/messages_writer.h"

namespace mc::serve {
namespace {

constexpr size_t kRequestIdMax = 128;
constexpr Duration kKeysEvery = std::chrono::seconds(1);
constexpr uint64_t kOtherFiles = 512;  // workers, events, logs, and clients that are refused

bool all_printable(const std::string& s) {
  return !s.empty() && s.size() <= kRequestIdMax &&
         std::all_of(s.begin(), s.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

Counter& keys_reads(Metrics& metrics, bool ok) {
  return metrics.counter("mc_conductor_keys_reads_total",
                         "times that the file of keys was read again",
                         {{"result", ok ? "ok" : "failed"}});
}

// An error as the API of that path has it.
std::string error_in_form_of(std::string_view path, const ApiError& e) {
  return path.starts_with("/v1/messages") ? messages_error_json(e) : error_json(e);
}

// Changes when the file is replaced, or written in place.
std::string stamp_of(const std::string& path) {
  struct stat s {};
  if (path.empty() || ::stat(path.c_str(), &s) != 0) return {};
  return strf("%llu %lld %lld.%09ld", static_cast<unsigned long long>(s.st_ino),
              static_cast<long long>(s.st_size), static_cast<long long>(s.st_mtim.tv_sec),
              s.st_mtim.tv_nsec);
}

// The number of connections, at most what this process may have open.
uint32_t files_for(uint32_t connections) {
  const uint64_t wanted = uint64_t{connections} + kOtherFiles;
  const uint64_t files = io::raise_open_files(wanted);
  if (files >= wanted) return connections;
  const auto left =
      static_cast<uint32_t>(files > 2 * kOtherFiles ? files - kOtherFiles : files / 2);
  log_warn("conductor",
           "--http-connections %u wants %llu open files, and this process may have %llu: at most "
           "%u clients may connect; raise its limit (ulimit -Hn, LimitNOFILE=) for more",
           connections, static_cast<unsigned long long>(wanted),
           static_cast<unsigned long long>(files), left);
  return left;
}

Result<> check_address(const ApiServerOptions& options) {
  MC_TRY(const io::Address where, io::parse_address(options.http));
  if (io::is_loopback(where.host) || !options.api_keys.empty() || options.http_without_keys)
    return {};
  return fail(
      Code::kInvalid,
      "refusing to serve HTTP on %s, beyond loopback, without --api-keys: anyone could send "
      "prompts; --http-without-keys serves them",
      options.http.c_str());
}

Result<model::ToolCallFormat> calls_of(const std::string& parser, const model::ChatFormat& chat) {
  using Format = model::ToolCallFormat;
  if (parser == "auto") return chat.program ? chat.calls : Format::kNone;
  for (const Format f : model::kToolCallFormats)
    if (parser == model::name(f)) return f;
  return fail(Code::kInvalid,
              "--tool-call-parser '%s', want auto, hermes, llama3, mistral, qwen3_coder, glm45 or "
              "none",
              parser.c_str());
}

Result<> check_sites(const ApiServerOptions& options) {
  const auto& sites = options.cors_origins;
  if (const auto good = http::check_origins(sites); !good)
    return fail(Code::kInvalid, "--cors-origins: %s", good.error().what.c_str());
  if (std::find(sites.begin(), sites.end(), "*") == sites.end() || !options.api_keys.empty() ||
      options.http_without_keys)
    return {};
  return fail(Code::kInvalid,
              "refusing --cors-origins * without --api-keys: every page that someone here opens "
              "could send prompts; name the sites, or let all ask with --http-without-keys");
}

}  // namespace

void ApiServerOptions::describe(OptionList& v) {
  v("http", http, "address of the OpenAI API, /cluster and /metrics");
  v("http-connections", connections, "clients connected at once");
  v("api-keys", api_keys,
    "file of tenants and their API keys, read again when it changes and on SIGHUP; empty: no key "
    "is needed");
  v("monitor-key", monitor_key,
    "file (mode 0600) with a key that /metrics and /cluster need; empty: they need none, and name "
    "no tenants where there are --api-keys");
  v("admin-socket", admin_socket,
    "unix socket (mode 0600) to register engines and dismiss workers by, beside admins' keys; "
    "none: no socket; empty: mc-conductor-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR");
  v("http-names", http_names,
    "hosts that requests may name beside loopback's own, such as a proxy's");
  v("http-without-keys", http_without_keys,
    "serve beyond loopback without --api-keys: all who reach the port may send prompts");
  v("cors-origins", cors_origins,
    "sites whose pages may ask, as https://chat.example, or * for all; empty: none");
  v("pass", pass,
    "other paths below /v1/ whose GETs and POSTs, of JSON or forms, go to external engines, such "
    "as "
    "/v1/audio/*");
  v("coalesce", coalesce, "tokens that come together are one event of a stream");
  v("otlp-ratio", otlp_ratio,
    "share of the requests whose spans --otlp gets, 0 to 1, of those that bring no trace of their "
    "own; others are recorded where their traceparent says so");
  v("tool-call-parser", tool_call_parser,
    "how own workers' model writes calls of tools; none: chats with tools are refused; auto: as "
    "its chat template says",
    {"auto", "hermes", "llama3", "mistral", "qwen3_coder", "glm45", "none"});
  v("tokenize-wait", tokenize_wait,
    "longest wait for an external engine's own tokens of a prompt; 0s: engines are not asked");
}

Result<std::unique_ptr<ApiServer>> ApiServer::open(io::Loop& loop, const ApiServerOptions& options,
                                                   Conductor& conductor, Metrics& metrics,
                                                   std::string config) {
  if (options.tokenize_wait.count() < 0)
    return fail(Code::kInvalid, "--tokenize-wait %s, want 0s or more",
                to_text(options.tokenize_wait).c_str());
  if (!(options.otlp_ratio >= 0) || options.otlp_ratio > 1)
    return fail(Code::kInvalid, "--otlp-ratio %g, want 0 to 1", options.otlp_ratio);
  if (options.connections == 0)
    return fail(Code::kInvalid, "--http-connections: want at least 1, or no client can connect");
  MC_TRY_(check_address(options));
  MC_TRY_(check_sites(options));
  MC_TRY(PassedPaths passed, PassedPaths::parse(options.pass));
  MC_TRY(const model::ToolCallFormat calls, calls_of(options.tool_call_parser, conductor.chat()));
  Tenants tenants;
  const std::string stamp = stamp_of(options.api_keys);  // before it is read: no change is missed
  if (!options.api_keys.empty()) {
    MC_TRY(tenants, Tenants::open(options.api_keys));
  }
  auto api = std::unique_ptr<ApiServer>(new ApiServer(
      loop, options, conductor, metrics, std::move(tenants), std::move(passed), std::move(config)));
  api->keys_.stamp = stamp;
  api->limits_.calls = calls;
  if (!options.api_keys.empty()) api->watch_keys();
  if (!options.monitor_key.empty()) {
    MC_TRY(api->monitor_key_, ApiKey::open(options.monitor_key));
  }
  http::ServerOptions server;
  server.names = options.http_names;
  server.json_only = true;
  server.forms = [passed = api->passed_](std::string_view path) { return passed.match(path); };
  server.origins = options.cors_origins;
  server.local_optional = options.admin_socket.empty();
  if (!server.local_optional && options.admin_socket != "none")
    server.local_socket = options.admin_socket;
  if (server.local_optional && !options.runtime_folder.empty())
    server.local_socket = options.runtime_folder + "/mc-conductor-{port}.sock";
  if (const auto& chat = conductor.chat(); !chat.problem.empty())
    log_warn("conductor", "the model's chat template cannot be read: %s: chats %s",
             chat.problem.c_str(),
             chat.program || chat.kind != model::ChatTemplate::kUnknown
                 ? "are written by an approximation, or without tools"
                 : "are refused");
  // What an external engine may take is not known: pictures, for one.
  if (conductor.external().all().empty()) server.body_max = Bytes{api->limits_.body_max()};
  server.bodies_max = options.bodies_max;
  server.answers_max = options.answers_max;
  server.connections_max = files_for(options.connections);
  server.refusal = [&metrics](int status, const std::string& why,
                              std::string_view target) -> http::Page {
    count(metrics, status, "http");
    return {kJsonType, error_in_form_of(target, {status, why, "", ""}) + "\n"};
  };
  MC_TRY(api->http_,
         http::Server::open(loop, options.http, std::move(server),
                            [self = api.get()](const http::Exchange& x) { self->dispatch(x); }));
  if (const std::string& path = api->admin_socket(); !path.empty())
    log_info("conductor", "administration: unix socket %s", path.c_str());
  return api;
}

ApiServer::ApiServer(io::Loop& loop, const ApiServerOptions& options, Conductor& conductor,
                     Metrics& metrics, Tenants tenants, PassedPaths passed, std::string config)
    : loop_(loop),
      conductor_(conductor),
      metrics_(metrics),
      tracer_(options.tracer),
      trace_ratio_(options.otlp_ratio),
      coalesce_(options.coalesce),
      crowded_(options.answers_max.n / 2),
      passed_(std::move(passed)),
      tenants_(std::move(tenants)),
      keys_{options.api_keys, {}, 0},
      config_(std::move(config)),
      limits_(limits_of(conductor.tokenizer(), conductor.spec().name, conductor.spec().context_max,
                        conductor.spec().vocab, conductor.chat())),
      texts_(loop,
             [this](const http::Exchange& x, const std::string& id, const ApiError& e) {
               count(metrics_, e.status, e.code);
               http::Headers extra = {{"x-request-id", id}, {"retry-after", "1"}};
               if (e.status == 429) extra.push_back({"x-mc-reject-reason", e.code});
               refuse(x, e, std::move(extra));
             }),
      engine_tokens_(loop, conductor.external(), texts_.pool(), options.tokenize_wait),
      ids_(options.seed),
      created_(wall_now_ns() / 1'000'000'000) {
  limits_.now = [] {
    const auto seconds = static_cast<std::time_t>(wall_now_ns() / 1'000'000'000);
    std::tm now{};
    localtime_r(&seconds, &now);
    return now;
  };
}

ApiServer::~ApiServer() {
  if (keys_.timer != 0) loop_.cancel(keys_.timer);
}

void ApiServer::watch_keys() {
  for (const bool ok : {true, false}) (void)keys_reads(metrics_, ok);  // there from the start
  keys_.timer = loop_.every(kKeysEvery, [this] {
    if (stamp_of(keys_.file) != keys_.stamp) reread_keys();
  });
}

void ApiServer::reread_keys() {
  if (keys_.file.empty()) return;
  keys_.stamp = stamp_of(keys_.file);
  auto fresh = Tenants::open(keys_.file);
  keys_reads(metrics_, fresh.has_value()).add();
  if (!fresh) {
    log_error("conductor", "%s: the keys read before stay in force", fresh.error().what.c_str());
    return;
  }
  tenants_.renew(std::move(*fresh));
  log_info("conductor", "%s was read again", keys_.file.c_str());
}

void ApiServer::count(Metrics& metrics, int status, const std::string& reason) {
  metrics
      .counter("mc_conductor_requests_total", "requests answered",
               {{"code", std::to_string(status)}, {"reason", reason}})
      .add();
}

void ApiServer::refuse(const http::Exchange& x, const ApiError& e, http::Headers extra) const {
  const bool named = !extra.empty() && extra.front().first == "x-request-id";
  if (!named) extra.insert(extra.begin(), {"x-request-id", ids_.of(x)});
  x.reply(e.status, kJsonType, error_in_form_of(x.request().path, e) + "\n", std::move(extra));
}

RequestIds::RequestIds(uint64_t seed)
    : prefix_(strf("%llx",
                   static_cast<unsigned long long>(mix64(static_cast<uint64_t>(wall_now_ns()))))),
      seeds_(seed) {}

std::string RequestIds::of(const http::Exchange& x) const {
  const auto given = x.request().headers.find("x-request-id");
  if (given != x.request().headers.end() && all_printable(given->second)) return given->second;
  return prefix_ + "-" + std::to_string(next_);
}

}  // namespace mc::serve
