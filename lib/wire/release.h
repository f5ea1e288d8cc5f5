// Says which release a process is of, so that processes which cannot work together find out.
// A worker's heartbeat, a node's mount, the opening of a pipeline and the answers to them bring it.
//
// Thread: values; any thread. Pure.
// Source: docs/wire.md.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"

namespace mc::wire {

// The protocols that this build speaks. A change that an older process would misread is a new one:
// of what a message means, of the bytes of a KV block, or of the tokens that a seed draws. A build
// that speaks several must also keep workers apart that have none in common with each other.
inline constexpr uint32_t kProtocolMin = 1, kProtocolMax = 1;

struct Release {
  std::string build{};  // as --version says it; empty: one of protocol 1 that does not say
  uint32_t protocol_min = 1, protocol_max = 1;
  static void fields(auto& a, auto& m) { a(m.build, m.protocol_min, m.protocol_max); }
};

Release this_release();
// "mc 0.1.0 (protocol 1)", "mc 0.2.0 (protocols 2 to 3)". For messages: a peer's build is escaped.
std::string release_text(const Release& release);
// `who` is the peer and `me` this process, as the message names them. Errors: kUnsupported, with
// both releases, when they have no protocol in common.
Result<> check_release(const std::string& who, const Release& theirs, const std::string& me);

}  // namespace mc::wire
