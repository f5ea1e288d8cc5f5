// JSON with secrets in it: what a parser says of it names the place, and quotes nothing.
//
// Thread: values; any thread. Pure.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "base/result.h"

namespace mc::io {

// Of parse_json() or read_json_file(): the error without the words that were read last.
inline Result<Json> unquoted(Result<Json> json) {
  if (json) return json;
  std::string& what = json.error().what;
  if (const auto at = what.find("; last read"); at != std::string::npos) what.resize(at);
  return json;
}

}  // namespace mc::io
