// Other paths that go to external engines: --pass.
//
// Thread: values. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::serve {

class PassedPaths {
 public:
  PassedPaths() = default;
  // "/v1/audio/*": `*` stands for any text, with its slashes. Errors: kInvalid for one that is not
  // below /v1/.
  static Result<PassedPaths> parse(std::vector<std::string> patterns);
  // Of a decoded path. One with ".." or what does not print is none, whatever the patterns.
  bool match(std::string_view path) const;

 private:
  std::vector<std::string> patterns_;
};

}  // namespace mc::serve
