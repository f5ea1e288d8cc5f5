#include "xfer/memory/write_slots.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/units.h"
#include "io/file.h"
#include "xfer/core/host.h"
#include "xfer/memory/copy.h"

namespace mc::xfer {
namespace {

constexpr unsigned kPidBits = 22;  // PID_MAX_LIMIT

// In clock ticks since the machine started; 0: unknown.
uint64_t start_of(const std::string& pid) {
  const std::string stat = io::read_file("/proc/" + pid + "/stat").value_or("");
  size_t at = stat.rfind(')');  // the name before it may hold anything
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const size_t end = stat.find(' ', at + 1);
  return parse_uint(stat.substr(at + 1, end - at - 1)).value_or(0);
}

uint64_t this_process() {
  static const uint64_t name = start_of("self") << kPidBits | static_cast<uint64_t>(::getpid());
  return name;
}

bool has_ended(uint64_t process) {
  if (process == this_process()) return false;
  const auto pid = static_cast<pid_t>(process & ((1 << kPidBits) - 1));
  const uint64_t start = process >> kPidBits;
  if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
  const io::Fd fd = pid_fd(pid);
  if (fd && !process_alive(fd)) return true;
  const uint64_t now = start_of(std::to_string(pid));
  return start != 0 && now != 0 && now != start;  // its number is another's by now
}

void take_back(WriteSlot& slot, uint64_t process) {
  slot.to.store(0, std::memory_order_relaxed);
  slot.process.compare_exchange_strong(process, 0, std::memory_order_acq_rel);
}

}  // namespace

// The owner raises the guard and then looks at the slot; the writer fills the slot and then looks
// at the guard, both with a full barrier between: one of them sees the other.
void WriteClaim::take(WriteSlot* slots, uint64_t from, uint64_t to) {
  static std::atomic<size_t> threads{0};
  thread_local const size_t first = threads.fetch_add(1, std::memory_order_relaxed);
  const uint64_t me = this_process();
  for (size_t i = 0; i < kWriteSlots; ++i) {
    WriteSlot& slot = slots[(me + first + i) % kWriteSlots];
    uint64_t none = 0;
    if (slot.process.load(std::memory_order_relaxed) != 0 ||
        !slot.process.compare_exchange_strong(none, me, std::memory_order_acq_rel))
      continue;
    slot.from.store(from, std::memory_order_relaxed);
    slot.to.exchange(to, std::memory_order_seq_cst);
    slot_ = &slot;
    return;
  }
  refused_ = true;
}

void WriteClaim::give_back() {
  fence_copies();  // of a copy that was given up, too
  slot_->to.store(0, std::memory_order_release);
  slot_->process.store(0, std::memory_order_release);
}

void check_write_slots(WriteSlot* slots, std::span<FencedRange> ranges) {
  fence_copies();
  for (size_t i = 0; i < kWriteSlots; ++i) {
    WriteSlot& slot = slots[i];
    const uint64_t process = slot.process.load(std::memory_order_acquire);
    if (process == 0) continue;
    const uint64_t from = slot.from.load(std::memory_order_acquire);
    const uint64_t to = slot.to.load(std::memory_order_acquire);
    const auto met = [&](const FencedRange& range) { return range.meets(from, to); };
    if (std::none_of(ranges.begin(), ranges.end(), met)) continue;
    if (has_ended(process)) {
      take_back(slot, process);
      continue;
    }
    for (FencedRange& range : ranges)
      if (met(range)) range.done = false;
  }
}

void free_ended(WriteSlot* slots) {
  for (size_t i = 0; i < kWriteSlots; ++i)
    if (const uint64_t process = slots[i].process.load(std::memory_order_acquire);
        process != 0 && has_ended(process))
      take_back(slots[i], process);
}

}  // namespace mc::xfer
