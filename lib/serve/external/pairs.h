// Pairs of external engines: how one computes a prompt that the other answers.
//
// Sequential: the first answers where its KV is, and the second gets that (vLLM's connectors but
// one). Concurrent: both get the request at once and find each other by a transfer's name (vLLM's
// MooncakeConnector). SGLang: both at once, by a room at the first one's bootstrap server.
//
// Thread: values. Pure. Source: the examples of proxies that vLLM and SGLang publish.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/result.h"

namespace mc::serve {

enum class PairKind : uint8_t { kSequential, kConcurrent, kSglang };
const char* name(PairKind kind);  // as a registration says it
// Errors: kInvalid.
Result<PairKind> parse_pair_kind(const std::string& text);
inline bool at_once(PairKind kind) { return kind != PairKind::kSequential; }

// Where the halves of one attempt meet. It is random, and used for that attempt alone.
struct PairMeeting {
  std::string transfer;         // concurrent
  std::vector<uint64_t> rooms;  // SGLang: one a prompt, below 2^63
};
PairMeeting fresh_meeting(Random& random, size_t prompts);

// The first half, as the second has to know it.
struct PairFirst {
  std::string bootstrap;  // http://host:port
  std::string engine;     // concurrent: its name there
};

// The name of the engine of that rank, from a bootstrap server's answer to GET /query.
// Errors: kCorrupt.
Result<std::string> engine_at_bootstrap(const std::string& answer, uint64_t rank);

}  // namespace mc::serve
