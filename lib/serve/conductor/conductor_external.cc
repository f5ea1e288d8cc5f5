// Proxies requests to external engines.
//
// A pair of engines gets two requests: the first engine computes the prompt, the second answers the
// client. It gets its request at the same time, or once the first has answered where its KV is
// (serve/external/pairs.h).
#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/log.h"
#include "http/strict.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"
#include "serve/conductor/pair_bodies.h"
#include "serve/conductor/request_spans.h"

namespace mc::serve {
namespace {

constexpr size_t kTailMax = 8192;          // of an answer, where its usage is looked for
constexpr size_t kHeldMax = kMiB;          // of a refusal that does not pass as it comes
constexpr size_t kKvAnswerMax = 8 * kMiB;  // of a pair's first answer, which names all blocks
constexpr size_t kPaceBytes = 64 * kKiB;   // of an answer that is no stream, in each token timeout
constexpr size_t kHeaderMax = 64;          // characters of a retry-after
// What a usage may say of a prompt: so many times what we make of it, and so much that we do not
// see, as pictures behind a URL and what a template adds.
constexpr uint64_t kTimesOurs = 8, kUnseenTokens = 64 * 1024;
constexpr uint64_t kOutputTokens = 128 * 1024;  // and of a choice, where its request has no limit
constexpr uint64_t kChoicesCounted = 1024;

// The {...} of the last "usage" of an answer; empty: it is not there, or not whole.
std::string_view last_usage(std::string_view tail) {
  const size_t name = tail.rfind("\"usage\"");
  const size_t open = name == tail.npos ? name : tail.find_first_not_of(": \n\t", name + 7);
  if (open == tail.npos || tail[open] != '{') return {};
  int depth = 0;
  for (size_t i = open; i < tail.size(); ++i) {
    depth += tail[i] == '{' ? 1 : tail[i] == '}' ? -1 : 0;
    if (depth == 0) return tail.substr(open, i + 1 - open);
  }
  return {};
}

// Keeps the end of an answer, and the last usage in what it drops.
void keep_tail(ProxiedAttempt& w, std::string_view chunk) {
  w.tail.append(chunk);
  if (w.tail.size() <= 2 * kTailMax) return;
  if (const auto usage = last_usage(w.tail); !usage.empty() && usage.size() <= kTailMax)
    w.usage = usage;
  w.tail.erase(0, w.tail.size() - kTailMax);
}

// Under either name.
uint32_t count_of(const Json& json, const char* key, const char* other, uint32_t fallback) {
  const bool first = other == nullptr || member(json, key) != nullptr;
  const auto n = get_uint_or(json, first ? key : other, fallback);
  return n && *n <= UINT32_MAX ? static_cast<uint32_t>(*n) : fallback;
}

// Tokens of the prompt in Anthropic's words, whose input_tokens are without these.
std::optional<uint32_t> read_from_cache(const Json& usage) {
  const Json* const read = member(usage, "cache_read_input_tokens");
  if (read == nullptr || !read->is_number_unsigned()) return std::nullopt;
  return count_of(usage, "cache_read_input_tokens", nullptr, 0);
}

// A whole number that is a member of a body; 0: it has none.
uint64_t number_in(const JsonText& body, const char* name) {
  const std::string_view text = body.find(name).value_or("");
  uint64_t n = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), n);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? n : 0;
}

// The most tokens that an answer to it may have.
uint64_t output_limit(const ProxiedRequest& p) {
  if (p.form || !generates(p.path)) return kOutputTokens;
  uint64_t each = 0, choices = 1;
  for (const char* const name : {"max_tokens", "max_completion_tokens", "max_output_tokens"})
    each = std::max(each, std::min<uint64_t>(number_in(p.body, name), UINT32_MAX));
  for (const char* const name : {"n", "best_of"})
    choices = std::max(choices, std::min(number_in(p.body, name), kChoicesCounted));
  return (each > 0 ? each : kOutputTokens) * choices * prompts_of(p.body);
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
  drop_pair_members(all);
  return all;
}

std::string changed_body(const GenerateRequest& ask, const std::string& theirs,
                         std::span<const Change> changes) {
  const ProxiedRequest& p = *ask.proxied;
  if (p.method == "GET") return {};
  if (!p.form) return p.body.with(changes);
  std::vector<FormText::Field> fields;
  if (renames(p, theirs)) fields.push_back({"model", theirs});
  if (!ask.cache_salt.empty()) fields.push_back({"cache_salt", ask.cache_salt});
  return p.form->with(fields);
}

// Why an answer is none that could be read or passed on; "": it is one.
std::string unreadable(const std::map<std::string, std::string>& headers, const ProxiedRequest& p) {
  const auto value = [&](const char* name) {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string() : it->second.substr(0, kHeaderMax);
  };
  if (const std::string encoding = value("content-encoding");
      !encoding.empty() && encoding != "identity")
    return strf("it answers with content-encoding '%s', for which nobody asked: start it without",
                escape(encoding).c_str());
  if (generates(p.path) && http::is_type(value("content-type"), "text/html"))
    return "it answers with a page (text/html) where JSON is wanted: is its url the engine's?";
  return {};
}

// Goes to the client as it comes: no other engine gets the request after it.
bool passes(int status) { return (status / 100 == 2 || status / 100 == 4) && status != 429; }

// In place of one that is too long.
std::string error_text(const std::string& why) {
  return dump_json(
      {{"error", {{"message", why}, {"type", "server_error"}, {"code", "answer_too_long"}}}});
}

// Keeps what a pair's first half says, and the words of who is full, until all of it is there.
// False: it is too long. In the place of a refusal stands an error then.
bool hold_back(EngineExchange& e, std::string_view chunk) {
  if (e.status != 503 && (e.status >= 500 || e.status / 100 == 3)) return true;  // no one gets it
  if (e.too_long) return false;
  const size_t most = e.status == 200 ? kKvAnswerMax : kHeldMax;
  if (e.held.size() + chunk.size() <= most) {
    e.held.append(chunk);
    return true;
  }
  e.too_long = true;
  std::string().swap(e.held);
  if (e.status == 200) return false;
  e.type = "application/json";
  e.held = error_text(strf("external engine %s: its answer, with status %d, is over %s",
                           e.asked.c_str(), e.status, bytes_text(most).c_str()));
  return false;
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

template <>
void Conductor::carry_out(const sched::ProxyTo& p, const InHand&) {
  Job* const job = find(p.of);
  if (job == nullptr || !job->proxied) return;
  ProxiedAttempt& w = *job->proxied;
  w.pair = p.pair;
  const bool pair = !p.pair.decode.empty();
  const ExternalEngine* const first = external_->find(p.pair.engine);
  const ExternalEngine* const e = p.second ? external_->find(p.pair.decode) : first;
  if (e == nullptr || first == nullptr) return;  // its deadline ends it
  const ExternalOptions& o = first->options;
  const PairFirst known{o.bootstrap, first->bootstrap_engine};
  std::vector<Change> changes = changes_for(job->ask, e->options.model);
  w.output_limit = output_limit(*job->ask.proxied);
  if (p.second) {
    change_for_second(o.pair, w.meeting, known, *job->ask.proxied, std::exchange(w.first.held, {}),
                      changes);
  } else {
    w.times = {.sent = loop_.now(), .alone = e->requests == 1};
    if (pair) {
      w.meeting = engines_->meeting(prompts_of(job->ask.proxied->body));
      change_for_first(o.pair, w.meeting, known, *job->ask.proxied, changes);
    }
  }
  ask_engine(*job, *e, changed_body(job->ask, e->options.model, changes), pair && !p.second);
}

// `first_half`: of a pair.
void Conductor::ask_engine(Job& job, const ExternalEngine& engine, std::string body,
                           bool first_half) {
  EngineExchange& exchange = first_half ? job.proxied->first : job.proxied->answer;
  exchange.asked = engine.options.name;
  const ProxiedRequest& proxied = *job.ask.proxied;
  http::ClientRequest r = engine.request(proxied.method.c_str(),
                                         proxied.target.empty() ? proxied.path : proxied.target);
  const bool keyed = !engine.options.api_key.empty();
  for (const auto& [name, value] : proxied.headers)
    if (name == "via")
      r.headers.front().second.insert(0, value + ", ");
    else if (!keyed || (name != "authorization" && name != "x-api-key"))
      r.headers.push_back({name, value});
  exchange.span = job.span.child(loop_.now());
  pass_trace(r.headers, exchange.span ? exchange.span.context() : job.ask.trace);
  if (!proxied.type.empty()) r.headers.push_back({"content-type", proxied.type});
  r.headers.push_back({"x-request-id", job.ask.id});
  if (first_half && engine.options.pair == PairKind::kConcurrent && engine.options.rank > 0)
    r.headers.push_back({"x-data-parallel-rank", std::to_string(engine.options.rank)});
  r.body = std::move(body);
  r.timeout = std::chrono::hours(24);  // the machine's deadlines end it
  const auto mine = [this, alive = std::weak_ptr<bool>(alive_), of = job.of]() -> Job* {
    if (alive.expired() || machine_.next_token(of) == 0) return nullptr;
    Job* const j = find(of);
    return j != nullptr && j->proxied ? j : nullptr;
  };
  http::ClientCallbacks calls;
  calls.on_headers = [this, mine, first_half, theirs = engine.options.model](
                         int status, const auto& headers, Time) {
    Job* const j = mine();
    if (j == nullptr) return;
    ProxiedAttempt& w = *j->proxied;
    EngineExchange& answered = first_half ? w.first : w.answer;
    answered.status = status;
    const auto type = headers.find("content-type");
    answered.type = type == headers.end() ? "application/json" : type->second;
    answered.retry_after = retry_after_of(headers);
    const ProxiedRequest& p = *j->ask.proxied;
    // Pages of a proxy about the request, such as its 413, are no failure of the engine.
    if (std::string why = unreadable(headers, p); !why.empty() && status < 300) {
      external_->client().cancel(std::exchange(answered.http, 0));
      return on_upstream_done(*j, fail(Error{Code::kCorrupt, std::move(why)}), first_half);
    }
    if (!first_half && status == 200 && renames(p, theirs) &&
        (answered.streams() || http::is_type(answered.type, "application/json") ||
         answered.type.find("json") != std::string::npos))
      w.rename.emplace(theirs, p.model, answered.streams());
  };
  calls.on_chunk = [this, mine, first_half](std::string_view chunk, Time) {
    if (Job* const j = mine()) on_upstream_bytes(*j, chunk, first_half);
  };
  calls.on_done = [this, mine, first_half](const Result<http::ClientResponse>& answer) {
    if (Job* const j = mine()) on_upstream_done(*j, answer, first_half);
  };
  exchange.http = external_->client().send(std::move(r), std::move(calls));
}

void Conductor::stop_exchange(Job& job) {
  if (!job.proxied) return;
  for (EngineExchange* const e : {&job.proxied->first, &job.proxied->answer}) {
    if (e->http != 0) external_->client().cancel(std::exchange(e->http, 0));
    end_engine_span(e->span, e->asked, e->status, "given up", loop_.clock().now());
  }
}

void Conductor::on_upstream_bytes(Job& job, std::string_view chunk, bool first_half) {
  ProxiedAttempt& w = *job.proxied;
  EngineExchange& e = first_half ? w.first : w.answer;
  if (!passes(e.status) || first_half) {
    if (hold_back(e, chunk)) return;
    const bool computed = e.status == 200;
    if (computed && w.pair.at_once) return;  // its KV goes another way, until its answer ends
    external_->client().cancel(std::exchange(e.http, 0));
    if (!computed) return on_upstream_done(job, http::ClientResponse{}, first_half);
    return on_upstream_done(
        job, fail(Code::kCorrupt, "its answer is over %s", bytes_text(kKvAnswerMax).c_str()),
        first_half);
  }
  const bool first = w.tail.empty(), good = e.status == 200;
  if (first && good && w.pair.decode.empty())
    if (ExternalEngine* const engine = external_->find(w.pair.engine))
      engine->begins(w.times, e.streams(), loop_.now());
  keep_tail(w, chunk);
  const bool stream = good && e.streams();
  const uint32_t events = stream ? w.events.pass(chunk) : 0;
  w.since_pace += chunk.size();
  const bool goes_on = stream ? events > 0 : first || w.since_pace >= kPaceBytes;
  if (goes_on) w.since_pace = 0;
  run(sched::UpstreamData{job.of, events, goes_on, good}, {.bytes = chunk});
}

void Conductor::hold(Id id, bool held) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second->proxied) return;
  Job& job = *it->second;
  job.proxied->was_held = true;
  external_->client().hold(job.proxied->answer.http, held);
  run(sched::UpstreamHeld{job.of, held});
}

void Conductor::on_upstream_done(Job& job, const Result<http::ClientResponse>& answer,
                                 bool first_half) {
  ProxiedAttempt& w = *job.proxied;
  EngineExchange& e = first_half ? w.first : w.answer;
  e.http = 0;
  end_engine_span(e.span, e.asked, e.status, answer ? "" : answer.error().what,
                  loop_.clock().now());
  w.refused = &e;
  sched::UpstreamEnded event{.of = job.of, .first_half = first_half, .status = e.status};
  event.retry_after = e.retry_after;
  if (!answer) {
    event.outcome = fail(answer.error());
  } else if (e.status == 429 || e.status == 503) {
    job.turned_away = {.status = e.status, .type = e.type, .held = std::move(e.held)};
  } else if (e.status == 200 && first_half) {
    event = computed_half(job);
  } else if (e.status == 200) {
    event = complete_answer(job);
  }
  run(event);
}

// The first half of a pair is done: of a sequential one its answer has the KV's parameters.
sched::UpstreamEnded Conductor::computed_half(Job& job) {
  ProxiedAttempt& w = *job.proxied;
  sched::UpstreamEnded event{.of = job.of, .first_half = true, .status = w.first.status};
  const auto answer = parse_json(w.first.held);
  if (!w.pair.at_once) {
    const Result<Json> handed = handed_over(answer ? *answer : Json());
    if (!handed) {
      event.outcome = fail(handed.error());
      return event;
    }
    if (ExternalEngine* const e = external_->find(w.pair.engine))
      e->names_blocks = e->names_blocks || names_blocks(*handed);
  }
  auto cached = static_cast<uint32_t>(w.local_tokens);
  if (const Json* usage = answer ? member(*answer, "usage") : nullptr; usage != nullptr)
    for (const char* const kind : {"prompt_tokens_details", "input_tokens_details"})
      if (const Json* details = member(*usage, kind))
        cached = count_of(*details, "cached_tokens", nullptr, cached);
  if (ExternalEngine* const e = external_->find(w.pair.engine)) {
    e->begins(w.times, true, loop_.now());
    e->learn(w.times, cost_, job.ask.tokens(), cached, 0, loop_.now());
  }
  event.cached_tokens = static_cast<uint32_t>(std::min<uint64_t>(cached, job.ask.tokens()));
  return event;
}

sched::UpstreamEnded Conductor::complete_answer(Job& job) {
  const ProxiedAttempt& w = *job.proxied;
  sched::UpstreamEnded event{.of = job.of, .status = w.answer.status};
  const Progress* const known = machine_.progress(job.of.request);
  event.may_be_empty = job.ask.proxied->may_be_empty;
  auto n = static_cast<uint32_t>(job.ask.tokens());
  auto cached = static_cast<uint32_t>(w.local_tokens);
  uint32_t output = known == nullptr ? 0 : known->output_tokens;
  const uint64_t most = kTimesOurs * n + kUnseenTokens;
  const uint64_t output_most = std::max<uint64_t>(w.output_limit, output);
  const std::string_view told = last_usage(w.tail);
  if (const auto usage = parse_json(told.empty() ? w.usage : told)) {
    n = count_of(*usage, "prompt_tokens", "input_tokens", n);
    uint64_t told_prompt = n;
    if (const auto read = read_from_cache(*usage)) {
      told_prompt += uint64_t{*read} + count_of(*usage, "cache_creation_input_tokens", nullptr, 0);
      cached = *read;
    }
    n = static_cast<uint32_t>(std::min(told_prompt, most));
    output = count_of(*usage, "completion_tokens", "output_tokens", output);
    output = static_cast<uint32_t>(std::min<uint64_t>(output, output_most));
    const Json* details = member(*usage, "prompt_tokens_details");
    if (details == nullptr) details = member(*usage, "input_tokens_details");
    if (details != nullptr) cached = count_of(*details, "cached_tokens", nullptr, cached);
  }
  cached = std::min(cached, n);
  if (ExternalEngine* const e = external_->find(w.pair.engine);
      e != nullptr && w.pair.decode.empty() && !w.was_held)
    e->learn(w.times, cost_, n, cached, output - std::min(output, 1u), loop_.now());
  event.prompt_tokens = n;
  event.cached_tokens = cached;
  event.output_tokens = output;
  return event;
}

std::map<std::string, uint32_t> Conductor::held(std::span<const uint64_t> tags) const {
  std::map<std::string, uint32_t> all;
  const auto match = index_.match(tags, workers_.slots());
  for (const auto& [node, w] : workers_.all())
    if (w->prefill) all[node] = match[w->slot];
  return all;
}

}  // namespace mc::serve
