#include "serve/request/openai.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "serve/answers/responses_writer.h"
#include "serve/protocol/json_text.h"
#include "serve/request/openai_members.h"
#include "serve/request/request_members.h"
#include "serve/translate/chat_request.h"

namespace mc::serve {
namespace {

constexpr uint32_t kChatTokens = 512;  // when a chat names no limit
constexpr size_t kStopsMax = 16, kStopBytesMax = 256, kNameBytesMax = 256;
constexpr uint64_t kBodyMax = 32 * kMiB, kOtherMembers = kMiB;
constexpr size_t kLongBody = 8 * kKiB;
constexpr uint64_t kEscapedByte = 6, kWrittenId = 16;  // bytes, as "\\u0041" and "     262143, "
constexpr int64_t kPriorityMax = 1'000'000;

// A string or token ids.
Parsed read_one_prompt(const Json& j, const ApiLimits& limits, std::vector<int32_t>& out) {
  MC_API_TRY(check_text(j, "prompt", limits));
  if (j.is_string()) {
    out = limits.tokenizer->encode(j.get_ref<const std::string&>());
  } else {
    if (!j.is_array()) return wrong_type("prompt", j, "a string or an array of token ids");
    MC_API_TRY(read_tokens(j, "prompt", limits.vocab, out));
  }
  if (out.empty()) return bad("prompt", "the prompt is empty");
  return {};
}

// A string, token ids, or an array of these.
Parsed read_prompts(const Json& j, const ApiLimits& limits, bool echo, CompletionRequest& r) {
  const bool several = j.is_array() && !j.empty() && !j[0].is_number();
  const size_t prompts = several ? j.size() : 1;
  if (prompts > kSequencesMax)
    return bad("prompt",
               strf("%zu prompts in one request, want %zu at most", prompts, kSequencesMax));
  for (size_t i = 0; i < prompts; ++i) {
    const Json& one = several ? j[i] : j;
    auto& into = i == 0 ? r.prompt : r.more_prompts.emplace_back();
    MC_API_TRY(read_one_prompt(one, limits, into));
    if (echo)
      r.echo.push_back(one.is_string() ? one.get<std::string>() : limits.tokenizer->decode(into));
  }
  return {};
}

// How many answers, and what they begin with. Once prompts and logprobs are read.
Parsed read_choices(const Members& m, CompletionRequest& r) {
  MC_API_TRY(m.read_int("n", r.n, 1, kChoicesMax));
  r.best_of = r.n;
  MC_API_TRY(m.read_int("best_of", r.best_of, 1, kChoicesMax));
  if (r.best_of < r.n)
    return bad("best_of", strf("'best_of' is %u, less than n, which is %u", r.best_of, r.n));
  if (r.best_of > r.n && (r.chat || r.stream))
    return bad("best_of", strf("'best_of' over n is not supported in %s",
                               r.chat ? "chats" : "streams: which are best is known at the end"));
  const size_t prompts = 1 + r.more_prompts.size();
  if (prompts * r.best_of > kSequencesMax)
    return bad("prompt", strf("%zu prompts with %u answers each, want %zu answers at most", prompts,
                              r.best_of, kSequencesMax));
  if (!r.echo.empty() && r.controls.logprobs > 0)
    return bad("echo", "'echo' with 'logprobs' is not supported: a prompt's tokens have none");
  return {};
}

Parsed read_stops(const Members& m, uint32_t vocab, CompletionRequest& r) {
  if (const Json* j = m.find("stop")) {
    const Json list = j->is_array() ? *j : Json::array({*j});
    if (list.size() > kStopsMax) return bad("stop", strf("over %zu stop strings", kStopsMax));
    for (const Json& s : list) {
      if (!s.is_string()) return wrong_type("stop", s, "a string or an array of strings");
      const std::string text = s.get<std::string>();
      if (text.empty() || text.size() > kStopBytesMax)
        return bad("stop",
                   strf("a stop string of %zu bytes, want 1 to %zu", text.size(), kStopBytesMax));
      r.stop.push_back(text);
    }
  }
  if (const Json* j = m.find("stop_token_ids")) {
    if (!j->is_array() || j->size() > kStopsMax)
      return bad("stop_token_ids", "'stop_token_ids' is not a short array of token ids");
    return read_tokens(*j, "stop_token_ids", vocab, r.stop_token_ids);
  }
  return {};
}

// {"50256": -100}: token ids as texts, as JSON has no other names.
Parsed read_bias(const Members& m, uint32_t vocab, SamplingControls& c) {
  const Json* const bias = m.find("logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object()) return wrong_type("logit_bias", *bias, "an object");
  if (bias->size() > kBiasMax)
    return bad("logit_bias",
               strf("'logit_bias' names %zu tokens, want %zu at most", bias->size(), kBiasMax));
  for (const auto& [name, value] : bias->get_ref<const Json::object_t&>()) {
    const auto id = parse_uint(name);
    if (!id || *id >= vocab)
      return bad("logit_bias", strf("'%s' in 'logit_bias' is no token id, want 0 to %u",
                                    escape(name).c_str(), vocab - 1));
    if (!value.is_number()) return wrong_type("logit_bias", value, "numbers");
    const double n = value.get<double>();
    if (!(std::abs(n) <= kBiasLimit))
      return bad("logit_bias", strf("token %s has %g in 'logit_bias', want %g to %g", name.c_str(),
                                    n, -kBiasLimit, kBiasLimit));
    c.bias_tokens.push_back(static_cast<int32_t>(*id));
    c.bias.push_back(n);
  }
  return {};
}

Parsed read_controls(const Members& m, uint32_t vocab, SamplingControls& c) {
  MC_API_TRY(m.read("min_p", c.min_p, 0, 1));
  MC_API_TRY(m.read("presence_penalty", c.presence_penalty, -kPenaltyLimit, kPenaltyLimit));
  MC_API_TRY(m.read("frequency_penalty", c.frequency_penalty, -kPenaltyLimit, kPenaltyLimit));
  MC_API_TRY(m.read("repetition_penalty", c.repetition_penalty, kRepetitionLeast, kRepetitionMost));
  return read_bias(m, vocab, c);
}

// `logprobs` of a chat is whether, of a completion how many of the likeliest; what follows is how
// many of these a chat wants.
Parsed read_logprobs(const Members& m, bool chat, SamplingControls& c) {
  constexpr auto kMost = static_cast<int64_t>(kTopLogprobsMax);
  const Json* const asked = m.find("logprobs");
  bool wanted = asked != nullptr;
  if (asked != nullptr && (chat || asked->is_boolean())) MC_API_TRY(m.read("logprobs", wanted));
  uint32_t top = 0;
  MC_API_TRY(m.read_int("top_logprobs", top, 0, kMost));
  if (chat && top > 0 && !wanted) return bad("top_logprobs", "'top_logprobs' without 'logprobs'");
  if (!chat && top > 0)
    return bad("top_logprobs",
               "'top_logprobs' is of chats: a completion has a number in 'logprobs'");
  if (!chat && wanted) {
    if (asked->is_boolean()) return wrong_type("logprobs", *asked, "an integer");
    MC_API_TRY(m.read_int("logprobs", top, 0, kMost));
  }
  c.logprobs = wanted ? top + 1 : 0;
  return {};
}

Parsed read_options(const Members& m, const ApiLimits& limits, CompletionRequest& r) {
  MC_API_TRY(m.read("stream", r.stream));
  if (const Json* options = m.find("stream_options")) {
    if (!options->is_object()) return wrong_type("stream_options", *options, "an object");
    if (!r.stream) return bad("stream_options", "'stream_options' without 'stream'");
    const Members o(*options);
    MC_API_TRY(o.read("include_usage", r.include_usage));
    MC_API_TRY(o.read("continuous_usage_stats", r.continuous_usage));
  }
  const auto most = static_cast<int64_t>(limits.context_max);
  const uint64_t left =
      limits.context_max - std::min<uint64_t>(limits.context_max, r.prompt.size());
  if (r.chat) r.max_tokens = static_cast<uint32_t>(std::clamp<uint64_t>(left, 1, kChatTokens));
  MC_API_TRY(m.read_int("max_tokens", r.max_tokens, 1, INT32_MAX));
  MC_API_TRY(m.read_int("max_completion_tokens", r.max_tokens, 1, INT32_MAX));
  MC_API_TRY(m.read_int("min_tokens", r.min_tokens, 0, most));
  if (r.min_tokens > r.max_tokens)
    return bad("min_tokens",
               strf("'min_tokens' is %u, over max_tokens %u", r.min_tokens, r.max_tokens));
  MC_API_TRY(m.read("ignore_eos", r.ignore_eos));
  MC_API_TRY(m.read("temperature", r.temperature, 0, 2));
  MC_API_TRY(m.read("top_p", r.top_p, 0, 1));
  int64_t top_k = 0;  // other servers have -1 for all
  MC_API_TRY(m.read_int("top_k", top_k, -1, INT32_MAX));
  r.top_k = static_cast<uint32_t>(std::max<int64_t>(top_k, 0));
  MC_API_TRY(read_controls(m, limits.vocab, r.controls));
  MC_API_TRY(read_logprobs(m, r.chat, r.controls));
  MC_API_TRY(m.read("return_tokens_as_token_ids", r.token_ids));
  int64_t seed = 0;
  MC_API_TRY(m.read_int("seed", seed, INT64_MIN, INT64_MAX));
  if (m.find("seed") != nullptr) r.seed = static_cast<uint64_t>(seed);
  MC_API_TRY(m.read("cache_salt", r.cache_salt, kNameBytesMax));
  MC_API_TRY(m.read("user", r.user, kNameBytesMax));
  MC_API_TRY(m.read_int("priority", r.priority, -kPriorityMax, kPriorityMax));
  return read_stops(m, limits.vocab, r);
}

}  // namespace

ApiLimits limits_of(const model::Tokenizer& tokenizer, std::string model, uint64_t context_max,
                    uint32_t vocab, model::ChatFormat chat) {
  ApiLimits l;
  l.tokenizer = &tokenizer;
  l.model = std::move(model);
  l.context_max = context_max;
  l.vocab = vocab;
  l.chat = std::move(chat);
  l.calls = l.chat.program ? l.chat.calls : model::ToolCallFormat::kNone;
  l.text_max = context_max * tokenizer.longest();
  return l;
}

uint64_t ApiLimits::body_max() const {
  if (text_max == 0) return kBodyMax;
  const uint64_t text = kEscapedByte * text_max, ids = kWrittenId * context_max;
  return std::min<uint64_t>(kBodyMax, kOtherMembers + text + ids);
}

tl::expected<CompletionRequest, ApiError> parse_generation(std::string_view path,
                                                           std::string_view body,
                                                           const ApiLimits& limits) {
  const bool responses = path == "/v1/responses";
  if (!responses && path != "/v1/messages")
    return parse_completion(body, path == "/v1/chat/completions", limits);
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  const Api api = responses ? Api::kResponses : Api::kMessages;
  MC_API_TRY(check_members(*json, api, limits.chat.program != nullptr));
  const auto translate = responses ? chat_of_responses : chat_of_messages;
  auto chat = translate(*json);
  if (!chat) return tl::unexpected(chat.error());
  auto r = completion_of(*chat, true, limits);
  if (!r) return tl::unexpected((responses ? error_of_responses : error_of_messages)(r.error()));
  r->ignored = ignored_members(*json, api);
  if (responses) r->echo_of_response = response_echo(*json);
  return r;
}

namespace {

// The body of a completion without a prompt of ids, which goes into `ids`; empty: it has none.
std::string without_ids(const JsonText& body, uint32_t vocab, std::vector<int32_t>& ids) {
  const auto prompt = body.find("prompt");
  auto read = prompt ? parse_ids(*prompt, vocab) : std::nullopt;
  if (!read) return {};
  ids = std::move(*read);
  const JsonText::Change rest{"prompt", "0"};
  return body.with({&rest, 1});
}

}  // namespace

tl::expected<CompletionRequest, ApiError> completion_of_text(const JsonText& body,
                                                             const ApiLimits& limits) {
  std::vector<int32_t> ids;
  const std::string rest = without_ids(body, limits.vocab, ids);
  const auto json = parse_object(ids.empty() ? body.text() : rest);
  if (!json) return tl::unexpected(json.error());
  return completion_of(*json, false, limits, std::move(ids));
}

tl::expected<CompletionRequest, ApiError> parse_completion(std::string_view body, bool chat,
                                                           const ApiLimits& limits) {
  if (!chat && body.size() >= kLongBody)
    if (const auto text = JsonText::parse(std::string(body)))
      return completion_of_text(*text, limits);
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  return completion_of(*json, chat, limits);
}

tl::expected<CompletionRequest, ApiError> completion_of(const Json& body, bool chat,
                                                        const ApiLimits& limits,
                                                        std::vector<int32_t> ids) {
  const Members m(body);
  CompletionRequest r;
  r.chat = chat;
  if (m.find("model") == nullptr) return bad("model", "'model' is missing");
  MC_API_TRY(check_model(m, limits, &r.model));
  const char* const key = chat ? "messages" : "prompt";
  const Json* prompt = m.find(key);
  if (prompt == nullptr) return bad(key, strf("'%s' is missing", key));
  bool echo = false;
  MC_API_TRY(m.read("echo", echo));
  if (echo && chat) return bad("echo", "'echo' is not supported in chats");
  if (chat) {
    MC_API_TRY(read_tools(body, limits, r.tools));
    MC_API_TRY(check_text(*prompt, key, limits));
    auto conversation = read_messages(*prompt, body, limits);
    if (!conversation) return tl::unexpected(conversation.error());
    r.prompt = std::move(conversation->tokens);
    if (conversation->end) r.stop_token_ids.push_back(*conversation->end);
  } else if (!ids.empty()) {
    r.prompt = std::move(ids);
    if (echo) r.echo.push_back(limits.tokenizer->decode(r.prompt));
  } else {
    MC_API_TRY(read_prompts(*prompt, limits, echo, r));
  }
  if (r.prompt.empty()) return bad(key, "the prompt is empty");
  MC_API_TRY(read_options(m, limits, r));
  MC_API_TRY(read_choices(m, r));
  MC_API_TRY(read_cache_control(body, limits, r));
  MC_API_TRY(read_constraint(body, limits, r));
  const Api api = chat ? Api::kChats : Api::kCompletions;
  MC_API_TRY(check_members(body, api, chat && limits.chat.program));
  const bool effort = chat && reads_effort(limits.chat, !r.tools.names.empty());
  r.ignored = ignored_members(body, api, effort ? "" : "reasoning_effort");
  size_t longest = r.prompt.size();
  for (const auto& more : r.more_prompts) longest = std::max(longest, more.size());
  const uint64_t wanted = longest + uint64_t{r.max_tokens};
  if (wanted > limits.context_max)
    return tl::unexpected(ApiError{
        400,
        strf("the context holds %llu tokens; %zu of the prompt and %u of max_tokens are %llu",
             static_cast<unsigned long long>(limits.context_max), longest, r.max_tokens,
             static_cast<unsigned long long>(wanted)),
        key, "context_length_exceeded"});
  return r;
}

}  // namespace mc::serve
