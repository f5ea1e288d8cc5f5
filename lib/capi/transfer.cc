#include "capi/mc/transfer.h"

#include <memory>
#include <string>
#include <vector>

#include "capi/common.h"
#include "capi/queue.h"
#include "capi/requests.h"

// The C interface of xfer::Engine.

namespace {

using namespace mc;
using namespace mc::xfer;
using mc::capi::guarded;
using mc::capi::need;
using mc::capi::report;
using mc::capi::request_of;
using mc::capi::requests_of;

static_assert(MC_INVALID == static_cast<int>(Code::kInvalid) &&
              MC_STALE == static_cast<int>(Code::kStale) &&
              MC_INTERNAL == static_cast<int>(Code::kInternal));
static_assert(MC_STATE_COMPLETED == static_cast<int>(TransferState::kCompleted) &&
              MC_STATE_CANCELLED == static_cast<int>(TransferState::kCancelled));

}  // namespace

extern "C" {

const char* mc_version(void) { return MC_VERSION; }
const char* mc_code_name(mc_code code) {
  return code == MC_OK ? "ok" : name(code_from_wire(static_cast<uint64_t>(code)));
}

mc_code mc_options_new(mc_options** out) {
  return guarded([&]() -> Result<> {
    MC_TRY_(need(out, "out"));
    *out = std::make_unique<mc_options>().release();
    return {};
  });
}

mc_code mc_options_set(mc_options* options, const char* option, const char* value) {
  return guarded([&]() -> Result<> {
    MC_TRY_(need(options, "options"));
    MC_TRY_(need(option, "option"));
    MC_TRY_(need(value, "value"));
    OptionList list;
    options->settings.describe(list);
    MC_TRY(Option * found, list.find(option, "mc_options_set"));
    return found->set(value);
  });
}

void mc_options_free(mc_options* options) { std::unique_ptr<mc_options> owner(options); }

mc_code mc_engine_open(const char* node, const mc_options* options, mc_engine** out) {
  return guarded([&]() -> Result<> {
    MC_TRY_(need(out, "out"));
    MC_TRY(auto engine, capi::open_engine(node, options, false));
    *out = engine.release();
    return {};
  });
}

const char* mc_engine_address(const mc_engine* engine) {
  return engine == nullptr ? "" : engine->address.c_str();
}
void mc_engine_close(mc_engine* engine) { capi::destroy(engine); }

mc_code mc_segment_open(mc_engine* engine, const char* address, unsigned timeout_ms,
                        mc_segment* out) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY_(need(address, "address"));
    MC_TRY_(need(out, "out"));
    MC_TRY(*out, engine->engine->open_segment(address, std::chrono::milliseconds(timeout_ms)));
    return {};
  });
}

mc_code mc_segment_bytes(mc_engine* engine, mc_segment segment, uint64_t* out) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY_(need(out, "out"));
    MC_TRY(*out, engine->engine->segment_bytes(segment));
    return {};
  });
}

mc_code mc_segment_offset(mc_engine* engine, mc_segment segment, uint64_t address, uint64_t bytes,
                          uint64_t* offset) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY_(need(offset, "offset"));
    MC_TRY(*offset, engine->engine->segment_offset(segment, address, bytes));
    return {};
  });
}

void mc_segment_close(mc_engine* engine, mc_segment segment) {
  if (capi::usable(engine)) engine->engine->close_segment(segment);
}

mc_code mc_transfer(mc_engine* engine, const mc_request* request, unsigned timeout_ms) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY_(need(request, "request"));
    MC_TRY(const Request r, request_of(*request, engine->clock));
    return engine->engine->transfer_sync(r, std::chrono::milliseconds(timeout_ms));
  });
}

mc_batch mc_batch_allocate(mc_engine* engine) {
  mc_batch batch = 0;
  (void)guarded(engine, [&]() -> Result<> {
    batch = engine->engine->allocate_batch();
    return {};
  });
  return batch;
}

mc_code mc_batch_submit(mc_engine* engine, mc_batch batch, const mc_request* requests,
                        size_t count) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY(const auto all, requests_of(requests, count, engine->clock));
    return engine->engine->submit(batch, all);
  });
}

mc_code mc_batch_submit_queue(mc_engine* engine, mc_batch batch, const mc_request* requests,
                              size_t count, mc_queue* queue, uint64_t tag) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY(const auto all, requests_of(requests, count, engine->clock));
    if (queue == nullptr) return fail(Code::kInvalid, "the queue is NULL");
    return queue->calls->submit(tag, *engine->engine, batch, all.size(),
                                [&](std::function<void()> all_done) {
                                  return engine->engine->submit(batch, all, std::move(all_done));
                                });
  });
}

mc_code mc_batch_status(mc_engine* engine, mc_batch batch, size_t index, mc_status* out) {
  return guarded(engine, [&]() -> Result<> {
    MC_TRY_(need(out, "out"));
    const Status s = engine->engine->status(batch, index);
    if (s.state == TransferState::kFailed && s.error.code == Code::kNotFound && s.bytes_done == 0)
      return fail(s.error);
    *out = {static_cast<uint32_t>(s.state),
            s.error.what.empty() ? 0u : static_cast<uint32_t>(s.error.code), s.bytes_done};
    if (!s.error.what.empty()) report(s.error);
    return {};
  });
}

mc_code mc_batch_wait(mc_engine* engine, mc_batch batch, unsigned timeout_ms) {
  return guarded(
      engine, [&] { return engine->engine->wait(batch, std::chrono::milliseconds(timeout_ms)); });
}

void mc_batch_cancel(mc_engine* engine, mc_batch batch) {
  if (capi::usable(engine)) engine->engine->cancel(batch);
}
void mc_batch_free(mc_engine* engine, mc_batch batch) {
  if (capi::usable(engine)) engine->engine->free_batch(batch);
}

}  // extern "C"
