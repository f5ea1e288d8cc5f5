// Plays a schedule of requests against an OpenAI server. With open load each request leaves when it
// is due, whatever became of earlier ones. With closed load it leaves as soon as fewer than N are
// in flight. Prompts are made ahead of time, so that making them does not delay a send.
//
// Thread: the loop's.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/client.h"
#include "load/completion.h"
#include "trace/play/player.h"
#include "trace/report/report.h"

namespace mc::load {

struct DriveOptions {
  std::string url{};  // "http://host:port"
  std::string model{};
  std::string ids{};  // requests are IDS-0, IDS-1, ... to the server; empty: as it names them
  bool text = false;  // prompts as text, one letter a token, instead of token ids
  Duration timeout = std::chrono::seconds(600);
  uint64_t concurrency = 0;  // 0: open load
  uint64_t seed = 0;         // of the prompts
  uint64_t vocab = 32000;
  uint64_t block_tokens = trace::kBlockTokens;
};

struct Progress {
  uint64_t total = 0, sent = 0, ok = 0, rejected = 0, failed = 0, in_flight = 0;
};

class Driver {
 public:
  // `schedule` borrows its trace. Errors: kInvalid.
  static Result<std::unique_ptr<Driver>> make(io::Loop& loop, http::Client& client,
                                              std::vector<trace::Arrived> schedule,
                                              DriveOptions options);
  ~Driver();

  void start(std::function<void()> finished);  // `finished` when every request has ended
  // Sends no more requests, cancels those in flight, and then calls `finished`.
  void stop(const std::string& why);

  Progress progress() const { return progress_; }
  Duration elapsed() const;  // from the start to the end of the last request so far
  bool gaps_are_chunks() const { return gaps_are_chunks_; }
  // Results of the requests sent, in order of intended time.
  std::vector<trace::RequestResult> take_results();

 private:
  struct Flight {
    Completion completion;
    http::Client::Id id;
  };
  Driver(io::Loop& loop, http::Client& client, std::vector<trace::Arrived> schedule,
         DriveOptions options, const trace::Prompts& prompts);
  std::string body_of(const trace::TraceRequest& record) const;
  bool prepare();
  void keep_preparing();
  void arm();
  void send_due();
  void send(size_t index, Time intended);
  void ended(size_t index, const Result<http::ClientResponse>& answer);
  void conclude(size_t index);
  void finish_if_done();

  io::Loop& loop_;
  http::Client& client_;
  const std::vector<trace::Arrived> schedule_;
  const DriveOptions options_;
  const trace::Prompts prompts_;
  std::function<void()> finished_;
  Time start_, end_;
  size_t next_ = 0;                 // index of the next to send
  std::deque<std::string> bodies_;  // prepared: of next_, next_ + 1, ...
  size_t prepared_bytes_ = 0;
  bool preparing_ = false, stopped_ = false;
  io::Loop::Handle timer_ = 0;
  std::map<size_t, Flight> flights_;
  std::vector<std::optional<trace::RequestResult>> results_;  // by index
  Progress progress_;
  bool gaps_are_chunks_ = false;
  // Callbacks and posted work hold it weakly, so they do nothing once the driver is gone.
  std::shared_ptr<Driver*> self_;
};

// The exit status of `mc-replay run`: 4 when KV bytes were wrong, 1 when a request failed or the
// run was interrupted, 6 when the client could not keep the schedule, 5 when a gate failed, else 0.
// A refusal is not a failure.
int exit_status(const trace::Summary& summary, bool interrupted);

}  // namespace mc::load
