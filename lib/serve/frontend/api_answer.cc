#include "serve/frontend/api_answer.h"

#include <algorithm>
#include <numeric>

#include "base/json.h"
#include "http/strict.h"

namespace mc::serve {
namespace {

constexpr size_t kUnsentMax = kMiB;  // a client that leaves so much unread is given up
// An external engine's answer is not read while its client leaves more than this unread, until it
// is a quarter. Less, where all clients together leave much.
constexpr size_t kPassedMax = kMiB, kPassedMaxCrowded = 256 * kKiB;

}  // namespace

void end_server_span(telemetry::OpenSpan& span, const http::Exchange& x, const std::string& id,
                     int status, const std::string& error, Time now) {
  if (!span) return;
  const http::Request& r = x.request();
  span.end(r.method + " " + r.path, now,
           {{"http.request.method", r.method},
            {"url.path", r.path},
            {"http.response.status_code", int64_t{status}},
            {"mc.request", id}},
           status >= 500 ? error : "", telemetry::SpanKind::kServer);
}

http::Headers ApiServer::Answer::headers(const Progress& p) const {
  http::Headers h = {{"x-request-id", id}};
  if (!p.prefill.empty()) h.push_back({"x-mc-prefill", p.prefill});
  if (!p.decode.empty()) h.push_back({"x-mc-decode", p.decode});
  if (p.cached_tokens) h.push_back({"x-mc-cached-tokens", std::to_string(*p.cached_tokens)});
  if (p.predicted_ttft_ms > 0)
    h.push_back({"x-mc-predicted-ttft-ms", strf("%.3f", p.predicted_ttft_ms)});
  if (!p.retry_after.empty()) h.push_back({"retry-after", p.retry_after});
  return h;
}

http::Headers ApiServer::Answer::own_headers(const Progress& p) const {
  http::Headers h = headers(p);
  if (!request.ignored.empty()) h.push_back({"x-mc-ignored", request.ignored});
  return h;
}

void ApiServer::Answer::write(const Progress& p, std::string events) {
  if (!started) x.start(200, "text/event-stream; charset=utf-8", own_headers(p));
  started = true;
  if (!events.empty()) x.write(std::move(events));
}

// The first has the request's seed, so it is the answer that a request for one would get.
void ApiServer::Answer::ask(size_t choice) {
  Choice& c = choices[choice];
  if (request.empty_form) {  // nobody has to compute it
    c.asked = true;
    count(s.metrics_, 200, "stop");
    Progress whole;
    whole.finish = "stop";
    return done(choice, whole, std::nullopt);
  }
  GenerateRequest& of_prompt = asks[c.prompt];
  GenerateRequest g = c.nth + 1 == request.best_of ? std::move(of_prompt) : of_prompt;
  if (c.nth > 0) {
    g.seed = mix64(g.seed + mix64(c.nth));
    g.id = id + "." + std::to_string(choice);
  }
  c.asked = true;
  const Conductor::Id job = s.conductor_.submit(std::move(g), sink(choice));
  choices[choice].job = job;
}

void ApiServer::Answer::ask_others(size_t prompt) {
  for (uint32_t i = 1; i < request.best_of && !over; ++i)
    if (const size_t choice = prompt * request.best_of + i; !choices[choice].asked) ask(choice);
}

ResponseSink ApiServer::Answer::sink(size_t choice) {
  ResponseSink sink;
  const auto a = shared_from_this();
  sink.on_tokens = [a, choice](const Progress& p, const std::vector<int32_t>& t,
                               const std::vector<TokenLogprobs>& logprobs) {
    a->tokens(choice, p, t, logprobs);
  };
  sink.on_upstream_bytes = [a](const Progress& p, int answered, const std::string& type,
                               std::string_view bytes) {
    a->on_upstream_bytes(p, answered, type, bytes);
  };
  sink.on_done = [a, choice](const Progress& p, const std::optional<RequestError>& f) {
    a->done(choice, p, f);
  };
  return sink;
}

void ApiServer::Answer::close(const std::string& error) {
  over = true;
  end_server_span(span, x, id, status, error, s.loop_.clock().now());
  const uint64_t output = output_tokens();
  if (const auto& counted = choices[0].progress.prompt_tokens) {  // by an external engine
    s.tenants_.recount(tenant, prompt_tokens, *counted);
    prompt_tokens = *counted;
  }
  s.tenants_.ended(tenant, output, s.loop_.now());
  const std::string& name = s.tenants_.at(tenant).name;
  if (name.empty()) return;
  const auto tokens = [&](const char* kind) -> Counter& {
    return s.metrics_.counter("mc_conductor_tenant_tokens_total", "tokens of tenants' requests",
                              {{"tenant", name}, {"kind", kind}});
  };
  tokens("input").add(prompt_tokens);
  tokens("output").add(output);
}

void ApiServer::Answer::cancel_all(const std::string& why, const CancelledAs& as) {
  for (Choice& c : choices)
    if (c.asked && !std::exchange(c.ended, true)) s.conductor_.cancel(c.job, why, as);
}

void ApiServer::Answer::give_up(const std::string& reason) {
  if (over) return;
  const auto self = shared_from_this();  // the jobs' sinks go
  status = 499;
  close(reason);
  cancel_all(reason);
}

void ApiServer::Answer::tokens(size_t choice, const Progress& p, const std::vector<int32_t>& tokens,
                               const std::vector<TokenLogprobs>& logprobs) {
  if (over) return;
  Choice& c = choices[choice];
  c.progress = p;
  const bool tells = request.controls.logprobs > 0;
  std::string events;
  if (c.output_tokens == 0 && !request.echo.empty()) c.next = request.echo[c.prompt];
  for (size_t i = 0; i < tokens.size() && !c.over(); ++i) {
    ++c.output_tokens;
    if (i < logprobs.size()) {
      c.likelihood += logprobs[i].logprob;
      if (tells) c.logprobs.add(tokens[i], logprobs[i]);
    }
    const bool end = i + 1 == tokens.size(), last = end && !p.finish.empty();
    if (last) c.finish = p.finish;
    c.say(c.text.push(tokens[i]), last);
    if (request.stream && (!s.coalesce_ || end || !c.finish.empty())) events += event(choice);
  }
  if (request.stream) write(p, std::move(events));
  const auto self = shared_from_this();
  if (c.over() && p.finish.empty()) {
    Progress end = p;
    end.finish = "stop";
    const Conductor::Id job = c.job;
    done(choice, end, std::nullopt);
    s.conductor_.cancel(job, "a stop string, or all that was wanted, came", {200, "stop"});
  } else if (x.unsent() > kUnsentMax) {
    return give_up("the client reads too slowly");
  }
  if (c.nth == 0) ask_others(c.prompt);
}

// Passes an external engine's answer on unchanged. A stream passes by lines.
void ApiServer::Answer::on_upstream_bytes(const Progress& p, int answered, const std::string& type,
                                          std::string_view bytes) {
  if (over) return;
  if (!started) x.start(answered, type, headers(p));
  status = answered;
  started = proxied = true;
  passed.stream = http::is_type(type, "text/event-stream");
  choices[0].output_tokens = p.output_tokens;
  x.write(passed.stream ? passed.lines.pass(bytes) : std::string(bytes));
  const size_t most = s.unread() > s.crowded_ ? kPassedMaxCrowded : kPassedMax;
  if (!passed.held && x.unsent() > most) hold_upstream(most / 4);
}

// A client that takes nothing is closed by its server, and one that takes little given up by the
// conductor.
void ApiServer::Answer::hold_upstream(size_t until) {
  passed.held = true;
  s.conductor_.hold(choices[0].job, true);
  x.on_taken(until, [weak = weak_from_this()] {
    const auto a = weak.lock();
    if (!a || a->over) return;
    a->passed.held = false;
    a->s.conductor_.hold(a->choices[0].job, false);
  });
}

void ApiServer::Answer::done(size_t choice, const Progress& p,
                             const std::optional<RequestError>& error) {
  if (over) return;
  const auto self = shared_from_this();
  Choice& c = choices[choice];
  c.ended = true;
  c.progress = p;
  if (proxied) c.output_tokens = p.output_tokens;
  if (error) return failed(p, *error);
  if (proxied) {
    close();
    x.write(passed.lines.rest());
    return x.end();
  }
  if (c.finish.empty()) c.finish = p.finish;
  if (c.output_tokens == 0 && !request.echo.empty()) c.next = request.echo[c.prompt];
  if (!c.flushed) {
    c.say("", true);
    if (request.stream) write(p, event(choice));
  }
  if (c.nth == 0) ask_others(c.prompt);
  if (over || !std::all_of(choices.begin(), choices.end(), [](const Choice& o) { return o.ended; }))
    return;
  finish();
}

// One choice's failure is the request's.
void ApiServer::Answer::failed(const Progress& p, const RequestError& e) {
  status = e.status;
  close(e.what);
  cancel_all("another choice of the request failed", {e.status, e.code});
  // Cut: the client sees that it is not whole. One that reads too slowly would read no event soon.
  if (proxied && (!passed.stream || e.status == 499)) return;
  const ApiError error{e.status, e.what, e.param, e.code};
  if (started) {
    x.write(passed.lines.cut() + writer->failed(error));
    return x.end();
  }
  http::Headers h = headers(p);
  if (e.retry_after_s > 0) h.push_back({"retry-after", std::to_string(e.retry_after_s)});
  if (e.status == 429) h.push_back({"x-mc-reject-reason", e.code});
  s.refuse(x, error, std::move(h));
}

void ApiServer::Answer::finish() {
  const Progress& p = choices[0].progress;
  close();
  if (request.stream) {
    write(p, writer->end(usage(), where()));
    return x.end();
  }
  const bool tells = request.controls.logprobs > 0;
  std::vector<Json> logprobs(choices.size());  // parts refer to these
  std::vector<AnswerPart> parts;
  for (const size_t choice : best()) {
    Choice& c = choices[choice];
    if (tells) logprobs[choice] = c.logprobs.take();
    parts.push_back({static_cast<uint32_t>(parts.size()), c.next, c.finish,
                     tells ? &logprobs[choice] : nullptr, c.pieces, c.text.stopped_by()});
  }
  x.reply(200, kJsonType, writer->whole(parts, usage(), where()) + "\n", own_headers(p));
}

// Of each prompt the n with the greatest mean logprob, that one first; all, in order, when all are
// wanted.
std::vector<size_t> ApiServer::Answer::best() const {
  std::vector<size_t> chosen;
  const auto mean = [&](size_t i) {
    return choices[i].likelihood /
           static_cast<double>(std::max<uint64_t>(1, choices[i].output_tokens));
  };
  for (size_t first = 0; first < choices.size(); first += request.best_of) {
    std::vector<size_t> of_prompt(request.best_of);
    std::iota(of_prompt.begin(), of_prompt.end(), first);
    if (request.best_of > request.n)
      std::stable_sort(of_prompt.begin(), of_prompt.end(),
                       [&](size_t a, size_t b) { return mean(a) > mean(b); });
    chosen.insert(chosen.end(), of_prompt.begin(), of_prompt.begin() + request.n);
  }
  return chosen;
}

// Where the time went: of the first choice, and with several of each.
Json ApiServer::Answer::where() const {
  Json mc = progress_json(choices[0].progress);
  if (several())
    for (const Choice& c : choices) mc["choices"].push_back(progress_json(c.progress));
  return mc;
}

}  // namespace mc::serve
