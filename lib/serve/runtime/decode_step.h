// One step of a decode batch: draws each sequence's next token, and further ones where guesses of
// them came true. Appends them to the sequences, and guesses for the next step.
//
// Thread: made and read on the loop's; run() on the compute thread, while the sequences are busy.
#pragma once
#include <string>
#include <vector>

#include "serve/engine/engine.h"
#include "serve/runtime/sequence.h"

namespace mc::serve {

// Why `token`, the last of the sequence, ends it: "stop", "length"; "": it goes on.
std::string finish_of(const Engine& engine, const Sequence& s, int32_t token);

class DecodeStep {
 public:
  // With guesses a step computes so many rows at most, in shares. An engine computes a few rows in
  // the time of one. More cost as much as tokens of their own, so larger batches guess nothing.
  static constexpr size_t kRows = 16;
  struct Drawn {
    std::vector<int32_t> tokens;          // one or more; only the last may end the sequence
    std::vector<TokenLogprobs> logprobs;  // of each of them, where the sequence asks for it
    size_t guessed = 0;                   // of these, tokens.size() - 1 came true
  };

  // `engine` outlives this. Requires: a batch that is not empty; each sequence has blocks for its
  // tokens and its guesses.
  DecodeStep(const Engine& engine, std::vector<SequencePtr> batch)
      : engine_(engine), batch_(std::move(batch)), drawn_(batch_.size()), told_(batch_.size()) {}

  void run();

  const std::vector<SequencePtr>& batch() const { return batch_; }
  std::vector<Drawn>& drawn() { return drawn_; }  // of each of the batch

 private:
  DecodeItem item(size_t i);
  std::optional<DecodeItem> took(size_t i, int32_t token);
  void guess(size_t i, size_t most);

  const Engine& engine_;
  const std::vector<SequencePtr> batch_;
  std::vector<Drawn> drawn_;
  std::vector<TokenLogprobs> told_;  // of the token that is being drawn
};

}  // namespace mc::serve
