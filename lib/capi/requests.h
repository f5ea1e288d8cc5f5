// Requests of the C interface as the engine has them.
//
// Thread: any.
#pragma once
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "capi/mc/transfer.h"
#include "xfer/engine.h"

namespace mc::capi {

// Errors: kInvalid.
Result<xfer::Request> request_of(const mc_request& r, const Clock& clock);
Result<std::vector<xfer::Request>> requests_of(const mc_request* requests, size_t count,
                                               const Clock& clock);

}  // namespace mc::capi
