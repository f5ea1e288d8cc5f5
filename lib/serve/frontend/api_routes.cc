// The table of routes, who may ask for each, and those that are answered in a few lines.
#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "base/json.h"
#include "serve/frontend/admin_routes.h"
#include "serve/frontend/api_server.h"
#include "serve/frontend/dashboard.h"
#include "serve/frontend/registry_routes.h"
#include "serve/openapi/openapi.h"
#include "serve/request/openai_members.h"

namespace mc::serve {
namespace {

// Anthropic's clients send the key by itself.
std::string authorization(const http::Exchange& x) {
  const auto& headers = x.request().headers;
  if (const auto given = headers.find("authorization"); given != headers.end())
    return given->second;
  const auto key = headers.find("x-api-key");
  return key == headers.end() ? std::string() : "Bearer " + key->second;
}

// A proxy asks for a client whose address is unknown.
bool is_forwarded(const http::Exchange& x) {
  const auto& headers = x.request().headers;
  return headers.contains("forwarded") || headers.contains("x-forwarded-for");
}
bool by_admin_socket(const http::Exchange& x) { return x.request().local && !is_forwarded(x); }

// Metrics without the samples of tenants.
std::string without_tenants(const std::string& text) {
  std::string out;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const bool names = !line.starts_with('#') && line.find("tenant=\"") != line.npos;
    if (!names) out += line;
  }
  return out;
}

}  // namespace

// Monitors: of metrics and the cluster's state. Admins read everything; without API keys everybody
// does. Who controls changes the cluster: with an admin's key or over the admin socket.
constexpr std::string_view kBoth = "GET, POST";

enum class Who : uint8_t { kEverybody, kMonitor, kTenant, kAdmin, kControl };

struct ApiServer::Route {
  std::string_view method, path;  // one or more methods; a path that ends in /* is all below it
  Who who;
  void (*answer)(ApiServer&, const http::Exchange&, Tenants::Index);

  bool matches(std::string_view asked) const {
    return path.ends_with("/*") ? asked.starts_with(path.substr(0, path.size() - 1))
                                : asked == path;
  }
  bool takes(std::string_view asked) const {
    const std::string_view wanted = asked == "HEAD" ? "GET" : asked;
    return method == wanted || (method == kBoth && (wanted == "GET" || wanted == "POST"));
  }
  static const Route* find(std::string_view path);
  static std::string list();
  static const std::vector<Route>& all();
};

struct ApiServer::Pages {
  template <void (*Answer)(const http::Exchange&, Conductor&)>
  static void by_conductor(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    Answer(x, s.conductor_);
  }
  template <void (*Answer)(const http::Exchange&, const Json&, Conductor&)>
  static void by_json(ApiServer& s, const http::Exchange& x, Tenants::Index tenant) {
    const auto json = std::make_shared<Result<Json>>();
    const std::string id = s.ids_.of(x);
    const auto& body = x.request().body;
    s.texts_.run(
        x, id, tenant, body.size(), [json, &body] { *json = parse_json(body); },
        [&s, x, json, id](bool done) {
          if (!done) return;
          if (*json && (*json)->is_object()) return Answer(x, **json, s.conductor_);
          s.refuse(x, {400, *json ? "want a JSON object" : json->error().what, "", ""},
                   {{"x-request-id", id}});
        });
  }
  static void completion(ApiServer& s, const http::Exchange& x, Tenants::Index tenant) {
    s.completion(x, tenant);
  }
  static void by_engine(ApiServer& s, const http::Exchange& x, Tenants::Index tenant) {
    s.completion(x, tenant);
  }
  static void tokens_or_text(ApiServer& s, const http::Exchange& x, Tenants::Index tenant) {
    // Engines that answer alone know their tokens, and those of other models.
    const ExternalEngines& engines = s.conductor_.external();
    if (!engines.all().empty()) {
      const auto body = JsonText::parse(x.request().body);
      const auto named = body ? body->find_string("model") : std::nullopt;
      const auto meaning = named ? engines.catalog().names()->find(*named) : std::nullopt;
      const bool other = meaning && meaning->model != s.limits_.model;
      if (other || (s.conductor_.held({}).empty() && s.engine_tokens_.can_ask(s.limits_.model)))
        return s.completion(x, tenant);
    }
    const auto answer = std::make_shared<tl::expected<TokensAnswer, ApiError>>();
    const std::string id = s.ids_.of(x);
    const http::Request& r = x.request();
    s.texts_.render(
        x, id, tenant, r.body.size(),
        [answer, &r, id, limits = s.limits_](RenderingBound* bound) mutable {
          limits.rendering = bound;
          constexpr std::string_view kRender = "/render";
          const std::string_view path = r.path;
          *answer = path == "/tokenize"     ? tokenize(r.body, limits)
                    : path == "/detokenize" ? detokenize(r.body, limits)
                    : path == "/v1/messages/count_tokens"
                        ? count_tokens(r.body, limits)
                        : render(path.substr(0, path.size() - kRender.size()), r.body, id, limits);
        },
        [&s, x, answer, id](bool done) {
          if (!done) return;
          if (*answer) {
            http::Headers headers;
            if (std::string& names = (*answer)->ignored; !names.empty())
              headers.push_back({"x-mc-ignored", std::move(names)});
            return x.reply(200, kJsonType, std::move((*answer)->json), std::move(headers));
          }
          s.refuse(x, answer->error(), {{"x-request-id", id}});
        });
  }
  static void common(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    http::serve_common(x, s.metrics_, s.conductor_.not_ready(),
                       dump_json(s.conductor_.health()) + "\n");
  }
  static void metrics(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    s.conductor_.update_metrics();
    const std::string text = s.metrics_.text();
    const bool whole = !s.tenants_.keyed() || s.is_monitor(x);
    x.reply(200, http::kMetricsType, whole ? text : without_tenants(text));
  }
  static void version(ApiServer&, const http::Exchange& x, Tenants::Index) {
    x.reply(200, kJsonType, dump_json({{"version", MC_VERSION}}) + "\n");
  }
  static void openapi(ApiServer&, const http::Exchange& x, Tenants::Index) {
    x.reply(200, kJsonType, std::string(openapi_json()));
  }
  static void cluster(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    x.reply(200, kJsonType, dump_json(s.conductor_.cluster(), 2) + "\n");
  }
  static void config(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    x.reply(200, kJsonType, s.config_);
  }
  static void dashboard(ApiServer&, const http::Exchange& x, Tenants::Index) {
    x.reply(200, "text/html; charset=utf-8", std::string(dashboard_html()), dashboard_headers());
  }
  static void explain(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    const std::string id = x.request().path.substr(std::string_view("/explain/").size());
    const Json known = s.conductor_.explain(id);
    if (known.is_null())
      return s.refuse(x,
                      {404,
                       "nothing is known of request '" + escape(id) +
                           "': its id is the header x-request-id of its answer, and only the last "
                           "requests are kept (--explain-last)",
                       "", "unknown_request"});
    x.reply(200, kJsonType, dump_json(known, 2) + "\n");
  }
  // Own workers' model is known better than others.
  static Json model_json(const ApiServer& s, const ModelNames& names, const std::string& name) {
    const auto meaning = *names.find(name);
    Json j = {{"id", name}, {"object", "model"}, {"created", s.created_}, {"owned_by", "mc"}};
    if (!meaning.adapter.empty()) j["parent"] = meaning.model;
    if (names.is_alias(name)) j["root"] = meaning.model;
    if (meaning.model != s.limits_.model) return j;
    j["vocab"] = s.limits_.vocab;
    j["max_model_len"] = s.limits_.context_max;
    j["chat_template"] = model::name(s.limits_.chat);
    return j;
  }
  static void models(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    const ExternalEngines& engines = s.conductor_.external();
    const bool own = engines.catalog().offers_own() || !s.conductor_.held({}).empty();
    Json data = Json::array();
    for (const std::string& name : engines.catalog().names()->all())
      if (own || name != s.limits_.model)
        data.push_back(model_json(s, *engines.catalog().names(), name));
    x.reply(200, kJsonType, dump_json({{"object", "list"}, {"data", std::move(data)}}) + "\n");
  }
  static void one_model(ApiServer& s, const http::Exchange& x, Tenants::Index) {
    const std::string id = x.request().path.substr(std::string_view("/v1/models/").size());
    ApiLimits limits = s.limits_;
    limits.names = s.conductor_.external().catalog().names();
    if (!limits.names->find(id)) return s.refuse(x, no_such_model(id, limits));
    x.reply(200, kJsonType, dump_json(model_json(s, *limits.names, id)) + "\n");
  }
  // For the tenant that asks, or for one that it names.
  static std::optional<std::string> salt_for(ApiServer& s, const http::Exchange& x,
                                             Tenants::Index tenant, const std::string& asked) {
    const auto named = x.request().query.find("tenant");
    if (named == x.request().query.end())
      return by_admin_socket(x) ? asked : s.tenants_.salt(tenant, asked);
    const auto other = s.tenants_.named(named->second);
    return other ? std::optional(s.tenants_.salt(*other, asked)) : std::nullopt;
  }
  static void dry_run(ApiServer& s, const http::Exchange& x, Tenants::Index tenant) {
    const http::Request& r = x.request();
    const auto it = r.query.find("prompt");
    const bool post = r.method == "POST";
    if (!post && (it == r.query.end() || it->second.empty()))
      return s.refuse(x, {400, "want ?prompt=TEXT, or POST a completion request", "prompt", ""});
    const auto decide = [&s, x, tenant,
                         id = s.ids_.of(x)](tl::expected<ParsedRequest, ApiError>* asked) {
      if (asked == nullptr) return;
      if (!*asked) return s.refuse(x, asked->error(), {{"x-request-id", id}});
      std::optional<std::string> salt;
      const GenerateRequest g = generate_request(**asked, id, 0, [&](const std::string& given) {
        salt = salt_for(s, x, tenant, given);
        return salt.value_or("");
      });
      if (!salt)
        return s.refuse(x, {404, "no tenant has that name", "tenant", ""}, {{"x-request-id", id}});
      x.reply(200, kJsonType, dump_json(s.conductor_.route(g), 2) + "\n");
    };
    if (post) {
      const auto body = JsonText::parse(r.body);
      const bool chat = body && body->find("messages");
      return s.read_request(x, tenant, chat ? "/v1/chat/completions" : "/v1/completions", decide);
    }
    const auto asked = std::make_shared<tl::expected<ParsedRequest, ApiError>>();
    const std::string& text = it->second;
    s.texts_.run(
        x, s.ids_.of(x), tenant, text.size(),
        [asked, &text, &limits = s.limits_] {
          CompletionRequest prompt;
          prompt.max_tokens = 0;
          prompt.prompt = limits.tokenizer->encode(text);
          (*asked)->own = std::move(prompt);
        },
        [asked, decide](bool done) { decide(done ? asked.get() : nullptr); });
  }
};

const std::vector<ApiServer::Route>& ApiServer::Route::all() {
  using P = Pages;
  static const std::vector<Route> routes = {
      {"POST", "/v1/completions", Who::kTenant, P::completion},
      {"POST", "/v1/chat/completions", Who::kTenant, P::completion},
      {"POST", "/v1/responses", Who::kTenant, P::completion},
      {"POST", "/v1/messages", Who::kTenant, P::completion},
      {"POST", "/v1/completions/render", Who::kTenant, P::tokens_or_text},
      {"POST", "/v1/chat/completions/render", Who::kTenant, P::tokens_or_text},
      {"POST", "/v1/responses/render", Who::kTenant, P::tokens_or_text},
      {"POST", "/v1/messages/render", Who::kTenant, P::tokens_or_text},
      {"POST", "/v1/messages/count_tokens", Who::kTenant, P::tokens_or_text},
      {"POST", "/v1/embeddings", Who::kTenant, P::by_engine},
      {"POST", "/v1/rerank", Who::kTenant, P::by_engine},
      {"POST", "/rerank", Who::kTenant, P::by_engine},
      {"POST", "/score", Who::kTenant, P::by_engine},
      {"POST", "/pooling", Who::kTenant, P::by_engine},
      {"GET", "/v1/models", Who::kTenant, P::models},
      {"GET", "/v1/models/*", Who::kTenant, P::one_model},
      {"POST", "/tokenize", Who::kTenant, P::tokens_or_text},
      {"POST", "/detokenize", Who::kTenant, P::tokens_or_text},
      {"GET", "/live", Who::kEverybody, P::common},
      {"GET", "/ready", Who::kEverybody, P::common},
      {"GET", "/health", Who::kEverybody, P::common},
      {"GET", "/version", Who::kEverybody, P::version},
      {"GET", "/openapi.json", Who::kEverybody, P::openapi},
      {"GET", "/metrics", Who::kMonitor, P::metrics},
      {"GET", "/cluster", Who::kMonitor, P::cluster},
      {"GET", "/config", Who::kAdmin, P::config},
      {kBoth, "/debug/route", Who::kAdmin, P::dry_run},
      {"GET", "/explain/*", Who::kAdmin, P::explain},
      {"POST", "/query", Who::kAdmin, P::by_json<query_tokens>},
      {"POST", "/query_by_hash", Who::kAdmin, P::by_json<query_hashes>},
      {"POST", "/register", Who::kControl, P::by_json<register_engine>},
      {"POST", "/admin/register", Who::kControl, P::by_json<register_engine>},
      {"POST", "/unregister", Who::kControl, P::by_json<unregister_engine>},
      {"POST", "/admin/scale-in", Who::kControl, P::by_conductor<scale_in>},
      {"GET", "/", Who::kEverybody, P::dashboard},
  };
  return routes;
}

const ApiServer::Route* ApiServer::Route::find(std::string_view path) {
  const auto found = std::find_if(all().begin(), all().end(),
                                  [path](const Route& route) { return route.matches(path); });
  return found == all().end() ? nullptr : &*found;
}

std::string ApiServer::Route::list() {
  std::string text;
  for (const Route& route : all()) text += (text.empty() ? "" : ", ") + std::string(route.path);
  return text;
}

// The tenant that asks, by its key; nothing when it answered 401.
std::optional<Tenants::Index> ApiServer::tenant_of(const http::Exchange& x) {
  const auto tenant = tenants_.find(authorization(x));
  if (tenant) return tenant;
  refuse_key(x);
  return std::nullopt;
}

void ApiServer::refuse_key(const http::Exchange& x) const {
  count(metrics_, 401, "invalid_api_key");
  refuse(x,
         {401,
          authorization(x).empty() ? "an API key is needed: send 'Authorization: Bearer KEY'"
                                   : "this API key is not known",
          "", "invalid_api_key"},
         {{"www-authenticate", "Bearer"}});
}

bool ApiServer::is_monitor(const http::Exchange& x) const {
  if (by_admin_socket(x) || (monitor_key_ && monitor_key_->matches(authorization(x)))) return true;
  const auto tenant = tenants_.keyed() ? tenants_.find(authorization(x)) : std::nullopt;
  return tenant && tenants_.at(*tenant).admin;
}

// The tenant that asks for what admins may; nothing when it answered 401 or 403.
std::optional<Tenants::Index> ApiServer::enter_admin(const http::Exchange& x, bool changes) {
  if (by_admin_socket(x)) return Tenants::Index{0};
  if (!tenants_.keyed() && (changes || is_forwarded(x))) {
    count(metrics_, 403, "not_admin");
    refuse(x, {403,
               x.request().path + " is for admins: ask over --admin-socket, or with an admin's key "
                                  "(--api-keys)",
               "", "not_admin"});
    return std::nullopt;
  }
  const auto tenant = tenant_of(x);
  if (!tenant || tenants_.at(*tenant).admin) return tenant;
  count(metrics_, 403, "not_admin");
  refuse(x, {403, x.request().path + " is for admin keys", "", "not_admin"});
  return std::nullopt;
}

// The tenant that asks; nothing when it answered 401 or 403. An unknown path needs a tenant's key.
std::optional<Tenants::Index> ApiServer::enter(const http::Exchange& x, const Route* route) {
  switch (route == nullptr ? Who::kTenant : route->who) {
    case Who::kEverybody: return Tenants::Index{0};
    case Who::kMonitor:
      if (!monitor_key_ || is_monitor(x)) return Tenants::Index{0};
      refuse_key(x);
      return std::nullopt;
    case Who::kTenant: break;
    case Who::kAdmin: return enter_admin(x, false);
    case Who::kControl: return enter_admin(x, true);
  }
  return tenant_of(x);
}

void ApiServer::dispatch(const http::Exchange& x) {
  ids_.next();
  const auto via = x.request().headers.find("via");
  if (via != x.request().headers.end() && conductor_.external().mark.in(via->second)) {
    count(metrics_, 508, "loop_detected");
    return refuse(x, {508,
                      "this conductor sent that request itself: the url of one of its engines "
                      "leads back to it",
                      "", "loop_detected"});
  }
  const auto& [path, method] = std::tie(x.request().path, x.request().method);
  const Route* const route = route_of(path);
  const auto tenant = enter(x, route);
  if (!tenant) return;
  if (route == nullptr) return refuse(x, {404, "no such page: try " + Route::list(), "", ""});
  const bool by_engine = route->answer == Pages::by_engine;
  if (route->takes(method) && by_engine && conductor_.external().all().empty())
    return refuse(x,
                  {404, "only external engines answer " + path + ", and there are none", "", ""});
  if (route->takes(method)) return route->answer(*this, x, *tenant);
  const std::string wanted(route->method);
  refuse(
      x, {405, path + " wants " + wanted + ", not " + method, "", ""},
      {{"x-request-id", ids_.of(x)}, {"allow", route->takes("GET") ? wanted + ", HEAD" : wanted}});
}

// A path of --pass is a tenant's, as the engines' others.
const ApiServer::Route* ApiServer::route_of(const std::string& path) const {
  static constexpr Route kPassed = {kBoth, "", Who::kTenant, Pages::by_engine};
  const Route* const known = Route::find(path);
  return known == nullptr && passed_.match(path) ? &kPassed : known;
}

}  // namespace mc::serve
