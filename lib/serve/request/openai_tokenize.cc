// Turns text into tokens and back, with the answers of vLLM's server.
#include "base/json.h"
#include "serve/request/openai_members.h"
#include "serve/request/request_members.h"

namespace mc::serve {
namespace {

Json sampling_json(const CompletionRequest& r) {
  return {{"n", r.n},
          {"temperature", r.temperature},
          {"top_p", r.top_p},
          {"top_k", r.top_k},
          {"min_p", r.controls.min_p},
          {"presence_penalty", r.controls.presence_penalty},
          {"frequency_penalty", r.controls.frequency_penalty},
          {"repetition_penalty", r.controls.repetition_penalty},
          {"seed", r.seed ? Json(*r.seed) : Json()},
          {"stop", r.stop},
          {"stop_token_ids", r.stop_token_ids},
          {"ignore_eos", r.ignore_eos},
          {"max_tokens", r.max_tokens},
          {"min_tokens", r.min_tokens}};
}

}  // namespace

tl::expected<TokensAnswer, ApiError> render(std::string_view path, std::string_view body,
                                            const std::string& id, const ApiLimits& limits) {
  auto r = parse_generation(path, body, limits);
  if (!r) return tl::unexpected(r.error());
  Json all = Json::array();
  const auto add = [&](std::vector<int32_t> tokens, const std::string& name) {
    all.push_back({{"request_id", name},
                   {"token_ids", std::move(tokens)},
                   {"features", nullptr},
                   {"sampling_params", sampling_json(*r)},
                   {"model", r->model},
                   {"stream", r->stream},
                   {"cache_salt", r->cache_salt.empty() ? Json() : Json(r->cache_salt)},
                   {"priority", r->priority}});
  };
  add(std::move(r->prompt), id);
  for (size_t i = 0; i < r->more_prompts.size(); ++i)
    add(std::move(r->more_prompts[i]), id + "-" + std::to_string(i + 1));
  return TokensAnswer{dump_json(r->chat ? all[0] : all) + "\n", std::move(r->ignored)};
}

tl::expected<TokensAnswer, ApiError> count_tokens(std::string_view body, const ApiLimits& limits) {
  auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  (*json)["max_tokens"] = 1;
  auto r = parse_generation("/v1/messages", dump_json(*json), limits);
  if (!r) return tl::unexpected(r.error());
  return TokensAnswer{dump_json({{"input_tokens", r->prompt.size()}}) + "\n",
                      std::move(r->ignored)};
}

tl::expected<TokensAnswer, ApiError> tokenize(std::string_view body, const ApiLimits& limits) {
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  const Members m(*json);
  MC_API_TRY(check_model(m, limits));
  MC_API_TRY(check_members(*json, Api::kTokenize, limits.chat.program != nullptr));
  bool begin = true;
  MC_API_TRY(m.read("add_special_tokens", begin));
  const Json *const prompt = m.find("prompt"), *const messages = m.find("messages");
  if ((prompt == nullptr) == (messages == nullptr))
    return bad("prompt", "want either 'prompt' or 'messages'");
  MC_API_TRY(messages != nullptr ? check_text(*messages, "messages", limits)
                                 : check_text(*prompt, "prompt", limits));
  std::vector<int32_t> tokens;
  if (messages != nullptr) {
    auto conversation = read_messages(*messages, *json, limits);
    if (!conversation) return tl::unexpected(conversation.error());
    tokens = std::move(conversation->tokens);
  } else {
    if (!prompt->is_string()) return wrong_type("prompt", *prompt, "a string");
    tokens = limits.tokenizer->encode(prompt->get_ref<const std::string&>(), begin);
  }
  return TokensAnswer{dump_json({{"count", tokens.size()},
                                 {"max_model_len", limits.context_max},
                                 {"tokens", std::move(tokens)}}) +
                          "\n",
                      ignored_members(*json, Api::kTokenize)};
}

tl::expected<TokensAnswer, ApiError> detokenize(std::string_view body, const ApiLimits& limits) {
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  const Members m(*json);
  MC_API_TRY(check_model(m, limits));
  const Json* const list = m.find("tokens");
  if (list == nullptr || !list->is_array())
    return bad("tokens", "'tokens' is not an array of token ids");
  std::vector<int32_t> tokens;
  MC_API_TRY(read_tokens(*list, "tokens", limits.vocab, tokens));
  return TokensAnswer{dump_json({{"prompt", limits.tokenizer->decode(tokens)}}) + "\n",
                      ignored_members(*json, Api::kDetokenize)};
}

}  // namespace mc::serve
