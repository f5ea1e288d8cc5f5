#include "serve/runtime/decode_step.h"

#include <algorithm>
#include <utility>

#include "serve/runtime/guide.h"

namespace mc::serve {

std::string finish_of(const Engine& engine, const Sequence& s, int32_t token) {
  if (s.guide && s.guide->over()) return "stop";
  const bool may_stop = s.generated() >= s.min_tokens;
  if (may_stop && !s.ignore_eos && engine.ends_answer(token)) return "stop";
  if (may_stop &&
      std::find(s.stop_tokens.begin(), s.stop_tokens.end(), token) != s.stop_tokens.end())
    return "stop";
  return s.generated() >= s.max_tokens ? "length" : "";
}

DecodeItem DecodeStep::item(size_t i) {
  Sequence& s = *batch_[i];
  const bool early = s.generated() + 1 < s.min_tokens;
  s.sampling.eos_allowed = !s.ignore_eos && !early;
  // What a form wants next comes, and does not end the answer.
  s.sampling.held = early && !s.guide ? s.stop_tokens : std::span<const int32_t>();
  return {s.view(), s.sampling, !s.generated(), &told_[i], s.guide.get()};
}

std::optional<DecodeItem> DecodeStep::took(size_t i, int32_t token) {
  Sequence& s = *batch_[i];
  s.append(token, engine_.block_tokens());
  if (s.guide) s.guide->took(token);
  drawn_[i].tokens.push_back(token);
  if (s.sampling.logprobs > 0) drawn_[i].logprobs.push_back(std::exchange(told_[i], {}));
  if (!finish_of(engine_, s, token).empty()) return std::nullopt;
  return item(i);
}

void DecodeStep::guess(size_t i, size_t most) {
  Sequence& s = *batch_[i];
  if (!s.speculation) return;
  PromptLookup& lookup = s.speculation->lookup;
  const Drawn& drawn = drawn_[i];
  if (drawn.guessed > 0) lookup.checked(drawn.guessed, drawn.tokens.size() - 1);
  s.speculation->guesses = lookup.guess(s.tokens, std::min(s.left(), most));
}

void DecodeStep::run() {
  std::vector<DecodeItem> items;
  for (size_t i = 0; i < batch_.size(); ++i) {
    items.push_back(item(i));
    if (batch_[i]->speculation) items[i].guesses = batch_[i]->speculation->guesses;
    drawn_[i].guessed = items[i].guesses.size();
  }
  engine_.generate(items, [this](size_t i, int32_t token) { return took(i, token); });
  const size_t rows = kRows / batch_.size();  // of each, if the next batch is as large
  for (size_t i = 0; i < batch_.size(); ++i) guess(i, rows > 2 ? rows - 1 : 0);
}

}  // namespace mc::serve
