// One request while it is answered, by a job of the conductor for each choice.
//
// An external engine has a request whole, as one job. The other choices of a prompt begin when the
// first one has its first token: they find the prompt's blocks cached. Private to api_*.cc.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "serve/answers/answer_choice.h"
#include "serve/frontend/answer_lines.h"
#include "serve/frontend/api_server.h"

namespace mc::serve {

// Ends the span of a client's request. `error`: "" where it went well. A server's error is one of
// 500 and more; the client's is not its.
void end_server_span(telemetry::OpenSpan& span, const http::Exchange& x, const std::string& id,
                     int status, const std::string& error, Time now);

struct ApiServer::Answer : std::enable_shared_from_this<Answer> {
  struct Choice : AnswerChoice {
    Choice(size_t of, size_t at, TextStream t, AnswerLogprobs l)
        : AnswerChoice(std::move(t), std::move(l)), prompt(of), nth(at) {}
    size_t prompt, nth;  // the nth of that prompt
    Conductor::Id job = 0;
    bool asked = false, ended = false;
    Progress progress;
  };

  Answer(ApiServer& server, http::Exchange exchange, CompletionRequest r,
         std::unique_ptr<AnswerWriter> w)
      : s(server), x(std::move(exchange)), request(std::move(r)), writer(std::move(w)) {}
  static void refuse_over(ApiServer& s, const http::Exchange& x, const std::string& id,
                          const Tenants::Over& over);
  static void begin(ApiServer& s, const http::Exchange& x, Tenants::Index tenant,
                    const std::string& id, ParsedRequest asked, telemetry::OpenSpan span);
  void add_choices();
  void ask(size_t choice);
  void ask_others(size_t prompt);
  ResponseSink sink(size_t choice);
  void tokens(size_t choice, const Progress& p, const std::vector<int32_t>& tokens,
              const std::vector<TokenLogprobs>& logprobs);
  std::string event(size_t choice) {
    return choices[choice].event(*writer, static_cast<uint32_t>(choice),
                                 request.controls.logprobs > 0, usage());
  }
  void on_upstream_bytes(const Progress& p, int answered, const std::string& type,
                         std::string_view bytes);
  void hold_upstream(size_t until);
  void done(size_t choice, const Progress& p, const std::optional<RequestError>& failed);
  void failed(const Progress& p, const RequestError& error);
  void finish();
  void give_up(const std::string& reason);
  void close(const std::string& error = {});
  void cancel_all(const std::string& why, const CancelledAs& as = {});
  std::vector<size_t> best() const;
  Json where() const;

  ApiServer& s;
  http::Exchange x;
  CompletionRequest request;
  std::unique_ptr<AnswerWriter> writer;
  std::string id;
  telemetry::OpenSpan span;  // from the request's arrival to the end of its answer
  Tenants::Index tenant = 0;
  bool started = false, over = false, proxied = false;
  struct {
    bool stream = false;  // of events
    bool held = false;    // it is not read: its client reads slowly
    AnswerLines lines;
  } passed;                           // what an external engine answers
  int status = 200;                   // of the answer
  std::vector<GenerateRequest> asks;  // of each prompt, for choices that are not asked for yet
  std::vector<Choice> choices;
  uint64_t prompt_tokens = 0;

  bool several() const { return choices.size() > 1; }
  uint64_t output_tokens() const {
    uint64_t n = 0;
    for (const Choice& c : choices) n += c.output_tokens;
    return n;
  }
  // A prompt counts once, whatever its choices, and so does what was cached of it.
  Usage usage() const {
    uint64_t cached = 0;
    for (const Choice& c : choices)
      if (c.nth == 0) cached += c.progress.cached_tokens.value_or(0);
    return {prompt_tokens, output_tokens(), cached};
  }
  http::Headers headers(const Progress& p) const;
  http::Headers own_headers(const Progress& p) const;  // where own workers answer
  // Everything a client gets goes out in one write, with the headers if they are due.
  void write(const Progress& p, std::string events);
};

}  // namespace mc::serve
