// The filters by name. Private to filters*.cc.
#pragma once
#include <map>
#include <string_view>

#include "model/template/runtime.h"

namespace mc::model::jinja {

struct FilterUse {
  const Value& in;
  const Arguments& with;
  Runtime& runtime;
};
using Filter = Result<Value> (*)(const FilterUse&);

const std::map<std::string_view, Filter>& value_filters();
const std::map<std::string_view, Filter>& list_filters();

}  // namespace mc::model::jinja
