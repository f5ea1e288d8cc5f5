// What two JSON schemas demand together, and whether a value can fit both.
//
// Thread: values. Pure.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "base/result.h"

namespace mc::model::grammar {

bool is_annotation(const std::string& keyword);  // it changes no value
bool is_known(const std::string& keyword);       // json_schema.h reads it
bool is_type(const std::string& name);
bool is_of_type(const Json& value, const std::string& type);
bool only_annotations(const Json& schema);

// Errors: kUnsupported with the keyword where one schema cannot say both; kInvalid.
Result<Json> merge_schemas(const Json& a, const Json& b, const std::string& path);
// Surely no value fits both: their types differ, or what they allow by const and enum, or what they
// allow in a member that both require.
bool apart(const Json& a, const Json& b);

}  // namespace mc::model::grammar
