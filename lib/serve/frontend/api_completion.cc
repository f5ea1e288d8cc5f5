// Answers completions and chats, as a stream or at once.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "serve/frontend/api_server.h"
#include "serve/frontend/openai_proxied.h"
#include "serve/frontend/openai_text.h"

namespace mc::serve {
namespace {

constexpr size_t kUnsentMax = kMiB;  // a client that reads this slowly is given up

uint32_t whole_seconds(Duration d) {
  return static_cast<uint32_t>(std::clamp(std::ceil(to_seconds(d)), 1.0, 30.0));
}

}  // namespace

struct ApiServer::Answer {
  Answer(http::Exchange exchange, CompletionRequest r, AnswerWriter w, TextStream t)
      : x(std::move(exchange)), request(std::move(r)), writer(std::move(w)), text(std::move(t)) {}
  static void refuse_over(ApiServer& s, const http::Exchange& x, const std::string& id,
                          const Tenants::Over& over);
  static void begin(ApiServer& s, const http::Exchange& x, Tenants::Index tenant,
                    const std::string& id, ParsedRequest asked);
  http::Exchange x;
  CompletionRequest request;
  AnswerWriter writer;
  TextStream text;
  std::string id;
  Tenants::Index tenant = 0;
  Conductor::Id job = 0;
  bool started = false, over = false, proxied = false;
  std::string whole;  // the text, when it is not streamed
  uint64_t prompt_tokens = 0, output_tokens = 0;

  Usage usage(const Progress& p) const {
    return {prompt_tokens, output_tokens, p.cached_tokens.value_or(0)};
  }
  http::Headers headers(const Progress& p) const {
    http::Headers h = {{"x-request-id", id}};
    if (!p.prefill.empty()) h.push_back({"x-mc-prefill", p.prefill});
    if (!p.decode.empty()) h.push_back({"x-mc-decode", p.decode});
    if (p.cached_tokens) h.push_back({"x-mc-cached-tokens", std::to_string(*p.cached_tokens)});
    if (p.predicted_ttft_ms > 0)
      h.push_back({"x-mc-predicted-ttft-ms", strf("%.3f", p.predicted_ttft_ms)});
    return h;
  }
  // Everything a client gets goes out in one write, with the headers if they are due.
  void write(const Progress& p, std::string events) {
    if (!started) x.start(200, "text/event-stream; charset=utf-8", headers(p));
    started = true;
    x.write(std::move(events));
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

void ApiServer::completion(const http::Exchange& x, Tenants::Index tenant) {
  const std::string id = ids_.of(x);
  const std::string& path = x.request().path;
  if (const auto over = tenants_.begin(tenant, loop_.now()))
    return Answer::refuse_over(*this, x, id, *over);
  read_request(x, tenant, path,
               [this, x, tenant, id](tl::expected<ParsedRequest, ApiError>* asked) {
                 if (asked != nullptr && *asked)
                   return Answer::begin(*this, x, tenant, id, std::move(**asked));
                 tenants_.ended(tenant, 0, loop_.now());
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
  const auto adapters =
      conductor_.external().all().empty() ? nullptr : conductor_.external().adapters();
  const std::string& body = x.request().body;
  texts_.run(
      x, ids_.of(x), tenant, body.size(),
      [this, asked, adapters, path, &body] {
        *asked = parse_asked(path, body, adapters.get(), limits_);
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
                              const std::string& id, ParsedRequest asked) {
  const bool stream = asked.own ? asked.own->stream : asked.proxied->stream;
  if (asked.proxied)
    asked.proxied->headers = headers_to_pass(x.request().headers, s.tenants_.keyed());
  GenerateRequest g = generate_request(asked, id, s.ids_.seed(), [&](const std::string& salt) {
    return s.tenants_.salt(tenant, salt);
  });
  CompletionRequest parsed = asked.own ? std::move(*asked.own) : CompletionRequest();
  parsed.stream = stream;
  x.forget_body();
  if (const auto over = s.tenants_.spend(tenant, g.tokens(), s.loop_.now()))
    return refuse_over(s, x, id, *over);
  // A request may wait longer than its tenant's others, not less.
  if (s.tenants_.keyed()) g.priority = std::max<int64_t>(g.priority, 0);
  g.priority += s.tenants_.at(tenant).priority;
  const bool begins = g.prompt.size() == 1 && g.prompt[0] == s.limits_.tokenizer->bos();
  TextStream text(*s.limits_.tokenizer, parsed.stop, begins);
  AnswerWriter writer(id, s.limits_.model, wall_now_ns() / 1'000'000'000, parsed.chat,
                      parsed.include_usage, parsed.continuous_usage);
  const auto a = std::make_shared<Answer>(x, std::move(parsed), std::move(writer), std::move(text));
  a->id = id;
  a->tenant = tenant;
  a->prompt_tokens = g.tokens();
  ResponseSink sink;
  sink.on_tokens = [&s, a](const Progress& p, const std::vector<int32_t>& t) {
    s.tokens(*a, p, t);
  };
  sink.on_upstream_bytes = [&s, a](const Progress& p, int status, const std::string& type,
                                   std::string_view bytes) {
    s.on_upstream_bytes(*a, p, status, type, bytes);
  };
  sink.on_done = [&s, a](const Progress& p, const std::optional<RequestError>& f) {
    s.done(*a, p, f);
  };
  a->job = s.conductor_.submit(std::move(g), std::move(sink));
  if (!a->over)
    x.on_gone([&s, weak = std::weak_ptr<Answer>(a)] {
      if (const auto gone = weak.lock()) s.give_up(*gone, "the client is gone");
    });
}

void ApiServer::close(Answer& a) {
  a.over = true;
  tenants_.ended(a.tenant, a.output_tokens, loop_.now());
  const std::string& tenant = tenants_.at(a.tenant).name;
  if (tenant.empty()) return;
  const auto tokens = [&](const char* kind) -> Counter& {
    return metrics_.counter("mc_conductor_tenant_tokens_total", "tokens of tenants' requests",
                            {{"tenant", tenant}, {"kind", kind}});
  };
  tokens("input").add(a.prompt_tokens);
  tokens("output").add(a.output_tokens);
}

void ApiServer::give_up(Answer& a, const std::string& reason) {
  if (a.over) return;
  close(a);
  conductor_.cancel(a.job, reason);
}

void ApiServer::tokens(Answer& a, const Progress& p, const std::vector<int32_t>& tokens) {
  if (a.over) return;
  std::string events, text;
  for (size_t i = 0; i < tokens.size() && !a.text.stopped(); ++i) {
    ++a.output_tokens;
    text += a.text.push(tokens[i]);
    const bool end = i + 1 == tokens.size(), last = end && !p.finish.empty();
    if (last) text += a.text.flush();
    const std::string finish = a.text.stopped() ? "stop" : last ? p.finish : "";
    if (!a.request.stream)
      a.whole += text;
    else if (coalesce_ && !end && finish.empty())
      continue;
    else
      events += a.writer.chunk(text, finish, a.usage(p));
    text.clear();
  }
  if (a.request.stream) a.write(p, std::move(events));
  if (a.text.stopped() && p.finish.empty()) {
    Progress end = p;
    end.finish = "stop";
    const auto job = a.job;
    done(a, end, std::nullopt);
    return conductor_.cancel(job, "a stop string came", "stop");
  }
  if (a.x.unsent() > kUnsentMax) give_up(a, "the client reads too slowly");
}

// Passes an external engine's answer on unchanged.
void ApiServer::on_upstream_bytes(Answer& a, const Progress& p, int status, const std::string& type,
                                  std::string_view bytes) {
  if (a.over) return;
  if (!a.started) a.x.start(status, type, a.headers(p));
  a.started = a.proxied = true;
  a.output_tokens = p.output_tokens;
  a.x.write(std::string(bytes));
  if (a.x.unsent() > kUnsentMax) give_up(a, "the client reads too slowly");
}

void ApiServer::done(Answer& a, const Progress& p, const std::optional<RequestError>& failed) {
  if (a.over) return;
  if (a.proxied) a.output_tokens = p.output_tokens;
  close(a);
  if (a.proxied && !failed) return a.x.end();
  if (a.proxied && !a.request.stream) return;  // cut: the client sees that it is not whole
  const Usage usage = a.usage(p);
  if (failed) {
    const ApiError error{failed->status, failed->what, failed->param, failed->code};
    if (a.started) {
      a.x.write("data: " + error_json(error) + "\n\n");
      return a.x.end();
    }
    http::Headers h = a.headers(p);
    if (failed->retry_after_s > 0)
      h.push_back({"retry-after", std::to_string(failed->retry_after_s)});
    if (failed->status == 429) h.push_back({"x-mc-reject-reason", failed->code});
    return refuse(a.x, error, std::move(h));
  }
  if (!a.request.stream) {
    const std::string finish = a.text.stopped() ? "stop" : p.finish;
    return a.x.reply(200, kJsonType,
                     a.writer.whole(a.whole, finish, usage, progress_json(p)) + "\n", a.headers(p));
  }
  std::string events;
  if (a.output_tokens == 0) events = a.writer.chunk("", p.finish, usage);
  if (a.writer.has_last()) events += a.writer.last(usage, progress_json(p));
  a.write(p, events + kStreamEnd);
  a.x.end();
}

}  // namespace mc::serve
