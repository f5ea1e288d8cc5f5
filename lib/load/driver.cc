#include "load/driver.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"

namespace mc::load {
namespace {
constexpr size_t kPreparedMax = 128 * kMiB;
// One letter is one token for a byte-level tokenizer, and 64 of them spell any id.
constexpr std::string_view kLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";
}  // namespace

Result<std::unique_ptr<Driver>> Driver::make(io::Loop& loop, http::Client& client,
                                             std::vector<trace::Arrived> schedule,
                                             DriveOptions options) {
  trace::PromptOptions prompt;
  prompt.seed = options.seed;
  prompt.vocab = options.text ? kLetters.size() : options.vocab;
  prompt.block_tokens = options.block_tokens;
  MC_TRY(trace::Prompts prompts, trace::Prompts::make(prompt));
  while (options.url.ends_with('/')) options.url.pop_back();
  return std::unique_ptr<Driver>(
      new Driver(loop, client, std::move(schedule), std::move(options), prompts));
}

Driver::Driver(io::Loop& loop, http::Client& client, std::vector<trace::Arrived> schedule,
               DriveOptions options, const trace::Prompts& prompts)
    : loop_(loop),
      client_(client),
      schedule_(std::move(schedule)),
      options_(std::move(options)),
      prompts_(prompts),
      start_(loop.clock().now()),
      end_(start_),
      results_(schedule_.size()),
      self_(std::make_shared<Driver*>(this)) {
  progress_.total = schedule_.size();
}

Driver::~Driver() {
  loop_.cancel(timer_);
  for (const auto& [index, flight] : flights_) client_.cancel(flight.id);
}

std::string Driver::body_of(const trace::TraceRequest& record) const {
  const Json rest = {
      {"model", options_.model}, {"max_tokens", std::max<uint64_t>(1, record.output_length)},
      {"ignore_eos", true},      {"temperature", 0},
      {"stream", true},          {"stream_options", {{"include_usage", true}}}};
  std::string body = dump_json(rest);
  body.pop_back();
  body += options_.text ? ",\"prompt\":\"" : ",\"prompt\":[";
  const auto tokens = prompts_.tokens(record);
  body.reserve(body.size() + tokens.size() * (options_.text ? 1 : 6) + 8);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (options_.text) {
      body += kLetters[static_cast<size_t>(tokens[i])];
      continue;
    }
    char digits[16];
    const auto end = std::to_chars(digits, digits + sizeof digits, tokens[i]).ptr;
    if (i > 0) body += ',';
    body.append(digits, end);
  }
  return body + (options_.text ? "\"}" : "]}");
}

// Makes one more body; false when there are enough.
bool Driver::prepare() {
  const size_t index = next_ + bodies_.size();
  if (stopped_ || index >= schedule_.size()) return false;
  if (prepared_bytes_ >= kPreparedMax && !bodies_.empty()) return false;
  bodies_.push_back(body_of(*schedule_[index].record));
  prepared_bytes_ += bodies_.back().size();
  return true;
}

// Prepares one body a turn, so that a send that falls due waits for one at most.
void Driver::keep_preparing() {
  if (preparing_) return;
  preparing_ = loop_.post([weak = std::weak_ptr(self_)] {
    const auto self = weak.lock();
    if (!self) return;
    (*self)->preparing_ = false;
    if ((*self)->prepare()) (*self)->keep_preparing();
  });
}

void Driver::start(std::function<void()> finished) {
  finished_ = std::move(finished);
  while (prepare()) {
  }
  start_ = end_ = loop_.clock().now();
  arm();
}

void Driver::arm() {
  loop_.cancel(timer_);
  timer_ = 0;
  if (stopped_ || next_ >= schedule_.size()) return;
  const Time when = options_.concurrency > 0 ? loop_.clock().now() : start_ + schedule_[next_].due;
  if (options_.concurrency > 0 && flights_.size() >= options_.concurrency) return;
  timer_ = loop_.at(when, [this] {
    timer_ = 0;
    send_due();
  });
}

void Driver::send_due() {
  while (next_ < schedule_.size()) {
    const Time now = loop_.clock().now();
    const Time due = start_ + schedule_[next_].due;
    if (options_.concurrency > 0 ? flights_.size() >= options_.concurrency : due > now) break;
    send(next_, options_.concurrency > 0 ? now : due);
  }
  keep_preparing();
  arm();
}

void Driver::send(size_t index, Time intended) {
  const trace::Arrived& arrived = schedule_[index];
  if (bodies_.empty()) prepare();
  http::ClientRequest request;
  request.method = "POST";
  request.url = options_.url + "/v1/completions";
  request.headers = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
  const std::string name =
      options_.ids.empty() ? "" : options_.ids + "-" + std::to_string(arrived.id);
  if (!name.empty()) request.headers.push_back({"X-Request-Id", name});
  request.body = std::move(bodies_.front());
  request.timeout = options_.timeout;
  prepared_bytes_ -= request.body.size();
  bodies_.pop_front();
  ++next_;

  trace::RequestResult result;
  result.id = arrived.id;
  result.request_id = name;
  result.t_intended_ms = to_ms(intended - start_);
  result.t_sent_ms = to_ms(loop_.clock().now() - start_);
  result.input = arrived.record->input_length;
  result.hash_blocks = arrived.record->hash_ids.size();
  const auto flight = flights_.emplace(index, Flight{Completion(std::move(result), intended), 0});
  Completion& completion = flight.first->second.completion;

  http::ClientCallbacks calls;  // none runs after conclude(): the request is cancelled or done
  calls.on_headers = [&completion](int status, const auto& headers, Time at) {
    completion.head(status, headers, at);
  };
  calls.on_chunk = [&completion](std::string_view chunk, Time at) { completion.body(chunk, at); };
  calls.on_done = [this, index](Result<http::ClientResponse> answer) { ended(index, answer); };
  flight.first->second.id = client_.send(std::move(request), std::move(calls));
  ++progress_.sent;
  ++progress_.in_flight;
}

void Driver::ended(size_t index, const Result<http::ClientResponse>& answer) {
  Completion& completion = flights_.at(index).completion;
  if (answer) {
    completion.result().t_sent_ms = to_ms(answer->sent - start_);
    completion.done();
  } else {
    completion.failed(answer.error());
  }
  conclude(index);
  if (options_.concurrency > 0) arm();
  finish_if_done();
}

void Driver::conclude(size_t index) {
  auto node = flights_.extract(index);
  Completion& completion = node.mapped().completion;
  end_ = loop_.clock().now();
  gaps_are_chunks_ = gaps_are_chunks_ || completion.gaps_are_chunks();
  const auto status = completion.result().status;
  progress_.ok += status == trace::Status::kOk;
  progress_.rejected += status == trace::Status::kRejected;
  progress_.failed += status != trace::Status::kOk && status != trace::Status::kRejected;
  --progress_.in_flight;
  results_[index] = std::move(completion.result());
}

void Driver::stop(const std::string& why) {
  if (stopped_) return;
  stopped_ = true;
  loop_.cancel(timer_);
  while (!flights_.empty()) {
    auto& [index, flight] = *flights_.begin();
    client_.cancel(flight.id);
    flight.completion.cancelled(why);
    conclude(index);
  }
  finish_if_done();
}

void Driver::finish_if_done() {
  if (!flights_.empty() || (!stopped_ && next_ < schedule_.size())) return;
  if (auto finished = std::exchange(finished_, nullptr)) finished();
}

Duration Driver::elapsed() const { return end_ - start_; }

std::vector<trace::RequestResult> Driver::take_results() {
  std::vector<trace::RequestResult> out;
  for (auto& result : results_)
    if (result) out.push_back(std::move(*result));
  results_.clear();
  return out;
}

int exit_status(const trace::Summary& summary, bool interrupted) {
  if (summary.kv_errors.value_or(0) > 0) return 4;
  if (interrupted || summary.failed + summary.timeout + summary.cancelled > 0) return 1;
  if (!summary.schedule_kept.value_or(true)) return 6;
  const bool passed = std::all_of(summary.gates.begin(), summary.gates.end(),
                                  [](const trace::Gate& g) { return g.pass; });
  return passed ? 0 : 5;
}

}  // namespace mc::load
