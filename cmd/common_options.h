// The options that every program has. Private to cmd/command.cc and cmd/manual.cc.
#pragma once
#include <cctype>
#include <string>

#include "cmd/command.h"

namespace mc {

// Their environment names carry no program: MC_LOG_LEVEL.
struct Program::Common {
  std::string output = "text", log_level = "info", log_format = "text", config;
  bool print_config = false;
  OptionList list;
  // `tables`: csv too.
  explicit Common(bool tables) {
    OptionList::Strings outputs{"text", "json"};
    if (tables) outputs.push_back("csv");
    list("output", output, "how results are printed on stdout", outputs);
    list("log-level", log_level, "least severe log line to write",
         {"error", "warn", "info", "debug"});
    list("log-format", log_format, "log lines as text or JSON", {"text", "json"});
    list("config", config, "JSON file of options ('//' comments are accepted)");
    list("print-config", print_config, "print the effective options and where each came from");
  }
};

inline std::string env_name(std::string name) {
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

}  // namespace mc
