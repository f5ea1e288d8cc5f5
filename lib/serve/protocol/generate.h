// Defines a generate request, its progress, its error, and the sink of its answer.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sched/request/progress.h"
#include "serve/protocol/cache_control.h"
#include "serve/protocol/constraint.h"
#include "serve/protocol/proxied_request.h"
#include "serve/protocol/sampling_controls.h"
#include "telemetry/trace_context.h"

namespace mc::serve {

using sched::Progress;
using sched::RequestError;

struct GenerateRequest {
  std::string id;  // of the client's request, for logs
  std::vector<int32_t> prompt;
  std::string cache_salt;
  int64_t priority = 0;  // in the waiting room and in a prefill queue: lower first
  size_t tenant = 0;     // those that wait share by tokens
  CacheControl cache;
  uint32_t max_tokens = 16, min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_tokens;
  uint64_t seed = 0;
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 1;
  SamplingControls controls;
  telemetry::TraceContext trace;  // of the span above; not valid: none is known
  Constraint constraint;
  // For external engines; without it only own workers are chosen.
  std::shared_ptr<ProxiedRequest> proxied;
  std::optional<RequestError> refusal;  // why own workers cannot: only external engines are chosen

  // Of the prompt, as an external engine will see them where that is known.
  std::span<const int32_t> engine_tokens() const {
    return proxied && !proxied->tokens.empty() ? proxied->tokens : prompt;
  }
  uint64_t tokens() const {  // of these; estimated where they are not known
    return engine_tokens().empty() && proxied ? proxied->tokens_about : engine_tokens().size();
  }
};

struct ResponseSink {
  // `logprobs`: of each token, where the request wants them.
  std::function<void(const Progress&, const std::vector<int32_t>& tokens,
                     const std::vector<TokenLogprobs>& logprobs)>
      on_tokens;
  // Replaces on_tokens when an external engine answers: the bytes of its answer as they come.
  std::function<void(const Progress&, int status, const std::string& content_type,
                     std::string_view bytes)>
      on_upstream_bytes;
  // Called once, last; never after cancel().
  std::function<void(const Progress&, const std::optional<RequestError>&)> on_done;
};

}  // namespace mc::serve
