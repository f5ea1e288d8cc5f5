#include "serve/runtime/guide.h"

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "model/grammar/masks.h"
#include "serve/runtime/compute_thread.h"

namespace mc::serve {
namespace guide_parts {

using model::grammar::Masks;
using model::grammar::Matcher;
using model::grammar::TokenSet;
using model::grammar::TokenTrie;

// Runs what it is given in order, and reports to nobody.
class MaskThread {
 public:
  MaskThread() : thread_([this] { run(); }) {}
  ~MaskThread() {
    {
      Lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void submit(std::function<void()> work) {
    {
      Lock lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    while (true) {
      std::function<void()> work;
      {
        Lock lock(mutex_);
        while (work_.empty() && !stopping_) changed_.wait(mutex_);
        if (work_.empty()) return;  // what waits is done first: a sampler may wait for it
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }
  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> work_ MC_GUARDED_BY(mutex_);
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

struct Vocabulary {
  explicit Vocabulary(model::Tokenizer t) : tokenizer(std::move(t)) {
    std::vector<std::string_view> tokens;
    for (uint32_t id = 0; id < tokenizer.vocab(); ++id) {
      const auto token = static_cast<int32_t>(id);
      if (tokenizer.bytes(token).empty() && !tokenizer.piece(token).empty())
        marks[token] = model::grammar::mark_bytes(id);
      else if (tokenizer.bytes(token).find('\xff') != std::string_view::npos)
        marks[token] = {};  // no text has that byte, and with it a mark could be spelt
      tokens.push_back(bytes(token));
    }
    trie = std::make_shared<const TokenTrie>(tokens);
  }
  // What a grammar calls it; "": it is in none.
  std::string_view bytes(int32_t token) const {
    const auto mark = marks.find(token);
    return mark == marks.end() ? tokenizer.bytes(token) : std::string_view(mark->second);
  }
  model::Tokenizer tokenizer;
  std::unordered_map<int32_t, std::string> marks;  // of tokens that are no text
  std::shared_ptr<const TokenTrie> trie;
};

// A grammar that was compiled, with what is known of its masks; that is the mask thread's.
struct Compiled {
  std::shared_ptr<const model::grammar::Automaton> automaton;
  Masks masks;
};

}  // namespace guide_parts

using namespace guide_parts;

struct Guide::State {
  // Set before it is ready.
  std::vector<int32_t> ends;
  bool drops_space = false;  // the answer's first space is not shown: there is none, then
  std::shared_ptr<const Vocabulary> vocabulary;
  std::shared_ptr<Compiled> compiled;
  std::optional<Matcher> matcher;  // of who computes; of the mask thread while a mask is made
  MaskThread* thread = nullptr;
  TokenSet allowed;
  bool end_only = false;
  bool over = false, first = true;

  Mutex mutex;
  Condition changed;
  bool making MC_GUARDED_BY(mutex) = true;  // or compiling
  std::string failure MC_GUARDED_BY(mutex);
  // The loop's.
  bool ready = false;
  std::function<void()> then;

  void fail_with(std::string why) {
    Lock lock(mutex);
    if (failure.empty()) failure = std::move(why);
    over = true;
    making = false;
    changed.notify_all();
  }
  // Tokens of the answer that came before this worker had it.
  void follow(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      const auto took = matcher->take(vocabulary->bytes(token));
      if (!took) return fail_with(took.error().what);
      if (!*took) return fail_with("the answer so far does not fit its constraint");
      first = false;
    }
    if (matcher->over()) fail_with("the answer so far is all that its constraint allows");
  }
  static void begin(const std::shared_ptr<State>& self) {
    {
      Lock lock(self->mutex);
      self->making = true;
    }
    self->thread->submit([self] { self->make(); });
  }
  // On the mask thread.
  void make() {
    Result<> made = compiled->masks.after(*matcher, allowed);
    if (made && first && drops_space)
      for (size_t id = 0; id < allowed.size(); ++id)
        if (allowed.has(id) && vocabulary->bytes(static_cast<int32_t>(id)).starts_with(' '))
          allowed.remove(id);
    end_only = made && allowed.none();
    for (const int32_t end : ends)
      if (static_cast<size_t>(end) < allowed.size()) {
        if (matcher->complete())
          allowed.add(static_cast<size_t>(end));
        else
          allowed.remove(static_cast<size_t>(end));
      }
    if (made && allowed.none())
      made =
          fail(Code::kInvalid, "no token of the vocabulary can follow in the constrained answer");
    Lock lock(mutex);
    if (!made && failure.empty()) failure = made.error().what;
    making = false;
    changed.notify_all();
  }
};

TokenMask::Allowed Guide::wait() {
  State& s = *state_;
  Lock lock(s.mutex);
  while (s.making) s.changed.wait(s.mutex);
  if (!s.failure.empty()) return {};
  return {s.allowed.words(), s.end_only};
}

void Guide::took(int32_t token) {
  State& s = *state_;
  (void)wait();
  if (s.over || !s.matcher) return;
  if (std::find(s.ends.begin(), s.ends.end(), token) != s.ends.end()) {
    s.over = true;
    return;
  }
  const auto took = s.matcher->take(s.vocabulary->bytes(token));
  s.first = false;
  if (!took) return s.fail_with(took.error().what);
  if (!*took || s.vocabulary->bytes(token).empty())
    return s.fail_with("the constrained answer has a token that does not fit");
  if (s.matcher->over())
    s.over = true;
  else
    State::begin(state_);
}

bool Guide::over() const { return state_->over; }

std::string Guide::failure() const {
  Lock lock(state_->mutex);
  return state_->failure;
}

void Guide::when_ready(std::function<void()> then) {
  if (state_->ready) return then();
  state_->then = std::move(then);
}

struct Guides::Threads {
  explicit Threads(io::Loop& loop) : compiler(loop) {}
  struct Kept {
    Constraint constraint;
    std::shared_ptr<Compiled> compiled;
  };
  // The compiling thread's.
  std::shared_ptr<const Vocabulary> vocabulary;
  std::list<Kept> kept;  // the last used first
  MaskThread masks;
  ComputeThread compiler;  // ends first

  Result<std::shared_ptr<Compiled>> compiled(const Constraint& c, const OpenTokenizer& open) {
    if (vocabulary == nullptr) {
      MC_TRY(model::Tokenizer tokenizer, open());
      vocabulary = std::make_shared<const Vocabulary>(std::move(tokenizer));
    }
    const auto known = std::find_if(kept.begin(), kept.end(), [&](const Kept& k) {
      return k.constraint.form == c.form && k.constraint.text == c.text;
    });
    if (known != kept.end()) {
      kept.splice(kept.begin(), kept, known);
      return kept.front().compiled;
    }
    MC_TRY(auto automaton, model::grammar::compile(c.kind(), c.text));
    auto made = std::make_shared<Compiled>(Compiled{automaton, Masks(automaton, vocabulary->trie)});
    kept.push_front({c, made});
    if (kept.size() > kGrammarsKept) kept.pop_back();
    return made;
  }
};

Guides::Guides(io::Loop& loop, const Engine& engine, OpenTokenizer tokenizer)
    : loop_(loop), engine_(engine), tokenizer_(std::move(tokenizer)) {}
Guides::~Guides() = default;

Result<std::shared_ptr<Guide>> Guides::open(const Constraint& constraint, std::vector<int32_t> ends,
                                            const std::vector<int32_t>& prompt, size_t answered) {
  if (constraint.none()) return nullptr;
  if (!able() || constraint.kind() == model::grammar::Form::kNone)
    return fail(Code::kUnsupported, "this worker does not know constrained output of form %u",
                constraint.form);
  if (constraint.text.size() > model::grammar::kTextMax)
    return fail(Code::kInvalid, "a constraint of %zu bytes, want %zu at most",
                constraint.text.size(), model::grammar::kTextMax);
  if (threads_ == nullptr) threads_ = std::make_unique<Threads>(loop_);
  const auto state = std::make_shared<Guide::State>();
  state->ends = std::move(ends);
  state->thread = &threads_->masks;
  const auto compile = [this, state, constraint, prompt, answered, threads = threads_.get()] {
    const auto made = threads->compiled(constraint, tokenizer_);
    if (!made) return state->fail_with("the constraint cannot be used: " + made.error().what);
    state->vocabulary = threads->vocabulary;
    state->compiled = *made;
    const model::Tokenizer& tokenizer = state->vocabulary->tokenizer;
    state->drops_space =
        tokenizer.adds_space() && prompt.size() == answered + 1 && prompt[0] == tokenizer.bos();
    // What ends an answer: of a chat's tokens those that are no text.
    std::erase_if(state->ends, [&](int32_t t) { return !tokenizer.bytes(t).empty(); });
    for (uint32_t id = 0; id < engine_.spec().vocab; ++id)
      if (engine_.ends_answer(static_cast<int32_t>(id)))
        state->ends.push_back(static_cast<int32_t>(id));
    state->allowed = TokenSet(state->vocabulary->trie->vocab());
    state->matcher.emplace((*made)->automaton);
    state->follow(std::span(prompt).last(std::min(answered, prompt.size())));
    if (!state->over) Guide::State::begin(state);
  };
  const auto done = [state] {
    state->ready = true;
    if (state->then) std::exchange(state->then, nullptr)();
  };
  if (!threads_->compiler.submit(compile, done))
    return fail(Code::kBusy, "too many constraints wait to be compiled: use another worker");
  return std::make_shared<Guide>(state);
}

}  // namespace mc::serve
