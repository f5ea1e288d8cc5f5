// Private helpers that Client and SyncClient share.
//
// Thread: any.
#pragma once
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace mc::rpc::detail {

// The time between two tries to reach a server over shared memory.
inline constexpr Duration kShmRetry = std::chrono::seconds(1);
// The time between two tries of the first key, while the server knows the second.
inline constexpr Duration kKeyRetry = std::chrono::seconds(1);
// How long such a try may take.
inline constexpr Duration kKeyPatience = std::chrono::seconds(10);
// Before the next key is tried: none after the first refusal, at most half a second.
Duration pause_after(int refusals);
inline constexpr int kHopsMax = 4;  // a call is forwarded to another server so often at most

std::string envelope_of(const char* type, uint64_t id, Duration budget,
                        const std::string& trace_id);
Error no_answer(const std::string& address, const char* type, Duration budget, bool answered);
// The connection had not begun by then: the server's name was not found.
Error nameless(const std::string& address, const char* type, Duration budget);
// The server ended while the call was in flight.
Error gone(const std::string& address, const char* type);

}  // namespace mc::rpc::detail
