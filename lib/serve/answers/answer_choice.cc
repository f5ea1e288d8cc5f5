#include "serve/answers/answer_choice.h"

#include <utility>

#include "base/json.h"

namespace mc::serve {

void AnswerChoice::say(std::string said, bool last) {
  flushed = last || text.stopped();
  if (last) said += text.flush();
  if (!calls) {
    next += said;
  } else {
    calls->push(said, pieces);
    if (flushed) calls->flush(pieces);
  }
  if (over()) finish = "stop";
  if (finish == "stop" && calls && calls->calls() > 0) finish = "tool_calls";
  flushed = flushed || over();
}

std::string AnswerChoice::event(AnswerWriter& writer, uint32_t index, bool tells,
                                const Usage& usage) {
  if (calls && pieces.empty() && finish.empty()) return {};
  const Json said = tells ? logprobs.take() : Json();
  std::string events = writer.chunk(
      {index, next, finish, tells ? &said : nullptr, pieces, text.stopped_by()}, usage);
  next.clear();
  pieces.clear();
  return events;
}

}  // namespace mc::serve
