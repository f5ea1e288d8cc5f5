#include "trace/report/report.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/json.h"

namespace mc::trace {
namespace {

RequestResult answered(uint64_t id, double due_ms, double ttft_ms, std::vector<double> gaps) {
  RequestResult r;
  r.id = id;
  r.t_intended_ms = due_ms;
  r.t_sent_ms = due_ms + 0.5;
  r.input = 1100;
  r.hash_blocks = 3;
  r.output = gaps.size() + 1;
  r.http = 200;
  r.ttft_ms = ttft_ms;
  r.e2e_ms = ttft_ms;
  for (const double g : gaps) *r.e2e_ms += g;
  r.gaps_ms = std::move(gaps);
  return r;
}

RequestResult refused(uint64_t id, double due_ms, Status status, const std::string& reason) {
  RequestResult r;
  r.id = id;
  r.t_intended_ms = due_ms;
  r.t_sent_ms = due_ms;
  r.input = 10;
  r.status = status;
  r.reason = reason;
  return r;
}

TEST_CASE("percentiles are exact and interpolate between neighbours") {
  const Distribution d({4, 1, 3, 2});
  CHECK(d.percentile(0) == 1);
  CHECK(d.percentile(50) == 2.5);
  CHECK(d.percentile(100) == 4);
  CHECK(d.percentile(90) == doctest::Approx(3.7));
  CHECK(d.mean() == 2.5);
  CHECK(d.deviation() == doctest::Approx(std::sqrt(1.25)));
  CHECK(d.share_up_to(2) == 0.5);
  CHECK(Distribution({7}).percentile(99) == 7);
  CHECK(Distribution().empty());
}

TEST_CASE("TBT is the mean of the longest tenth of the gaps, rounded up") {
  std::vector<double> gaps(20, 1.0);
  gaps[3] = 10;
  gaps[17] = 20;
  CHECK(longest_tenth_mean(gaps) == 15);
  gaps.push_back(1);  // 21 gaps: the longest three
  CHECK(longest_tenth_mean(gaps) == doctest::Approx(31.0 / 3));
  CHECK(longest_tenth_mean({5}) == 5);
}

TEST_CASE("TPOT leaves the first token out, ITL pools every gap") {
  const Summary s = summarize({answered(0, 0, 100, {10, 20, 30}), answered(1, 0, 50, {40})}, {});
  CHECK(s.tpot_ms.n() == 2);
  CHECK(s.tpot_ms.min() == 20);
  CHECK(s.tpot_ms.max() == 40);
  CHECK(s.itl_ms.n() == 4);
  CHECK(s.itl_ms.mean() == 25);
  CHECK(s.tbt_ms.min() == 30);
}

TEST_CASE("a request of one token has no TBT or TPOT and cannot miss a TBT objective") {
  RunInfo info;
  info.slo.tbt_ms = 1;
  const RequestResult one = answered(0, 0, 100, {});
  CHECK(!one.tbt_ms());
  CHECK(!one.tpot_ms());
  const Summary s = summarize({one}, info);
  CHECK(s.within_slo == 1);
  CHECK(s.tbt_ms.empty());
}

TEST_CASE("refused, failed, late and cancelled requests count in the effective ratio") {
  RunInfo info;
  info.slo = {.ttft_ms = 100, .tbt_ms = 25};
  const Summary s = summarize(
      {answered(0, 0, 100, {25}), answered(1, 1000, 101, {5}), answered(2, 2000, 5, {26}),
       answered(3, 3000, 500, {500}), refused(4, 4000, Status::kRejected, "ttft_slo"),
       refused(5, 5000, Status::kRejected, "tbt_slo"), refused(6, 6000, Status::kFailed, ""),
       refused(7, 7000, Status::kTimeout, "30s"), refused(8, 8000, Status::kCancelled, "client"),
       refused(9, 9000, Status::kRejected, "ttft_slo")},
      info);
  CHECK(s.sent == 10);
  CHECK(s.ok == 4);
  CHECK(s.rejected == 3);
  CHECK(s.failed == 1);
  CHECK(s.timeout == 1);
  CHECK(s.cancelled == 1);
  CHECK(s.within_slo == 1);
  CHECK(s.slo_ttft_miss == 2);
  CHECK(s.slo_tbt_miss == 2);
  CHECK(*s.effective_ratio == doctest::Approx(0.1));
  CHECK(s.rejected_by == std::map<std::string, uint64_t>{{"tbt_slo", 1}, {"ttft_slo", 2}});
  CHECK(s.errors == std::map<std::string, uint64_t>{{"30s", 1}, {"client", 1}, {"unknown", 1}});
  CHECK(*s.offered_rps == doctest::Approx(1));
}

TEST_CASE("an objective for a figure that was not measured is missed") {
  RunInfo info;
  info.slo.ttft_ms = 100;
  RequestResult r = answered(0, 0, 1, {1});
  r.ttft_ms.reset();
  CHECK(summarize({r}, info).within_slo == 0);
}

TEST_CASE("rates are over the given duration, or else over the measured time") {
  RunInfo info;
  info.duration_s = 4;
  const std::vector<RequestResult> results = {answered(0, 0, 500, {}), answered(1, 1000, 1000, {})};
  CHECK(*summarize(results, info).completed_rps == 0.5);
  info.duration_s.reset();
  CHECK(*summarize(results, info).duration_s == 2);
  CHECK(*summarize(results, info).completed_rps == 1);
}

TEST_CASE("the hit ratio counts only requests whose server reports hits") {
  auto a = answered(0, 0, 1, {}), b = answered(1, 0, 1, {}), c = answered(2, 0, 1, {});
  a.cached = 1024;
  a.prefill = "p0";
  a.decode = "d0";
  b.cached = 0;
  b.prefill = "p1";
  const Summary s = summarize({a, b, c}, {});
  CHECK(*s.hit_tokens == 1024);
  CHECK(s.hit_known_input == 2200);
  CHECK(*s.hit_ratio_tokens() == doctest::Approx(1024.0 / 2200));
  REQUIRE(s.nodes.size() == 3);
  CHECK(s.nodes[0].id == "p0");
  CHECK(s.nodes[0].hit_tokens == 1024);
  CHECK(s.nodes[2].id == "d0");
  CHECK(!summarize({c}, {}).hit_tokens);
}

TEST_CASE("hits of parts of blocks make no full blocks: no ratio is above 1") {
  auto a = answered(0, 0, 1, {}), b = answered(1, 0, 1, {});
  a.cached = b.cached = 1088;  // of 1100 tokens, two full blocks of 512
  const Json cache = report_json(summarize({a, b}, {}), {})["cache"];
  CHECK(cache["hit_ratio_full_blocks"] == 1.0);
}

TEST_CASE("without a request that succeeded the text does not blame the server for unknown hits") {
  const auto late = refused(0, 0, Status::kTimeout, "150ms");
  const std::string none = report_text(summarize({late}, {}), {});
  CHECK_MESSAGE(none.find("hits unknown: no request succeeded") != std::string::npos, none);
  const std::string some = report_text(summarize({late, answered(1, 0, 1, {})}, {}), {});
  CHECK_MESSAGE(some.find("the server does not report") != std::string::npos, some);
}

TEST_CASE("a run that a signal ended says so, with what was sent") {
  RunInfo info;
  info.trace_requests = 7;
  const Summary s = summarize({answered(0, 0, 1, {})}, info);
  CHECK(report_json(s, info)["interrupted"] == false);
  CHECK(report_text(s, info).find("signal") == std::string::npos);
  info.interrupted = true;
  CHECK(report_json(s, info)["interrupted"] == true);
  CHECK(report_text(s, info).find("stopped   by a signal: 1 of 7 requests were sent\n") !=
        std::string::npos);
}

TEST_CASE("KV errors are the cluster's count, else the requests', else unknown") {
  auto a = answered(0, 0, 1, {}), b = answered(1, 0, 1, {});
  RunInfo info;
  CHECK(!summarize({a, b}, info).kv_errors);
  a.kv_errors = 2;
  b.kv_errors = 0;
  CHECK(*summarize({a, b}, info).kv_errors == 2);
  info.kv_errors = 5;
  CHECK(*summarize({a, b}, info).kv_errors == 5);
}

TEST_CASE("a schedule is kept when the p99 of the lag is within bounds") {
  RunInfo info;
  info.max_lag_ms = 0.4;
  CHECK(!*summarize({answered(0, 0, 1, {})}, info).schedule_kept);
  info.max_lag_ms = 0.6;
  CHECK(*summarize({answered(0, 0, 1, {})}, info).schedule_kept);
  CHECK(!summarize({}, info).schedule_kept);
}

TEST_CASE("unmeasured values are null in JSON and never 0") {
  const Json empty = report_json(summarize({}, {}), {});
  CHECK(empty["schema"] == "mc-replay/1");
  CHECK(empty["requests"]["sent"] == 0);
  for (const char* key : {"duration_s", "effective_ratio", "goodput_rps", "offered_rps",
                          "completed_rps", "kv_errors", "predictor"})
    CHECK_MESSAGE(empty[key].is_null(), key);
  for (const auto& metric : empty["metrics"].items())
    CHECK_MESSAGE(metric.value().is_null(), metric.key());
  CHECK(empty["cache"]["hit_tokens"].is_null());
  CHECK(empty["tokens"]["input_per_s"].is_null());
  CHECK(empty["slo"]["ttft_s"].is_null());
}

TEST_CASE("JSON carries seconds and milliseconds as its keys say") {
  auto a = answered(0, 0, 1500, {10, 10});
  a.predicted_ttft_ms = 1400;
  RunInfo info;
  info.slo.ttft_ms = 30000;
  const Json json = report_json(summarize({a}, info), info);
  CHECK(json["metrics"]["ttft_s"]["p50"] == doctest::Approx(1.5));
  CHECK(json["metrics"]["ttft_s"]["n"] == 1);
  CHECK(json["metrics"]["tbt_ms"]["p99"] == doctest::Approx(10));
  CHECK(json["metrics"]["queue_s"].is_null());
  CHECK(json["slo"]["ttft_s"] == doctest::Approx(30));
  CHECK(json["predictor"]["ttft_err_s"]["mean"] == doctest::Approx(-0.1));
  CHECK(json["cdf"]["tbt_ms"].size() == 20);
}

TEST_CASE("a request's line is one JSON object, with gaps only on request") {
  auto a = answered(7, 12, 30, {5});
  a.reason = "say \"no\"\n";
  const std::string line = request_line(a, false);
  CHECK(line.find('\n') == line.size() - 1);
  const auto json = parse_json(line);
  REQUIRE(json);
  CHECK((*json)["id"] == 7);
  CHECK((*json)["request_id"].is_null());
  CHECK((*json)["ttft_ms"] == 30.0);
  CHECK((*json)["tbt_ms"] == 5.0);
  CHECK((*json)["cached"].is_null());
  CHECK((*json)["prefill"].is_null());
  CHECK((*json)["status"] == "ok");
  CHECK(!json->contains("gaps_ms"));
  CHECK((*parse_json(request_line(a, true)))["gaps_ms"].size() == 1);
  const auto no = parse_json(request_line(refused(1, 0, Status::kRejected, "queue_full"), false));
  REQUIRE(no);
  CHECK((*no)["ttft_ms"].is_null());
  CHECK((*no)["http"].is_null());
  CHECK((*no)["reason"] == "queue_full");
}

TEST_CASE("the text report holds every count, the objectives and one definition of each metric") {
  RunInfo info;
  info.url = "http://127.0.0.1:8000";
  info.trace_path = "/some/where/t.jsonl";
  info.slo = {.ttft_ms = 30000, .tbt_ms = 100};
  info.prefill_nodes = 2;
  info.decode_nodes = 2;
  info.policy = "kvcache";
  info.expected_hit_tokens = 512;
  auto a = answered(0, 0, 20, {5, 6});
  a.cached = 512;
  a.prefill = "p0";
  a.kv_errors = 0;
  Summary s = summarize({a, refused(1, 10, Status::kRejected, "ttft_slo")}, info);
  s.gates.push_back({"effective>=0.9", false});
  const std::string text = report_text(s, info);
  for (const char* part :
       {"2 sent", "1 ok", "1 rejected (429)", "ttft_slo 1", "50.00 % of sent", "t.jsonl",
        "2 prefill + 2 decode, policy kvcache", "TTFT <= 30 s, TBT <= 100 ms",
        "512 hit tokens = 46.5 % of input", "expected of this cluster 512", "0 KV errors",
        "TBT (worst 10%) ms", "p0 1 requests hit 46.5 %", "effective>=0.9: FAIL", "definitions"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part << "\n" << text);
  CHECK(text.find("/some/where") == std::string::npos);
  CHECK(text.find("ICL") == std::string::npos);
  info.gaps_are_chunks = true;
  CHECK(report_text(s, info).find("ICL (chunks)") != std::string::npos);
}

TEST_CASE("gates read counts, figures and percentiles") {
  const Summary s = summarize({answered(0, 0, 1500, {10}), answered(1, 0, 500, {20}),
                               refused(2, 0, Status::kRejected, "x")},
                              {});
  const auto pass = [&](const char* expr) {
    const auto gate = check_gate(s, expr);
    REQUIRE_MESSAGE(gate, expr);
    return gate->pass;
  };
  CHECK(pass("effective>=0.6"));
  CHECK(!pass("effective>0.7"));
  CHECK(pass("p50.ttft_s <= 1.0"));
  CHECK(!pass("max.ttft_s<1.5"));
  CHECK(pass("p99.9.tbt_ms>19"));
  CHECK(pass("rejected==1"));
  CHECK(pass("failed==0"));
  CHECK(pass("ok!=3"));
  CHECK(!pass("kv-errors==0"));  // not counted
  CHECK(!pass("mean.queue_s<100"));
}

TEST_CASE("a mistyped gate is refused before the run, with a suggestion") {
  CHECK(check_gate_syntax("effective>=0.95"));
  CHECK(check_gate_syntax("efective>=0.95").error().what.find("did you mean 'effective'") !=
        std::string::npos);
  CHECK(check_gate_syntax("p99.tbt_s<1").error().code == Code::kInvalid);
  CHECK(!check_gate_syntax("p999.tbt_ms<1"));
  CHECK(!check_gate_syntax("effective"));
  CHECK(!check_gate_syntax("effective>=much"));
  CHECK(!check_gate_syntax(""));
}

}  // namespace
}  // namespace mc::trace
