// The models that a conductor offers: their names, other names for them, and their LoRA adapters.
//
// There is the conductor's own; those in a file of models; and those that registrations of engines
// name. An adapter belongs to one model.
//
// Thread: values.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mc::serve {

using EngineNames = std::set<std::string>;  // instance_ids

struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;
  EngineNames engines;  // that serve it; others say so in their registration
  // Names of adapters, and the engines that have one or would load it.
  std::map<std::string, EngineNames> adapters;
};

// A file: {"models": [{"name": "chat", "engines": ["a", "b"], "aliases": ["gpt-x"],
//                      "adapters": {"sql": "a", "law": ["a", "b"]}}]}
// Errors: kInvalid, kNotFound, with the file and the member: a name that stands twice, a member
// that is not one of these.
Result<std::vector<ServedModel>> read_models(const std::string& path);

// What a client's name for a model means.
struct ModelMeaning {
  std::string model;    // the conductor's name for it
  std::string adapter;  // "": the model itself
};

class ModelNames {
 public:
  explicit ModelNames(std::string own) : own_(std::move(own)) { add(own_); }
  // Names that are known already keep their meaning.
  void add(const std::string& model);
  void add_alias(const std::string& alias, const std::string& model);
  void add_adapter(const std::string& adapter, const std::string& model);

  const std::string& own() const { return own_; }  // the conductor's, which own workers have
  std::optional<ModelMeaning> find(const std::string& name) const;
  bool is_alias(const std::string& name) const;
  // All names in order of models: each name, then its aliases and adapters.
  std::vector<std::string> all() const;
  std::string list(size_t most) const;  // for people: 'a', 'b' and 3 more
  bool operator==(const ModelNames&) const = default;

 private:
  struct Meaning {
    std::string model, adapter;
    bool alias = false;
    bool operator==(const Meaning&) const = default;
  };
  std::string own_;
  std::map<std::string, Meaning> meanings_;
};

// What the file of models and the engines say together.
class ModelCatalog {
 public:
  explicit ModelCatalog(std::string own) : names_(std::make_shared<ModelNames>(std::move(own))) {}
  void offer(std::vector<ServedModel> models);  // of a file; before there are engines
  struct Engine {
    std::string model;  // that it serves, as the conductor calls it
    std::set<std::string> adapters;
  };
  // All engines there are. What the file says goes before what they say.
  void gather(const std::vector<Engine>& engines);
  // What clients may ask for; another one after a change.
  const std::shared_ptr<const ModelNames>& names() const { return names_; }
  const std::string& own() const { return names_->own(); }
  std::string model_of(const std::string& engine) const;  // by the file; "": it does not say
  bool may_load(const std::string& adapter, const std::string& engine) const;  // the same
  bool offers_own() const { return offers_own_; }  // the conductor's own, as far as is said

 private:
  std::vector<ServedModel> models_;
  std::shared_ptr<const ModelNames> names_;
  bool offers_own_ = true;
};

}  // namespace mc::serve
