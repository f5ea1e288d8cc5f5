#include "trace/report/chart.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace mc::trace {
namespace {

// In pixels of the picture, which the page scales.
constexpr double kWide = 720, kHigh = 260, kLeft = 64, kRight = 16, kTop = 14, kBottom = 46;

// From data to 0 ... 1.
struct Axis {
  double from = 0, to = 1;
  bool logarithmic = false;
  std::vector<double> marks;

  double at(double v) const {
    if (logarithmic)
      return (std::log10(std::max(v, from)) - std::log10(from)) /
             (std::log10(to) - std::log10(from));
    return (v - from) / (to - from);
  }
};

struct Range {
  double from = HUGE_VAL, to = -HUGE_VAL;
  void add(double v) {
    if (!std::isfinite(v)) return;
    from = std::min(from, v);
    to = std::max(to, v);
  }
};

Axis axis_of(Range r, bool logarithmic, size_t most) {
  Axis a;
  a.logarithmic = logarithmic;
  if (!std::isfinite(r.from)) r = {0, 1};
  if (logarithmic) {
    r.from = std::max(r.from, r.to / 1e6);
    if (r.from <= 0) r = {0.1, 10};
    a.from = r.from;
    a.to = r.to > r.from ? r.to : 10 * r.from;
  } else {
    a.from = r.from;
    a.to = r.to > r.from ? r.to : r.from + 1;
  }
  a.marks = axis_marks(a.from, a.to, logarithmic, most);
  return a;
}

std::string number(double v) {
  const double size = std::abs(v);
  if (size >= 1e6) return strf("%.4gM", v / 1e6);
  if (size >= 1e4) return strf("%.4gk", v / 1e3);
  return strf("%.4g", v);
}

struct Frame {
  Axis x, y;
  double px(double v) const { return kLeft + x.at(v) * (kWide - kLeft - kRight); }
  double py(double v) const {
    return kHigh - kBottom - std::clamp(y.at(v), 0.0, 1.0) * (kHigh - kTop - kBottom);
  }
};

Frame frame_of(const Chart& c) {
  Range x, y;
  for (const ChartSeries& s : c.series)
    for (size_t i = 0; i < s.points.size(); ++i) {
      x.add(s.points[i].first);
      y.add(s.points[i].second);
    }
  for (const ChartLimit& l : c.limits) (l.vertical ? x : y).add(l.value);
  if (!c.log_y) y.from = std::min(y.from, 0.0);
  y.to = c.log_y ? y.to * 1.2 : y.to + (y.to - y.from) * 0.05;
  if (c.log_x) x.to *= 1.1;
  if (c.x_from) x.from = *c.x_from;
  if (c.x_to) x.to = *c.x_to;
  if (c.y_to) y.to = *c.y_to;
  return {axis_of(x, c.log_x, 10), axis_of(y, c.log_y, 5)};
}

std::string axes(const Chart& c, const Frame& f) {
  const double bottom = kHigh - kBottom, right = kWide - kRight;
  std::string out;
  for (const double v : f.y.marks)
    out += strf(
        "<line class=\"grid\" x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\"/>"
        "<text class=\"mark\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
        kLeft, f.py(v), right, f.py(v), kLeft - 6, f.py(v) + 4, number(v).c_str());
  for (const double v : f.x.marks)
    out += strf(
        "<line class=\"tick\" x1=\"%.1f\" y1=\"%g\" x2=\"%.1f\" y2=\"%g\"/>"
        "<text class=\"mark\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>",
        f.px(v), bottom, f.px(v), bottom + 4, f.px(v), bottom + 17, number(v).c_str());
  out += strf(
      "<line class=\"axis\" x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\"/>"
      "<line class=\"axis\" x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\"/>\n",
      kLeft, bottom, right, bottom, kLeft, kTop, kLeft, bottom);
  out += strf("<text class=\"label\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>",
              (kLeft + right) / 2, kHigh - 8, html_escaped(c.x_label).c_str());
  out += strf(
      "<text class=\"label\" transform=\"translate(14 %g) rotate(-90)\" "
      "text-anchor=\"middle\">%s</text>\n",
      (kTop + bottom) / 2, html_escaped(c.y_label).c_str());
  return out;
}

std::string dots(const ChartSeries& s, const Frame& f) {
  std::string d;
  for (const auto& [x, y] : s.points)
    if (std::isfinite(y)) d += strf("M%.1f %.1fh0", f.px(x), f.py(y));
  return strf("<path class=\"dots s%zu\" d=\"%s\"/>", s.colour, d.c_str());
}

// With a place at each value where the pointer finds its number.
std::string line(const ChartSeries& s, const Frame& f, const Chart& c) {
  std::string d, places;
  bool pen = false;
  for (size_t i = 0; i < s.points.size(); ++i) {
    const auto& [x, y] = s.points[i];
    const bool drawn = std::isfinite(y);
    if (drawn) {
      const bool next = i + 1 < s.points.size() && std::isfinite(s.points[i + 1].second);
      d += strf("%s%.1f %.1f", pen ? "L" : "M", f.px(x), f.py(y));
      if (!pen && !next) d += "h0";  // alone between two gaps
      if (s.points.size() <= 200)
        places += strf(
            "<circle class=\"place\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"><title>%s: %s at %s"
            "</title></circle>",
            f.px(x), f.py(y), html_escaped(s.name).c_str(), number(y).c_str(),
            (number(x) + " " + html_escaped(c.x_label)).c_str());
    }
    pen = drawn;
  }
  return strf("<path class=\"line s%zu%s\" d=\"%s\"/>", s.colour, s.dashed ? " dashed" : "",
              d.c_str()) +
         places;
}

std::string area(const ChartSeries& s, const Frame& f) {
  std::string d;
  const size_t n = s.points.size();
  for (size_t i = 0; i < n; ++i)
    d += strf("%s%.1f %.1f", i == 0 ? "M" : "L", f.px(s.points[i].first), f.py(s.points[i].second));
  for (size_t i = n; i-- > 0;)
    d += strf("L%.1f %.1f", f.px(s.points[i].first), f.py(i < s.base.size() ? s.base[i] : 0));
  return strf("<path class=\"area f%zu\" d=\"%sZ\"/>", s.colour, d.c_str());
}

std::string limits(const Chart& c, const Frame& f) {
  std::string out;
  const double bottom = kHigh - kBottom, right = kWide - kRight;
  size_t row = 0;
  for (const ChartLimit& l : c.limits) {
    const std::string label = html_escaped(l.label);
    if (l.vertical) {  // labels one below the other, on the side that has room
      const double x = f.px(l.value), y = kTop + 10 + 13 * static_cast<double>(row++);
      const bool left = x > (kLeft + right) / 2;
      out += strf(
          "<line class=\"limit%s\" x1=\"%.1f\" y1=\"%g\" x2=\"%.1f\" y2=\"%g\"/>"
          "<text class=\"limit\" x=\"%.1f\" y=\"%g\" text-anchor=\"%s\">%s</text>",
          l.plain ? " plain" : "", x, kTop, x, bottom, x + (left ? -5 : 5), y,
          left ? "end" : "start", label.c_str());
    } else {
      const double y = f.py(l.value);
      out += strf(
          "<line class=\"limit\" x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\"/>"
          "<text class=\"limit\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
          kLeft, y, right, y, right - 4, y - 4, label.c_str());
    }
  }
  return out;
}

bool shown(const ChartSeries& s) {
  return std::any_of(s.points.begin(), s.points.end(),
                     [](const auto& p) { return std::isfinite(p.second); });
}

std::string legend(const Chart& c) {
  std::string out;
  for (const ChartSeries& s : c.series)
    if (shown(s))
      out += strf(
          "<li><svg width=\"22\" height=\"10\" aria-hidden=\"true\"><path class=\"%s\" "
          "d=\"%s\"/></svg>%s</li>",
          (s.style == ChartSeries::Style::kDots ? strf("dots s%zu", s.colour)
           : s.style == ChartSeries::Style::kArea
               ? strf("area f%zu", s.colour)
               : strf("line s%zu%s", s.colour, s.dashed ? " dashed" : ""))
              .c_str(),
          s.style == ChartSeries::Style::kDots   ? "M6 5h0M14 5h0"
          : s.style == ChartSeries::Style::kArea ? "M1 1H21V9H1Z"
                                                 : "M1 5H21",
          html_escaped(s.name).c_str());
  return out.empty() ? out : "<ul class=\"legend\">" + out + "</ul>\n";
}

}  // namespace

bool Chart::empty() const { return std::none_of(series.begin(), series.end(), shown); }

std::vector<double> axis_marks(double from, double to, bool logarithmic, size_t most) {
  std::vector<double> marks;
  if (!(to > from) || most == 0 || !std::isfinite(to - from)) return marks;
  if (logarithmic) {
    const double decades = std::log10(to) - std::log10(from);
    for (double power = std::floor(std::log10(from)); power <= std::ceil(std::log10(to)); ++power)
      for (const double by : {1.0, 2.0, 5.0}) {
        const double v = by * std::pow(10, power);
        if (v >= from && v <= to && (by == 1 || decades < 3)) marks.push_back(v);
      }
    return marks;
  }
  const double rough = (to - from) / static_cast<double>(most);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double by : {5.0, 2.0, 1.0})
    if (by * power >= rough) step = by * power;
  const double first = std::ceil(from / step - 1e-9);
  for (double i = first; i * step <= to + step * 1e-9; ++i)
    marks.push_back(i * step + 0.0);  // no -0
  return marks;
}

std::string chart_svg(const Chart& c) {
  const Frame f = frame_of(c);
  std::string out = "<figure id=\"" + c.id + "\">\n<figcaption><b>" + html_escaped(c.title) +
                    "</b> <span>" + html_escaped(c.note) + "</span></figcaption>\n" + legend(c);
  out += strf("<svg class=\"chart\" viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", kWide,
              kHigh, html_escaped(c.title).c_str());
  out += axes(c, f);
  for (const ChartSeries& s : c.series) {
    if (!shown(s)) continue;
    out += "<g data-series=\"" + html_escaped(s.name) + "\">";
    switch (s.style) {
      case ChartSeries::Style::kDots: out += dots(s, f); break;
      case ChartSeries::Style::kLine: out += line(s, f, c); break;
      case ChartSeries::Style::kArea: out += area(s, f); break;
    }
    out += "</g>\n";
  }
  return out + limits(c, f) + "</svg>\n" + chart_table(c) + "</figure>\n";
}

std::string chart_table(const Chart& c) {
  std::vector<const ChartSeries*> columns;
  for (const ChartSeries& s : c.series)
    if (s.style != ChartSeries::Style::kDots && shown(s) &&
        (columns.empty() || s.points.size() == columns.front()->points.size()))
      columns.push_back(&s);
  if (columns.empty()) return {};
  std::string head = "<th>" + html_escaped(c.x_label) + "</th>", rows;
  for (const ChartSeries* s : columns) head += "<th>" + html_escaped(s->name) + "</th>";
  for (size_t i = 0; i < columns.front()->points.size(); ++i) {
    rows += "<tr><td>" + number(columns.front()->points[i].first) + "</td>";
    for (const ChartSeries* s : columns) {
      const double v = s->points[i].second - (i < s->base.size() ? s->base[i] : 0);
      rows += "<td>" + (std::isfinite(v) ? strf("%.6g", v) : std::string("-")) + "</td>";
    }
    rows += "</tr>\n";
  }
  return "<details><summary>" + html_escaped(c.y_label) + ", in numbers</summary>\n<table><tr>" +
         head + "</tr>\n" + rows + "</table></details>\n";
}

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

}  // namespace mc::trace
