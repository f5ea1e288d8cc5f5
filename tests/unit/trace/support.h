// What the tests of lib/trace share: where the recorded traces and the profiles are.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "trace/records/records.h"

namespace mc::trace {

inline std::optional<std::string> recorded_conversation() {
  const char* shared = std::getenv("MC_TEST_SHARED");
  const std::string path = std::string(shared ? shared : "") + "/traces/conversation_trace.jsonl";
  if (shared && std::filesystem::exists(path)) return path;
  std::printf(
      "skipped: needs conversation_trace.jsonl; set MC_TEST_SHARED to its parent's parent\n");
  return std::nullopt;
}

inline std::string profile_path(const std::string& name) {
  const auto here = std::filesystem::path(__FILE__).parent_path();
  return (here / "../../../configs/profiles" / (name + ".json")).lexically_normal().string();
}

// A record whose prompt is just so long that `ids` fit, less `missing` tokens of the last block.
inline TraceRequest prompt(std::vector<uint64_t> ids, uint64_t missing = 0) {
  TraceRequest r;
  r.input_length = ids.size() * kBlockTokens - missing;
  r.output_length = 10;
  r.hash_ids = std::move(ids);
  return r;
}

}  // namespace mc::trace
