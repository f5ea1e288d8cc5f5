#include "trace/report/page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace mc::trace {
namespace {

const Chart* chart_named(const std::vector<Chart>& charts, const std::string& id) {
  const auto it =
      std::find_if(charts.begin(), charts.end(), [&](const Chart& c) { return c.id == id; });
  return it == charts.end() ? nullptr : &*it;
}

const ChartSeries* series_named(const Chart& c, const std::string& name) {
  const auto it = std::find_if(c.series.begin(), c.series.end(),
                               [&](const ChartSeries& s) { return s.name == name; });
  return it == c.series.end() ? nullptr : &*it;
}

size_t times(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// A request a second for a minute. TTFT is 0.1 s in the first half and 0.4 s in the second, where
// half the prompt comes from caches; each is answered for another second.
std::vector<RequestResult> a_minute() {
  std::vector<RequestResult> all;
  for (uint64_t i = 0; i < 60; ++i) {
    RequestResult r;
    r.id = i;
    r.t_intended_ms = 1000.0 * static_cast<double>(i) + 500;
    r.input = 1000;
    r.output = 11;
    r.cached = i < 30 ? 0 : 500;
    r.ttft_ms = i < 30 ? 100 : 400;
    r.queue_ms = *r.ttft_ms / 4;
    r.prefill_ms = *r.ttft_ms / 2;
    r.e2e_ms = *r.ttft_ms + 1000;
    r.gaps_ms.assign(10, 100);
    all.push_back(std::move(r));
  }
  all[59].status = Status::kRejected;
  all[59].ttft_ms = all[59].e2e_ms = all[59].queue_ms = all[59].prefill_ms = std::nullopt;
  all[59].gaps_ms.clear();
  return all;
}

RunInfo conditions() {
  RunInfo info;
  info.slo.ttft_ms = 300;
  info.duration_s = 60;
  info.reachable_hit_tokens = 30'000;
  return info;
}

}  // namespace

TEST_CASE("report page: the charts have the data") {
  const auto charts = report_charts(a_minute(), conditions());
  const Chart* const ttft = chart_named(charts, "ttft-time");
  REQUIRE(ttft != nullptr);
  CHECK(ttft->series[0].points.size() == 59);  // a dot each
  const ChartSeries* const p50 = series_named(*ttft, "p50");
  REQUIRE(p50 != nullptr);
  REQUIRE(p50->points.size() == 60);  // windows of a second
  CHECK(p50->points[3] == std::pair(3.5, 0.1));
  CHECK(p50->points[40] == std::pair(40.5, 0.4));
  CHECK(std::isnan(p50->points[59].second));  // a gap, not a zero
  REQUIRE(ttft->limits.size() == 1);
  CHECK(ttft->limits[0].value == doctest::Approx(0.3));

  const Chart* const share = chart_named(charts, "ttft-share");
  REQUIRE(share != nullptr);
  CHECK(share->limits[0].value == doctest::Approx(0.1));
  CHECK(share->limits.back().label == "objective");
  CHECK(share->note == "p50 0.1 s, p90 0.4 s, p99 0.4 s, 50.8 % within the objective");

  const Chart* const parts = chart_named(charts, "ttft-parts");
  REQUIRE(parts != nullptr);
  REQUIRE(parts->series.size() == 2);  // the others were not measured
  CHECK(parts->series[1].points[40].second == doctest::Approx(0.3));
  CHECK(parts->series[1].base[40] == doctest::Approx(0.1));

  const Chart* const tbt = chart_named(charts, "tbt-time");
  REQUIRE(tbt != nullptr);
  CHECK(series_named(*tbt, "p99")->points[3].second == doctest::Approx(100));
  CHECK(tbt->limits.empty());

  const Chart* const hits = chart_named(charts, "hits");
  REQUIRE(hits != nullptr);
  CHECK(series_named(*hits, "in the window")->points[3].second == 0);
  CHECK(series_named(*hits, "in the window")->points[40].second == 50);
  CHECK(series_named(*hits, "since the start")->points[58].second == doctest::Approx(24.576));
  CHECK(hits->limits[0].label == "reachable 50.8 %");

  const Chart* const queues = chart_named(charts, "queues");
  REQUIRE(queues != nullptr);
  CHECK(series_named(*queues, "wait for the first token")->points[40].second ==
        doctest::Approx(0.4));
  CHECK(series_named(*queues, "are answered")->points[40].second == doctest::Approx(1));

  const Chart* const rates = chart_named(charts, "rates");
  REQUIRE(rates != nullptr);
  CHECK(series_named(*rates, "due")->points[7].second == 1);
  CHECK(series_named(*rates, "refused")->points[59].second == 1);
  CHECK(series_named(*rates, "failed")->points.empty());
  CHECK(series_named(*chart_named(charts, "output-tokens"), "output")->points[40].second == 11);
}

TEST_CASE("report page: every series is drawn, and nothing comes from elsewhere") {
  RunInfo info = conditions();
  info.trace_path = "<b>&\"x\".jsonl";
  const auto results = a_minute();
  const std::string page = report_html(summarize(results, info), info, results, "more <of> it");
  for (const Chart& chart : report_charts(results, info)) {
    CAPTURE(chart.id);
    const size_t at = page.find("<figure id=\"" + chart.id + "\">");
    REQUIRE(at != page.npos);
    const std::string figure = page.substr(at, page.find("</figure>", at) - at);
    CHECK(times(figure, "<svg class=\"chart\"") == 1);
    for (const ChartSeries& s : chart.series) {
      const bool drawn = figure.find("data-series=\"" + html_escaped(s.name) + "\"") != figure.npos;
      CHECK(drawn == std::any_of(s.points.begin(), s.points.end(),
                                 [](const auto& p) { return std::isfinite(p.second); }));
    }
    CHECK(figure.find(html_escaped(chart.x_label) + "</text>") != figure.npos);
    CHECK(figure.find(html_escaped(chart.y_label) + "</text>") != figure.npos);
    for (const ChartLimit& l : chart.limits)
      CHECK(figure.find(html_escaped(l.label) + "</text>") != figure.npos);
    CHECK(figure.find("nan") == figure.npos);
    CHECK(figure.find("inf") == figure.npos);
  }
  CHECK(page.find("more &lt;of&gt; it") != page.npos);
  CHECK(page.find("&lt;b&gt;&amp;&quot;x&quot;.jsonl") != page.npos);
  CHECK(page.find("<b>&\"x") == page.npos);
  for (const char* loads : {"<script", "http://", "https://", "src=", "@import", "url("})
    CHECK(page.find(loads) == page.npos);
  CHECK(page.find("prefers-color-scheme: dark") != page.npos);
  CHECK(page.find("TTFT p99") != page.npos);
  CHECK(page.find("stopped by a signal") == page.npos);
  info.interrupted = true;
  info.trace_requests = 99;
  CHECK(report_html(summarize(results, info), info, results)
            .find("<span>stopped by a signal</span><b class=\"bad\">60 of 99 sent</b>") !=
        page.npos);
}

TEST_CASE("report page: short times are in milliseconds, and a far objective flattens nothing") {
  auto results = a_minute();
  for (RequestResult& r : results)
    if (r.ttft_ms) *r.ttft_ms /= 10;
  const auto charts = report_charts(results, conditions());
  const Chart* const ttft = chart_named(charts, "ttft-time");
  REQUIRE(ttft != nullptr);
  CHECK(ttft->y_label == "TTFT (ms)");
  CHECK(series_named(*ttft, "p50")->points[3].second == 10);
  CHECK(ttft->limits.empty());
  CHECK(ttft->note.find("all far below the objective 300 ms") != std::string::npos);
  CHECK(chart_named(charts, "ttft-parts")->y_label == "mean of each part (ms)");
}

TEST_CASE("report page: odd runs") {
  const RunInfo info;
  CHECK(report_charts({}, info).empty());
  CHECK(report_html(summarize({}, info), info, {}).find("Nothing was measured") !=
        std::string::npos);
  RequestResult one;  // one request, of no time, without a second token
  one.ttft_ms = one.e2e_ms = 0;
  one.input = one.output = 1;
  const std::string page = report_html(summarize({one}, info), info, {one});
  CHECK(page.find("nan") == page.npos);
  CHECK(page.find("<figure id=\"ttft-time\">") != page.npos);
  CHECK(page.find("<figure id=\"tbt-time\">") == page.npos);
  std::vector<RequestResult> many(5000, one);  // over six decades
  for (size_t i = 0; i < many.size(); ++i) {
    many[i].t_intended_ms = static_cast<double>(i) * 20;
    many[i].ttft_ms = std::pow(10.0, static_cast<double>(i % 7)) * 0.1;
  }
  const auto charts = report_charts(many, info);
  CHECK(charts[0].log_y);
  CHECK(charts[0].series[0].points.size() <= 2500);
  CHECK(charts[0].series[0].name == "a request, 1 of 2");
}

TEST_CASE("charts: marks of an axis are round") {
  CHECK(axis_marks(0, 10, false, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(axis_marks(0, 0.7, false, 5).size() == 4);
  CHECK_FALSE(std::signbit(axis_marks(0, 1, false, 5)[0]));
  CHECK(axis_marks(1, 100, true, 5) == std::vector<double>{1, 2, 5, 10, 20, 50, 100});
  CHECK(axis_marks(0.001, 1000, true, 5).size() == 7);
  CHECK(axis_marks(3, 3, false, 5).empty());
  CHECK(axis_marks(0, INFINITY, false, 5).empty());
}

}  // namespace mc::trace
