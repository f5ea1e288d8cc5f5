// Reads of an engine's /metrics what scheduling can use: vLLM's names and SGLang's.
//
// What is missing is not known, and is not used.
// Thread: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace mc::serve {

struct EngineMetrics {
  std::optional<double> running, waiting;  // requests, of all its ranks
  std::optional<double> kv_usage;          // 0 to 1, of the fullest rank
  std::optional<uint64_t> block_tokens, blocks;
};

EngineMetrics parse_engine_metrics(std::string_view text);

}  // namespace mc::serve
