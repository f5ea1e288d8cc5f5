// Turns text into tokens and back, with the answers of vLLM's server.
#include "base/json.h"
#include "serve/frontend/openai_members.h"

namespace mc::serve {

tl::expected<std::string, ApiError> tokenize(std::string_view body, const ApiLimits& limits) {
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  const Members m(*json);
  MC_API_TRY(check_model(m, limits));
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
  return dump_json({{"count", tokens.size()},
                    {"max_model_len", limits.context_max},
                    {"tokens", std::move(tokens)}}) +
         "\n";
}

tl::expected<std::string, ApiError> detokenize(std::string_view body, const ApiLimits& limits) {
  const auto json = parse_object(body);
  if (!json) return tl::unexpected(json.error());
  const Members m(*json);
  MC_API_TRY(check_model(m, limits));
  const Json* const list = m.find("tokens");
  if (list == nullptr || !list->is_array())
    return bad("tokens", "'tokens' is not an array of token ids");
  std::vector<int32_t> tokens;
  MC_API_TRY(read_tokens(*list, "tokens", limits.vocab, tokens));
  return dump_json({{"prompt", limits.tokenizer->decode(tokens)}}) + "\n";
}

}  // namespace mc::serve
