// Proxies requests to external engines.
//
// A pair of engines gets two requests, as vLLM's connectors expect: the first engine computes the
// prompt and one token and answers where its KV is; the second gets the request with those
// parameters and answers it.
#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"
#include "serve/conductor/request_spans.h"

namespace mc::serve {
namespace {

constexpr Duration kUpstreamSlack = std::chrono::seconds(2);
constexpr size_t kTailMax = 8192;          // of an answer, where its usage stands
constexpr size_t kHeldMax = 64 * kKiB;     // of an error's text
constexpr size_t kKvAnswerMax = 8 * kMiB;  // of a pair's first answer, which names all blocks
constexpr size_t kPaceBytes = 64 * kKiB;   // of an answer that is no stream, in each token timeout
constexpr size_t kHeaderMax = 64;          // characters of a retry-after
constexpr const char* kKvParams = "kv_transfer_params";

// The last "usage":{...} of an answer.
std::optional<Json> last_usage(const std::string& tail) {
  const size_t name = tail.rfind("\"usage\"");
  const size_t open = name == std::string::npos ? name : tail.find_first_not_of(": \n\t", name + 7);
  if (open == std::string::npos || tail[open] != '{') return std::nullopt;
  int depth = 0;
  for (size_t i = open; i < tail.size(); ++i) {
    depth += tail[i] == '{' ? 1 : tail[i] == '}' ? -1 : 0;
    if (depth > 0) continue;
    auto json = parse_json(std::string_view(tail).substr(open, i + 1 - open));
    return json ? std::optional<Json>(std::move(*json)) : std::nullopt;
  }
  return std::nullopt;
}

// Under either name.
uint32_t count_of(const Json& json, const char* key, const char* other, uint32_t fallback) {
  const bool first = other == nullptr || member(json, key) != nullptr;
  const auto n = get_uint_or(json, first ? key : other, fallback);
  return n && *n <= UINT32_MAX ? static_cast<uint32_t>(*n) : fallback;
}

using Change = JsonText::Change;

std::string json_quoted(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

// Whether the client has another name for the model than the engine.
bool renames(const ProxiedRequest& p, const std::string& theirs) {
  return !p.model.empty() && p.adapter.empty() && p.model != theirs;
}

// What has to change in the client's body: the engine's name for the model, the tenant's salt, and
// where KV comes from, which no client may say.
std::vector<Change> changes_for(const GenerateRequest& ask, const std::string& theirs) {
  const ProxiedRequest& p = *ask.proxied;
  std::vector<Change> all;
  if (renames(p, theirs)) all.push_back({"model", json_quoted(theirs)});
  if (!ask.cache_salt.empty() && p.body.find_string("cache_salt") != ask.cache_salt)
    all.push_back({"cache_salt", json_quoted(ask.cache_salt)});
  all.push_back({kKvParams, std::nullopt});
  return all;
}

// For a pair's first half: the prompt, one token, and the KV kept for the second half.
void change_for_prefill(std::vector<Change>& changes) {
  const Json params = {{"do_remote_decode", true},    {"do_remote_prefill", false},
                       {"remote_engine_id", nullptr}, {"remote_block_ids", nullptr},
                       {"remote_host", nullptr},      {"remote_port", nullptr}};
  changes.back().value = dump_json(params);
  for (const char* name : {"stream_options", "min_tokens", "max_completion_tokens"})
    changes.push_back({name, std::nullopt});
  changes.push_back({"stream", "false"});
  changes.push_back({"max_tokens", "1"});
}

bool knows_text_only(const GenerateRequest& ask) {
  return ask.proxied && ask.engine_tokens().empty();
}

// Of the prompt's blocks, as that engine's events make them.
std::vector<uint64_t> engine_tags(const GenerateRequest& ask, const ExternalEngine& e) {
  const std::string adapter = ask.proxied ? ask.proxied->adapter : "";
  std::vector<uint64_t> tags;
  for (const BlockHash& h : chain_hashes(ask.engine_tokens(), e.cache->block_tokens(),
                                         e.cache->chain_salt(adapter, ask.cache_salt)))
    tags.push_back(h.tag());
  return tags;
}

// When an engine that is full may be asked again: its own words, if they can stand in a header.
std::string retry_after_of(const std::map<std::string, std::string>& headers) {
  const auto it = headers.find("retry-after");
  const bool said = it != headers.end() && !it->second.empty() && it->second.size() <= kHeaderMax &&
                    std::all_of(it->second.begin(), it->second.end(),
                                [](char c) { return c >= ' ' && c < 0x7f; });
  return said ? it->second : "1";
}

}  // namespace

void Conductor::add_external(sched::View& v, const GenerateRequest& ask, const Job* job) const {
  const Time now = loop_.now();
  const std::string adapter = ask.proxied ? ask.proxied->adapter : "";
  const std::string& model = ask.proxied ? ask.proxied->base : cost_.spec().name;
  std::map<std::pair<uint64_t, std::string>, std::vector<uint32_t>> matches;  // by block and salt
  for (const auto& [name, e] : external_->all()) {
    if (e->options.url.empty() || e->options.role == "decode" || e->options.serves != model)
      continue;
    sched::PrefillView node;
    node.name = name;
    node.usable = e->up && !e->outliers.ejected(now) &&
                  !(job != nullptr && (job->full.contains(name) || !ask.proxied));
    const ExternalEngine* decodes = e.get();
    if (e->options.role == "prefill") decodes = partner(*e, job);
    node.usable = node.usable && decodes != nullptr && external_->has_adapter(*e, adapter) &&
                  external_->has_adapter(*decodes, adapter);
    node.whole = true;
    node.queue_ms = e->wait_ms(now);
    node.rate = &e->rate;
    node.queued_tokens = e->ledger.tokens();
    node.requests = e->requests;
    node.assigned = e->assigned;
    if (decodes != nullptr) node.context_tokens = decodes->context_tokens;
    const uint64_t block = e->cache ? e->cache->block_tokens() : 0;
    if (knows_text_only(ask)) {
      node.match = external_->affinity().match(ask.proxied->pieces, e->registration);
      node.block_tokens = TextAffinity::kPieceTokens;
    } else if (block > 0) {
      const std::pair key(block, e->cache->chain_salt(adapter, ask.cache_salt));
      auto it = matches.find(key);
      if (it == matches.end())
        it = matches.emplace(key, index_.match(engine_tags(ask, *e), workers_.slots())).first;
      node.match = it->second[e->cache->slot()];
      node.block_tokens = block;
    }
    v.prefill.push_back(std::move(node));
  }
}

// Prefers one that has not failed this request. Never one that had no room for it, or is ejected.
ExternalEngine* Conductor::partner(const ExternalEngine& prefill, const Job* job) const {
  const auto room = [&](const std::string& name) {
    const ExternalEngine* const e = external_->find(name);
    return (job == nullptr || !job->full.contains(name)) && e != nullptr &&
           !e->outliers.ejected(loop_.now());
  };
  ExternalEngine* const good = external_->partner(prefill, [&](const std::string& name) {
    return room(name) && (job == nullptr || !job->avoid.contains(name));
  });
  return good != nullptr ? good : external_->partner(prefill, room);
}

void Conductor::proxy(Job& job) {
  const sched::Decision& d = job.decision;
  ExternalEngine& e = *external_->find(d.chosen.name);
  const bool pair = e.options.role == "prefill";
  ExternalEngine& decodes = pair ? *partner(e, &job) : e;  // add_external() found it
  const uint64_t n = job.ask.tokens();
  ++job.attempt;
  job.proxied = {};
  job.proxied.engine = d.chosen.name;
  if (pair) job.proxied.decode = decodes.options.name;
  job.proxied.prefilling = pair;
  job.proxied.times = {.sent = loop_.now(), .alone = e.requests == 0};
  job.progress = {};
  job.progress.prefill = d.chosen.name;
  job.progress.decode = decodes.options.name;
  job.progress.predicted_ttft_ms = to_ms(loop_.now() - job.arrived) + d.ttft_ms();
  instruments_->predicted.observe(job.progress.predicted_ttft_ms / 1e3);
  e.ledger.charge(job.id, d.chosen.prefill_ms, n - d.chosen.reused_tokens, loop_.now());
  ++e.assigned;
  ++e.requests;
  decodes.context_tokens += n;
  if (pair) {
    ++decodes.assigned;
    ++decodes.requests;
  }
  if (knows_text_only(job.ask))
    external_->affinity().sent(job.ask.proxied->pieces, e.registration);
  else if (e.cache && e.cache->block_tokens() > 0)
    job.guess = index_.guess(e.cache->slot(), engine_tags(job.ask, e),
                             loop_.now() + from_seconds(d.ttft_ms() / 1e3) + kUpstreamSlack);
  job.state = State::kProxying;
  log_decision(job);
  std::vector<Change> changes = changes_for(job.ask, e.options.model);
  if (pair) change_for_prefill(changes);
  ask_engine(job, e, job.ask.proxied->body.with(changes));
}

void Conductor::ask_engine(Job& job, const ExternalEngine& engine, std::string body) {
  job.deadline = loop_.now() + options_.prefill_timeout;
  job.proxied.status = 0;
  const ProxiedRequest& proxied = *job.ask.proxied;
  http::ClientRequest r =
      engine.request("POST", proxied.target.empty() ? proxied.path : proxied.target);
  const bool keyed = !r.headers.empty();
  for (const auto& [name, value] : proxied.headers)
    if (!keyed || (name != "authorization" && name != "x-api-key"))
      r.headers.push_back({name, value});
  job.proxied.span = job.span.child(loop_.now());
  pass_trace(r.headers, job.proxied.span ? job.proxied.span.context() : job.ask.trace);
  r.headers.push_back({"content-type", "application/json"});
  r.headers.push_back({"x-request-id", job.ask.id});
  r.body = std::move(body);
  r.timeout = std::chrono::hours(24);  // the job's own deadlines end it
  const auto mine = [this, alive = std::weak_ptr<bool>(alive_), id = job.id,
                     attempt = job.attempt]() -> Job* {
    if (alive.expired()) return nullptr;
    const auto it = jobs_.find(id);
    return it != jobs_.end() && it->second->attempt == attempt ? it->second.get() : nullptr;
  };
  http::ClientCallbacks calls;
  calls.on_headers = [mine, theirs = engine.options.model](int status, const auto& headers, Time) {
    Job* const j = mine();
    if (j == nullptr) return;
    ProxiedAttempt& w = j->proxied;
    w.status = status;
    const auto type = headers.find("content-type");
    w.type = type == headers.end() ? "application/json" : type->second;
    w.retry_after = retry_after_of(headers);
    const ProxiedRequest& p = *j->ask.proxied;
    if (renames(p, theirs) && (w.streams() || w.type.find("json") != std::string::npos))
      w.rename.emplace(theirs, p.model, w.streams());
  };
  calls.on_chunk = [this, mine](std::string_view chunk, Time) {
    if (Job* const j = mine()) on_upstream_bytes(*j, chunk);
  };
  calls.on_done = [this, mine](const Result<http::ClientResponse>& answer) {
    if (Job* const j = mine()) on_upstream_done(*j, answer);
  };
  job.proxied.http = external_->client().send(std::move(r), std::move(calls));
}

// The first half of a pair is done: sends the request and the KV parameters to the second.
void Conductor::start_decode_half(Job& job) {
  ProxiedAttempt& w = job.proxied;
  const auto answer = parse_json(w.held);
  const Json* const handed = answer ? member(*answer, kKvParams) : nullptr;
  if (handed == nullptr || !handed->is_object())
    return fail_attempt(
        job, {w.engine},
        RequestError{503, "worker_failed",
                     strf("external engine %s hands no KV over: its answer has no '%s'; "
                          "start it with a connector, or register it with role both",
                          w.engine.c_str(), kKvParams),
                     1});
  ExternalEngine* const decodes = external_->find(w.decode);
  if (decodes == nullptr || !decodes->up)
    return fail_attempt(
        job, {w.decode},
        RequestError{503, "worker_failed", "external engine " + w.decode + " is gone or down", 1});
  Progress& p = job.progress;
  p.cached_tokens = static_cast<uint32_t>(job.decision.chosen.local_tokens);
  if (const Json* usage = member(*answer, "usage"); usage != nullptr)
    if (const Json* details = member(*usage, "prompt_tokens_details"))
      p.cached_tokens = count_of(*details, "cached_tokens", nullptr, *p.cached_tokens);
  if (ExternalEngine* e = external_->find(w.engine)) {
    e->begins(w.times, true, loop_.now());
    e->learn(w.times, cost_, job.ask.tokens(), *p.cached_tokens, 0, loop_.now());
    e->ledger.finish(job.id, loop_.now());
  }
  index_.prolong(job.guess, loop_.now() + kUpstreamSlack);
  w.prefilling = false;
  w.held.clear();
  std::vector<Change> changes = changes_for(job.ask, decodes->options.model);
  changes.back().value = dump_json(*handed);
  ask_engine(job, *decodes, job.ask.proxied->body.with(changes));
}

void Conductor::on_upstream_bytes(Job& job, std::string_view chunk) {
  ProxiedAttempt& w = job.proxied;
  if (w.status != 200 || w.prefilling) {
    const size_t most = w.status == 200 ? kKvAnswerMax : kHeldMax;
    w.held.append(chunk.substr(0, most - std::min(most, w.held.size())));
    return;
  }
  Progress& p = job.progress;
  const bool first = !w.begun;
  if (first) {
    w.begun = true;
    p.ttft_ms = to_ms(loop_.now() - job.arrived);
    instruments_->ttft.observe(p.ttft_ms / 1e3);
    instruments_->error.observe((p.predicted_ttft_ms - p.ttft_ms) / 1e3);
    if (ExternalEngine* e = external_->find(w.engine)) {
      if (w.decode.empty()) e->begins(w.times, w.streams(), loop_.now());
      e->ledger.finish(job.id, loop_.now());
    }
    index_.prolong(job.guess, loop_.now() + kUpstreamSlack);
  }
  w.tail.append(chunk);
  if (w.tail.size() > 2 * kTailMax) w.tail.erase(0, w.tail.size() - kTailMax);
  const uint32_t events = w.streams() ? w.events.pass(chunk) : 0;
  p.output_tokens = std::max<uint32_t>(1, p.output_tokens + events);
  w.since_pace += chunk.size();
  // Who sends a byte now and then does not go on.
  if (w.streams() ? events > 0 : first || w.since_pace >= kPaceBytes) {
    job.deadline = loop_.now() + options_.token_timeout;
    w.since_pace = 0;
  }
  if (!w.rename) return job.sink.on_upstream_bytes(p, w.status, w.type, chunk);
  const std::string renamed = w.rename->pass(chunk);
  job.sink.on_upstream_bytes(p, w.status, w.type, renamed);
}

void Conductor::on_upstream_done(Job& job, const Result<http::ClientResponse>& answer) {
  ProxiedAttempt& w = job.proxied;
  w.http = 0;
  const std::string asked = w.asked();
  end_engine_span(w.span, asked, w.status, answer ? "" : answer.error().what, loop_.clock().now());
  const std::string where = "external engine " + asked;
  if (!answer) {
    const bool late = answer.error().code == Code::kTimeout;
    return fail_attempt(job, {asked},
                        RequestError{late ? 504 : 503, late ? "upstream_timeout" : "worker_failed",
                                     where + ": " + answer.error().what, 1});
  }
  if (w.status == 429 || w.status == 503) {  // it is full: others may not be
    job.full.insert(asked);
    if (ExternalEngine* e = external_->find(asked); e != nullptr && w.status == 503)
      external_->answered(*e, false, loop_.now());
    job.turned_away = std::make_unique<ProxiedAttempt>(std::move(w));
    w = {};
    w.engine = job.turned_away->engine;  // for release()
    w.decode = job.turned_away->decode;
    release(job, "it is full");
    return start(job);
  }
  if (w.status == 200 && !w.prefilling && !w.begun)
    return fail_attempt(job, {asked},
                        RequestError{503, "worker_failed", where + " answers without a body", 1});
  if (w.status >= 500 || w.status < 200 || w.status / 100 == 3)
    return fail_attempt(
        job, {asked},
        RequestError{503, "worker_failed",
                     strf("%s answers with status %d", where.c_str(), w.status), 1});
  if (ExternalEngine* e = external_->find(asked)) external_->answered(*e, true, loop_.now());
  if (w.status == 200 && w.prefilling) return start_decode_half(job);
  Progress& p = job.progress;
  if (w.status != 200) {  // the client's mistake
    const Id id = job.id;
    job.pass_on(w);
    if (!jobs_.contains(id)) return;
    p.output_tokens = 0;
    return end(job, std::nullopt);
  }
  if (!p.cached_tokens)  // a pair's is known from its first half: the other got all of the KV
    p.cached_tokens = static_cast<uint32_t>(job.decision.chosen.local_tokens);
  auto n = static_cast<uint32_t>(job.ask.tokens());
  if (const auto usage = last_usage(w.tail)) {
    n = count_of(*usage, "prompt_tokens", "input_tokens", n);
    p.output_tokens = count_of(*usage, "completion_tokens", "output_tokens", p.output_tokens);
    const Json* details = member(*usage, "prompt_tokens_details");
    if (details == nullptr) details = member(*usage, "input_tokens_details");
    if (details != nullptr && w.decode.empty())
      p.cached_tokens = count_of(*details, "cached_tokens", nullptr, *p.cached_tokens);
  }
  p.cached_tokens = std::min(*p.cached_tokens, n);
  if (ExternalEngine* e = external_->find(w.engine); e != nullptr && w.decode.empty())
    e->learn(w.times, cost_, n, *p.cached_tokens, p.output_tokens - std::min(p.output_tokens, 1u),
             loop_.now());
  instruments_->input_tokens.add(n);
  instruments_->hit_tokens.add(*p.cached_tokens);
  instruments_->reachable_tokens.add(job.decision.best_tokens);
  p.finish = "passed";
  job.committed = true;  // its guess stands until it ends, or events confirm it
  end(job, std::nullopt);
}

// The engine's own words go to the client.
void Conductor::Job::pass_on(const ProxiedAttempt& refused) {
  passed_status = refused.status;
  if (refused.status == 429 || refused.status == 503) progress.retry_after = refused.retry_after;
  progress.finish = strf("status_%d", refused.status);
  progress.output_tokens = 1;  // it has begun
  sink.on_upstream_bytes(progress, refused.status, refused.type, refused.held);
}

// Takes back what proxy() charged.
void Conductor::release_external(Job& job) {
  ProxiedAttempt& w = job.proxied;
  if (w.engine.empty()) return;
  if (w.http != 0) external_->client().cancel(w.http);
  end_engine_span(w.span, w.asked(), w.status, "given up", loop_.clock().now());
  w.http = 0;
  // Either engine may have been registered again since.
  ExternalEngine* const e = external_->find(w.engine);
  if (e != nullptr) {
    e->ledger.finish(job.id, loop_.now());
    if (e->requests > 0) --e->requests;
  }
  ExternalEngine* const decodes = w.decode.empty() ? e : external_->find(w.decode);
  if (decodes != nullptr) {
    decodes->context_tokens -= std::min<uint64_t>(decodes->context_tokens, job.ask.tokens());
    if (decodes != e && decodes->requests > 0) --decodes->requests;
  }
  if (!job.committed) index_.withdraw(job.guess);
  w.engine.clear();
}

std::map<std::string, uint32_t> Conductor::held(std::span<const uint64_t> tags) const {
  std::map<std::string, uint32_t> all;
  const auto match = index_.match(tags, workers_.slots());
  for (const auto& [node, w] : workers_.all())
    if (w->prefill) all[node] = match[w->slot];
  return all;
}

}  // namespace mc::serve
