// mc-store doctor: which engines on the pool cannot find each other's blocks, and why. Each engine
// puts what its keys depend on under its fingerprint; engines with equal ones share.
#include <algorithm>
#include <map>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "cmd/mc-store/verbs.h"

namespace mc::store {
namespace {

constexpr const char* kPrefix = "vllm-fingerprint:";
constexpr uint32_t kListed = 1000;          // keys at a time
constexpr size_t kShown = 60, kLine = 400;  // bytes of a value, and of a row

using Kinds = std::map<std::string, std::vector<Json>>;  // by model: what its engines put

// What is no JSON object is no engine's.
Result<Kinds> kinds_in(Client& client) {
  Kinds out;
  std::string after;
  for (bool more = true; more;) {
    MC_TRY(const Listed page, client.list(kPrefix, after, kListed));
    for (const ObjectInfo& object : page.items) {
      after = object.key;
      const auto value = client.get(object.key);
      if (!value && value.error().code != Code::kNotFound) return fail(value.error());
      if (!value) continue;
      auto parts = parse_json({reinterpret_cast<const char*>(value->data()), value->size()});
      if (!parts || !parts->is_object()) continue;
      const std::string model = get_string_or(*parts, "model", "").value_or("");
      out[model].push_back(std::move(*parts));
    }
    more = page.more && !page.items.empty();
  }
  return out;
}

// The rows in which they are not all the same, with their values, each once.
Json differences(const std::vector<Json>& kinds) {
  std::set<std::string> rows;
  for (const Json& kind : kinds)
    for (const auto& row : kind.items()) rows.insert(row.key());
  Json out = Json::object();
  for (const std::string& row : rows) {
    Json values = Json::array();
    for (const Json& kind : kinds) {
      const Json value = kind.contains(row) ? kind[row] : Json();
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
    if (values.size() > 1) append_member(out, row, std::move(values));
  }
  return out;
}

void print(const std::string& model, const std::vector<Json>& kinds, const Json& rows) {
  if (kinds.size() == 1)
    return put(strf("%s: all engines that were here can share\n", escape(model).c_str()));
  put(strf("%s: %zu kinds of engines that do not share; they differ in\n", escape(model).c_str(),
           kinds.size()));
  for (const auto& row : rows.items()) {
    std::string line;
    for (const Json& value : row.value())
      line += (line.empty() ? "" : " / ") + dump_json(value).substr(0, kShown);
    put(strf("  %s: %s\n", escape(row.key()).c_str(), one_line(line, kLine).c_str()));
  }
}

Result<int> run_doctor(const ClientVerb& o, const Context& context) {
  MC_TRY(auto session, Session::open(o));
  MC_TRY(const Kinds models, kinds_in(session->client()));
  bool shared = true;
  for (const auto& [model, kinds] : models) {
    const Json rows = differences(kinds);
    shared = shared && kinds.size() == 1;
    if (context.json)
      put(dump_json({{"model", model}, {"kinds", kinds.size()}, {"differ", rows}}) + "\n");
    else
      print(model, kinds, rows);
  }
  if (models.empty() && !context.json) put("no engine has used this pool\n");
  return shared ? 0 : 1;
}

}  // namespace

void add_doctor(Program& program) {
  program.verb<ClientVerb>("doctor", "show which engines cannot find each other's blocks, and why",
                           [](Verb& v, ClientVerb& o) {
                             v.example("mc-store doctor --tenant team-a",
                                       "1 when a model has engines that cannot share");
                             v.exit_status(1, "a model has engines that cannot share");
                             v.run_with([&o](Context& context) { return run_doctor(o, context); });
                           });
}

}  // namespace mc::store
