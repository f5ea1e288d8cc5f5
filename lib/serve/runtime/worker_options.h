// Options that mc-prefill and mc-decode share.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "base/options.h"
#include "cost/model_spec.h"
#include "serve/engine/cpu_engine.h"

namespace mc::serve {

struct WorkerOptions {
  std::string listen, http;  // the defaults are the program's
  std::string name;          // empty: ROLE-PID
  EngineChoice choice;
  CpuOptions cpu;
  uint32_t block_size = 256;  // tokens
  uint64_t blocks = 0;        // 0: as many as fit in `pool`
  Bytes pool{256 * kMiB};     // of KV blocks
  double time_scale = 1;      // multiplies the model's times; 0: no waiting
  std::string master;         // empty: no pool beyond this worker
  std::vector<std::string> conductor;
  Duration heartbeat = std::chrono::milliseconds(500);
  Duration drain_timeout = std::chrono::seconds(20);

  void describe(OptionList& v);
  // Blocks of the pool. Errors: kInvalid for options out of range, or a pool of less than 2 blocks.
  Result<uint32_t> count_blocks(const cost::ModelSpec& spec) const;
};

}  // namespace mc::serve
