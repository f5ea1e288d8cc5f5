// Renders chat templates for comparison with the jinja2 package: each line of the input is a JSON
// object {"template": FILE, "variables": {..}, "now": [year, month, day, hour, minute, second]},
// each line of the output {"text": ..} or {"error": ..}.
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/json.h"
#include "model/template/jinja_template.h"

namespace {

mc::Result<std::string> rendered(const mc::Json& line) {
  const auto path = line.at("template").get<std::string>();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream source;
  source << file.rdbuf();
  MC_TRY(const auto program, mc::model::JinjaTemplate::parse(source.str(), path));
  std::tm now{};
  const mc::Json& at = line.at("now");
  now.tm_year = at[0].get<int>() - 1900;
  now.tm_mon = at[1].get<int>() - 1;
  now.tm_mday = at[2].get<int>();
  now.tm_hour = at[3].get<int>();
  now.tm_min = at[4].get<int>();
  now.tm_sec = at[5].get<int>();
  std::mktime(&now);  // the day of the week and of the year
  return program.render(line.at("variables"), now);
}

}  // namespace

int main() {
  std::string text;
  while (std::getline(std::cin, text)) {
    const auto line = mc::parse_json(text);
    const auto out = line ? rendered(*line) : mc::Result<std::string>(mc::fail(line.error()));
    const mc::Json said = out ? mc::Json{{"text", *out}} : mc::Json{{"error", out.error().what}};
    std::cout << mc::dump_json(said) << "\n" << std::flush;
  }
  return 0;
}
