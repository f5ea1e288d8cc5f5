// Notices: messages from peer to peer, behind transfers or alone.
#include <string>
#include <vector>

#include "capi/common.h"
#include "capi/mc/transfer.h"
#include "capi/requests.h"

namespace {

using namespace mc;
using mc::capi::guarded;

Result<xfer::Notification> notice_of(const char* name, const void* data, size_t bytes) {
  if (name == nullptr || (data == nullptr && bytes != 0))
    return fail(Code::kInvalid, "a notice whose name or data is NULL");
  xfer::Notification out;
  out.name = name;
  if (bytes > 0) out.payload.assign(static_cast<const char*>(data), bytes);
  return out;
}

}  // namespace

extern "C" {

mc_code mc_notify(mc_engine* engine, mc_segment segment, const char* name, const void* data,
                  size_t bytes, unsigned timeout_ms) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY(const xfer::Notification notice, notice_of(name, data, bytes));
    return engine->engine->notify(segment, notice, std::chrono::milliseconds(timeout_ms));
  });
}

mc_code mc_batch_submit_notify(mc_engine* engine, mc_batch batch, const mc_request* requests,
                               size_t count, const char* name, const void* data, size_t bytes) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY(const xfer::Notification notice, notice_of(name, data, bytes));
    MC_TRY(const auto all, capi::requests_of(requests, count, engine->clock));
    return engine->engine->submit(batch, all, notice);
  });
}

size_t mc_notices_take(mc_engine* engine, size_t most, mc_each_notice each, void* user) {
  if (!capi::usable(engine) || each == nullptr) return 0;
  for (size_t n = 0; n < most; ++n) {
    const auto taken = engine->engine->take_notifications(1);
    if (taken.empty()) return n;
    const xfer::Notification& one = taken[0];
    const mc_notice notice{sizeof notice, one.from.c_str(), one.name.c_str(), one.payload.data(),
                           one.payload.size()};
    if (each(user, &notice) != 0) return n + 1;
  }
  return most;
}

int mc_notices_fd(mc_engine* engine) {
  int fd = -1;
  (void)guarded(engine, [&]() -> Result<> {
    MC_TRY(fd, engine->engine->notifications_fd());
    return {};
  });
  return fd;
}

}  // extern "C"
