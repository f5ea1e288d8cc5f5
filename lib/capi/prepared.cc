// Prepared transfers of the C interface.
#include <chrono>
#include <memory>

#include "capi/common.h"
#include "capi/queue.h"
#include "capi/requests.h"
#include "xfer/prepared.h"

struct mc_prepared {
  mc::ProcessMark mark;
  mc::xfer::Engine* engine = nullptr;
  std::unique_ptr<mc::xfer::PreparedTransfers> transfers;
};

namespace {

using namespace mc;

Result<> without_timeouts(const mc_request* requests, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (requests[i].timeout_ms != 0)
      return fail(Code::kInvalid,
                  "mc_request.timeout_ms of prepared request %zu is not 0: give it to each run", i);
  return {};
}

}  // namespace

extern "C" {

mc_code mc_prepared_new(mc_engine* engine, const mc_request* requests, size_t count,
                        mc_prepared** out) {
  return capi::guarded(engine, [&]() -> Result<> {
    MC_TRY_(capi::need(out, "out"));
    MC_TRY(auto all, capi::requests_of(requests, count, engine->clock));
    MC_TRY_(without_timeouts(requests, count));
    auto prepared = std::make_unique<mc_prepared>();
    prepared->engine = engine->engine.get();
    MC_TRY(prepared->transfers, xfer::PreparedTransfers::make(*engine->engine, std::move(all)));
    *out = prepared.release();
    return {};
  });
}

mc_code mc_prepared_run(mc_prepared* prepared, unsigned timeout_ms) {
  return capi::guarded(
      prepared, [&] { return prepared->transfers->run(std::chrono::milliseconds(timeout_ms)); });
}

mc_code mc_prepared_submit(mc_prepared* prepared, mc_batch batch, unsigned timeout_ms,
                           mc_queue* queue, uint64_t tag) {
  return capi::guarded(prepared, [&]() -> Result<> {
    const Duration budget =
        timeout_ms == 0 ? Duration::max() : Duration(std::chrono::milliseconds(timeout_ms));
    xfer::PreparedTransfers& transfers = *prepared->transfers;
    if (queue == nullptr) return transfers.submit(batch, budget);
    return queue->calls->submit(tag, *prepared->engine, batch, transfers.count(),
                                [&](std::function<void()> all_done) {
                                  return transfers.submit(batch, budget, std::move(all_done));
                                });
  });
}

void mc_prepared_free(mc_prepared* prepared) { capi::destroy(prepared); }

}  // extern "C"
