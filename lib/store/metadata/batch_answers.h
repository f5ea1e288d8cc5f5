// Answers to calls of several items. Pure.
//
// Thread: values.
#pragma once
#include <string>
#include <utility>

#include "base/result.h"
#include "store/protocol/messages.h"

namespace mc::store {

inline Outcome outcome(Code code, std::string what) {
  return {static_cast<uint8_t>(code), std::move(what)};
}

inline Result<> check_batch(size_t items) {
  if (items > kBatchMax)
    return fail(Code::kInvalid, "%zu items in one call: %zu at most", items, kBatchMax);
  return {};
}

}  // namespace mc::store
