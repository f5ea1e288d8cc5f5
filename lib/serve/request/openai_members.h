// Reads JSON members of requests, with errors a client can act on. Private to openai*.cc.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "serve/protocol/json_text.h"
#include "serve/request/openai.h"

namespace mc::serve {

using Parsed = tl::expected<void, ApiError>;

inline tl::unexpected<ApiError> bad(const char* param, std::string message) {
  return tl::unexpected(ApiError{400, std::move(message), param, ""});
}
tl::unexpected<ApiError> wrong_type(const char* key, const Json& j, const char* want);

#define MC_API_TRY(...) \
  if (Parsed mc_parsed = (__VA_ARGS__); !mc_parsed) return tl::unexpected(mc_parsed.error())

// Reads members of one object; absent and null members leave the default.
class Members {
 public:
  explicit Members(const Json& object) : object_(object) {}

  const Json* find(const char* key) const;
  Parsed read(const char* key, bool& v) const;
  Parsed read(const char* key, std::string& v, size_t bytes_max) const;
  Parsed read(const char* key, double& v, double low, double high) const;
  template <class T>
  Parsed read_int(const char* key, T& v, int64_t low, int64_t high) const {
    std::optional<int64_t> n;
    MC_API_TRY(integer(key, n, low, high));
    if (n) v = static_cast<T>(*n);
    return {};
  }

 private:
  Parsed integer(const char* key, std::optional<int64_t>& v, int64_t low, int64_t high) const;
  const Json& object_;
};

tl::expected<Json, ApiError> parse_object(std::string_view body);
// A completion whose members were found already.
tl::expected<CompletionRequest, ApiError> completion_of_text(const JsonText& body,
                                                             const ApiLimits& limits);
ApiError no_such_model(const std::string& model, const ApiLimits& limits);
// Fails when the request names a model that own workers do not have. `named`: gets its name.
Parsed check_model(const Members& m, const ApiLimits& limits, std::string* named = nullptr);
// Before it is tokenized: fails for a prompt, or messages, of more bytes of text than the context's
// tokens can stand for.
Parsed check_text(const Json& prompt, const char* key, const ApiLimits& limits);
Parsed read_tokens(const Json& array, const char* key, uint32_t vocab, std::vector<int32_t>& out);
// response_format, structured_outputs and guided_*: one of them, that compiles; and the calls that
// tool_choice asks for. Once ignore_eos and tools are read.
Parsed read_constraint(const Json& body, const ApiLimits& limits, CompletionRequest& r);
// Once its prompt is known.
Parsed read_cache_control(const Json& body, const ApiLimits& limits, CompletionRequest& r);
struct ToolChoice {
  enum class Kind : uint8_t { kAuto, kNone, kRequired, kUnknown };
  Kind kind = Kind::kAuto;
  std::string name{};  // kRequired: of this tool; "": of any
};
ToolChoice tool_choice(const Json& body);
// `tools`, `tool_choice` and `parallel_tool_calls` of a chat.
Parsed read_tools(const Json& body, const ApiLimits& limits, ToolUse& tools);
// Whether the template of a chat, with tools or without, depends on `reasoning_effort`.
bool reads_effort(const model::ChatFormat& chat, bool tools);
// The messages of a chat as the model's template writes them; `body` has what else it reads.
tl::expected<model::ChatPrompt, ApiError> read_messages(const Json& messages, const Json& body,
                                                        const ApiLimits& limits);

}  // namespace mc::serve
