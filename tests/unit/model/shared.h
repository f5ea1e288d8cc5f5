// Where the small real model and what it must say lie, outside the repository.
#pragma once
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/json.h"

namespace mc::test {

// "" (and a note) where there are none: the test has nothing to do then.
inline std::string shared_models() {
  const char* shared = std::getenv("MC_TEST_SHARED");
  const std::string folder = shared == nullptr ? "" : std::string(shared) + "/models";
  if (!folder.empty() && std::ifstream(folder + "/README.md").good()) return folder;
  MESSAGE("skipped: needs the small model; set MC_TEST_SHARED to the folder that has models/");
  return "";
}

inline Json json_at(const std::string& path) {
  auto json = read_json_file(path);
  REQUIRE_MESSAGE(json.has_value(), path);
  return *json;
}

}  // namespace mc::test
