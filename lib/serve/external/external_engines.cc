#include "serve/external/external_engines.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "base/log.h"
#include "io/file.h"
#include "tls/client_tls.h"

namespace mc::serve {
namespace {

constexpr size_t kExternalMax = 1024;
constexpr uint32_t kConnectionsMax = 2048;  // to an engine
constexpr size_t kServesMax = 256, kApiKeyMax = 4096, kAdaptersMax = 1024;
constexpr Duration kModelsEvery = std::chrono::seconds(10);
constexpr Duration kCheckEvery = std::chrono::seconds(1);
constexpr Duration kCheckAtLeastEvery = std::chrono::minutes(1);
constexpr Duration kCheckTimeout = std::chrono::seconds(2);
constexpr Bytes kModelsMax{256 * kKiB}, kHealthMax{64 * kKiB}, kMetricsMax{kMiB};  // of an answer
constexpr double kStepWeight = 0.2;     // of the newest time between tokens
constexpr double kPrefillShare = 0.25;  // of a whole answer's time, at least, to learn from it
constexpr Duration kMetricsStale = std::chrono::seconds(5);

Result<> check_external(const ExternalOptions& o) {
  if (o.name.empty() || o.name.size() > 128 ||
      !std::all_of(o.name.begin(), o.name.end(), [](char c) { return c > ' ' && c < 0x7f; }))
    return fail(Code::kInvalid, "instance_id: want 1 to 128 printable characters");
  if (o.url.empty() && o.events.empty())
    return fail(Code::kInvalid, "engine %s has neither url nor endpoint", o.name.c_str());
  const bool secure = o.url.starts_with("https://");
  if (!o.url.empty() && !secure && !o.url.starts_with("http://"))
    return fail(Code::kInvalid, "url '%s': want http://host:port or https://host:port",
                escape(o.url).c_str());
  if (!o.ca_file.empty() && !secure)
    return fail(Code::kInvalid, "ca_file is for an https url, not '%s'", escape(o.url).c_str());
  if (!o.events.empty()) MC_TRY_(event_address(o.events));
  if (!o.replay.empty()) MC_TRY_(event_address(o.replay));
  if (o.role != "both" && o.role != "prefill" && o.role != "decode")
    return fail(Code::kInvalid, "role '%s': want both, prefill or decode", escape(o.role).c_str());
  if (o.role != "both" && o.url.empty())
    return fail(Code::kInvalid, "engine %s has a role but no url", o.name.c_str());
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  if (o.api_key.size() > kApiKeyMax || !std::all_of(o.api_key.begin(), o.api_key.end(), printable))
    return fail(Code::kInvalid, "api_key: want at most %zu printable characters", kApiKeyMax);
  if (o.serves.size() > kServesMax)
    return fail(Code::kInvalid, "model: want at most %zu characters", kServesMax);
  if (o.block_tokens > 65536) return fail(Code::kInvalid, "block_size: want at most 65536");
  return {};
}

// 0 is what some registries send for "unknown".
Result<uint64_t> small_number(const Json& json, const char* key, uint64_t max) {
  MC_TRY(const uint64_t n, get_uint_or(json, key, 0));
  if (n > max)
    return fail(Code::kInvalid, "%s: want at most %llu", key, static_cast<unsigned long long>(max));
  return n;
}

// Adds the key of "key_file" and the name of "ca_file". Who posts a registration may not make us
// read a file.
auto with_files(const Json& json) {
  return [&json](ExternalOptions o) -> Result<ExternalOptions> {
    MC_TRY(o.ca_file, get_string_or(json, "ca_file", ""));
    if (!o.ca_file.empty()) {
      MC_TRY_(check_external(o));
      MC_TRY_(tls::check_ca_file(o.ca_file));
    }
    MC_TRY(const std::string path, get_string_or(json, "key_file", ""));
    if (path.empty()) return o;
    MC_TRY(o.api_key, io::read_secret_file(path, kApiKeyMax));
    while (o.api_key.ends_with('\n') || o.api_key.ends_with('\r')) o.api_key.pop_back();
    if (o.api_key.empty()) return fail(Code::kInvalid, "key_file %s is empty", path.c_str());
    MC_TRY_(check_external(o));
    return o;
  };
}

}  // namespace

Result<ExternalOptions> parse_external(const Json& json) {
  if (!json.is_object()) return fail(Code::kInvalid, "want a JSON object with instance_id and url");
  ExternalOptions o;
  MC_TRY(o.name, get_string(json, "instance_id"));
  MC_TRY(o.url, get_string_or(json, "url", ""));
  MC_TRY(o.model, get_string_or(json, "modelname", ""));
  MC_TRY(o.serves, get_string_or(json, "model", ""));
  MC_TRY(o.tenant, get_string_or(json, "tenant_id", "default"));
  MC_TRY(o.events, get_string_or(json, "endpoint", ""));
  MC_TRY(o.replay, get_string_or(json, "replay_endpoint", ""));
  MC_TRY(const uint64_t block, small_number(json, "block_size", 65536));
  MC_TRY(o.rank, small_number(json, "dp_rank", 1 << 16));
  MC_TRY(o.role, get_string_or(json, "role", "both"));
  MC_TRY(o.kv_group, get_string_or(json, "kv_group", "default"));
  MC_TRY(o.api_key, get_string_or(json, "api_key", ""));
  o.block_tokens = static_cast<uint32_t>(block);
  for (const char* key : {"lora_name", "additionalsalt"}) {
    MC_TRY(const std::string value, get_string_or(json, key, ""));
    if (!value.empty())
      return fail(Code::kInvalid, "%s '%s': only caches of the model itself are indexed", key,
                  escape(value).c_str());
  }
  while (o.url.ends_with('/')) o.url.pop_back();
  MC_TRY_(check_external(o));
  return o;
}

Json registration_json(const ExternalOptions& o) {
  Json j = {{"instance_id", o.name},        {"url", o.url},         {"modelname", o.model},
            {"tenant_id", o.tenant},        {"endpoint", o.events}, {"replay_endpoint", o.replay},
            {"block_size", o.block_tokens}, {"dp_rank", o.rank},    {"role", o.role},
            {"kv_group", o.kv_group}};
  if (!o.serves.empty()) j["model"] = o.serves;
  if (!o.api_key.empty()) j["api_key"] = o.api_key;
  return j;
}

Result<std::vector<ExternalOptions>> read_external(const std::string& path) {
  MC_TRY(const Json list, read_json_file(path));
  if (!list.is_array()) return fail(Code::kInvalid, "%s: want a list of engines", path.c_str());
  std::vector<ExternalOptions> all;
  for (const Json& j : list) {
    auto o = parse_external(j).and_then(with_files(j));
    if (!o)
      return fail(Code::kInvalid, "%s: engine %zu: %s", path.c_str(), all.size(),
                  o.error().what.c_str());
    all.push_back(std::move(*o));
  }
  return all;
}

http::ClientRequest ExternalEngine::request(const char* method, const std::string& path) const {
  http::ClientRequest r;
  r.method = method;
  r.url = options.url + path;
  r.ca_file = options.ca_file;
  if (!options.api_key.empty()) r.headers = {{"authorization", "Bearer " + options.api_key}};
  return r;
}

ExternalEngines::ExternalEngines(io::Loop& loop, sched::PrefixIndex& index, Slots slots,
                                 std::string model, size_t blocks_max, Metrics& metrics)
    : loop_(loop),
      index_(index),
      slots_(std::move(slots)),
      blocks_max_(blocks_max),
      metrics_(metrics),
      gaps_(metrics.counter("mc_conductor_foreign_resyncs_total",
                            "times that the view of an external engine's cache was dropped")),
      client_(loop, kConnectionsMax, tls::client_tls()),
      catalog_(std::move(model)) {
  gather_names();
}

ExternalEngines::~ExternalEngines() = default;

ExternalEngine* ExternalEngines::find(const std::string& name) {
  const auto it = engines_.find(name);
  return it == engines_.end() ? nullptr : it->second.get();
}

size_t ExternalEngines::up(const std::string& model) const {
  const auto all = [](const std::string&) { return true; };
  return static_cast<size_t>(std::count_if(engines_.begin(), engines_.end(), [&](const auto& e) {
    const std::string& role = e.second->options.role;
    return e.second->up && (model.empty() || e.second->options.serves == model) &&
           (role == "both" || (role == "prefill" && partner(*e.second, all) != nullptr));
  }));
}

ExternalEngine* ExternalEngines::partner(const ExternalEngine& prefill, const May& may) const {
  ExternalEngine* best = nullptr;
  for (const auto& [name, e] : engines_) {
    if (!e->up || e->options.role != "decode" || e->options.kv_group != prefill.options.kv_group ||
        e->options.serves != prefill.options.serves || !may(name))
      continue;
    const bool less = best == nullptr || std::pair(e->context_tokens, e->requests) <
                                             std::pair(best->context_tokens, best->requests);
    if (less) best = e.get();
  }
  return best;
}

Result<> ExternalEngines::keep_in(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    auto list = read_external(path);
    if (!list)
      return fail(Code::kInvalid, "--foreign-state: %s: repair it, or remove it and register again",
                  list.error().what.c_str());
    for (ExternalOptions& o : *list) {
      o.posted = true;
      MC_TRY_(add(o));
    }
  }
  state_file_ = path;
  if (auto kept = write(); !kept)  // now, not after the first registration was confirmed
    return fail(Code::kInvalid, "--foreign-state: %s: want a file that can be written",
                kept.error().what.c_str());
  return {};
}

Result<> ExternalEngines::write() const {
  Json list = Json::array();
  for (const auto& [name, e] : engines_)
    if (e->options.posted) list.push_back(registration_json(e->options));
  return io::write_file_atomically(state_file_, dump_json(list, 2) + "\n", 0600);  // it has keys
}

// A registration holds even if it cannot be written.
void ExternalEngines::save() const {
  if (state_file_.empty()) return;
  if (auto written = write(); !written)
    log_error("conductor", "registrations are lost when this process ends: %s",
              written.error().what.c_str());
}

Result<> ExternalEngines::add(const ExternalOptions& options) {
  MC_TRY_(check_external(options));
  if (find(options.name) == nullptr && engines_.size() >= kExternalMax)
    return fail(Code::kBusy, "%zu engines are registered, no more are allowed", engines_.size());
  auto engine = std::make_unique<ExternalEngine>();
  engine->options = options;
  engine->registration = ++registrations_;
  const std::string listed = catalog_.model_of(options.name);
  std::string& serves = engine->options.serves;
  if (!listed.empty() && !serves.empty() && serves != listed)
    return fail(Code::kInvalid,
                "engine %s is of the model '%s' by --models: its model cannot be '%s'",
                options.name.c_str(), listed.c_str(), escape(serves).c_str());
  if (serves.empty()) serves = listed.empty() ? catalog_.own() : listed;
  if (engine->options.model.empty()) engine->options.model = serves;
  if (options.url.empty()) engine->why = "it has no url: only its cache is known";
  if (!options.events.empty()) {
    MC_TRY(engine->stream, EventStream::open(loop_, {.name = options.name,
                                                     .events = options.events,
                                                     .replay = options.replay,
                                                     .order = {}}));
  }
  remove(options.name);  // only after the new one proved valid
  if (engine->stream) {
    engine->cache =
        std::make_unique<ExternalCache>(index_, slots_.take(), options.block_tokens, blocks_max_);
    ExternalCache* const cache = engine->cache.get();
    engine->stream->on_batch = [cache](const ExternalBatch& b) { cache->apply(b); };
    engine->stream->on_clear = [this, cache] {
      gaps_.add();
      cache->clear();
    };
  }
  log_info("conductor", "external engine %s at %s is registered", options.name.c_str(),
           options.url.empty() ? options.events.c_str() : options.url.c_str());
  ExternalEngine& added = *(engines_[options.name] = std::move(engine));
  gather_names();
  if (options.posted) save();
  if (!options.url.empty()) check(added);
  return {};
}

// Before its last answer began it worked on others.
void ExternalEngine::begins(AnswerTimes& times, bool first_token, Time now) {
  times.began = now;
  if (first_token) times.prefill_ms = to_ms(now - std::max(times.sent, answered_at));
  answered_at = now;
}

void ExternalEngine::learn(const AnswerTimes& times, const sched::Cost& cost, uint64_t tokens,
                           uint64_t cached, uint64_t output, Time now) {
  double ms = times.prefill_ms;
  const auto more = static_cast<double>(output);
  if (ms > 0 && output > 0) {
    const double step = to_ms(now - times.began) / more;
    step_ms += (step_ms > 0 ? kStepWeight : 1) * (step - step_ms);
  }
  if (ms <= 0) {  // the answer came at once: the time of its tokens is in it
    const double whole = to_ms(now - times.sent);
    ms = whole - more * (step_ms > 0 ? step_ms : cost.step_ms(1, tokens));
    if (!times.alone || ms < whole * kPrefillShare) return;  // that tells nothing of the prefill
  }
  rate.learn(cost.spec_prefill_ms(tokens, std::min(cached, tokens)), ms, cost.prefill_factor());
}

bool ExternalEngines::remove(const std::string& name) {
  const auto it = engines_.find(name);
  if (it == engines_.end()) return false;
  it->second->stream.reset();
  if (it->second->cache) {
    const Slot slot = it->second->cache->slot();
    it->second->cache.reset();
    slots_.give(slot);
  }
  log_info("conductor", "external engine %s is removed", name.c_str());
  const bool posted = it->second->options.posted;
  engines_.erase(it);
  gather_names();
  if (posted) save();
  return true;
}

void ExternalEngines::tick(Time now) {
  for (const auto& [name, e] : engines_) {
    if (!e->options.url.empty() && !e->checking && now - e->checked >= e->check_after) check(*e);
    if (e->up && !e->asks_metrics && now - e->metrics_at >= kCheckEvery &&
        now >= e->no_metrics_until)
      ask_metrics(*e);
    if (e->told_ejected && !e->outliers.ejected(now)) {
      e->told_ejected = false;
      log_info("conductor", "external engine %s gets requests again", name.c_str());
    }
  }
}

void ExternalEngines::answered(ExternalEngine& e, bool well, Time now) {
  e.outliers.answered(well, now);
  if (well || !e.outliers.failing()) return;
  size_t all = 0, out = 1;
  for (const auto& [name, other] : engines_) {
    if (other->options.url.empty() || other->options.role != e.options.role ||
        other->options.serves != e.options.serves)
      continue;
    ++all;
    if (other.get() != &e && (!other->up || other->outliers.ejected(now))) ++out;
  }
  if (2 * out > all) return;  // the others could not do its work
  const int failed = e.outliers.failed(), seen = e.outliers.seen();
  e.outliers.eject(now);
  e.told_ejected = true;
  metrics_
      .counter("mc_conductor_engine_ejections_total",
               "times that an external engine got no requests because its answers failed",
               {{"engine", e.options.name}})
      .add();
  log_warn("conductor", "external engine %s gets no requests for %s: %d of its last %d failed",
           e.options.name.c_str(), to_text(e.outliers.until() - now).c_str(), failed, seen);
}

size_t ExternalEngines::ejected(Time now) const {
  return static_cast<size_t>(std::count_if(engines_.begin(), engines_.end(), [now](const auto& e) {
    return e.second->outliers.ejected(now);
  }));
}

void ExternalEngines::ask_metrics(ExternalEngine& engine) {
  engine.asks_metrics = true;
  engine.metrics_at = loop_.clock().now();
  http::ClientRequest r = engine.request("GET", "/metrics");
  r.timeout = kCheckTimeout;
  r.answer_max = kMetricsMax;
  http::ClientCallbacks calls;
  calls.on_done = [this, name = engine.options.name,
                   registration = engine.registration](const Result<http::ClientResponse>& answer) {
    ExternalEngine* const e = find(name);
    if (e == nullptr || e->registration != registration) return;
    e->asks_metrics = false;
    const bool well = answer && answer->status == 200;
    e->metrics = well ? parse_engine_metrics(answer->body) : EngineMetrics();
    if (!well) e->no_metrics_until = loop_.now() + kCheckAtLeastEvery;
  };
  client_.send(std::move(r), std::move(calls));
}

// Requests that wait there beyond those that are ours came from others.
double ExternalEngine::wait_ms(Time now) const {
  const double ours = ledger.wait_ms(now);
  if (!metrics.waiting || now - metrics_at > kMetricsStale) return ours;
  const double counted = ledger.jobs() > 0 ? static_cast<double>(ledger.jobs() - 1) : 0;
  return ours + std::max(0.0, *metrics.waiting - counted) * rate.mean_ms();
}

void ExternalEngines::check(ExternalEngine& engine) {
  engine.checking = true;
  engine.checked = loop_.clock().now();
  engine.asks_models = !engine.known || engine.checked - engine.models_at >= kModelsEvery;
  if (engine.asks_models) engine.models_at = engine.checked;
  http::ClientRequest r = engine.request("GET", engine.asks_models ? "/v1/models" : "/health");
  r.timeout = kCheckTimeout;
  r.answer_max = engine.asks_models ? kModelsMax : kHealthMax;
  http::ClientCallbacks calls;
  calls.on_done = [this, name = engine.options.name,
                   registration = engine.registration](const Result<http::ClientResponse>& answer) {
    ExternalEngine* const asked = find(name);
    if (asked != nullptr && asked->registration == registration) checked(*asked, answer);
  };
  client_.send(std::move(r), std::move(calls));
}

void ExternalEngines::checked(ExternalEngine& e, const Result<http::ClientResponse>& answer) {
  e.checking = false;
  const Duration was = std::exchange(e.check_after, kCheckEvery);
  const auto wrong = [&](const std::string& why) {
    e.check_after = std::min(std::max(2 * was, kCheckEvery), kCheckAtLeastEvery);
    down(e, why);
  };
  if (!answer && answer.error().code == Code::kCorrupt) return wrong(answer.error().what);
  // Who refuses connections is not there; else one check alone may be late.
  if (!answer && answer.error().code == Code::kUnavailable) return down(e, answer.error().what);
  if (!answer) return failed_check(e, answer.error().what);
  const bool well = answer->status == 200 || (!e.asks_models && answer->status == 404);
  const std::string status = strf("it answers with status %d", answer->status);
  if (!well && answer->status / 100 == 5) return failed_check(e, status);  // it may be starting
  if (!well) return wrong(status);
  if (e.asks_models) {
    if (auto fits = serves(e, *answer); !fits) return wrong(fits.error().what);
    if (!e.known) log_info("conductor", "external engine %s is up", e.options.name.c_str());
  }
  e.known = e.up = true;
  e.doubted = false;
  e.why.clear();
  if (e.asks_models) gather_names();
}

// Checked again at once.
void ExternalEngines::failed_check(ExternalEngine& engine, const std::string& why) {
  if (!engine.up || engine.doubted) return down(engine, why);
  engine.doubted = true;
  engine.check_after = Duration(0);
}

void ExternalEngines::down(ExternalEngine& engine, const std::string& why) {
  const bool news = engine.up || engine.why != why;
  if (engine.up && engine.stream) engine.stream->reset();
  engine.up = engine.known = engine.doubted = false;
  engine.adapters.clear();
  engine.why = why;
  if (news)
    log_warn("conductor", "external engine %s gets no requests: %s", engine.options.name.c_str(),
             why.c_str());
  gather_names();
}

void ExternalEngines::gather_names() {
  std::vector<ModelCatalog::Engine> all;
  for (const auto& [name, e] : engines_) all.push_back({e->options.serves, e->adapters});
  catalog_.gather(all);
}

bool ExternalEngines::has_adapter(const ExternalEngine& engine, const std::string& adapter) const {
  if (adapter.empty() || engine.adapters.contains(adapter)) return true;
  const bool elsewhere = std::any_of(engines_.begin(), engines_.end(), [&](const auto& e) {
    return e.second->up && e.second->options.serves == engine.options.serves &&
           e.second->adapters.contains(adapter);
  });
  return !elsewhere && catalog_.may_load(adapter, engine.options.name);
}

// Takes down its adapters: models that name ours as what they derive from.
Result<> ExternalEngines::serves(ExternalEngine& engine, const http::ClientResponse& answer) const {
  MC_TRY(const Json json, parse_json(answer.body));
  const std::string& wanted = engine.options.model;
  const auto is_model = [this](const std::string& name) {
    const auto meaning = catalog_.names()->find(name);
    return meaning && meaning->adapter.empty();
  };
  bool found = false;
  AdapterNames adapters;
  if (const Json* data = member(json, "data"); data != nullptr && data->is_array())
    for (const Json& m : *data) {
      const auto id = get_string(m, "id");
      if (!id) continue;
      found |= *id == wanted;
      const auto parent = get_string_or(m, "parent", "");
      if (parent && *parent == wanted && *id != wanted && !is_model(*id) &&
          adapters.size() < kAdaptersMax)
        adapters.insert(*id);
    }
  if (!found)
    return fail(Code::kInvalid, "it does not serve '%s': give its name for it as modelname",
                escape(wanted).c_str());
  engine.adapters = std::move(adapters);
  return {};
}

Json external_json(const ExternalEngine& e, Time now) {
  Json j = {{"name", e.options.name},
            {"role", "foreign"},
            {"half", e.options.role},
            {"http", e.options.url},
            {"model", e.options.model},
            {"serves", e.options.serves},
            {"up", e.up},
            {"reason", e.why},
            {"ejected", e.outliers.ejected(now)},
            {"ejections", e.outliers.ejections()},
            {"assigned", e.assigned},
            {"requests", e.requests},
            {"context_tokens", e.context_tokens},
            {"queue_ms", e.wait_ms(now)},
            {"queued_tokens", e.ledger.tokens()},
            {"prefills_learned", e.rate.seen()},
            {"prefill_factor", e.rate.factor()},
            {"prefill_fixed_ms", e.rate.fixed_ms()},
            {"prefill_ms", e.rate.mean_ms()},
            {"adapters", e.adapters}};
  const std::pair<const char*, std::optional<double>> told[] = {{"running", e.metrics.running},
                                                                {"waiting", e.metrics.waiting},
                                                                {"kv_usage", e.metrics.kv_usage}};
  for (const auto& [name, value] : told)
    if (value) j[name] = *value;
  if (!e.cache) return j;
  j["block_size"] = e.cache->block_tokens();
  j["index_blocks"] = e.cache->blocks();
  j["orphan_blocks"] = e.cache->orphans();
  j["skipped_blocks"] = e.cache->skipped();
  j["unknown_extra"] = e.cache->unknown_extra();
  j["events_seen"] = e.stream->order().next();
  j["event_gaps"] = e.stream->order().gaps();
  j["event_resyncs"] = e.stream->order().clears();
  j["event_faults"] = e.stream->faults();
  return j;
}

}  // namespace mc::serve
