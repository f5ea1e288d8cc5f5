// Formats the paper's figures: Markdown, JSON, and one HTML file with bars.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "sim/paper/paper.h"

namespace mc::sim {
namespace {

// Four digits; large numbers whole, as people write them.
std::string value(const std::optional<double>& v) {
  if (!v) return "-";
  return strf(std::abs(*v) >= 1000 ? "%.0f" : "%.4g", *v);
}

std::string ratio(const PaperRow& r) {
  if (!r.published || !r.ours) return "-";
  return strf(r.judged ? "%.2f" : "(%.2f)", *r.ours / *r.published);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

// A pair of bars for a row, as wide as their share of the largest value of the figure.
std::string bars(const PaperRow& r, double largest) {
  const auto bar = [&](const std::optional<double>& v, int y, const char* colour) {
    if (!v || largest <= 0) return std::string();
    return strf("<rect x=\"0\" y=\"%d\" width=\"%.1f\" height=\"8\" fill=\"%s\"/>", y,
                300 * std::max(*v, 0.0) / largest, colour);
  };
  return "<svg width=\"304\" height=\"20\" role=\"img\">" + bar(r.published, 1, "#9aa5b1") +
         bar(r.ours, 11, "#1f6feb") + "</svg>";
}

// Rows with one unit share a scale, so that they compare. Rows with several units have their own.
bool one_unit(const PaperFigure& f) {
  return f.unit.find_first_of(",;") == std::string::npos && f.unit != "as named";
}

double largest_of(const PaperRow& r) {
  return std::max(std::abs(r.published.value_or(0)), std::abs(r.ours.value_or(0)));
}

constexpr const char* kColours[] = {"#1f6feb", "#c2570c", "#2b8a3e", "#8250df"};

// Draws the curves from `first` on that belong to one chart; moves `first` behind them.
std::string chart(const std::vector<PaperCurve>& curves, size_t& first) {
  constexpr double kWidth = 640, kHeight = 150, kLeft = 34, kTop = 6;
  const std::string& title = curves[first].chart;
  size_t end = first;
  double until = 1, most = 0;
  for (; end < curves.size() && curves[end].chart == title; ++end)
    for (const auto& [at, v] : curves[end].points) {
      until = std::max(until, at);
      most = std::max(most, v);
    }
  if (most <= 0) most = 1;
  std::string lines, legend;
  for (size_t i = first; i < end; ++i) {
    const char* colour = kColours[(i - first) % std::size(kColours)];
    lines += strf("<polyline fill=\"none\" stroke=\"%s\" points=\"", colour);
    for (const auto& [at, v] : curves[i].points)
      lines += strf("%.1f,%.1f ", kLeft + kWidth * at / until,
                    kTop + kHeight * (1 - std::max(v, 0.0) / most));
    lines += "\"/>";
    legend += strf(" <span style=\"color:%s\">%s</span>", colour, escaped(curves[i].name).c_str());
  }
  first = end;
  return strf(
             "<p class=\"s\">%s:%s</p>\n<svg width=\"%.0f\" height=\"%.0f\" role=\"img\" "
             "font-size=\"11\" fill=\"#5b6875\"><path d=\"M%.0f %.0fV%.0fH%.0f\" "
             "stroke=\"#9aa5b1\" fill=\"none\"/><text x=\"0\" y=\"%.0f\">%.3g</text>"
             "<text x=\"0\" y=\"%.0f\">0</text><text x=\"%.0f\" y=\"%.0f\" "
             "text-anchor=\"end\">%.0f s</text>",
             escaped(title).c_str(), legend.c_str(), kLeft + kWidth + 4, kTop + kHeight + 20, kLeft,
             kTop, kTop + kHeight, kLeft + kWidth, kTop + 10, most, kTop + kHeight, kLeft + kWidth,
             kTop + kHeight + 14, until) +
         lines + "</svg>\n";
}

constexpr const char* kStyle =
    "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1c2733}h2{margin-top:2.2rem}table{border-collapse:collapse}td,th{padding:.15rem .7rem;"
    "text-align:left;border-bottom:1px solid "
    "#e3e8ee}th{font-weight:600;color:#5b6875}td:first-child{white-space:nowrap}td.n,th.n{text-"
    "align:right;font-variant-numeric:"
    "tabular-nums}.v{font-weight:600}.s{color:#5b6875}";

constexpr const char* kForeword =
    "Everything here is simulated: times come from the coefficients of the model, fitted once, and "
    "caches from the traces. Published values were read from the paper's figures. A ratio in "
    "parentheses compares with a system that is not simulated, and is no part of the verdict.";

}  // namespace

std::string paper_text(const std::vector<PaperFigure>& figures) {
  std::string out = strf("# The paper's evaluation, simulated\n\n%s\n", kForeword);
  for (const PaperFigure& f : figures) {
    out +=
        strf("\n## %s: %s\n\n%s. Unit: %s.\n\n| | published | ours | ratio |\n|---|--:|--:|--:|\n",
             f.id.c_str(), f.title.c_str(), f.setting.c_str(), f.unit.c_str());
    for (const PaperRow& r : f.rows)
      out += "| " + r.what + " | " + value(r.published) + " | " + value(r.ours) + " | " + ratio(r) +
             " |\n";
    for (const PaperClaim& c : f.claims)
      out += strf("%s- %s: %s\n", &c == &f.claims[0] ? "\n" : "", c.what.c_str(),
                  c.holds ? "yes" : "**no**");
    out += "\n**" + f.verdict + "**" + (f.note.empty() ? "" : " " + f.note) + "\n";
  }
  return out;
}

std::string paper_html(const std::vector<PaperFigure>& figures) {
  std::string out = strf(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>The paper's evaluation, "
      "simulated</title>\n<style>%s</style>\n<h1>The paper's evaluation, simulated</h1>\n<p>%s "
      "Grey: published. Blue: ours.</p>\n",
      kStyle, kForeword);
  for (const PaperFigure& f : figures) {
    double largest = 0;
    for (const PaperRow& r : f.rows) largest = std::max(largest, largest_of(r));
    out +=
        "<h2>" + escaped(f.id + ": " + f.title) + "</h2>\n<p class=\"s\">" +
        escaped(f.setting + ". Unit: " + f.unit) +
        ".</p>\n<table><tr><th><th class=\"n\">published<th class=\"n\">ours<th "
        "class=\"n\">ratio<th>" +
        (one_unit(f) || f.rows.empty() || !f.rows[0].published ? "" : "each row to its own scale") +
        "</tr>\n";
    for (const PaperRow& r : f.rows)
      out += "<tr><td>" + escaped(r.what) + "<td class=\"n\">" + value(r.published) +
             "<td class=\"n\">" + value(r.ours) + "<td class=\"n\">" + ratio(r) + "<td>" +
             bars(r, one_unit(f)   ? largest
                     : r.published ? largest_of(r)
                                   : 0) +
             "</tr>\n";
    out += "</table>\n";
    for (size_t i = 0; i < f.curves.size();) out += chart(f.curves, i);
    if (!f.claims.empty()) {
      out += "<ul>";
      for (const PaperClaim& c : f.claims)
        out += "<li>" + escaped(c.what) + (c.holds ? ": yes" : ": <b>no</b>");
      out += "</ul>\n";
    }
    out += "<p><span class=\"v\">" + escaped(f.verdict) + "</span> " + escaped(f.note) + "</p>\n";
  }
  return out + "</html>\n";
}

Json paper_json(const std::vector<PaperFigure>& figures) {
  Json out = Json::array();
  const auto maybe = [](const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); };
  for (const PaperFigure& f : figures) {
    Json rows = Json::array();
    for (const PaperRow& r : f.rows)
      rows.push_back({{"what", r.what},
                      {"published", maybe(r.published)},
                      {"ours", maybe(r.ours)},
                      {"judged", r.judged}});
    Json curves = Json::array();
    for (const PaperCurve& c : f.curves)
      curves.push_back({{"chart", c.chart}, {"name", c.name}, {"points", c.points}});
    Json claims = Json::array();
    for (const PaperClaim& c : f.claims) claims.push_back({{"what", c.what}, {"holds", c.holds}});
    out.push_back({{"id", f.id},
                   {"title", f.title},
                   {"unit", f.unit},
                   {"setting", f.setting},
                   {"rows", rows},
                   {"curves", curves},
                   {"claims", claims},
                   {"verdict", f.verdict},
                   {"note", f.note}});
  }
  return {{"schema", "mc-replay-paper/1"}, {"mode", "sim"}, {"figures", out}};
}

}  // namespace mc::sim
