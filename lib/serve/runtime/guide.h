// Keeps an answer to what it must look like: says before each token which ones may come.
//
// A grammar is compiled on one thread, and masks are made on another, beside the forward pass: the
// mask of the next token is begun as soon as a token is drawn. Sequences of one grammar share what
// was computed for it.
//
//   guide = guides.open(...);  guide->when_ready(...)   then, for each token:
//   guide->wait()  in the sampler;  guide->took(token)  after it
//
// Errors: open() fails for what is too large. A constraint that does not compile, a token that does
// not fit and a mask that is too much work are failure(): the answer cannot go on.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/loop.h"
#include "model/text/tokenizer.h"
#include "serve/engine/engine.h"
#include "serve/protocol/constraint.h"

namespace mc::serve {

// Thread: the one that computes, but for when_ready() and failure(), which are the loop's.
class Guide : public TokenMask {
 public:
  struct State;  // shared with the threads
  explicit Guide(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Guide() override = default;

  // Waits for the mask of the next token. All may come where there is none: see failure().
  Allowed wait() override;
  // Requires: no token is drawn meanwhile.
  void took(int32_t token);
  bool over() const;            // nothing but an end can follow
  std::string failure() const;  // "": none
  // Calls back on the loop once it is compiled, or has failed; at once if that is so.
  void when_ready(std::function<void()> then);

 private:
  std::shared_ptr<State> state_;
};

// Thread: the loop's.
class Guides {
 public:
  using OpenTokenizer = std::function<Result<model::Tokenizer>()>;  // on another thread, once
  static constexpr size_t kGrammarsKept = 16;

  Guides(io::Loop& loop, const Engine& engine, OpenTokenizer tokenizer);
  ~Guides();
  bool able() const { return tokenizer_ != nullptr; }
  // nullptr for no constraint. `ends`: tokens that end an answer, beside the engine's. `answered`:
  // tokens at the end of the prompt that are the beginning of the answer.
  // Errors: kUnsupported, kNoSpace.
  Result<std::shared_ptr<Guide>> open(const Constraint& constraint, std::vector<int32_t> ends,
                                      const std::vector<int32_t>& prompt, size_t answered = 0);

 private:
  struct Threads;
  io::Loop& loop_;
  const Engine& engine_;
  OpenTokenizer tokenizer_;
  std::unique_ptr<Threads> threads_;  // once there is something to do
};

}  // namespace mc::serve
