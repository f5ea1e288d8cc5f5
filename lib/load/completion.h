// Turns the event stream of one /v1/completions answer into a RequestResult. Times count from the
// intended send, and every token has one. An event with several tokens, if its usage says so, is
// spread over the gap before it.
//
// Beyond the standard it reads the headers `x-request-id`, `x-mc-prefill`, `x-mc-decode`,
// `x-mc-cached-tokens`, `x-mc-predicted-ttft-ms` and `x-mc-reject-reason`;
// usage.prompt_tokens_details; and an `mc` object in the last chunk:
// {"queue_ms","prefill_ms","transfer_ms","sched_ms","load_ms", "decode_ms","kv_errors"}.
//
// Thread: one owner.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/time.h"
#include "http/client.h"
#include "trace/report/report.h"

namespace mc::load {

class Completion {
 public:
  // `result` has what is known before the send: id, intended time, prompt.
  Completion(trace::RequestResult result, Time intended);

  void head(int status, const std::map<std::string, std::string>& headers, Time at);
  void body(std::string_view chunk, Time at);
  // Exactly one of these ends it:
  void done();
  void failed(const Error& error);
  void cancelled(const std::string& why);

  trace::RequestResult& result() { return result_; }
  // Some events held several tokens, and the answer did not say which.
  bool gaps_are_chunks() const { return gaps_are_chunks_; }

 private:
  struct Stamp {
    double ms;        // after the intended send
    uint64_t tokens;  // in this event
  };
  void event(std::string_view data, Time at);
  void usage(const Json& usage, uint64_t& tokens);
  void extension(const Json& mc);
  void refused();
  void fail_with(trace::Status status, std::string reason);
  void compute_times();

  trace::RequestResult result_;
  const Time intended_;
  http::SseParser events_;
  std::string error_body_;  // the body of an answer other than 200
  std::vector<Stamp> stamps_;
  uint64_t counted_ = 0;   // tokens, by the latest usage
  bool counting_ = false;  // usage comes with every event
  bool finished_ = false, has_usage_ = false, streamed_ = false, over_ = false;
  bool last_is_empty_ = false;  // the last event had a finish reason and no text
  bool gaps_are_chunks_ = false;
};

}  // namespace mc::load
