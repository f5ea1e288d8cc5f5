#include "load/completion.h"

#include "base/json.h"
#include "base/units.h"
#include "http/strict.h"

namespace mc::load {
namespace {

using trace::Status;
constexpr size_t kErrorBodyMax = 64 * 1024;
constexpr size_t kReasonMax = 120;
constexpr uint64_t kTokensMax = 1 << 20;  // of an answer

// Reasons are counted by their text: the error's code if it has one, else its message, cut.
std::string reason_of(const Json& error) {
  if (!error.is_object()) return error.is_string() ? error.get<std::string>() : std::string();
  for (const char* key : {"code", "message", "type"}) {
    const auto it = error.find(key);
    if (it != error.end() && it->is_string() && !it->get<std::string>().empty())
      return escape(it->get<std::string>()).substr(0, kReasonMax);
  }
  return {};
}

std::optional<double> number(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

std::optional<uint64_t> count(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}

std::string header(const std::map<std::string, std::string>& headers, const char* name) {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string() : it->second;
}

// Returns: the sum of the parts that are present; none when none is.
std::optional<double> sum(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a && !b) return std::nullopt;
  return a.value_or(0) + b.value_or(0);
}

}  // namespace

Completion::Completion(trace::RequestResult result, Time intended)
    : result_(std::move(result)), intended_(intended) {}

void Completion::head(int status, const std::map<std::string, std::string>& headers, Time) {
  result_.http = status;
  result_.prefill = header(headers, "x-mc-prefill");
  result_.decode = header(headers, "x-mc-decode");
  if (std::string id = header(headers, "x-request-id"); !id.empty()) result_.request_id = id;
  if (auto n = parse_uint(header(headers, "x-mc-cached-tokens")); n) result_.cached = *n;
  if (auto ms = parse_number(header(headers, "x-mc-predicted-ttft-ms")); ms)
    result_.predicted_ttft_ms = *ms;
  result_.reason = header(headers, "x-mc-reject-reason");
  streamed_ = http::is_type(header(headers, "content-type"), "text/event-stream");
}

void Completion::body(std::string_view chunk, Time at) {
  if (over_) return;
  if (result_.http != 200 || !streamed_) {
    if (error_body_.size() < kErrorBodyMax)
      error_body_.append(chunk.substr(0, kErrorBodyMax - error_body_.size()));
    return;
  }
  if (!events_.feed(chunk, [&](std::string_view data) { event(data, at); }))
    fail_with(Status::kFailed, "an event over 1 MiB");
}

void Completion::event(std::string_view data, Time at) {
  if (over_) return;
  if (data == "[DONE]") {
    finished_ = true;
    return;
  }
  const auto parsed = parse_json(data);
  if (!parsed || !parsed->is_object())
    return fail_with(Status::kFailed, "an event that is not a JSON object");
  const Json& json = *parsed;
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) {
    const std::string why = reason_of(*error);
    return fail_with(Status::kFailed, why.empty() ? "an error without a message" : why);
  }
  const auto choices = json.find("choices");
  const bool token = choices != json.end() && choices->is_array() && !choices->empty();
  uint64_t tokens = 1;
  if (const auto u = json.find("usage"); u != json.end() && u->is_object()) {
    if (token) counting_ = true;
    usage(*u, tokens);
  }
  if (const auto mc = json.find("mc"); mc != json.end() && mc->is_object()) extension(*mc);
  if (!token) return;
  const Json& choice = (*choices)[0];
  const auto text = choice.find("text");
  const auto finish = choice.find("finish_reason");
  last_is_empty_ = finish != choice.end() && finish->is_string() &&
                   (text == choice.end() || text->empty() || *text == "");
  if (tokens > 0) stamps_.push_back({to_ms(at - intended_), tokens});
}

// Sets `tokens` of this event, if the usage has them.
void Completion::usage(const Json& usage, uint64_t& tokens) {
  has_usage_ = true;
  // A server may say anything: each token has a gap of its own here.
  if (const auto n = count(usage, "completion_tokens"); n && *n <= kTokensMax) {
    tokens = *n > counted_ ? *n - counted_ : 0;
    counted_ = *n;
  }
  const auto details = usage.find("prompt_tokens_details");
  if (details == usage.end() || !details->is_object()) return;
  if (const auto n = count(*details, "cached_tokens")) result_.cached = *n;
}

void Completion::extension(const Json& mc) {
  result_.queue_ms = sum(number(mc, "sched_ms"), number(mc, "queue_ms"));
  result_.prefill_ms = number(mc, "prefill_ms");
  result_.transfer_ms = sum(number(mc, "transfer_ms"), number(mc, "load_ms"));
  result_.first_step_ms = number(mc, "first_step_ms");
  result_.kv_errors = count(mc, "kv_errors");
  if (const auto ms = number(mc, "predicted_ttft_ms")) result_.predicted_ttft_ms = ms;
}

void Completion::fail_with(Status status, std::string reason) {
  if (over_) return;
  over_ = true;
  result_.status = status;
  result_.reason = std::move(reason);
  compute_times();
}

void Completion::failed(const Error& error) {
  if (error.code == Code::kTimeout) return fail_with(Status::kTimeout, "timeout");
  fail_with(Status::kFailed, error.what.substr(0, kReasonMax));
}

void Completion::cancelled(const std::string& why) { fail_with(Status::kCancelled, why); }

void Completion::done() {
  if (over_) return;
  if (result_.http != 200) return refused();
  if (!streamed_) return fail_with(Status::kFailed, "the answer is not an event stream");
  if (!finished_ && !has_usage_)
    return fail_with(Status::kFailed, "the stream ended before [DONE]");
  if (stamps_.empty()) return fail_with(Status::kFailed, "no token came");
  over_ = true;
  result_.status = Status::kOk;
  result_.reason.clear();
  compute_times();
}

void Completion::refused() {
  std::string why = result_.reason;
  if (const auto json = parse_json(error_body_); why.empty() && json && json->is_object()) {
    const auto error = json->find("error");
    why = reason_of(error == json->end() ? *json : *error);
  }
  if (result_.http == 429) return fail_with(Status::kRejected, why.empty() ? "429" : why);
  fail_with(Status::kFailed,
            "HTTP " + std::to_string(result_.http) + (why.empty() ? "" : ": " + why));
}

// Derives the times of tokens from those of events.
void Completion::compute_times() {
  uint64_t events = stamps_.size();
  if (!counting_ && counted_ > 0 && counted_ != events) {
    if (counted_ + 1 == events && last_is_empty_)
      stamps_.pop_back();  // it had only the finish reason
    else
      gaps_are_chunks_ = true;
  }
  result_.output = 0;
  for (const Stamp& s : stamps_) result_.output += s.tokens;
  if (gaps_are_chunks_) result_.output = counted_;
  if (stamps_.empty()) return;
  result_.ttft_ms = stamps_.front().ms;
  result_.e2e_ms = stamps_.back().ms;
  result_.gaps_ms.assign(stamps_.front().tokens - 1, 0.0);
  for (size_t i = 1; i < stamps_.size(); ++i) {
    const auto n = stamps_[i].tokens;
    const double gap = (stamps_[i].ms - stamps_[i - 1].ms) / static_cast<double>(n);
    result_.gaps_ms.insert(result_.gaps_ms.end(), n, gap);
  }
}

}  // namespace mc::load
