// Runs the workload of mc-xfer bench: streams of equal requests, at the same time. Each thread of a
// stream has its own part of the memory on both sides.
#pragma once
#include <string>
#include <vector>

#include "base/histogram.h"
#include "cmd/mc-xfer/client.h"

namespace mc::xfer {

inline constexpr uint64_t kThreadsMax = 1024;  // of a stream

struct Stream {
  std::string name;  // for display: a class of a mix; empty for a single stream
  Op op = Op::kRead;
  Priority priority = Priority::kMedium;
  uint64_t block = 64 * kKiB, batch = 1, threads = 1;
  Duration slo{};    // of one batch; zero: none
  uint64_t gap = 0;  // between blocks, on both sides: nothing can be merged
  uint64_t span() const { return (block + gap) * batch * threads; }
};

struct StreamResult {
  Stream stream;
  uint64_t requests = 0, within_slo = 0, batches = 0;
  double seconds = 0;
  Histogram latency_ns;              // of batches
  std::vector<double> thread_bytes;  // one a thread, for fairness
  bool checked = false;
  double gigabytes() const {
    return static_cast<double>(requests) * static_cast<double>(stream.block) / 1e9 / seconds;
  }
  double slo_attainment() const {
    return batches == 0 ? 0 : static_cast<double>(within_slo) / static_cast<double>(batches);
  }
};

struct WorkloadConfig {
  Duration duration = std::chrono::seconds(1);
  bool check = true;  // contents, at the end; of a run that only reads, where it may fill them
  uint64_t seed = 1;
};

Result<std::vector<StreamResult>> run_workload(Client& client, const std::vector<Stream>& streams,
                                               const WorkloadConfig& config);

// Errors: kInvalid when `streams` would write where they may not. Nothing is said of those that ask
// for more than the peer has: run_workload() does.
Result<> may_write(Client& client, const std::vector<Stream>& streams);

// Returns: Jain's index of the shares: 1 when all are equal, 1/n when one has all.
double jain(const std::vector<double>& shares);

// "CLASS:OP:BLOCK[:THREADS[:SLO]]", as "high:read:64KiB:1:2ms".
Result<Stream> parse_mix(const std::string& text);

}  // namespace mc::xfer
