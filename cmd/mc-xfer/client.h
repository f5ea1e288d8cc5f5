// What the verbs that talk to a peer share: how to reach it, and memory filled with what can be
// checked.
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
  std::string device;  // where the verb's own memory lies; empty: in the host's
  EngineOptions engine;
  void describe_device(OptionList& v) {
    v("device", device,
      "have this end's memory on a device: cuda, cuda:1, or stand-in (for trying it without a "
      "GPU)");
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

  static Result<std::unique_ptr<Client>> open(const ClientOptions& options, const char* verb);
  // `bytes` of engine memory, on the device that was asked for; kInvalid when the peer offers less
  // than that (`need` says for what).
  Result<Memory> memory(uint64_t bytes, const std::string& need) const;
  // Between memory(), which the host may not be able to touch, and the host's; the same: nothing.
  Result<> put(const Memory& memory, std::span<std::byte> image) const;
  Result<> get(const Memory& memory, std::span<std::byte> image) const;
  Result<> move(Op op, std::span<std::byte> local, uint64_t offset) const;
  // What lies at the peer from offset 0 is what lies here. kCorrupt.
  Result<> verify(std::span<const std::byte> local, const std::string& after) const;
};

// Lets the engine move memory of the device, `word` of the command line; its location.
Result<std::string> add_device(Engine& engine, const std::string& word, const Clock& clock);

void fill_random(std::span<std::byte> memory, uint64_t seed);

}  // namespace mc::xfer
