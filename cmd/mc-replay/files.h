// Finds the files that come with mc, by name.
#pragma once
#include <string>

#include "base/result.h"
#include "cost/model_spec.h"

namespace mc::replay {

// Looks the name up in ./configs/WHATs (profiles, models), then relative to the program, where
// `make install` and the build tree have them. A name with a slash, or one that ends in .json, is a
// path.
Result<std::string> find_config(const std::string& what, const std::string& name);

// The built-in "tiny", or one of the models.
Result<cost::ModelSpec> model_of(const std::string& name);

}  // namespace mc::replay
