// Keeps the tokens that a conductor has not taken yet, and sends them again until it has.
//
// An update says the number of its first token, so that a conductor takes each token once even if
// it comes twice. A conductor refuses an update that follows missing tokens: a message that it took
// stands for all tokens before it. After a lost message only one message at a time is sent, every
// `retry`, until one is taken.
//
//   outbox.add(update);
//   while (auto message = outbox.next(now)) ...   // then taken() or lost() with its id
//   if (!outbox.tick(now)) ...                    // often: the conductor is gone
//
// Silence counts only while this process runs: a gap between two ticks counts as one second.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/time.h"
#include "serve/protocol/messages.h"

namespace mc::serve {

struct TokenOutboxOptions {
  Duration retry = std::chrono::milliseconds(500);
  Duration patience = std::chrono::seconds(60);  // nothing taken for this long: gone
  size_t in_flight_max = 64;                     // messages
  size_t tokens_max = 16384;                     // in a message
};

class TokenOutbox {
 public:
  explicit TokenOutbox(TokenOutboxOptions options) : options_(options) {}

  void add(TokenUpdate update);           // the next of its request
  void drop(const std::string& request);  // nobody waits for it any more

  struct Message {
    uint64_t id = 0;
    std::vector<TokenUpdate> updates;
  };
  // Nothing: there is nothing to send, or it has to wait.
  std::optional<Message> next(Time now);
  void taken(uint64_t id);
  void lost(uint64_t id, Time now);  // not answered, or refused

  // False: the conductor has taken nothing for `patience`, and was sent something.
  bool tick(Time now);
  Duration silent() const { return silent_; }  // for how long it took nothing
  bool failing() const { return failing_; }    // the last message was lost
  // Whether nothing is kept. A request is kept from its first token until its end is taken.
  bool empty() const { return requests_.empty(); }

 private:
  struct Kept {
    TokenUpdate last;                     // but for its tokens
    std::vector<int32_t> tokens;          // not taken
    std::vector<TokenLogprobs> logprobs;  // of each of these, or none
    uint32_t taken = 0;
    size_t sent = 0;  // of `tokens`
    bool end_sent = false, ready = false;
    bool unsent() const { return sent < tokens.size() || (!last.finish.empty() && !end_sent); }
  };
  struct Part {
    std::string request;
    uint32_t upto = 0;  // tokens
    bool end = false;
  };
  void make_ready(const std::string& request, Kept& kept);
  std::vector<Part> take(uint64_t id);

  const TokenOutboxOptions options_;
  std::unordered_map<std::string, Kept> requests_;
  std::vector<std::string> ready_;                // requests with something unsent
  std::map<uint64_t, std::vector<Part>> flight_;  // messages not answered
  uint64_t next_id_ = 1;
  bool failing_ = false;
  Time retry_at_{}, ticked_{};
  Duration silent_{};
};

}  // namespace mc::serve
