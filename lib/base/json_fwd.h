// Names the JSON value type, for headers. Include base/json.h in the .cc that uses it.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace mc {
using Json = nlohmann::ordered_json;
}  // namespace mc
