// Answers completions and chats, as a stream or at once.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "serve/answers/answer_logprobs.h"
#include "serve/answers/messages_writer.h"
#include "serve/answers/openai_writer.h"
#include "serve/answers/responses_writer.h"
#include "serve/answers/text_stream.h"
#include "serve/frontend/api_server.h"
#include "serve/frontend/openai_proxied.h"

namespace mc::serve {
namespace {

constexpr size_t kUnsentMax = kMiB;  // a client that reads this slowly is given up

uint32_t whole_seconds(Duration d) {
  return static_cast<uint32_t>(std::clamp(std::ceil(to_seconds(d)), 1.0, 30.0));
}

// `error`: "" where it went well. A server's error is one of 500 and more; the client's is not its.
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

// A request for several answers is one job of an external engine, where one is up, and several of
// own workers: it has one side from the beginning.
void choose_side(ParsedRequest& asked, bool engines) {
  if (!engines) return asked.proxied.reset();
  asked.own = tl::unexpected(ApiError{
      503, "external engines answer requests for several choices here, and none is up: retry later",
      "", "no_capacity"});
}

// A GET, or a POST of a form, to a path of --pass.
std::optional<PassedForm> form_of(const http::Request& r, const PassedPaths& passed) {
  if (!passed.match(r.path)) return std::nullopt;
  const auto given = r.headers.find("content-type");
  const std::string type = given == r.headers.end() ? "" : given->second;
  if (r.method == "POST" && !is_form(type)) return std::nullopt;
  const auto model = r.query.find("model");
  const bool posted = r.method == "POST";
  return PassedForm{posted ? "POST" : "GET", posted ? type : "",
                    !posted && model != r.query.end() ? model->second : ""};
}

// In the form of the API that was asked.
std::unique_ptr<AnswerWriter> writer_for(const std::string& path, const std::string& id,
                                         const std::string& own, const CompletionRequest& r) {
  const std::string& model = r.model.empty() ? own : r.model;
  const int64_t now = wall_now_ns() / 1'000'000'000;
  if (path == "/v1/messages") return std::make_unique<MessagesWriter>(id, model);
  if (path == "/v1/responses")
    return std::make_unique<ResponsesWriter>(id, model, now, r.echo_of_response);
  return std::make_unique<OpenAiWriter>(id, model, now, r.chat, r.include_usage,
                                        r.continuous_usage);
}

}  // namespace

// One request while it is answered: a job of the conductor for each choice, or one that an external
// engine has whole. The other choices of a prompt begin when the first one has its first token:
// they find the prompt's blocks cached.
struct ApiServer::Answer : std::enable_shared_from_this<Answer> {
  struct Choice {
    Choice(size_t of, size_t at, TextStream t, AnswerLogprobs l)
        : prompt(of), nth(at), text(std::move(t)), logprobs(std::move(l)) {}
    size_t prompt, nth;  // the nth of that prompt
    TextStream text;
    std::optional<ToolStream> calls;  // where the answer may call tools
    std::vector<ToolPiece> pieces;    // then: what was said, all of it when it is not streamed
    std::string next;                 // text that is not in an event yet
    bool flushed = false;
    AnswerLogprobs logprobs;
    Conductor::Id job = 0;
    bool asked = false, ended = false;
    std::string finish;
    Json said;  // its logprobs then
    uint64_t output_tokens = 0;
    double likelihood = 0;  // the sum of its tokens' logprobs
    Progress progress;
    bool over() const { return text.stopped() || (calls && calls->ended()); }
  };

  Answer(ApiServer& server, http::Exchange exchange, CompletionRequest r,
         std::unique_ptr<AnswerWriter> w)
      : s(server), x(std::move(exchange)), request(std::move(r)), writer(std::move(w)) {}
  static void refuse_over(ApiServer& s, const http::Exchange& x, const std::string& id,
                          const Tenants::Over& over);
  static void begin(ApiServer& s, const http::Exchange& x, Tenants::Index tenant,
                    const std::string& id, ParsedRequest asked, telemetry::OpenSpan span);
  void add_choices();
  void ask(size_t choice);
  void ask_others(size_t prompt);
  ResponseSink sink(size_t choice);
  void tokens(size_t choice, const Progress& p, const std::vector<int32_t>& tokens,
              const std::vector<TokenLogprobs>& logprobs);
  void say(size_t choice, std::string text, bool last);
  std::string event(size_t choice);
  void on_upstream_bytes(const Progress& p, int answered, const std::string& type,
                         std::string_view bytes);
  void done(size_t choice, const Progress& p, const std::optional<RequestError>& failed);
  void failed(const Progress& p, const RequestError& error);
  void finish();
  void give_up(const std::string& reason);
  void close(const std::string& error = {});
  void cancel_all(const std::string& why, const CancelledAs& as = {});
  std::vector<size_t> best() const;
  Json where() const;

  ApiServer& s;
  http::Exchange x;
  CompletionRequest request;
  std::unique_ptr<AnswerWriter> writer;
  std::string id;
  telemetry::OpenSpan span;  // from the request's arrival to the end of its answer
  Tenants::Index tenant = 0;
  bool started = false, over = false, proxied = false;
  int status = 200;                   // of the answer
  std::vector<GenerateRequest> asks;  // of each prompt, for choices that are not asked for yet
  std::vector<Choice> choices;
  uint64_t prompt_tokens = 0;

  bool several() const { return choices.size() > 1; }
  uint64_t output_tokens() const {
    uint64_t n = 0;
    for (const Choice& c : choices) n += c.output_tokens;
    return n;
  }
  // A prompt counts once, whatever its choices, and so does what was cached of it.
  Usage usage() const {
    uint64_t cached = 0;
    for (const Choice& c : choices)
      if (c.nth == 0) cached += c.progress.cached_tokens.value_or(0);
    return {prompt_tokens, output_tokens(), cached};
  }
  http::Headers headers(const Progress& p) const {
    http::Headers h = {{"x-request-id", id}};
    if (!p.prefill.empty()) h.push_back({"x-mc-prefill", p.prefill});
    if (!p.decode.empty()) h.push_back({"x-mc-decode", p.decode});
    if (p.cached_tokens) h.push_back({"x-mc-cached-tokens", std::to_string(*p.cached_tokens)});
    if (p.predicted_ttft_ms > 0)
      h.push_back({"x-mc-predicted-ttft-ms", strf("%.3f", p.predicted_ttft_ms)});
    if (!p.retry_after.empty()) h.push_back({"retry-after", p.retry_after});
    return h;
  }
  // Everything a client gets goes out in one write, with the headers if they are due.
  void write(const Progress& p, std::string events) {
    if (!started) x.start(200, "text/event-stream; charset=utf-8", headers(p));
    started = true;
    if (!events.empty()) x.write(std::move(events));
  }
};

void ApiServer::Answer::refuse_over(ApiServer& s, const http::Exchange& x, const std::string& id,
                                    const Tenants::Over& over) {
  count(s.metrics_, 429, "rate_limit_exceeded");
  s.refuse(x, {429, over.why, "", "rate_limit_exceeded"},
           {{"x-request-id", id},
            {"retry-after", std::to_string(whole_seconds(over.retry_after))},
            {"x-mc-reject-reason", "rate_limit_exceeded"}});
}

// Its trace goes on where it has one.
telemetry::OpenSpan ApiServer::begin_span(const http::Exchange& x) {
  if (tracer_ == nullptr) return {};
  const auto& headers = x.request().headers;
  const auto parent = headers.find("traceparent"), state = headers.find("tracestate");
  return tracer_->begin(parent == headers.end()
                            ? std::nullopt
                            : telemetry::read_traceparent(
                                  parent->second, state == headers.end() ? "" : state->second),
                        trace_ratio_, loop_.now());
}

void ApiServer::completion(const http::Exchange& x, Tenants::Index tenant) {
  const std::string id = ids_.of(x);
  const std::string& path = x.request().path;
  telemetry::OpenSpan span = begin_span(x);
  if (const auto over = tenants_.begin(tenant, loop_.now())) {
    end_server_span(span, x, id, 429, over->why, loop_.now());
    return Answer::refuse_over(*this, x, id, *over);
  }
  read_request(
      x, tenant, path,
      [this, x, tenant, id, span = std::move(span)](tl::expected<ParsedRequest, ApiError>* asked) {
        if (asked != nullptr && *asked)
          return Answer::begin(*this, x, tenant, id, std::move(**asked), span);
        tenants_.ended(tenant, 0, loop_.now());
        telemetry::OpenSpan refused = span;
        end_server_span(refused, x, id, asked ? asked->error().status : 499, "refused",
                        loop_.now());
        if (asked == nullptr) return;
        count(metrics_, asked->error().status, "invalid");
        refuse(x, asked->error(), {{"x-request-id", id}});
      });
}

// Reads a request, and gets its tokens from an engine where that knows them better. `then` gets
// nothing when there is an answer already.
void ApiServer::read_request(const http::Exchange& x, Tenants::Index tenant,
                             const std::string& path,
                             std::function<void(tl::expected<ParsedRequest, ApiError>*)> then) {
  const auto asked = std::make_shared<tl::expected<ParsedRequest, ApiError>>();
  const bool engines = !conductor_.external().all().empty();
  ApiLimits limits = limits_;
  limits.names = conductor_.external().catalog().names();
  const std::string& body = x.request().body;
  const std::optional<PassedForm> form = form_of(x.request(), passed_);
  texts_.run(
      x, ids_.of(x), tenant, body.size(),
      [asked, engines, path, form, limits = std::move(limits), &body] {
        if (!form) {
          *asked = parse_asked(path, body, engines, limits);
          return;
        }
        auto passed = parse_passed(path, body, *form, limits);
        if (!passed) {
          *asked = tl::unexpected(std::move(passed.error()));
          return;
        }
        (*asked)->own = tl::unexpected(ApiError{404, "own workers do not serve " + path, "", ""});
        (*asked)->proxied = std::make_shared<ProxiedRequest>(std::move(*passed));
      },
      [this, x, tenant, asked, then = std::move(then)](bool done) {
        if (!done) return then(nullptr);
        if (!*asked || !(*asked)->question) return then(asked.get());
        x.on_gone([] {});  // not the text's any more
        engine_tokens_.get(*(*asked)->question, tenant,
                           [asked, then](const std::vector<int32_t>& tokens) {
                             if (!tokens.empty()) (*asked)->proxied->tokens = tokens;
                             then(asked.get());
                           });
      });
}

void ApiServer::Answer::begin(ApiServer& s, const http::Exchange& x, Tenants::Index tenant,
                              const std::string& id, ParsedRequest asked,
                              telemetry::OpenSpan span) {
  const bool stream = asked.own ? asked.own->stream : asked.proxied->stream;
  if (asked.proxied) {
    asked.proxied->target = x.request().target;
    asked.proxied->headers = headers_to_pass(x.request().headers, s.tenants_.keyed());
  }
  if (asked.own && asked.own->best_of + asked.own->more_prompts.size() > 1 && asked.proxied)
    choose_side(asked, s.conductor_.external().up(s.limits_.model) > 0);
  GenerateRequest g = generate_request(asked, id, s.ids_.seed(), [&](const std::string& salt) {
    return s.tenants_.salt(tenant, salt);
  });
  g.trace = span.context();
  CompletionRequest parsed = asked.own ? std::move(*asked.own) : CompletionRequest();
  parsed.stream = stream;
  x.forget_body();
  uint64_t prompt_tokens = g.tokens();
  for (const auto& more : parsed.more_prompts) prompt_tokens += more.size();
  if (const auto over = s.tenants_.spend(tenant, prompt_tokens, s.loop_.now())) {
    end_server_span(span, x, id, 429, over->why, s.loop_.now());
    return refuse_over(s, x, id, *over);
  }
  // A request may wait longer than its tenant's others, not less.
  if (s.tenants_.keyed()) g.priority = std::max<int64_t>(g.priority, 0);
  g.priority += s.tenants_.at(tenant).priority;
  g.tenant = tenant;
  auto writer = writer_for(x.request().path, id, s.limits_.model, parsed);
  const auto a = std::make_shared<Answer>(s, x, std::move(parsed), std::move(writer));
  a->id = id;
  a->span = std::move(span);
  a->tenant = tenant;
  a->prompt_tokens = prompt_tokens;
  a->asks.push_back(std::move(g));
  a->add_choices();
  for (size_t prompt = 0; prompt < a->asks.size() && !a->over; ++prompt) {
    const bool cached = a->asks[prompt].prompt.size() > s.conductor_.block_size();
    a->ask(prompt * a->request.best_of);
    if (!cached) a->ask_others(prompt);
  }
  if (!a->over)
    x.on_gone([weak = std::weak_ptr<Answer>(a)] {
      if (const auto gone = weak.lock()) gone->give_up("the client is gone");
    });
}

void ApiServer::Answer::add_choices() {
  for (auto& more : request.more_prompts) {
    GenerateRequest g = asks[0];
    g.prompt = std::move(more);
    g.id += "." + std::to_string(asks.size() * request.best_of);
    if (g.cache.context_tokens > 0) g.cache.context_tokens = g.prompt.size();
    asks.push_back(std::move(g));
  }
  const model::Tokenizer& tokenizer = *s.limits_.tokenizer;
  for (size_t p = 0; p < asks.size(); ++p) {
    const std::vector<int32_t>& prompt = asks[p].prompt;
    const bool begins = prompt.size() == 1 && prompt[0] == tokenizer.bos();
    const bool tools = !request.tools.names.empty();
    const model::ToolCallFormat format =
        tools ? s.limits_.calls : model::ToolCallFormat::kNone;  // its marks are no text else
    for (uint32_t i = 0; i < request.best_of; ++i) {
      choices.emplace_back(
          p, i, TextStream(tokenizer, request.stop, begins, model::tool_call_marks(format)),
          AnswerLogprobs(tokenizer, request.chat));
      if (tools) choices.back().calls.emplace(format, request.tools, s.ids_.seed());
    }
    if (request.best_of > request.n)
      asks[p].controls.logprobs = std::max(asks[p].controls.logprobs, 1u);
  }
}

// The first has the request's seed, so it is the answer that a request for one would get.
void ApiServer::Answer::ask(size_t choice) {
  Choice& c = choices[choice];
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
    say(choice, c.text.push(tokens[i]), last);
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

// Takes the text of a choice's next token; `last`: no other comes.
void ApiServer::Answer::say(size_t choice, std::string text, bool last) {
  Choice& c = choices[choice];
  c.flushed = last || c.text.stopped();
  if (last) text += c.text.flush();
  if (!c.calls) {
    c.next += text;
  } else {
    c.calls->push(text, c.pieces);
    if (c.flushed) c.calls->flush(c.pieces);
  }
  if (c.over()) c.finish = "stop";
  if (c.finish == "stop" && c.calls && c.calls->calls() > 0) c.finish = "tool_calls";
  c.flushed = c.flushed || c.over();
}

// The event that says what a choice has to say; none where that may still become a call.
std::string ApiServer::Answer::event(size_t choice) {
  Choice& c = choices[choice];
  const bool tells = request.controls.logprobs > 0;
  if (c.calls && c.pieces.empty() && c.finish.empty()) return {};
  const Json said = tells ? c.logprobs.take() : Json();
  std::string events = writer->chunk({static_cast<uint32_t>(choice), c.next, c.finish,
                                      tells ? &said : nullptr, c.pieces, c.text.stopped_by()},
                                     usage());
  c.next.clear();
  c.pieces.clear();
  return events;
}

// Passes an external engine's answer on unchanged.
void ApiServer::Answer::on_upstream_bytes(const Progress& p, int answered, const std::string& type,
                                          std::string_view bytes) {
  if (over) return;
  if (!started) x.start(answered, type, headers(p));
  status = answered;
  started = proxied = true;
  choices[0].output_tokens = p.output_tokens;
  x.write(std::string(bytes));
  if (x.unsent() > kUnsentMax) give_up("the client reads too slowly");
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
    return x.end();
  }
  if (c.finish.empty()) c.finish = p.finish;
  if (c.output_tokens == 0 && !request.echo.empty()) c.next = request.echo[c.prompt];
  if (!c.flushed) {
    say(choice, "", true);
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
  if (proxied && !request.stream) return;  // cut: the client sees that it is not whole
  const ApiError error{e.status, e.what, e.param, e.code};
  if (started) {
    x.write(writer->failed(error));
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
  std::vector<AnswerPart> parts;
  for (const size_t choice : best()) {
    Choice& c = choices[choice];
    if (request.controls.logprobs > 0) c.said = c.logprobs.take();
    parts.push_back({static_cast<uint32_t>(parts.size()), c.next, c.finish,
                     request.controls.logprobs > 0 ? &c.said : nullptr, c.pieces,
                     c.text.stopped_by()});
  }
  x.reply(200, kJsonType, writer->whole(parts, usage(), where()) + "\n", headers(p));
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
