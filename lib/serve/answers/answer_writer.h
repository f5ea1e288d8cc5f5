// Writes answers of the OpenAI API: as events of a stream, or at once.
//
// Thread: values. Source: OpenAI API reference, completions and chat.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace mc::serve {

struct Usage {
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// What one choice says, or says next.
struct AnswerPart {
  uint32_t index = 0;
  std::string_view text{};
  std::string_view finish{};       // "", or the reason
  const Json* logprobs = nullptr;  // nullptr: not asked for
};

class AnswerWriter {
 public:
  AnswerWriter(std::string id, std::string model, int64_t created, bool chat, bool include_usage,
               bool continuous_usage);
  std::string chunk(const AnswerPart& part, const Usage& usage);  // one event: "data: {...}\n\n"
  bool has_last() const { return include_usage_; }
  std::string last(const Usage& usage, const Json& mc) const;  // the usage event, if wanted
  std::string whole(std::span<const AnswerPart> choices, const Usage& usage, const Json& mc) const;

 private:
  Json head(const char* completion, const char* chat) const;
  const std::string id_, model_;
  const int64_t created_;
  const bool chat_, include_usage_, continuous_usage_;
  std::string open_;         // how each event begins
  std::vector<bool> begun_;  // choices
};
inline constexpr const char* kStreamEnd = "data: [DONE]\n\n";

}  // namespace mc::serve
