// The kinds of copies that are the fastest on this machine. The first large copy of a process reads
// them from a file, or measures them, which takes 20 ms at most, and writes the file for the
// processes that come after it until the next boot. Until then the defaults are used.
//
// Thread: any. One thread learns; others go on with the defaults meanwhile.
#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "xfer/memory/copy_choice.h"

namespace mc::xfer {

class MachineCopies {
 public:
  using Measure = std::function<CopyChoice()>;
  // `file`: empty: none is read or written.
  MachineCopies(std::string file, std::string host, Measure measure)
      : file_(std::move(file)), host_(std::move(host)), measure_(std::move(measure)) {
    set(default_copies());
  }
  CopyKind kind(const Rows& rows, bool cold) const {
    const auto between =
        reinterpret_cast<uintptr_t>(rows.to) - reinterpret_cast<uintptr_t>(rows.from);
    const CopyCase c{rows.bytes >= kLargeCopy, cold, between % 64 != 0};
    return static_cast<CopyKind>(packed_.load(std::memory_order_relaxed) >> (4 * c.index()) & 0xf);
  }
  // Learns before the first copy of so many bytes that it is worth it. Others, and later ones,
  // return at once.
  void learn_for(uint64_t bytes) {
    if (bytes < kLearnBytes || learned_.load(std::memory_order_relaxed)) return;
    if (!learned_.exchange(true)) read_or_measure();
  }
  static constexpr uint64_t kLearnBytes = 8u << 20;

 private:
  void set(const CopyChoice& choice);
  void read_or_measure();

  const std::string file_, host_;
  const Measure measure_;
  std::atomic<uint32_t> packed_{0};  // four bits for each case
  std::atomic<bool> learned_{false};
};

// Measures this machine for 20 ms at most, on this thread. The defaults, if it has no memory.
CopyChoice measure_copies();
// The file of this user in a folder that is empty after a boot ("": none).
std::string copies_file(const std::string& folder);

}  // namespace mc::xfer
