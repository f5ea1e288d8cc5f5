// What a benchmark may do to its peer's memory.
#pragma once
#include <cstdint>

#include "cmd/mc-xfer/client.h"

namespace mc::xfer {

// Asks the peer how much of its memory, from offset 0, may be overwritten, and keeps it in
// `client.scratch`. With --overwrite it is all.
Result<> ask_scratch(Client& client, const ClientOptions& options);

// Whether a run over `bytes` may fill them, which its check needs. Errors: kInvalid when it writes
// and may not. A run that reads and may not says, once, that nothing is checked.
Result<bool> may_fill(Client& client, uint64_t bytes, bool writes);

}  // namespace mc::xfer
