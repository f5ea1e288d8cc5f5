#include "capi/requests.h"

#include <iterator>

namespace mc::capi {

using xfer::Op;
using xfer::Priority;
using xfer::Request;

Result<Request> request_of(const mc_request& r, const Clock& clock) {
  for (uint64_t word : r.reserved)
    if (word != 0) return fail(Code::kInvalid, "mc_request.reserved is not zero");
  if (r.op > MC_WRITE)
    return fail(Code::kInvalid, "mc_request.op is %u: want MC_READ or MC_WRITE", r.op);
  constexpr Priority kClasses[] = {Priority::kMedium, Priority::kHigh, Priority::kLow};
  if (r.priority >= std::size(kClasses))
    return fail(Code::kInvalid, "mc_request.priority is %u: want one of MC_PRIORITY_*", r.priority);
  Request out;
  out.priority = kClasses[r.priority];
  out.op = r.op == MC_READ ? Op::kRead : Op::kWrite;
  out.local = static_cast<std::byte*>(r.local);
  out.segment = r.segment;
  out.offset = r.offset;
  out.bytes = r.bytes;
  out.rows = r.rows == 0 ? 1 : r.rows;
  out.local_stride = r.local_stride;
  out.remote_stride = r.remote_stride;
  if (r.timeout_ms != 0) out.deadline = clock.now() + std::chrono::milliseconds(r.timeout_ms);
  return out;
}

Result<std::vector<Request>> requests_of(const mc_request* requests, size_t count,
                                         const Clock& clock) {
  if (requests == nullptr && count > 0) return fail(Code::kInvalid, "%zu requests at NULL", count);
  std::vector<Request> all;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    MC_TRY(Request r, request_of(requests[i], clock));
    all.push_back(r);
  }
  return all;
}

}  // namespace mc::capi
