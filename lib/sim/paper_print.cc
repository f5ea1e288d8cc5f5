// How the paper's figures look: Markdown, JSON, and one HTML file with bars.
#include <algorithm>

#include "base/json.h"
#include "sim/paper.h"

namespace mc::sim {
namespace {

std::string value(const std::optional<double>& v) { return v ? strf("%.4g", *v) : "-"; }

std::string ratio(const PaperRow& r) {
  return r.published && r.ours ? strf("%.2f", *r.ours / *r.published) : "-";
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

constexpr const char* kStyle =
    "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1c2733}h2{margin-top:2.2rem}table{border-collapse:collapse}td,th{padding:.15rem .7rem;"
    "text-align:left;border-bottom:1px solid #e3e8ee}td.n{text-align:right;font-variant-numeric:"
    "tabular-nums}.v{font-weight:600}.s{color:#5b6875}";

constexpr const char* kForeword =
    "Everything here is simulated: times come from the coefficients of the model, fitted once, and "
    "caches from the traces. Published values were read from the paper's figures.";

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
    for (const PaperRow& r : f.rows)
      largest = std::max({largest, r.published.value_or(0), r.ours.value_or(0)});
    out += "<h2>" + escaped(f.id + ": " + f.title) + "</h2>\n<p class=\"s\">" +
           escaped(f.setting + ". Unit: " + f.unit) +
           ".</p>\n<table><tr><th><th>published<th>ours<th>ratio<th></tr>\n";
    for (const PaperRow& r : f.rows)
      out += "<tr><td>" + escaped(r.what) + "<td class=\"n\">" + value(r.published) +
             "<td class=\"n\">" + value(r.ours) + "<td class=\"n\">" + ratio(r) + "<td>" +
             bars(r, largest) + "</tr>\n";
    out += "</table>\n<p><span class=\"v\">" + escaped(f.verdict) + "</span> " + escaped(f.note) +
           "</p>\n";
  }
  return out + "</html>\n";
}

Json paper_json(const std::vector<PaperFigure>& figures) {
  Json out = Json::array();
  const auto maybe = [](const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); };
  for (const PaperFigure& f : figures) {
    Json rows = Json::array();
    for (const PaperRow& r : f.rows)
      rows.push_back(
          {{"what", r.what}, {"published", maybe(r.published)}, {"ours", maybe(r.ours)}});
    out.push_back({{"id", f.id},
                   {"title", f.title},
                   {"unit", f.unit},
                   {"setting", f.setting},
                   {"rows", rows},
                   {"verdict", f.verdict},
                   {"note", f.note}});
  }
  return {{"schema", "mc-replay-paper/1"}, {"mode", "sim"}, {"figures", out}};
}

}  // namespace mc::sim
