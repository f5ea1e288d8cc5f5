#include "xfer/transports/shm/truncation_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "base/mutex.h"

namespace mc::xfer {
namespace {

// Read by the handler, in whatever thread it runs, without a lock: `version` is odd while a slot
// changes. No thread touches the memory of a slot that changes.
struct Guarded {
  std::atomic<uint32_t> version{0};
  std::atomic<uintptr_t> begin{0}, end{0}, word{0};
  std::atomic<size_t> unit{0};
};

std::array<Guarded, TruncationGuard::kMappingsMax> g_guarded;
Mutex g_mutex;
bool g_installed MC_GUARDED_BY(g_mutex) = false;
struct sigaction g_before;  // set before the handler may run

bool replace_tail(uintptr_t fault) {
  for (Guarded& g : g_guarded) {
    const uint32_t version = g.version.load(std::memory_order_acquire);
    const uintptr_t begin = g.begin.load(std::memory_order_acquire);
    const uintptr_t end = g.end.load(std::memory_order_acquire);
    const uintptr_t word = g.word.load(std::memory_order_acquire);
    const size_t unit = g.unit.load(std::memory_order_acquire);
    if (fault < begin || fault >= end || version % 2 != 0 || g.version.load() != version) continue;
    const uintptr_t from = begin + (fault - begin) / unit * unit;
    void* const p = ::mmap(reinterpret_cast<void*>(from), end - from, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(word))
        .store(TruncationGuard::kTruncated, std::memory_order_release);
    return true;
  }
  return false;
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool handled =
      info->si_code == BUS_ADRERR && replace_tail(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = error;
  if (handled) return;  // what touched it touches it again
  if ((g_before.sa_flags & SA_SIGINFO) != 0) return g_before.sa_sigaction(signal, info, context);
  if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN)
    return g_before.sa_handler(signal);
  ::signal(SIGBUS, SIG_DFL);  // it comes again, and ends the process
}

void install() MC_REQUIRES(g_mutex) {
  if (g_installed) return;
  g_installed = true;
  ::sigaction(SIGBUS, nullptr, &g_before);
  struct sigaction ours {};
  ours.sa_sigaction = on_sigbus;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigaction(SIGBUS, &ours, nullptr);
}

void set_slot(Guarded& g, uintptr_t begin, uintptr_t end, uintptr_t word, size_t unit) {
  g.version.fetch_add(1);
  g.begin.store(begin);
  g.end.store(end);
  g.word.store(word);
  g.unit.store(unit);
  g.version.fetch_add(1);
}

}  // namespace

bool TruncationGuard::protect(std::byte* begin, size_t bytes, size_t unit, const std::byte* word) {
  Lock lock(g_mutex);
  install();
  for (size_t i = 0; i < g_guarded.size(); ++i) {
    if (g_guarded[i].end.load() != 0) continue;
    const auto first = reinterpret_cast<uintptr_t>(begin);
    set_slot(g_guarded[i], first, first + bytes, reinterpret_cast<uintptr_t>(word), unit);
    slot_ = i;
    return true;
  }
  return false;
}

TruncationGuard::~TruncationGuard() {
  if (slot_ == kMappingsMax) return;
  Lock lock(g_mutex);
  set_slot(g_guarded[slot_], 0, 0, 0, 0);
}

}  // namespace mc::xfer
