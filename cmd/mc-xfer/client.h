// Connects a verb to a peer, and fills and verifies memory on both sides.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/metrics.h"
#include "base/options.h"
#include "base/time.h"
#include "xfer/engine.h"

namespace mc::xfer {

struct ClientOptions {
  std::string target = "127.0.0.1:5600";  // control address; a positional
  Duration timeout = std::chrono::seconds(60);
  std::string cluster_key;
  std::string device;      // location of the verb's own memory; empty: host memory
  bool overwrite = false;  // of benchmarks: whatever the peer holds
  EngineOptions engine;
  void describe_device(OptionList& v) {
    v("device", device,
      "have this end's memory on a device: cuda, cuda:1, or stand-in (for trying it without a "
      "GPU)");
  }
  void describe_overwrite(OptionList& v) {
    v("overwrite", overwrite,
      "write to memory that its owner does not offer for that: what is there is lost");
  }
  void describe(OptionList& v) {
    v("timeout", timeout, "give up on a transfer after this long");
    v("cluster-key", cluster_key, "file with the cluster's secret");
    engine.describe(v);
  }
};

// An engine of this process, and the peer's segment.
struct Client {
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  SegmentHandle segment = 0;
  uint64_t offered = 0;  // bytes of the segment
  Duration timeout{};
  std::string location = "*";  // of memory()
  std::string target;          // these three by ask_scratch(): the peer, and
  uint64_t scratch = 0;        // how many of its bytes, from offset 0, may be overwritten
  bool told = false;           // that they may not

  static Result<std::unique_ptr<Client>> open(const ClientOptions& options, const char* verb);
  // Allocates `bytes` of engine memory on the chosen device. kInvalid: the peer offers less (`need`
  // names the purpose).
  Result<Memory> memory(uint64_t bytes, const std::string& need) const;
  // Copy between host memory and memory(), which the host may not be able to address. Both do
  // nothing if `image` is that memory.
  Result<> put(const Memory& memory, std::span<std::byte> image) const;
  Result<> get(const Memory& memory, std::span<std::byte> image) const;
  Result<> move(Op op, std::span<std::byte> local, uint64_t offset) const;
  // Compares the peer's bytes from offset 0 with `local`. Errors: kCorrupt.
  Result<> verify(std::span<const std::byte> local, const std::string& after) const;
};

// Adds the device named `word` on the command line to the engine. Returns: its location.
Result<std::string> add_device(Engine& engine, const std::string& word, const Clock& clock);

void fill_random(std::span<std::byte> memory, uint64_t seed);

}  // namespace mc::xfer
