// How far a request is, and how it failed.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace mc::sched {

// Why a request failed, in HTTP's terms.
struct RequestError {
  int status = 500;
  std::string code;  // "ttft_slo", "no_capacity", ...
  std::string what;
  uint32_t retry_after_s = 0;  // 0: do not say
  std::string param = {};      // the member of the request that it is about
};

// The state of a request so far; complete when it ends.
struct Progress {
  std::string prefill, decode;
  std::optional<uint32_t> prompt_tokens;  // as an external engine counted them
  std::optional<uint32_t> cached_tokens;  // known once the prefill worker answered
  uint32_t pool_tokens = 0, peer_tokens = 0;
  double sched_ms = 0, queue_ms = 0, load_ms = 0, prefill_ms = 0, transfer_ms = 0;
  double first_step_ms = 0;  // what is left of the time to the first token
  double decode_ms = 0;
  double predicted_ttft_ms = 0, ttft_ms = 0;
  uint64_t kv_errors = 0;
  uint32_t output_tokens = 0;
  std::string finish;       // "stop", "length"
  std::string retry_after;  // of an external engine that is full
};

}  // namespace mc::sched
