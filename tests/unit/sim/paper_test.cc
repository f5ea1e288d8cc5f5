#include "sim/paper/paper_figures.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "base/json.h"

using namespace mc;
using namespace mc::sim;

namespace {

PaperFigure figure(std::vector<PaperRow> rows) {
  PaperFigure f;
  f.id = "figX";
  f.title = "<a & b>";
  f.tolerance = 0.1;
  f.rows = std::move(rows);
  return f;
}

}  // namespace

TEST_CASE("a verdict says how far off the worst value is, and whether the order holds") {
  CHECK(verdict_of(figure({{"a", 1, 1.05}, {"b", 2, 1.9}})).find("agrees: every value within") ==
        0);
  CHECK(verdict_of(figure({{"a", 1, 1.5}, {"b", 2, 2.1}})) ==
        "the order agrees; values are up to 50 % off (a)");
  CHECK(verdict_of(figure({{"a", 1, 3}, {"b", 2, 2}})).find("disagrees: 0 % of pairs") == 0);
  CHECK(verdict_of(figure({{"a", {}, 3}, {"b", 2, {}}})) == "no published numbers to compare");
}

TEST_CASE("statements in words count in the verdict, as values do") {
  PaperFigure f = figure({{"a", 1, 1.0625}, {"b", {}, 3}});
  f.claims = {{"a is small", true}, {"b is smaller", false}};
  CHECK(verdict_of(f) == "1 of 2 statements hold; agrees: every value within 7 %");
  f.verdict = verdict_of(f);
  CHECK(paper_text({f}).find("- a is small: yes\n- b is smaller: **no**\n") != std::string::npos);
  CHECK(paper_html({f}).find("<li>b is smaller: <b>no</b>") != std::string::npos);
  CHECK(paper_json({f})["figures"][0]["claims"][1]["holds"] == false);
  f.rows = {{"b", {}, 3}};
  CHECK(verdict_of(f) == "1 of 2 statements hold");
  CHECK(value_at(f, "b") == 3);
  CHECK(rising(figure({{"x", {}, 1}, {"y", {}, 2}}), {"x", "y"}));
  CHECK(!rising(figure({{"x", {}, 1}, {"y", {}, 2}}), {"y", "x"}));
  f = figure({{"a", 1, {}}});
  CHECK(verdict_of(f) == "not simulated");
}

TEST_CASE("figures that follow from the model alone equal the published ones") {
  const auto here = std::filesystem::path(__FILE__).parent_path();
  PaperInput in;
  const auto spec = cost::load_spec(
      (here / "../../../configs/models/llama3-70b.json").lexically_normal().string());
  REQUIRE(spec);
  in.spec = *spec;
  const auto figures = reproduce(in, {"fig22", "eq2"});
  REQUIRE(figures);
  REQUIRE(figures->size() == 2);
  CHECK((*figures)[0].id == "eq2");
  for (const PaperFigure& f : *figures) CHECK(f.verdict.find("agrees: every value") == 0);
  CHECK(!reproduce(in, {"fig99"}));
  CHECK(paper_json(*figures)["figures"].size() == 2);
}

TEST_CASE("the HTML report is self-contained, and escapes its texts") {
  PaperFigure f = figure({{"x < y", 1, 2}, {"only ours", {}, 3}});
  f.verdict = verdict_of(f);
  f.curves = {
      {"one", "up", {{0, 0}, {10, 4}}}, {"one", "down", {{0, 4}, {10, 0}}}, {"two", "", {}}};
  const std::string html = paper_html({f});
  CHECK(html.find("<svg") != std::string::npos);
  CHECK(html.find("x &lt; y") != std::string::npos);
  CHECK(html.find("&lt;a &amp; b>") != std::string::npos);
  CHECK(html.find("points=\"34.0,156.0 674.0,6.0 \"") != std::string::npos);
  CHECK(paper_json({f})["figures"][0]["curves"][1]["points"][1][0] == 10);
  CHECK(html.find("http") == std::string::npos);
  CHECK(paper_text({f}).find("| only ours | - | 3 | - |") != std::string::npos);
}
