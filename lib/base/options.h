// Describes a program's options as plain structs with defaults. describe() lists each option once.
// Flags, environment, the JSON config file, --print-config and the man page all walk that list.
//
//   struct MasterOptions {
//     std::string listen = "tcp://127.0.0.1:5550";
//     Duration lease_ttl = std::chrono::seconds(10);
//     void describe(OptionList& v) {
//       v("listen", listen, "endpoint to serve on");
//       v("lease-ttl", lease_ttl, "how long a read keeps its object in place");
//     }
//   };
//
// Names are kebab-case.
//
// Thread: one thread (main) builds and reads them; then they are constant.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "base/units.h"

namespace mc {

struct Option {
  enum class Kind { kText, kFlag, kNumber, kCount, kSize, kDuration, kList };
  std::string name, help;
  Kind kind;
  std::vector<std::string> choices;  // when not empty, the only values allowed
  std::function<std::string()> get;  // the value as text
  std::function<Result<>(const std::string&)> set;
  std::string origin = "default";  // default, file, environment or flag
};
const char* placeholder(Option::Kind kind);  // "TEXT", "DURATION", ... for help

class OptionList {
 public:
  using Strings = std::vector<std::string>;
  void operator()(const char* name, std::string& v, const char* help, Strings choices = {});
  void operator()(const char* name, bool& v, const char* help);
  void operator()(const char* name, double& v, const char* help);
  void operator()(const char* name, uint32_t& v, const char* help);
  void operator()(const char* name, uint64_t& v, const char* help);
  void operator()(const char* name, int& v, const char* help);
  void operator()(const char* name, Bytes& v, const char* help);
  void operator()(const char* name, Duration& v, const char* help);
  void operator()(const char* name, Strings& v, const char* help);  // repeatable; commas split

  // The option of that name; an error suggests the nearest one.
  Result<Option*> find(std::string_view name, const char* where);
  std::vector<Option>& all() { return options_; }
  const std::vector<Option>& all() const { return options_; }

 private:
  void add(const char* name, const char* help, Option::Kind kind, std::function<std::string()> get,
           std::function<Result<>(const std::string&)> set, Strings choices = {});
  std::vector<Option> options_;
};

// Sets options from a JSON object {"lease-ttl": "5s", ...}. Unknown keys and wrong types are errors
// that name the file and suggest the nearest key.
Result<> apply_json(OptionList& options, const Json& json, const std::string& where);
// One line per option, valid as a config file: `"lease-ttl": "10s",  // default: help`.
std::string config_text(const OptionList& options, std::string_view header);

// The candidate nearest to `word` by edit distance, or "" when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace mc
