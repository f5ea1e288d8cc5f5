#include "telemetry/exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "tls/client_tls.h"

namespace mc::telemetry {
namespace {

constexpr Bytes kAnswerMax{64 * kKiB};
constexpr Duration kEndLook = std::chrono::milliseconds(10);
constexpr const char* kSpansHelp = "spans of traces, by what became of them";

// The collector may take the same later.
bool is_transient(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

// How many spans of an accepted batch the collector left out. What is no such answer leaves none.
uint64_t rejected_spans(const std::string& body) {
  const auto json = parse_json(body);
  if (!json) return 0;
  const Json* const partial = member(*json, "partialSuccess");
  const Json* const n = partial == nullptr ? nullptr : member(*partial, "rejectedSpans");
  if (n == nullptr) return 0;
  if (n->is_number_unsigned()) return n->get<uint64_t>();
  if (!n->is_string()) return 0;
  uint64_t count = 0;
  for (const char c : n->get_ref<const std::string&>()) {
    if (c < '0' || c > '9' || count > (uint64_t{1} << 40)) return 0;
    count = count * 10 + static_cast<uint64_t>(c - '0');
  }
  return count;
}

}  // namespace

Result<std::string> SpanExporter::full_url(const std::string& url) {
  const bool plain = url.starts_with("http://"), tls = url.starts_with("https://");
  const std::string rest = plain || tls ? url.substr(plain ? 7 : 8) : "";
  if (rest.empty() || rest.starts_with('/') || rest.find_first_of(" \t?#@") != rest.npos)
    return fail(Code::kInvalid,
                "--otlp '%s': want the url of a collector, as http://127.0.0.1:4318",
                escape(url).c_str());
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return url + "/v1/traces";
  return slash + 1 == rest.size() ? url + "v1/traces" : url;
}

SpanExporter::SpanExporter(ExporterOptions options, const Clock& clock, Metrics& metrics)
    : options_(std::move(options)),
      clock_(clock),
      sent_(metrics.counter("mc_otlp_spans_total", kSpansHelp, {{"result", "sent"}})),
      dropped_(metrics.counter("mc_otlp_spans_total", kSpansHelp, {{"result", "dropped"}})),
      refused_(metrics.counter("mc_otlp_spans_total", kSpansHelp, {{"result", "refused"}})),
      loop_(clock),
      thread_([this] { run(); }) {}

SpanExporter::~SpanExporter() {
  (void)loop_.post([this] {
    end_ = clock_.now() + kLastWords;
    pausing_ = false;
    loop_.every(kEndLook, [this] { look(); });
    look();
  });
  thread_.join();
}

void SpanExporter::record(Span span) {
  const Lock lock(mutex_);
  if (waiting_.size() >= options_.queue_max) return dropped_.add();
  waiting_.push_back(std::move(span));
}

void SpanExporter::run() {
  client_ = std::make_unique<http::Client>(loop_, 1, tls::client_tls());
  loop_.every(options_.every, [this] { look(); });
  if (const auto ran = loop_.run(); !ran)
    log_error("otlp", "no spans are sent any more: %s", ran.error().what.c_str());
  client_.reset();
  const Lock lock(mutex_);
  dropped_.add(waiting_.size() + batch_.size());
}

void SpanExporter::look() {
  if (end_ != Time::max() && clock_.now() >= end_) return loop_.stop();
  if (posting_ || pausing_) return;
  if (batch_.empty()) {
    const Lock lock(mutex_);
    const size_t n = std::min(waiting_.size(), kBatchMax);
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(n);
    batch_.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    tries_ = 0;
  }
  if (!batch_.empty()) return post();
  if (end_ != Time::max()) loop_.stop();
}

void SpanExporter::post() {
  posting_ = true;
  ++tries_;
  const int64_t wall = wall_now_ns() - clock_.now().time_since_epoch().count();
  http::ClientRequest r;
  r.method = "POST";
  r.url = options_.url;
  r.headers = {{"content-type", "application/json"}};
  r.body = otlp_json(batch_, options_.resource, wall);
  r.timeout = options_.timeout;
  r.answer_max = kAnswerMax;
  http::ClientCallbacks calls;
  calls.on_done = [this](const Result<http::ClientResponse>& answer) { answered(answer); };
  (void)client_->send(std::move(r), std::move(calls));
}

void SpanExporter::answered(const Result<http::ClientResponse>& answer) {
  posting_ = false;
  if (answer && answer->status / 100 == 2) {
    if (std::exchange(warned_, false))
      log_info("otlp", "%s takes spans again", options_.url.c_str());
    const uint64_t refused = std::min<uint64_t>(rejected_spans(answer->body), batch_.size());
    return over(sent_, refused);
  }
  const std::string why =
      answer ? strf("it answers with status %d", answer->status) : answer.error().what;
  if (!std::exchange(warned_, true))
    log_warn("otlp", "%s does not take spans, requests go on: %s", options_.url.c_str(),
             why.c_str());
  const bool again = answer ? is_transient(answer->status) : answer.error().code != Code::kInvalid;
  if (!again) return over(refused_);
  if (tries_ >= kTries || end_ != Time::max()) return over(dropped_);
  pausing_ = true;
  loop_.after(options_.pause * (1 << (tries_ - 1)), [this] {
    pausing_ = false;
    look();
  });
}

void SpanExporter::over(Counter& as, uint64_t refused) {
  as.add(batch_.size() - refused);
  refused_.add(refused);
  batch_.clear();
  bool full = false;
  {
    const Lock lock(mutex_);
    full = waiting_.size() >= kBatchMax;
  }
  if (full || end_ != Time::max()) look();  // else at its time: a POST for a few spans is dear
}

}  // namespace mc::telemetry
