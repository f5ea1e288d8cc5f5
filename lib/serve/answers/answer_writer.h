// Writes answers in an API's form: as events of a stream, or at once.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "serve/answers/api_error.h"
#include "serve/answers/tool_stream.h"

namespace mc::serve {

struct Usage {
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// What one choice says, or says next: either `text`, or, of an answer that may call tools,
// `pieces`.
struct AnswerPart {
  uint32_t index = 0;
  std::string_view text{};
  std::string_view finish{};       // "", or the reason
  const Json* logprobs = nullptr;  // nullptr: not asked for
  std::span<const ToolPiece> pieces{};
  std::string_view stop{};  // with `finish`: the stop string that came
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Of a stream: its events for this part; the first call begins it.
  virtual std::string chunk(const AnswerPart& part, const Usage& usage) = 0;
  // Its last events. `mc`: where the time went.
  virtual std::string end(const Usage& usage, const Json& mc) = 0;
  // Its last event when it fails.
  virtual std::string failed(const ApiError& error) = 0;
  // All at once.
  virtual std::string whole(std::span<const AnswerPart> choices, const Usage& usage,
                            const Json& mc) = 0;
};

}  // namespace mc::serve
