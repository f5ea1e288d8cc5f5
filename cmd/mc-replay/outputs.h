// Checks the files that a verb will write before its work begins, so that no run is lost to a typo.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace mc::replay {

struct Output {
  const char* flag;
  std::string path;  // empty: not asked for
};

// Makes and removes a file beside each that would be new or replaced; pipes, devices and the files
// that stdout and stderr were sent to are left alone. Errors: kInvalid, with flag and path, for one
// that cannot be made, that is a folder, the trace (also through links) or an earlier output.
Result<> check_outputs(const std::vector<Output>& outputs, const std::string& trace);

}  // namespace mc::replay
