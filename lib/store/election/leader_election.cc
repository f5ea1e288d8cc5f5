#include "store/election/leader_election.h"

#include <algorithm>
#include <optional>

#include "base/log.h"

namespace mc::store {
namespace {

constexpr Duration kTimeoutMin = std::chrono::milliseconds(100);
constexpr Duration kAskAgain = std::chrono::milliseconds(100);
constexpr Bytes kAnswerMax{256 * kKiB};  // the masters' addresses, at most

http::ClientRequest request_of(const std::string& endpoint, EtcdCall call, Duration timeout) {
  http::ClientRequest r;
  r.method = "POST";
  r.url = "http://" + endpoint + call.path;
  r.headers.emplace_back("content-type", "application/json");
  r.body = std::move(call.body);
  r.timeout = timeout;
  r.answer_max = kAnswerMax;
  return r;
}

}  // namespace

LeaderElection::LeaderElection(io::Loop& loop, EtcdUrl url, ElectionOptions options,
                               std::function<void()> changed)
    : loop_(loop),
      url_(std::move(url)),
      me_(options.me),
      timeout_(std::max(options.ttl / 5, kTimeoutMin)),
      changed_(std::move(changed)),
      election_(std::move(options)),
      http_(loop, 4) {
  timer_ = loop_.at(loop_.now(), [this] { go(); });
}

LeaderElection::~LeaderElection() { loop_.cancel(timer_); }

void LeaderElection::go() {
  const auto wall_s = static_cast<uint64_t>(wall_now_ns() / 1'000'000'000);
  if (const auto q = election_.ask(loop_.clock().now(), wall_s)) {
    http::ClientCallbacks callbacks;
    callbacks.on_done = [this, q = *q](const Result<http::ClientResponse>& r) { answered(q, r); };
    http_.send(request_of(url_.endpoints[endpoint_], call_of(*q, url_.prefix, me_), timeout_),
               std::move(callbacks));
  }
  loop_.cancel(timer_);
  if (const Time when = election_.deadline(); when != Time::max())
    timer_ = loop_.at(when, [this] { go(); });
  if (!leads()) changed_();  // the lead may have lapsed
  if (resigned_ && election_.resigned()) std::exchange(resigned_, nullptr)();
}

void LeaderElection::answered(const EtcdQuestion& q, const Result<http::ClientResponse>& response) {
  Result<EtcdAnswer> answer = response
                                  ? answer_to(q, url_.prefix, response->status, response->body)
                                  : Result<EtcdAnswer>(fail(response.error().code, "etcd at %s: %s",
                                                            url_.endpoints[endpoint_].c_str(),
                                                            response.error().what.c_str()));
  if (!response) endpoint_ = (endpoint_ + 1) % url_.endpoints.size();
  election_.answered(answer, loop_.clock().now());
  if (told_ != election_.trouble()) {
    told_ = election_.trouble();
    if (told_.empty())
      log_info("store", "etcd answers again");
    else
      log_warn("store", "election: %s", told_.c_str());
  }
  changed_();
  go();
}

void LeaderElection::raise(uint64_t epoch) {
  if (epoch <= election_.epoch()) return;
  election_.raise(epoch);
  go();
}

void LeaderElection::resign(std::function<void()> done) {
  resigned_ = std::move(done);
  election_.resign();
  go();
}

Result<std::string> find_masters(const std::string& text, const Clock& clock, Duration budget) {
  if (!EtcdUrl::is(text)) return text;
  MC_TRY(const EtcdUrl url, EtcdUrl::parse(text));
  const Time deadline = clock.now() + budget;
  io::Loop loop(clock);
  http::Client http(loop, 4);
  std::string found;
  Error why{Code::kUnavailable, "no time to ask"};
  size_t endpoint = 0;
  std::function<void()> ask = [&] {
    http::ClientCallbacks callbacks;
    callbacks.on_done = [&](const Result<http::ClientResponse>& r) {
      const auto masters = r ? masters_answer(url.prefix, r->status, r->body)
                             : Result<std::vector<std::string>>(fail(r.error()));
      if (masters && !masters->empty()) {
        for (const std::string& m : *masters) found += (found.empty() ? "" : ",") + m;
        return loop.stop();
      }
      why = masters ? Error{Code::kUnavailable, "no master is there"} : masters.error();
      endpoint = (endpoint + 1) % url.endpoints.size();
      loop.after(kAskAgain, ask);
    };
    http.send(request_of(url.endpoints[endpoint], masters_call(url.prefix),
                         std::max(kTimeoutMin, deadline - clock.now())),
              std::move(callbacks));
  };
  ask();
  loop.at(deadline, [&] { loop.stop(); });
  MC_TRY_(loop.run());
  if (!found.empty()) return found;
  return fail(Code::kUnavailable, "%s: %s: is mc-master running with --ha %s?",
              escape(text).c_str(), why.what.c_str(), escape(text).c_str());
}

}  // namespace mc::store
