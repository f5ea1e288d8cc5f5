// What the clients that call back and those that block have in common.
//
// Thread: any.
#pragma once
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace mc::rpc::detail {

// A server that was not found by the shorter channel is sought there again after this.
inline constexpr Duration kSeekAgain = std::chrono::seconds(1);
inline constexpr int kHopsMax = 4;  // of one call, from server to server

std::string envelope_of(const char* type, uint64_t id, Duration budget,
                        const std::string& trace_id);
Error no_answer(const std::string& address, const char* type, Duration budget, bool answered);
Error gone(const std::string& address, const char* type);  // while it was asked

}  // namespace mc::rpc::detail
