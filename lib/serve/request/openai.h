// Parses requests of the OpenAI API, and writes its errors.
//
// Extensions of the standard: top_k, min_p, repetition_penalty, min_tokens, ignore_eos,
// stop_token_ids, structured_outputs and guided_*, cache_salt, priority, cache_control,
// stream_options.continuous_usage_stats. What would change an answer and is not done is refused by
// its name, unless it asks for what is done anyway. Unknown fields are ignored, as clients send
// more each year, and told; known fields of a wrong type are refused (request_members.h).
//
// Thread: values. Pure. Source: OpenAI API reference, completions and chat; design, serving-peers
// 1b.
#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "base/json_fwd.h"
#include "model/text/chat.h"
#include "serve/answers/api_error.h"
#include "serve/answers/tool_stream.h"
#include "serve/external/model_names.h"
#include "serve/protocol/cache_control.h"
#include "serve/protocol/constraint.h"
#include "serve/protocol/sampling_controls.h"

namespace mc::serve {

struct CompletionRequest {
  std::string model;  // as the client calls it
  bool chat = false;
  std::string echo_of_response;  // of /v1/responses: what the answer repeats, JSON
  bool stream = false, include_usage = false, continuous_usage = false;
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> more_prompts;  // beside the first
  uint32_t n = 1;                                  // choices of each prompt
  uint32_t best_of = 1;           // answers to choose the n likeliest from; n or more
  std::vector<std::string> echo;  // what each prompt's choices begin with; none: nothing
  uint32_t max_tokens = 16, min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  double temperature = 1, top_p = 1;
  uint32_t top_k = 0;            // 0: all
  SamplingControls controls;     // with logprobs
  bool token_ids = false;        // logprobs name tokens by their numbers
  ToolUse tools;                 // of a chat
  Constraint constraint;         // of the answer's form; it compiles
  bool empty_form = false;       // which only the empty text has
  std::optional<uint64_t> seed;  // none: drawn for each request
  std::string cache_salt, user;
  std::string ignored;   // members that had no effect, for people (request_members.h)
  int64_t priority = 0;  // lower waits less
  CacheControl cache;
};

inline constexpr uint32_t kChoicesMax = 16;   // of a prompt
inline constexpr size_t kSequencesMax = 128;  // of a request: prompts x choices

// How much the template of a chat may do where others wait for it, and whether it wanted more.
struct RenderingBound {
  model::TemplateLimits most;
  bool exceeded = false;  // what was read is an error, or has no tokens of its own, for that
};

struct ApiLimits {
  const model::Tokenizer* tokenizer = nullptr;  // outlives this
  std::string model;
  std::shared_ptr<const ModelNames> names{};  // all that may be asked for; none: `model` alone
  uint64_t context_max = 0;
  uint32_t vocab = 0;
  model::ChatFormat chat{};
  model::ToolCallFormat calls = model::ToolCallFormat::kNone;  // kNone: tools are refused
  std::function<std::tm()> now{};  // what templates take for today; none: they have no date
  uint64_t text_max = 0;           // bytes that the context can hold at most; 0: it is not known
  RenderingBound* rendering = nullptr;  // none: as much as any template may
  // The context's tokens as JSON, however it is written, and other members.
  uint64_t body_max() const;
};
ApiLimits limits_of(const model::Tokenizer& tokenizer, std::string model, uint64_t context_max,
                    uint32_t vocab, model::ChatFormat chat);

tl::expected<CompletionRequest, ApiError> parse_completion(std::string_view body, bool chat,
                                                           const ApiLimits& limits);
// `ids`: the prompt, where it was read already, and is no list in `body`.
tl::expected<CompletionRequest, ApiError> completion_of(const Json& body, bool chat,
                                                        const ApiLimits& limits,
                                                        std::vector<int32_t> ids = {});
// By path: also responses and messages, as the chats that they are.
tl::expected<CompletionRequest, ApiError> parse_generation(std::string_view path,
                                                           std::string_view body,
                                                           const ApiLimits& limits);

struct TokensAnswer {
  std::string json;
  std::string ignored;  // as of a CompletionRequest
};

// /tokenize: {"prompt": TEXT} or {"messages": [..]}, and {"add_special_tokens": BOOL}.
// /detokenize: {"tokens": [..]}. Both: {"model": NAME}, if wanted.
tl::expected<TokensAnswer, ApiError> tokenize(std::string_view body, const ApiLimits& limits);
// What the model sees of a request, as vLLM's /render answers it: the token ids of a chat, a
// response or a message, or a list with those of each prompt of a completion.
// `path`: without /render.
tl::expected<TokensAnswer, ApiError> render(std::string_view path, std::string_view body,
                                            const std::string& id, const ApiLimits& limits);
// Of /v1/messages/count_tokens, as Anthropic answers it: how many these are.
tl::expected<TokensAnswer, ApiError> count_tokens(std::string_view body, const ApiLimits& limits);
tl::expected<TokensAnswer, ApiError> detokenize(std::string_view body, const ApiLimits& limits);

}  // namespace mc::serve
