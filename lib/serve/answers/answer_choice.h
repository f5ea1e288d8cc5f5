// One choice of an answer: what its tokens say, as text, calls of tools and logprobs.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/answers/answer_logprobs.h"
#include "serve/answers/answer_writer.h"
#include "serve/answers/text_stream.h"
#include "serve/answers/tool_stream.h"

namespace mc::serve {

struct AnswerChoice {
  AnswerChoice(TextStream t, AnswerLogprobs l) : text(std::move(t)), logprobs(std::move(l)) {}

  TextStream text;
  AnswerLogprobs logprobs;
  std::optional<ToolStream> calls;  // where the answer may call tools
  std::vector<ToolPiece> pieces;    // then: what was said, all of it when it is not streamed
  std::string next;                 // text that is not in an event yet
  std::string finish;               // why it ended; "": it goes on
  bool flushed = false;             // nothing is held back any more
  uint64_t output_tokens = 0;
  double likelihood = 0;  // the sum of its tokens' logprobs

  bool over() const { return text.stopped() || (calls && calls->ended()); }
  // Takes the text of the next token; `last`: no other comes.
  void say(std::string said, bool last);
  // The event that says what there is to say; none where that may still become a call. `tells`:
  // logprobs were asked for.
  std::string event(AnswerWriter& writer, uint32_t index, bool tells, const Usage& usage);
};

}  // namespace mc::serve
