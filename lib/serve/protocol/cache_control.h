// Defines how to cache a request's blocks: `cache_control` of the OpenAI API.
//
// It stands in a request, in messages of a chat, or in parts of these:
//
//   {"type": "context", "ttl": "5m"}   the prompt up to there is kept for so long after each use
//   {"type": "ephemeral"}              of a request: no reuse is expected; evicted first
//
// A ttl is a number of seconds, or text such as "90s", "5m" or "1h": a second to a day, five
// minutes by default. "ephemeral" in a message, or with a ttl, is what other services call a
// context.
//
// Thread: values. Source: Mooncake paper, section 6 (context caching, request classes).
#pragma once
#include <cstdint>

#include "base/time.h"

namespace mc::serve {

struct CacheControl {
  bool ephemeral = false;
  uint64_t context_tokens = 0;  // the leading ones that are a context
  Duration ttl{};
};

}  // namespace mc::serve
