#include "serve/external/model_names.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/json.h"
#include "base/units.h"

namespace mc::serve {
namespace {

constexpr size_t kModelNameMax = 256, kModelsInFileMax = 1024, kModelNamesMax = 1024;
constexpr std::array kModelMembers = {"name", "engines", "aliases", "adapters"};

Result<std::string> model_name_of(const Json& j, const char* member) {
  if (!j.is_string()) return fail(Code::kInvalid, "%s: want a name", member);
  const auto& s = j.get_ref<const std::string&>();
  const bool plain = std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return c > ' ' && c != 0x7f;  // beyond ASCII too: JSON texts are UTF-8
  });
  if (s.empty() || s.size() > kModelNameMax || !plain)
    return fail(Code::kInvalid, "%s '%s': want 1 to %zu printable characters", member,
                escape(s).c_str(), kModelNameMax);
  return s;
}

Result<std::vector<std::string>> model_names_of(const Json& j, const char* member) {
  if (!j.is_array() || j.size() > kModelNamesMax)
    return fail(Code::kInvalid, "%s: want a list of at most %zu names", member, kModelNamesMax);
  std::vector<std::string> all;
  for (const Json& one : j) {
    MC_TRY(std::string name, model_name_of(one, member));
    all.push_back(std::move(name));
  }
  return all;
}

Result<ServedModel> served_model_of(const Json& j) {
  ServedModel m;
  if (!j.is_object()) return fail(Code::kInvalid, "want an object with a name");
  for (const auto& [key, value] : j.items())
    if (std::find(kModelMembers.begin(), kModelMembers.end(), key) == kModelMembers.end())
      return fail(Code::kInvalid,
                  "member '%s' is not known: there are name, engines, aliases, adapters",
                  escape(key).c_str());
  const Json* const name = member(j, "name");
  MC_TRY(m.name, model_name_of(name != nullptr ? *name : Json(), "name"));
  if (const Json* engines = member(j, "engines")) {
    MC_TRY(const auto names, model_names_of(*engines, "engines"));
    m.engines.insert(names.begin(), names.end());
  }
  if (const Json* aliases = member(j, "aliases")) {
    MC_TRY(m.aliases, model_names_of(*aliases, "aliases"));
  }
  const Json* const adapters = member(j, "adapters");
  if (adapters == nullptr) return m;
  if (!adapters->is_object() || adapters->size() > kModelNamesMax)
    return fail(Code::kInvalid, "adapters: want an object of at most %zu names", kModelNamesMax);
  for (const auto& [adapter, where] : adapters->items()) {
    MC_TRY_(model_name_of(Json(adapter), "adapters"));
    MC_TRY(const auto engines,
           model_names_of(where.is_string() ? Json::array({where}) : where, "adapters"));
    m.adapters[adapter].insert(engines.begin(), engines.end());
  }
  return m;
}

// No name means two things.
Result<> check_model_names(const std::vector<ServedModel>& all) {
  std::set<std::string> names, engines;
  const auto once = [&names](const std::string& name) -> Result<> {
    if (names.insert(name).second) return {};
    return fail(Code::kInvalid, "the name '%s' stands twice", escape(name).c_str());
  };
  for (const ServedModel& m : all) {
    MC_TRY_(once(m.name));
    for (const std::string& alias : m.aliases) MC_TRY_(once(alias));
    for (const auto& [adapter, where] : m.adapters) MC_TRY_(once(adapter));
    for (const std::string& engine : m.engines)
      if (!engines.insert(engine).second)
        return fail(Code::kInvalid, "engine '%s' is in two models", escape(engine).c_str());
  }
  return {};
}

Result<std::vector<ServedModel>> served_models_of(const Json& json) {
  const Json* const list = json.is_object() ? member(json, "models") : nullptr;
  if (list == nullptr || !list->is_array() || json.size() != 1 || list->size() > kModelsInFileMax)
    return fail(Code::kInvalid, "want {\"models\": [..]} with at most %zu", kModelsInFileMax);
  std::vector<ServedModel> all;
  for (const Json& j : *list) {
    auto m = served_model_of(j);
    if (!m) return fail(Code::kInvalid, "model %zu: %s", all.size(), m.error().what.c_str());
    all.push_back(std::move(*m));
  }
  MC_TRY_(check_model_names(all));
  return all;
}

}  // namespace

Result<std::vector<ServedModel>> read_models(const std::string& path) {
  MC_TRY(const Json json, read_json_file(path));
  auto all = served_models_of(json);
  if (!all) return fail(Code::kInvalid, "%s: %s", path.c_str(), all.error().what.c_str());
  return all;
}

void ModelNames::add(const std::string& model) { meanings_.try_emplace(model, Meaning{model, {}}); }

void ModelNames::add_alias(const std::string& alias, const std::string& model) {
  meanings_.try_emplace(alias, Meaning{model, {}, true});
}

void ModelNames::add_adapter(const std::string& adapter, const std::string& model) {
  meanings_.try_emplace(adapter, Meaning{model, adapter});
}

std::optional<ModelMeaning> ModelNames::find(const std::string& name) const {
  const auto it = meanings_.find(name);
  if (it == meanings_.end()) return std::nullopt;
  return ModelMeaning{it->second.model, it->second.adapter};
}

bool ModelNames::is_alias(const std::string& name) const {
  const auto it = meanings_.find(name);
  return it != meanings_.end() && it->second.alias;
}

std::vector<std::string> ModelNames::all() const {
  std::vector<std::string> names;
  const auto rank = [&](const std::string& name) {
    const Meaning& m = meanings_.at(name);
    const int kind = !m.adapter.empty() ? 2 : m.alias ? 1 : 0;
    return std::tuple(m.model != own_, std::string_view(m.model), kind, std::string_view(name));
  };
  for (const auto& [name, meaning] : meanings_) names.push_back(name);
  std::sort(names.begin(), names.end(),
            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return names;
}

std::string ModelNames::list(size_t most) const {
  const auto names = all();
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i == 0 ? "'" : ", '") + escape(names[i]) + "'";
  if (names.size() > most) text += strf(" and %zu more", names.size() - most);
  return text;
}

void ModelCatalog::offer(std::vector<ServedModel> models) {
  models_ = std::move(models);
  gather({});
}

void ModelCatalog::gather(const std::vector<Engine>& engines) {
  ModelNames all(own());
  offers_own_ = models_.empty();
  for (const ServedModel& m : models_) {
    offers_own_ |= m.name == own();
    all.add(m.name);
    for (const std::string& alias : m.aliases) all.add_alias(alias, m.name);
    for (const auto& [adapter, where] : m.adapters) all.add_adapter(adapter, m.name);
  }
  for (const Engine& e : engines) {
    offers_own_ |= e.model == own();
    all.add(e.model);
  }
  for (const Engine& e : engines)
    for (const std::string& adapter : e.adapters) all.add_adapter(adapter, e.model);
  if (all != *names_) names_ = std::make_shared<ModelNames>(std::move(all));
}

std::string ModelCatalog::model_of(const std::string& engine) const {
  for (const ServedModel& m : models_)
    if (m.engines.contains(engine)) return m.name;
  return {};
}

bool ModelCatalog::may_load(const std::string& adapter, const std::string& engine) const {
  return std::any_of(models_.begin(), models_.end(), [&](const ServedModel& m) {
    const auto it = m.adapters.find(adapter);
    return it != m.adapters.end() && it->second.contains(engine);
  });
}

}  // namespace mc::serve
