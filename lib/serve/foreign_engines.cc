#include "serve/foreign_engines.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"

namespace mc::serve {
namespace {

constexpr size_t kForeignMax = 1024;
constexpr Duration kCheckEvery = std::chrono::seconds(1);
constexpr Duration kCheckTimeout = std::chrono::seconds(2);
constexpr size_t kModelsMax = 1 << 20;  // bytes of a list of models

Result<> check_foreign(const ForeignOptions& o) {
  if (o.name.empty() || o.name.size() > 128 ||
      !std::all_of(o.name.begin(), o.name.end(), [](char c) { return c > ' ' && c < 0x7f; }))
    return fail(Code::kInvalid, "instance_id: want 1 to 128 printable characters");
  if (o.url.empty() && o.events.empty())
    return fail(Code::kInvalid, "engine %s has neither url nor endpoint", o.name.c_str());
  if (!o.url.empty() && !o.url.starts_with("http://"))
    return fail(Code::kInvalid, "url '%s': want http://host:port", shown(o.url).c_str());
  if (!o.events.empty()) MC_TRY_(event_address(o.events));
  if (!o.replay.empty()) MC_TRY_(event_address(o.replay));
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

}  // namespace

Result<ForeignOptions> parse_foreign(const Json& json) {
  if (!json.is_object()) return fail(Code::kInvalid, "want a JSON object with instance_id and url");
  ForeignOptions o;
  MC_TRY(o.name, get_string(json, "instance_id"));
  MC_TRY(o.url, get_string_or(json, "url", ""));
  MC_TRY(o.model, get_string_or(json, "modelname", ""));
  MC_TRY(o.tenant, get_string_or(json, "tenant_id", "default"));
  MC_TRY(o.events, get_string_or(json, "endpoint", ""));
  MC_TRY(o.replay, get_string_or(json, "replay_endpoint", ""));
  MC_TRY(const uint64_t block, small_number(json, "block_size", 65536));
  MC_TRY(o.rank, small_number(json, "dp_rank", 1 << 16));
  o.block_tokens = static_cast<uint32_t>(block);
  for (const char* key : {"lora_name", "additionalsalt"}) {
    MC_TRY(const std::string value, get_string_or(json, key, ""));
    if (!value.empty())
      return fail(Code::kInvalid, "%s '%s': only caches of the model itself are indexed", key,
                  shown(value).c_str());
  }
  while (o.url.ends_with('/')) o.url.pop_back();
  MC_TRY_(check_foreign(o));
  return o;
}

Result<std::vector<ForeignOptions>> read_foreign(const std::string& path) {
  MC_TRY(const Json list, read_json_file(path));
  if (!list.is_array()) return fail(Code::kInvalid, "%s: want a list of engines", path.c_str());
  std::vector<ForeignOptions> all;
  for (const Json& j : list) {
    auto o = parse_foreign(j);
    if (!o)
      return fail(Code::kInvalid, "%s: engine %zu: %s", path.c_str(), all.size(),
                  o.error().what.c_str());
    all.push_back(std::move(*o));
  }
  return all;
}

ForeignEngines::ForeignEngines(io::Loop& loop, sched::PrefixIndex& index, Slots slots,
                               std::string model, size_t blocks_max, Metrics& metrics)
    : loop_(loop),
      index_(index),
      slots_(std::move(slots)),
      model_(std::move(model)),
      blocks_max_(blocks_max),
      gaps_(metrics.counter("mc_conductor_foreign_resyncs_total",
                            "times that what was known of an outside engine's cache was dropped")),
      client_(loop) {}

ForeignEngines::~ForeignEngines() = default;

ForeignEngine* ForeignEngines::find(const std::string& name) {
  const auto it = engines_.find(name);
  return it == engines_.end() ? nullptr : it->second.get();
}

size_t ForeignEngines::up() const {
  return static_cast<size_t>(
      std::count_if(engines_.begin(), engines_.end(), [](const auto& e) { return e.second->up; }));
}

Result<> ForeignEngines::add(const ForeignOptions& options) {
  MC_TRY_(check_foreign(options));
  if (find(options.name) == nullptr && engines_.size() >= kForeignMax)
    return fail(Code::kBusy, "%zu engines are registered already", engines_.size());
  auto engine = std::make_unique<ForeignEngine>();
  engine->options = options;
  engine->registration = ++registrations_;
  if (engine->options.model.empty()) engine->options.model = model_;
  if (options.url.empty()) engine->why = "it has no url: only its cache is known";
  if (!options.events.empty()) {
    MC_TRY(engine->stream, EventStream::open(loop_, {.name = options.name,
                                                     .events = options.events,
                                                     .replay = options.replay,
                                                     .order = {}}));
  }
  remove(options.name);  // only now that the new one will do
  if (engine->stream) {
    engine->cache =
        std::make_unique<ForeignCache>(index_, slots_.take(), options.block_tokens, blocks_max_);
    ForeignCache* const cache = engine->cache.get();
    engine->stream->on_batch = [cache](const ForeignBatch& b) { cache->apply(b); };
    engine->stream->on_clear = [this, cache] {
      gaps_.add();
      cache->clear();
    };
  }
  log_info("conductor", "outside engine %s at %s is registered", options.name.c_str(),
           options.url.empty() ? options.events.c_str() : options.url.c_str());
  ForeignEngine& added = *(engines_[options.name] = std::move(engine));
  if (!options.url.empty()) check(added);
  return {};
}

bool ForeignEngines::remove(const std::string& name) {
  const auto it = engines_.find(name);
  if (it == engines_.end()) return false;
  it->second->stream.reset();
  if (it->second->cache) {
    const Slot slot = it->second->cache->slot();
    it->second->cache.reset();
    slots_.give(slot);
  }
  log_info("conductor", "outside engine %s is removed", name.c_str());
  engines_.erase(it);
  return true;
}

void ForeignEngines::tick(Time now) {
  for (const auto& [name, e] : engines_)
    if (!e->options.url.empty() && !e->checking && now - e->checked >= kCheckEvery) check(*e);
}

void ForeignEngines::check(ForeignEngine& engine) {
  engine.checking = true;
  engine.checked = loop_.clock().now();
  http::ClientRequest r;
  r.url = engine.options.url + (engine.known ? "/health" : "/v1/models");
  r.timeout = kCheckTimeout;
  http::ClientCallbacks calls;
  const auto text = std::make_shared<std::string>();
  calls.on_chunk = [text](std::string_view chunk, Time) {
    text->append(chunk.substr(0, kModelsMax - std::min(kModelsMax, text->size())));
  };
  calls.on_done = [this, text, name = engine.options.name,
                   registration = engine.registration](Result<http::ClientResponse> answer) {
    if (answer) answer->body = std::move(*text);
    ForeignEngine* const asked = find(name);
    if (asked != nullptr && asked->registration == registration) checked(*asked, answer);
  };
  client_.send(std::move(r), std::move(calls));
}

void ForeignEngines::checked(ForeignEngine& e, const Result<http::ClientResponse>& answer) {
  e.checking = false;
  if (!answer) return down(e, answer.error().what);
  const bool well = answer->status == 200 || (e.known && answer->status == 404);
  if (!well) return down(e, strf("it answers with status %d", answer->status));
  if (!e.known) {
    if (auto fits = serves(e, *answer); !fits) return down(e, fits.error().what);
    log_info("conductor", "outside engine %s is up", e.options.name.c_str());
  }
  e.known = e.up = true;
  e.why.clear();
}

void ForeignEngines::down(ForeignEngine& engine, const std::string& why) {
  const bool news = engine.up || engine.why != why;
  if (engine.up && engine.stream) engine.stream->reset();
  engine.up = engine.known = false;
  engine.why = why;
  if (news)
    log_warn("conductor", "outside engine %s gets no requests: %s", engine.options.name.c_str(),
             why.c_str());
}

Result<> ForeignEngines::serves(const ForeignEngine& engine,
                                const http::ClientResponse& answer) const {
  MC_TRY(const Json json, parse_json(answer.body));
  if (const Json* data = member(json, "data"); data != nullptr && data->is_array())
    for (const Json& m : *data)
      if (auto id = get_string(m, "id"); id && *id == engine.options.model) return {};
  return fail(Code::kInvalid, "it does not serve '%s': give its name for it as modelname",
              shown(engine.options.model).c_str());
}

Json foreign_json(const ForeignEngine& e, Time now) {
  Json j = {{"name", e.options.name},
            {"role", "foreign"},
            {"http", e.options.url},
            {"model", e.options.model},
            {"up", e.up},
            {"reason", e.why},
            {"assigned", e.assigned},
            {"requests", e.requests},
            {"context_tokens", e.context_tokens},
            {"queue_ms", e.ledger.wait_ms(now)},
            {"queued_tokens", e.ledger.tokens()}};
  if (!e.cache) return j;
  j["block_size"] = e.cache->block_tokens();
  j["index_blocks"] = e.cache->blocks();
  j["orphan_blocks"] = e.cache->orphans();
  j["skipped_blocks"] = e.cache->skipped();
  j["events_seen"] = e.stream->order().next();
  j["event_gaps"] = e.stream->order().gaps();
  j["event_resyncs"] = e.stream->order().clears();
  j["event_faults"] = e.stream->faults();
  return j;
}

}  // namespace mc::serve
