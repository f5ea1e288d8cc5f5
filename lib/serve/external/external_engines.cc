#include "serve/external/external_engines.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/json.h"
#include "base/log.h"
#include "io/file.h"
#include "tls/client_tls.h"

namespace mc::serve {
namespace {

constexpr size_t kExternalMax = 1024;
constexpr uint32_t kConnectionsMax = 2048;  // to an engine
constexpr size_t kAdaptersMax = 1024;
constexpr int kLoopDetected = 508;
constexpr Duration kModelsEvery = std::chrono::seconds(10);
constexpr Duration kCheckEvery = std::chrono::seconds(1);
constexpr Duration kCheckAtLeastEvery = std::chrono::minutes(1);
constexpr Duration kCheckTimeout = std::chrono::seconds(2);
constexpr Bytes kModelsMax{256 * kKiB}, kHealthMax{64 * kKiB}, kMetricsMax{kMiB};  // of an answer

Counter& ejections_of(Metrics& metrics, const std::string& engine) {
  return metrics.counter("mc_conductor_engine_ejections_total",
                         "times that an external engine got no requests because its answers failed",
                         {{"engine", engine}});
}

}  // namespace

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
    if (!e->up || !are_halves(prefill.options, e->options) || !may(name)) continue;
    const bool less = best == nullptr || std::pair(e->context_tokens, e->requests) <
                                             std::pair(best->context_tokens, best->requests);
    if (less) best = e.get();
  }
  return best;
}

Result<> ExternalEngines::keep_in(const std::string& path) {
  // The file itself is replaced at each change. Of two conductors, each would lose what the other
  // keeps there.
  const std::string beside = path + ".lock";
  state_.lock.reset(::open(beside.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!state_.lock)
    return fail(Code::kInvalid, "--foreign-state: %s: want a file that can be written",
                fail_errno("open %s", beside.c_str()).value().what.c_str());
  if (::flock(state_.lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return fail(Code::kInvalid,
                  "--foreign-state: %s is of another mc-conductor that runs: give each its own",
                  path.c_str());
    log_warn("conductor",
             "--foreign-state: %s cannot be locked: see that no other conductor has it",
             beside.c_str());
  }
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    auto list = read_external(path, true);
    if (!list)
      return fail(Code::kInvalid, "--foreign-state: %s: repair it, or remove it and register again",
                  list.error().what.c_str());
    for (ExternalOptions& o : *list) {
      o.posted = true;
      MC_TRY_(add(o));
    }
  }
  state_.path = path;
  if (auto kept = write(); !kept)  // now, not after the first registration was confirmed
    return fail(Code::kInvalid, "--foreign-state: %s: want a file that can be written",
                kept.error().what.c_str());
  return {};
}

Result<> ExternalEngines::write() const {
  Json list = Json::array();
  for (const auto& [name, e] : engines_)
    if (e->options.posted) list.push_back(registration_json(e->options));
  return io::write_file_atomically(state_.path, dump_json(list, 2) + "\n", 0600);  // it has keys
}

// A registration holds even if it cannot be written.
void ExternalEngines::save() const {
  if (state_.path.empty()) return;
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
  engine->via = mark.via();
  engine->registration = ++count_.registrations;
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
  if (const ExternalEngine* const old = find(options.name);
      old != nullptr && old->options.serves == serves &&
      old->options.model == engine->options.model)
    engine->adapters = old->adapters;  // until it says which it has
  remove(options.name);                // only after the new one proved valid
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
  if (count_.registrations <= kExternalMax) (void)ejections_of(metrics_, options.name);
  ExternalEngine& added = *(engines_[options.name] = std::move(engine));
  gather_names();
  if (options.posted) save();
  if (!options.url.empty()) check(added);
  return {};
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
    e->ledger.pass(now);
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
  ejections_of(metrics_, e.options.name).add();
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
  if (!answer) return end_check(e, fail(answer.error()));
  if (answer->status == kLoopDetected)
    return end_check(e, fail(Code::kInvalid, "its url leads back to this conductor"));
  const bool well = answer->status == 200 || (!e.asks_models && answer->status == 404);
  if (!well)
    return end_check(e, fail(answer->status / 100 == 5 ? Code::kBusy : Code::kInvalid,
                             "it answers with status %d", answer->status));
  if (!e.asks_models) return end_check(e, {});
  const auto fits = serves(e, *answer);
  if (!fits || e.options.pair != PairKind::kConcurrent || e.options.role != "prefill")
    return end_check(e, fits);
  ask_bootstrap(e);
}

void ExternalEngines::ask_bootstrap(ExternalEngine& engine) {
  http::ClientRequest r;
  r.url = engine.options.bootstrap + "/query";
  r.timeout = kCheckTimeout;
  r.answer_max = kModelsMax;
  http::ClientCallbacks calls;
  calls.on_done = [this, name = engine.options.name,
                   registration = engine.registration](const Result<http::ClientResponse>& answer) {
    ExternalEngine* const e = find(name);
    if (e == nullptr || e->registration != registration) return;
    const bool well = answer && answer->status == 200;
    auto id = well ? engine_at_bootstrap(answer->body, e->options.rank)
                   : fail(Code::kBusy, "its bootstrap server: %s",
                          answer ? strf("status %d", answer->status).c_str()
                                 : answer.error().what.c_str());
    if (!id) return end_check(*e, fail(id.error()));
    e->bootstrap_engine = std::move(*id);
    end_check(*e, {});
  };
  client_.send(std::move(r), std::move(calls));
}

// Who refuses connections is not there. What is wrong stays so for a while. Anything else may be
// late, or starting: it counts the second time.
void ExternalEngines::end_check(ExternalEngine& e, const Result<>& verdict) {
  e.checking = false;
  const Duration was = std::exchange(e.check_after, kCheckEvery);
  if (!verdict) {
    const Code code = verdict.error().code;
    const bool wrong = code == Code::kInvalid || code == Code::kCorrupt;
    if (wrong) e.check_after = std::min(std::max(2 * was, kCheckEvery), kCheckAtLeastEvery);
    if (wrong || code == Code::kUnavailable || !e.up || e.doubted)
      return down(e, verdict.error().what);
    e.doubted = true;
    e.check_after = Duration(0);  // again at once
    return;
  }
  if (e.asks_models && !e.known) {
    e.start = ++count_.starts;
    log_info("conductor", "external engine %s is up", e.options.name.c_str());
  }
  e.known = e.up = true;
  e.doubted = false;
  e.why.clear();
  if (e.asks_models) gather_names();
}

void ExternalEngines::down(ExternalEngine& engine, const std::string& why) {
  const bool news = engine.up || engine.why != why;
  if (engine.up && engine.stream) engine.stream->reset();
  engine.up = engine.known = engine.doubted = false;
  engine.bootstrap_engine.clear();
  engine.why = why;
  if (news)
    log_warn("conductor", "external engine %s gets no requests: %s", engine.options.name.c_str(),
             why.c_str());
  gather_names();
}

void ExternalEngines::gather_names() {
  std::vector<ModelCatalog::Engine> all;
  for (const bool up : {true, false})  // the first that has a name says whose it is
    for (const auto& [name, e] : engines_)
      if (e->up == up) all.push_back({e->options.serves, e->adapters});
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

}  // namespace mc::serve
