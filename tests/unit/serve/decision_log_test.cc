#include "serve/conductor/decision_log.h"

#include <doctest/doctest.h>

#include "base/json.h"

using namespace mc;
using namespace mc::serve;

namespace decision_log_test {
namespace {

sched::Decision decision(size_t candidates) {
  sched::Decision d;
  d.verdict = sched::Verdict::kAccept;
  for (size_t i = 0; i < candidates; ++i) {
    sched::Candidate c;
    c.name = "p" + std::to_string(i);
    c.ttft_ms = static_cast<double>(candidates - i);  // the last is the best
    d.candidates.push_back(c);
  }
  d.chosen = d.candidates.back();
  return d;
}

}  // namespace

TEST_CASE("the last requests are kept, each with its last decisions and best candidates") {
  DecisionLog log(3);
  CHECK(log.find("r0").is_null());
  for (uint64_t job = 0; job < 10; ++job)
    log.decided(job, "r" + std::to_string(job), 100, decision(40), "d0");
  CHECK(log.size() == 3);
  CHECK(log.find("r6").is_null());
  const Json j = log.find("r9");
  CHECK(j["prompt_tokens"] == 100);
  CHECK(j["outcome"].is_null());
  const Json& candidates = j["decisions"][0]["candidates"];
  CHECK(candidates.size() == DecisionLog::kCandidatesMax);
  CHECK(candidates[0]["name"] == "p39");
  for (int i = 0; i < 20; ++i) log.decided(9, "r9", 100, decision(1), "d1");
  CHECK(log.find("r9")["decisions"].size() == DecisionLog::kDecisionsMax);
  CHECK(log.find("r9")["decisions_made"] == 21);
}

TEST_CASE("an id that comes again names the newest, and outlives the older one") {
  DecisionLog log(2);
  log.decided(1, "same", 10, decision(1), "d0");
  log.decided(2, "same", 20, decision(1), "d0");
  log.ended(1, {}, 200, "stop", "");
  CHECK(log.find("same")["prompt_tokens"] == 20);
  CHECK(log.find("same")["outcome"].is_null());
  log.decided(3, "other", 30, decision(1), "d0");  // the first is forgotten
  CHECK(log.find("same")["prompt_tokens"] == 20);
  Progress p;
  p.ttft_ms = 12;
  log.ended(2, p, 429, "ttft_slo", "too late");
  CHECK(log.find("same")["outcome"]["status"] == 429);
  CHECK(log.find("same")["outcome"]["ttft_ms"] == 12);
  log.ended(77, p, 200, "", "");  // unknown: fine
}

TEST_CASE("nothing is kept where nothing is wanted") {
  DecisionLog log(0);
  log.decided(1, "r", 10, decision(1), "d0");
  CHECK(log.size() == 0);
}

}  // namespace decision_log_test
