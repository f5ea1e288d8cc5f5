// Asks external engines for a prompt's tokens (POST /tokenize), so that a request is routed by what
// the engine will see. With pictures and the like among them POST /v1/chat/completions/render is
// asked, which has their names as well.
//
// Answers are kept until the engine that gave them starts again, as its template may be another;
// the least recently used go first. Equal questions that are under way are one. Who asks waits
// `wait` at most; a later answer is kept for the next who asks. An engine that does not have the
// path, or fails, is left alone for a while.
//
// Bounded: kCacheBytes of answers, kUnderWayMax questions.
// Thread: the loop's.
#pragma once
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/units.h"
#include "http/client.h"
#include "io/loop.h"
#include "serve/external/external_engines.h"
#include "serve/frontend/text_pool.h"
#include "serve/protocol/json_text.h"
#include "serve/protocol/proxied_request.h"

namespace mc::serve {

// A prompt as the engine will see it.
struct EnginePrompt {
  std::vector<int32_t> tokens;
  std::vector<MediaItem> media;
};

// A body for /tokenize or /render, but for the model's name.
struct TokenQuestion {
  std::string members;  // JSON: "messages":[..],"tools":[..]
  bool media = false;   // pictures and the like are in it
  std::string model;    // as the conductor calls it
  std::string adapter;  // "": the model itself
  Digest key{};
};
// Of a chat or a completion; nothing when the request has token ids, or no text. Any thread.
std::optional<TokenQuestion> token_question(const JsonText& body, bool chat,
                                            const std::string& model, const std::string& adapter);

class EngineTokens {
 public:
  static constexpr size_t kCacheBytes = 64 * kMiB;
  static constexpr size_t kUnderWayMax = 256;
  // No tokens: they are not known in time.
  using Then = std::function<void(const EnginePrompt& prompt)>;

  // All outlive it. `wait` 0: engines are not asked.
  EngineTokens(io::Loop& loop, ExternalEngines& engines, TextPool& pool, Duration wait);
  ~EngineTokens();
  EngineTokens(const EngineTokens&) = delete;
  EngineTokens& operator=(const EngineTokens&) = delete;

  // Calls `then` at once or later. `owner`: whose place in the pool a long answer takes.
  void get(const TokenQuestion& question, size_t owner, Then then);
  bool can_ask(const std::string& model) const { return engine_for(model, "", false) != nullptr; }

 private:
  struct Source {  // of an answer
    std::string engine;
    uint64_t start = 0;
  };
  struct Kept {
    Digest key;
    EnginePrompt prompt;
    Source from;
  };
  struct UnderWay {
    std::vector<Then> waiting;
    http::Client::Id http = 0;
    Source asked;
    size_t owner = 0;
    bool media = false, late = false;
  };
  ExternalEngine* engine_for(const std::string& model, const std::string& adapter,
                             bool media) const;
  void answered(const Digest& key, const Result<http::ClientResponse>& answer);
  void done(const Digest& key, EnginePrompt prompt);
  void give_up(const Digest& key);
  void keep(const Digest& key, const EnginePrompt& prompt, const Source& from);
  bool holds(const Source& from) const;
  void forget(std::list<Kept>::iterator kept);

  io::Loop& loop_;
  ExternalEngines& engines_;
  TextPool& pool_;
  const Duration wait_;
  std::map<Digest, UnderWay> under_way_;
  std::list<Kept> kept_;  // the last used first
  std::map<Digest, std::list<Kept>::iterator> by_key_;
  size_t kept_bytes_ = 0;
  std::string last_;  // engine that was asked
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace mc::serve
