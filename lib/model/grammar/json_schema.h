// Turns a JSON schema into rules that write JSON texts it takes.
//
// The texts are a subset of those that the schema takes: an object has its members in the order of
// `properties`, and others only where `additionalProperties` says so or nothing else is said of its
// members; a keyword of one type, without `type`, means that type.
//
// Errors: kUnsupported and kInvalid with the keyword and its path, as "#/properties/a/not".
// Thread: values. Pure. Source: JSON Schema 2020-12.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/grammar/rules.h"

namespace mc::model::grammar {

// What was spent on the schemas of one grammar: their limit (kNoSpace) is one for all of them.
struct SchemaWork {
  size_t schemas = 0, merges = 0, copied = 0;  // copied: bytes
};
Result<Rules::Rule> read_json_schema(Rules& rules, const Json& schema, SchemaWork& spent);
// Any object.
Rules::Rule any_json_object(Rules& rules);

}  // namespace mc::model::grammar
