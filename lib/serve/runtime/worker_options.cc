#include "serve/runtime/worker_options.h"

namespace mc::serve {
namespace {
constexpr uint64_t kBlocksMax = uint64_t{1} << 26;
constexpr uint32_t kBlockTokensMax = 65536;
}  // namespace

void WorkerOptions::describe(OptionList& v) {
  v("listen", listen, "control address; port 0 takes a free one");
  v("http", http, "address of /metrics, /live, /ready, /health and /state");
  v("name", name, "unique name of this worker; empty: its role and process id");
  choice.describe(v);
  cpu.describe(v);
  v("block-size", block_size, "tokens in a block of KV; the same in the whole cluster");
  v("blocks", blocks, "blocks in the pool; 0: as many as fit in --pool");
  v("pool", pool, "memory for KV blocks");
  v("time-scale", time_scale,
    "multiplies the modelled times: 0.1 is ten times faster, 0 does not wait");
  v("master", master, "address of mc-master; empty: KV is not shared through a store");
  v("conductor", conductor, "address of an mc-conductor to join; may come up later");
  v("heartbeat", heartbeat, "how often conductors get the load and the cache events");
  v("drain-timeout", drain_timeout, "how long SIGTERM waits for requests in flight");
}

Result<uint32_t> WorkerOptions::count_blocks(const cost::ModelSpec& spec) const {
  if (block_size == 0 || block_size > kBlockTokensMax)
    return fail(Code::kInvalid, "block-size %u: want 1 to %u tokens", block_size, kBlockTokensMax);
  if (!(time_scale >= 0 && time_scale <= 1e6))
    return fail(Code::kInvalid, "time-scale %s: want 0 to 1000000",
                number_text(time_scale).c_str());
  if (heartbeat < std::chrono::milliseconds(10))
    return fail(Code::kInvalid, "heartbeat %s: want 10ms or more", to_text(heartbeat).c_str());
  const uint64_t bytes = spec.block_bytes(block_size);
  const uint64_t n = blocks > 0 ? blocks : pool.n / bytes;
  if (n < 2 || n > kBlocksMax)
    return fail(Code::kInvalid,
                "a pool of %llu blocks of %s: want 2 to %llu; give --blocks, or a --pool of "
                "%s or more",
                static_cast<unsigned long long>(n), bytes_text(bytes).c_str(),
                static_cast<unsigned long long>(kBlocksMax), bytes_text(2 * bytes).c_str());
  return static_cast<uint32_t>(n);
}

}  // namespace mc::serve
