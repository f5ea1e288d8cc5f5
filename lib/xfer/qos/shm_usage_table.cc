#include "xfer/qos/shm_usage_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "io/fd.h"
#include "io/file.h"

namespace mc::xfer {

struct alignas(128) ShmUsageTable::Slot {
  std::atomic<uint64_t> owner;  // see owner_word(); 0: free
  std::array<std::atomic<int64_t>, kPriorities>
      active_until;                      // ns of the monotonic clock; 0: never
  std::atomic<uint64_t> rate, capacity;  // bytes a second
  std::atomic<int64_t> round_trip;       // ns; 0: not known
};

struct ShmUsageTable::File {
  // Magic, then version, slot size and slots: one word, so that it is all there or not at all.
  std::atomic<uint64_t> layout;
  alignas(128) std::array<Slot, kSlots> slots;
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free);
constexpr uint64_t kLayout =
    0x4d435153ull << 32 | 2ull << 24 | 128ull << 12 | ShmUsageTable::kSlots;  // "MCQS"
// An owner: its id, its start time, and a number to tell several tables in one process apart.
constexpr int kPidShift = 42, kStartShift = 8;
constexpr uint64_t kStartMask = (1ull << (kPidShift - kStartShift)) - 1;
constexpr uint64_t kRateMax = 1ull << 44;  // 17 TB/s: more is garbage
// No process announces activity for longer (NicConfig::silent_after): more is garbage.
constexpr Duration kAheadMax = std::chrono::seconds(5);
constexpr Duration kRoundTripMax = std::chrono::seconds(10);

uint64_t rate_word(double rate) {
  return static_cast<uint64_t>(std::clamp(rate, 0.0, static_cast<double>(kRateMax)));
}

// When a process started, in ticks since boot; 0: there is none.
uint64_t start_of(uint64_t pid) {
  const auto text = io::read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!text) return 0;
  // The name, in parentheses, may hold anything; the start time is the 20th word after it.
  size_t at = text->rfind(')');
  if (at == std::string::npos) return 0;
  const bool ended = text->compare(at, 3, ") Z") == 0;
  for (int word = 0; word < 20 && at != std::string::npos; ++word) at = text->find(' ', at + 1);
  if (ended || at == std::string::npos) return 0;
  return std::strtoull(text->c_str() + at, nullptr, 10);
}

uint64_t owner_word(uint64_t pid, uint8_t number) {
  const uint64_t start = start_of(pid);
  return start == 0 ? 0 : pid << kPidShift | (start & kStartMask) << kStartShift | number;
}

bool alive(uint64_t owner) {
  return owner_word(owner >> kPidShift, static_cast<uint8_t>(owner)) == owner;
}

Result<uint64_t> namespace_inode(const char* kind) {
  struct stat st {};
  if (::stat((std::string("/proc/self/ns/") + kind).c_str(), &st) != 0)
    return fail_errno("ask for the namespace");
  return static_cast<uint64_t>(st.st_ino);
}

// A NIC's name as part of a file's: what is no letter, digit, point or dash is an underscore.
std::string plain(std::string name) {
  for (char& c : name)
    if (std::strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", c) ==
        nullptr)
      c = '_';
  return name.substr(0, 64);
}

Result<io::Fd> open_file(const std::string& path, size_t bytes) {
  io::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd)
    return fail(Code::kDenied, "open the share table %s: %s", path.c_str(), std::strerror(errno));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return fail_errno("stat the share table");
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 077) != 0)
    return fail(Code::kDenied, "the share table %s is not this user's alone: remove it",
                path.c_str());
  if (st.st_size != 0 && static_cast<size_t>(st.st_size) != bytes)
    return fail(Code::kCorrupt, "the share table %s has %lld bytes instead of %zu: remove it",
                path.c_str(), static_cast<long long>(st.st_size), bytes);
  // Allocated now: a full machine is an error here and no SIGBUS later.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0)
    return fail(Code::kNoSpace, "allocate the share table %s: %s", path.c_str(),
                std::strerror(error));
  return fd;
}

}  // namespace

Result<std::unique_ptr<ShmUsageTable>> ShmUsageTable::open(const std::string& directory,
                                                           const std::string& nic) {
  static_assert(sizeof(Slot) == 128 && sizeof(File) == 128 * (kSlots + 1));
  MC_TRY(const uint64_t net, namespace_inode("net"));
  MC_TRY(const uint64_t processes, namespace_inode("pid"));
  auto table = std::unique_ptr<ShmUsageTable>(new ShmUsageTable);
  table->path_ = directory + "/mc-share-" + std::to_string(::geteuid()) + "-" +
                 std::to_string(net) + "-" + std::to_string(processes) + "-" + plain(nic);
  MC_TRY(const io::Fd fd, open_file(table->path_, sizeof(File)));
  void* at = ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return fail_errno("map the share table");
  table->file_ = static_cast<File*>(at);  // of zeros, or as another process of ours left it
  uint64_t found = 0;
  if (!table->file_->layout.compare_exchange_strong(found, kLayout) && found != kLayout)
    return fail(Code::kCorrupt, "the share table %s has layout %llx instead of %llx: remove it",
                table->path_.c_str(), static_cast<unsigned long long>(found),
                static_cast<unsigned long long>(kLayout));
  MC_TRY_(table->claim());
  return table;
}

ShmUsageTable::~ShmUsageTable() {
  if (owns()) {
    publish({});
    uint64_t expected = me_;
    mine_->owner.compare_exchange_strong(expected, 0);
  }
  if (file_ != nullptr) ::munmap(file_, sizeof(File));
}

Result<> ShmUsageTable::claim() {
  mine_ = nullptr;
  static std::atomic<uint8_t> numbers{0};
  me_ = owner_word(static_cast<uint64_t>(::getpid()), ++numbers);
  if (me_ == 0) return fail(Code::kInternal, "this process is not found in /proc");
  for (const bool of_the_dead : {false, true}) {
    for (Slot& slot : file_->slots) {
      uint64_t owner = slot.owner.load();
      if (owner != 0 && (!of_the_dead || alive(owner))) continue;
      if (!slot.owner.compare_exchange_strong(owner, me_)) continue;
      mine_ = &slot;
      for (auto& until : slot.active_until) until.store(0);  // of the one before
      slot.rate.store(0);
      slot.capacity.store(0);
      slot.round_trip.store(0);
      return {};
    }
  }
  return fail(Code::kBusy, "the share table %s has no free slot: %u processes use this NIC",
              path_.c_str(), kSlots);
}

bool ShmUsageTable::owns() const {
  return mine_ != nullptr && mine_->owner.load(std::memory_order_relaxed) == me_;
}

void ShmUsageTable::publish(const NicDemand& demand) {
  if (!owns() && !claim()) return;  // the slot was overwritten
  for (size_t c = 0; c < kPriorities; ++c)
    mine_->active_until[c].store(demand.active_until[c].time_since_epoch().count(),
                                 std::memory_order_relaxed);
  mine_->rate.store(rate_word(demand.rate), std::memory_order_relaxed);
  mine_->capacity.store(rate_word(demand.capacity), std::memory_order_relaxed);
  mine_->round_trip.store(demand.round_trip.count(), std::memory_order_relaxed);
}

NicUsage ShmUsageTable::usage(Time now) const {
  NicUsage out;
  for (const Slot& slot : file_->slots) {
    const uint64_t owner = slot.owner.load(std::memory_order_relaxed);
    if (owner == 0 || (&slot == mine_ && owner == me_)) continue;
    bool active = false;
    for (size_t c = 0; c < kPriorities; ++c) {
      const int64_t told = slot.active_until[c].load(std::memory_order_relaxed);
      const Time until{Duration(told)};
      if (told == 0 || until <= kLongAgo || until > now + kAheadMax) continue;
      if (c == static_cast<size_t>(Priority::kHigh))
        out.high_until = std::max(out.high_until, until);
      if (until <= now) continue;
      ++out.active[c];
      active = true;
    }
    if (!active) continue;
    const uint64_t rate = slot.rate.load(std::memory_order_relaxed);
    const uint64_t capacity = slot.capacity.load(std::memory_order_relaxed);
    const Duration trip{slot.round_trip.load(std::memory_order_relaxed)};
    if (rate <= kRateMax) out.rate += static_cast<double>(rate);
    if (capacity <= kRateMax) out.capacity = std::max(out.capacity, static_cast<double>(capacity));
    const bool known = trip > Duration::zero() && trip <= kRoundTripMax;
    if (known && (out.round_trip == Duration::zero() || trip < out.round_trip))
      out.round_trip = trip;
  }
  return out;
}

}  // namespace mc::xfer
