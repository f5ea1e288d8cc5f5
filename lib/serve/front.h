// The HTTP face of a conductor: the OpenAI API for clients, state and metrics for people.
//
//   POST /v1/completions, /v1/chat/completions   GET /v1/models
//   GET /live /ready /health /metrics /cluster   GET /debug/route?prompt=TEXT (or POST a
//   completion)
//
// The status of an answer is known when its first token is: until then a failure is an HTTP status,
// after it an error event. Headers of an answer: x-request-id (the client's, when it sent one),
// x-mc-prefill, x-mc-decode, and x-mc-cached-tokens when it is known by then; the last usage always
// has it, beside "mc", where the time went.
//
// Thread: the loop's.
#pragma once
#include <memory>
#include <string>

#include "http/server.h"
#include "serve/conductor.h"
#include "serve/openai.h"

namespace mc::serve {

class Front {
 public:
  // `conductor` outlives it. Errors: kUnavailable when the port is in use.
  static Result<std::unique_ptr<Front>> open(io::Loop& loop, const std::string& address,
                                             Conductor& conductor, Metrics& metrics);
  ~Front();
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  const std::string& http() const { return http_->address(); }
  size_t open_exchanges() const { return http_->open_exchanges(); }

 private:
  struct Answer;  // one request while it is answered
  Front(io::Loop& loop, Conductor& conductor, Metrics& metrics);
  void page(const http::Exchange& x);
  void completion(const http::Exchange& x, bool chat);
  void route(const http::Exchange& x);
  std::string models() const;

  void tokens(Answer& a, const Progress& p, const std::vector<int32_t>& tokens);
  void done(Answer& a, const Progress& p, const std::optional<Failed>& failed);
  void give_up(Answer& a, const std::string& reason);

  io::Loop& loop_;
  Conductor& conductor_;
  Metrics& metrics_;
  ApiLimits limits_;
  std::unique_ptr<http::Server> http_;
  const int64_t created_;
  const std::string prefix_;  // of request ids
  uint64_t next_ = 1;
};

}  // namespace mc::serve
