#include "xfer/memory/machine_copies.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/log.h"
#include "base/time.h"
#include "io/file.h"

namespace mc::xfer {
namespace {

constexpr Duration kMeasureTime = std::chrono::milliseconds(18);
constexpr uint64_t kMeasuredLarge = kLargeCopy, kMeasuredSmall = kLargeCopy / 2;
constexpr uint64_t kMeasuredSkew = 16;  // as malloc's, within a line
constexpr size_t kCopiesFileMost = 4096;

// Others may put things of that name into the folder, and a pipe would keep its reader waiting.
bool is_own_file(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

bool can_flush_lines() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 23 & 1) != 0;
}

__attribute__((target("clflushopt"))) void flush_lines(std::byte* at, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) _mm_clflushopt(at + i);
  _mm_mfence();
}

double time_copy(const Clock& clock, std::byte* to, const std::byte* from, CopyKind kind,
                 const CopyCase& c) {
  const uint64_t bytes = c.large ? kMeasuredLarge : kMeasuredSmall;
  const Rows rows{to + (c.skewed ? kMeasuredSkew : 0), from, bytes};
  if (c.cold)
    flush_lines(to, bytes + 64);
  else
    copy_rows(rows, CopyKind::kPlain);
  const Time start = clock.now();
  copy_rows(rows, kind);
  return to_seconds(clock.now() - start);
}

}  // namespace

CopyChoice measure_copies() {
  const SteadyClock clock;
  const Time until = clock.now() + kMeasureTime;
  if (!can_flush_lines()) return default_copies();
  constexpr uint64_t kHalf = kMeasuredLarge + 4096;
  void* const memory = ::mmap(nullptr, 2 * kHalf, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return default_copies();
  auto* const to = static_cast<std::byte*>(memory);
  std::memset(to + kHalf, 1, kHalf);  // else it may be one page of zeros
  const CopyChoice out = choose_copies(
      [&](CopyKind kind, const CopyCase& c) { return time_copy(clock, to, to + kHalf, kind, c); },
      [&] { return clock.now() < until; });
  ::munmap(memory, 2 * kHalf);
  return out;
}

std::string copies_file(const std::string& folder) {
  return folder.empty() ? folder : folder + "/mc-copies-" + std::to_string(::geteuid());
}

void MachineCopies::set(const CopyChoice& choice) {
  uint32_t packed = 0;
  for (size_t i = 0; i < CopyCase::kCount; ++i)
    packed |= static_cast<uint32_t>(choice.kinds[i]) << (4 * i);
  packed_.store(packed, std::memory_order_relaxed);
}

// A file that cannot be read or written, or is damaged, costs a measurement and is no error.
void MachineCopies::read_or_measure() {
  if (!file_.empty() && is_own_file(file_))
    if (const auto text = io::read_secret_file(file_, kCopiesFileMost))
      if (const auto known = parse_copies(*text, host_)) return set(*known);
  const CopyChoice measured = measure_();
  set(measured);
  if (file_.empty()) return;
  if (auto kept = io::write_file_atomically(file_, print_copies(measured, host_), 0600); !kept)
    log_debug("xfer", "measured copies are not kept: %s", kept.error().what.c_str());
}

}  // namespace mc::xfer
