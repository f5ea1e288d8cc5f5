// Reads requests for completions and the like, and begins their answers.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "serve/answers/messages_writer.h"
#include "serve/answers/openai_writer.h"
#include "serve/answers/responses_writer.h"
#include "serve/conductor/external_fleet.h"
#include "serve/frontend/api_answer.h"
#include "serve/frontend/openai_proxied.h"
#include "serve/protocol/json_text.h"

namespace mc::serve {
namespace {

uint32_t whole_seconds(Duration d) {
  return static_cast<uint32_t>(std::clamp(std::ceil(to_seconds(d)), 1.0, 30.0));
}

// A request for several answers is one job of an external engine, where one is up, and several of
// own workers; one for an empty answer is none of these. Such have one side from the beginning.
bool has_one_side(const ParsedRequest& asked) {
  if (!asked.own || !asked.proxied) return false;
  return asked.own->best_of + asked.own->more_prompts.size() > 1 || asked.own->empty_form;
}
void choose_side(ParsedRequest& asked, bool engines) {
  if (!engines) return asked.proxied.reset();
  asked.own = tl::unexpected(
      ApiError{503, "external engines answer such requests here, and none is up: retry later", "",
               "no_capacity"});
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

// What its text costs, as a length: a form of answers is compiled, which may take long however
// short it is. What has other names than it seems to have counts as one.
size_t cost_of_text(const std::string& body) {
  constexpr const char* kForms[] = {"response_format",    "structured_outputs", "guided_json",
                                    "guided_regex",       "guided_choice",      "guided_grammar",
                                    "guided_json_object", "tool_choice",        "text"};
  if (body.size() > TextWork::kShort) return body.size();
  const auto text = JsonText::parse(body);
  const bool forms = !text || std::any_of(std::begin(kForms), std::end(kForms),
                                          [&](const char* m) { return text->find(m).has_value(); });
  return forms ? TextWork::kShort + 1 : body.size();
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
  texts_.render(
      x, ids_.of(x), tenant, cost_of_text(body),
      [asked, engines, path, form, limits = std::move(limits), &body](RenderingBound* b) mutable {
        limits.rendering = b;
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
        if (*asked && (*asked)->proxied)
          (*asked)->proxied->counted = x.hand_over_body();
        else
          x.forget_body();
        if (!*asked || !(*asked)->question) return then(asked.get());
        x.on_gone([] {});  // not the text's any more
        engine_tokens_.get(*(*asked)->question, tenant, [asked, then](const EnginePrompt& prompt) {
          ProxiedRequest& proxied = *(*asked)->proxied;
          if (!prompt.tokens.empty()) {
            proxied.tokens = prompt.tokens;
            proxied.media = prompt.media;
          }
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
    const std::string& path = x.request().path;
    asked.proxied->may_be_empty =
        x.request().method == "GET" || (s.passed_.match(path) && !generates(path));
    asked.proxied->headers = headers_to_pass(x.request().headers, s.tenants_.keyed());
  }
  if (has_one_side(asked))
    choose_side(asked, may_serve(s.conductor_.external(), s.limits_.model, *asked.proxied));
  GenerateRequest g = generate_request(asked, id, s.ids_.seed(), [&](const std::string& salt) {
    return s.tenants_.salt(tenant, salt);
  });
  g.trace = span.context();
  CompletionRequest parsed = asked.own ? std::move(*asked.own) : CompletionRequest();
  parsed.stream = stream;
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
      choices.emplace_back(p, i,
                           TextStream(tokenizer, request.stop, begins,
                                      model::tool_call_marks(format), request.min_tokens),
                           AnswerLogprobs(tokenizer, {request.chat, request.token_ids}));
      if (tools) choices.back().calls.emplace(format, request.tools, s.ids_.seed());
    }
    if (request.best_of > request.n)
      asks[p].controls.logprobs = std::max(asks[p].controls.logprobs, 1u);
  }
}

}  // namespace mc::serve
