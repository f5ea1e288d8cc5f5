// How a request's blocks are to be cached: `cache_control` of the request, or of messages and parts
// of a chat.
//
//   {"type": "context", "ttl": "5m"}   the prompt up to there is kept for so long after each use
//   {"type": "ephemeral"}              of a request: nobody will ask for the like; given up first
//
// A ttl is a number of seconds, or text such as "90s", "5m" or "1h": a second to a day, five
// minutes when none is given. "ephemeral" of a message, or with a ttl, is what other services call
// a context.
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
