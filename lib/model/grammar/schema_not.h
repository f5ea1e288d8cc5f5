// `not` of a JSON schema, written without it: where what is excluded are types, values that are
// listed, or objects that have a member.
//
// Errors: kUnsupported with the path for any other; kInvalid.
// Thread: values. Pure.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "base/result.h"

namespace mc::model::grammar {

// A schema that takes the values of `schema`, which has a `not`.
Result<Json> without_not(const Json& schema, const std::string& path);

}  // namespace mc::model::grammar
