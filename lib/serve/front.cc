#include "serve/front.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "serve/openai_text.h"

namespace mc::serve {
namespace {

constexpr size_t kUnsentMax = 8 * kMiB;  // a client that reads this slowly is given up
constexpr size_t kRequestIdMax = 128;
constexpr const char* kJson = "application/json";

void refuse(const http::Exchange& x, const ApiError& e, http::Headers extra = {}) {
  x.reply(e.status, kJson, error_json(e) + "\n", std::move(extra));
}

bool all_printable(const std::string& s) {
  return !s.empty() && s.size() <= kRequestIdMax &&
         std::all_of(s.begin(), s.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

Json extension(const Progress& p) {
  return {{"prefill", p.prefill},
          {"decode", p.decode},
          {"cached_tokens", p.cached_tokens.value_or(0)},
          {"pool_tokens", p.pool_tokens},
          {"predicted_ttft_ms", p.predicted_ttft_ms},
          {"ttft_ms", p.ttft_ms},
          {"sched_ms", p.sched_ms},
          {"queue_ms", p.queue_ms},
          {"load_ms", p.load_ms},
          {"prefill_ms", p.prefill_ms},
          {"transfer_ms", p.transfer_ms},
          {"first_step_ms", p.first_step_ms},
          {"decode_ms", p.decode_ms},
          {"kv_errors", p.kv_errors}};
}

Json route_json(const sched::Decision& d) {
  Json candidates = Json::array();
  for (const sched::Candidate& c : d.candidates)
    candidates.push_back({{"name", c.name},
                          {"local_tokens", c.local_tokens},
                          {"reused_tokens", c.reused_tokens},
                          {"queue_ms", c.queue_ms},
                          {"fetch_ms", c.fetch_ms},
                          {"prefill_ms", c.prefill_ms},
                          {"transfer_ms", c.transfer_ms},
                          {"ttft_ms", c.ttft_ms}});
  return {{"verdict", sched::name(d.verdict)},
          {"prefill", d.chosen.name},
          {"ttft_ms", d.ttft_ms()},
          {"tbt_ms", d.tbt_ms},
          {"margin_ms", d.margin_ms},
          {"best_tokens", d.best_tokens},
          {"reason", d.reason},
          {"candidates", std::move(candidates)}};
}

}  // namespace

struct Front::Answer {
  Answer(http::Exchange exchange, CompletionRequest r, AnswerWriter w, TextStream t)
      : x(std::move(exchange)), request(std::move(r)), writer(std::move(w)), text(std::move(t)) {}
  http::Exchange x;
  CompletionRequest request;
  AnswerWriter writer;
  TextStream text;
  std::string id;
  Conductor::Id job = 0;
  bool started = false, over = false;
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

Result<std::unique_ptr<Front>> Front::open(io::Loop& loop, const std::string& address,
                                           Conductor& conductor, Metrics& metrics) {
  auto front = std::unique_ptr<Front>(new Front(loop, conductor, metrics));
  MC_TRY(front->http_,
         http::Server::open(loop, address, {},
                            [f = front.get()](const http::Exchange& x) { f->page(x); }));
  return front;
}

Front::Front(io::Loop& loop, Conductor& conductor, Metrics& metrics)
    : loop_(loop),
      conductor_(conductor),
      metrics_(metrics),
      limits_{&conductor.tokenizer(), conductor.spec().name, conductor.spec().context_max,
              conductor.spec().vocab, conductor.chat()},
      created_(wall_now_ns() / 1'000'000'000),
      prefix_(strf("%llx",
                   static_cast<unsigned long long>(mix64(static_cast<uint64_t>(wall_now_ns()))))) {}

Front::~Front() = default;

void Front::page(const http::Exchange& x) {
  const std::string& path = x.request().path;
  const std::string& method = x.request().method;
  const bool post = method == "POST";
  if (path == "/v1/completions" || path == "/v1/chat/completions") {
    if (!post) return refuse(x, {405, path + " wants POST, not " + method, "", ""});
    return completion(x, path == "/v1/chat/completions");
  }
  if (path == "/debug/route") return route(x);
  if (method != "GET" && method != "HEAD")
    return refuse(x, {405, path + " wants GET, not " + method, "", ""});
  if (path == "/metrics") conductor_.update_metrics();
  const std::string not_ready = conductor_.not_ready();
  const Json health = {{"status", not_ready.empty() ? "ok" : not_ready},
                       {"in_flight", conductor_.in_flight()}};
  if (http::serve_common(x, metrics_, not_ready, dump_json(health) + "\n")) return;
  if (path == "/v1/models") return x.reply(200, kJson, models());
  if (path == "/cluster") return x.reply(200, kJson, dump_json(conductor_.cluster(), 2) + "\n");
  refuse(x, {404,
             "no such page: try /v1/completions, /v1/chat/completions, /v1/models, /live, /ready, "
             "/health, /metrics, /cluster or /debug/route",
             "", ""});
}

std::string Front::models() const {
  const Json model = {{"id", limits_.model},
                      {"object", "model"},
                      {"created", created_},
                      {"owned_by", "mc"},
                      {"vocab", limits_.vocab},
                      {"max_model_len", limits_.context_max},
                      {"chat_template", model::name(limits_.chat)}};
  return dump_json({{"object", "list"}, {"data", Json::array({model})}}) + "\n";
}

void Front::route(const http::Exchange& x) {
  std::vector<int32_t> prompt;
  std::string salt;
  if (x.request().method == "POST") {
    auto r = parse_completion(x.request().body, false, limits_);
    if (!r) return refuse(x, r.error());
    prompt = std::move(r->prompt);
    salt = std::move(r->cache_salt);
  } else {
    const auto it = x.request().query.find("prompt");
    if (it == x.request().query.end() || it->second.empty())
      return refuse(x, {400, "want ?prompt=TEXT, or POST a completion request", "prompt", ""});
    prompt = limits_.tokenizer->encode(it->second);
  }
  x.reply(200, kJson, dump_json(route_json(conductor_.dry_run(prompt, salt)), 2) + "\n");
}

void Front::completion(const http::Exchange& x, bool chat) {
  const auto& headers = x.request().headers;
  const auto given = headers.find("x-request-id");
  std::string id = given != headers.end() && all_printable(given->second)
                       ? given->second
                       : prefix_ + "-" + std::to_string(next_++);
  auto parsed = parse_completion(x.request().body, chat, limits_);
  if (!parsed) {
    metrics_
        .counter("mc_conductor_requests_total", "requests answered",
                 {{"code", std::to_string(parsed.error().status)}, {"reason", "invalid"}})
        .add();
    return refuse(x, parsed.error(), {{"x-request-id", id}});
  }
  Generate g;
  g.id = id;
  g.prompt = std::move(parsed->prompt);
  g.cache_salt = parsed->cache_salt;
  g.max_tokens = parsed->max_tokens;
  g.min_tokens = parsed->min_tokens;
  g.ignore_eos = parsed->ignore_eos;
  g.stop_tokens = parsed->stop_token_ids;
  g.seed = parsed->seed;
  g.temperature = parsed->temperature;
  g.top_k = parsed->top_k;
  g.top_p = parsed->top_p;
  const bool begins = g.prompt.size() == 1 && g.prompt[0] == limits_.tokenizer->bos();
  TextStream text(*limits_.tokenizer, parsed->stop, begins);
  AnswerWriter writer(id, limits_.model, wall_now_ns() / 1'000'000'000, chat, parsed->include_usage,
                      parsed->continuous_usage);
  const auto a =
      std::make_shared<Answer>(x, std::move(*parsed), std::move(writer), std::move(text));
  a->id = std::move(id);
  a->prompt_tokens = g.prompt.size();
  Listener listener;
  listener.on_tokens = [this, a](const Progress& p, const std::vector<int32_t>& t) {
    tokens(*a, p, t);
  };
  listener.on_done = [this, a](const Progress& p, const std::optional<Failed>& f) {
    done(*a, p, f);
  };
  a->job = conductor_.submit(std::move(g), std::move(listener));
  if (!a->over)
    x.on_gone([this, weak = std::weak_ptr<Answer>(a)] {
      if (const auto gone = weak.lock()) give_up(*gone, "the client is gone");
    });
}

void Front::give_up(Answer& a, const std::string& reason) {
  if (a.over) return;
  a.over = true;
  conductor_.cancel(a.job, reason);
}

void Front::tokens(Answer& a, const Progress& p, const std::vector<int32_t>& tokens) {
  if (a.over) return;
  std::string events;
  for (size_t i = 0; i < tokens.size() && !a.text.stopped(); ++i) {
    ++a.output_tokens;
    std::string text = a.text.push(tokens[i]);
    const bool last = i + 1 == tokens.size() && !p.finish.empty();
    if (last) text += a.text.flush();
    const std::string finish = a.text.stopped() ? "stop" : last ? p.finish : "";
    if (a.request.stream)
      events += a.writer.chunk(text, finish, a.usage(p));
    else
      a.whole += text;
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

void Front::done(Answer& a, const Progress& p, const std::optional<Failed>& failed) {
  if (a.over) return;
  a.over = true;
  const Usage usage = a.usage(p);
  if (failed) {
    const ApiError error{failed->status, failed->what, "", failed->code};
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
    return a.x.reply(200, kJson, a.writer.whole(a.whole, finish, usage, extension(p)) + "\n",
                     a.headers(p));
  }
  std::string events;
  if (a.output_tokens == 0) events = a.writer.chunk("", p.finish, usage);
  events += a.writer.last(usage, extension(p));
  a.write(p, events + kStreamEnd);
  a.x.end();
}

}  // namespace mc::serve
