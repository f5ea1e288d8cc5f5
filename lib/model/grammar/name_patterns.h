// patternProperties of a JSON schema: which schemas a member fits by its name.
//
// Errors: kUnsupported and kInvalid with the path.
// Thread: values. Pure.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/grammar/automaton.h"

namespace mc::model::grammar {

struct NamePattern {
  std::string text;
  const Json* schema = nullptr;
  std::shared_ptr<const Automaton> names{};  // that match it somewhere, as JSON writes them
  Result<bool> takes(const std::string& name) const;
};
// They refer to `schema`.
Result<std::vector<NamePattern>> read_name_patterns(const Json& schema, const std::string& path);

}  // namespace mc::model::grammar
