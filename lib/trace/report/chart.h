// Draws a chart as SVG to stand in a page: axes with units, series over time or as a curve, limits.
// Colours are the page's (CSS variables --c0 ... --c4, and classes), so that it can be dark or
// light.
//
// Thread: values; any thread. Pure.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mc::trace {

struct ChartSeries {
  enum class Style { kLine, kDots, kArea };
  std::string name;
  Style style = Style::kLine;
  // In ascending x. A value that is NaN is a gap in a line.
  std::vector<std::pair<double, double>> points;
  std::vector<double> base = {};  // of an area: its lower edge, one value a point
  size_t colour = 0;
  bool dashed = false;
};

struct ChartLimit {  // a line across the chart
  double value = 0;
  std::string label;
  bool vertical = false;
  bool plain = false;  // a mark, nothing to keep within
};

struct Chart {
  std::string id;  // "ttft-time": names it in the page
  std::string title, note, x_label, y_label;
  std::vector<ChartSeries> series;
  std::vector<ChartLimit> limits;
  bool log_x = false, log_y = false;
  std::optional<double> x_from, x_to, y_to;  // else those of the data

  bool empty() const;  // no series has a value
};

// Marks on an axis from `from` to `to`, at most about `most`: 1, 2 or 5 times a power of ten; on a
// logarithmic one powers of ten, with 2 and 5 between where there are few.
std::vector<double> axis_marks(double from, double to, bool logarithmic, size_t most);

std::string chart_svg(const Chart& chart);
// The lines' and areas' values as an HTML table. Dots are too many.
std::string chart_table(const Chart& chart);
std::string html_escaped(const std::string& text);

}  // namespace mc::trace
