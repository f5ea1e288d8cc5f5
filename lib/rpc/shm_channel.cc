#include "rpc/shm_channel.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "wire/codec.h"

namespace mc::rpc {
namespace {

constexpr size_t kWaitingMax = 2 * wire::kMessageBytesMax;  // for a peer that does not read
constexpr size_t kKeptMax = 256 * 1024;  // of the memory of a message, for the next one
constexpr size_t kHeadBytes = 8;         // of a message: the sizes of its two frames
constexpr int kWakeupsMax = 512;
constexpr Duration kLookAgain = std::chrono::milliseconds(20);  // for the end of the peer

// Values of `asleep`: the reader waits for a byte over the socket, or for the word itself.
constexpr uint32_t kAtSocket = 1, kAtWord = 2;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));  // the kernel's idea of a futex

// The word lies in memory of two processes, so the futex is not a private one.
void wait_for_word(std::atomic<uint32_t>& word, uint32_t while_it_is, Duration most) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec limit{whole.count(), (most - whole).count()};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT, while_it_is, &limit, nullptr, 0);
}
void wake_word(std::atomic<uint32_t>& word) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

struct ShmRings {
  struct Ring {
    alignas(64) std::atomic<uint64_t> written;  // by the writer: bytes since the beginning
    std::atomic<uint32_t> crowded;              // the writer waits for room
    std::atomic<uint32_t> wakes_words;          // the writer knows kAtWord; set once
    alignas(64) std::atomic<uint64_t> taken;    // by the reader
    std::atomic<uint32_t> asleep;               // the reader waits for input
    alignas(64) char bytes[kShmRingBytes];
  };
  Ring rings[2];  // to the server, from the server
  Ring& out(bool server) { return rings[server ? 1 : 0]; }
  Ring& in(bool server) { return rings[server ? 0 : 1]; }
};

Result<io::Fd> ShmChannel::make_memory() {
  io::Fd fd(::memfd_create("mc-near", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), sizeof(ShmRings)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("create shared memory for a connection on this host");
  return fd;
}

Result<ShmChannel> ShmChannel::map(io::Fd socket, int memory, bool server, const ClusterKey* key) {
  const int seals = ::fcntl(memory, F_GET_SEALS);
  const off_t bytes = ::lseek(memory, 0, SEEK_END);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || bytes != off_t{sizeof(ShmRings)})
    return fail(Code::kUnavailable,
                "shared memory of a connection on this host: made by another version of mc");
  void* at = ::mmap(nullptr, sizeof(ShmRings), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (at == MAP_FAILED) return fail_errno("map shared memory of a connection on this host");
  return ShmChannel(std::move(socket), static_cast<ShmRings*>(at), server, key);
}

ShmChannel::ShmChannel(io::Fd socket, ShmRings* memory, bool server, const ClusterKey* key)
    : socket_(std::move(socket)), memory_(memory), key_(key), server_(server) {
  memory_->in(server_).asleep.store(kAtSocket);
  memory_->out(server_).wakes_words.store(1);
}
ShmChannel::ShmChannel(ShmChannel&& other) noexcept { *this = std::move(other); }
ShmChannel& ShmChannel::operator=(ShmChannel&& other) noexcept {
  if (this == &other) return *this;
  release();
  socket_ = std::move(other.socket_);
  memory_ = std::exchange(other.memory_, nullptr);
  key_ = other.key_;
  server_ = other.server_;
  broken_ = other.broken_;
  in_parts_ = other.in_parts_;
  written_ = other.written_;
  taken_ = other.taken_;
  waiting_ = std::move(other.waiting_);
  waiting_at_ = other.waiting_at_;
  head_ = std::move(other.head_);
  message_ = std::move(other.message_);
  envelope_bytes_ = other.envelope_bytes_;
  message_bytes_ = other.message_bytes_;
  return *this;
}
ShmChannel::~ShmChannel() { release(); }

void ShmChannel::release() {
  if (memory_ != nullptr) ::munmap(memory_, sizeof(ShmRings));
  memory_ = nullptr;
}

// If the socket is full, its bytes wake the peer already.
void ShmChannel::wake_peer() const { ::send(socket_.get(), "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

// A reader stores `asleep` and then checks for input; a writer stores `written` and then checks
// `asleep`. Both use sequentially consistent fences, so one of the two sees the other's store.
void ShmChannel::wake_reader() const {
  std::atomic<uint32_t>& asleep = memory_->out(server_).asleep;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asleep.load(std::memory_order_relaxed) == 0) return;
  const uint32_t how = asleep.exchange(0);
  if (how == kAtWord)
    wake_word(asleep);
  else if (how != 0)
    wake_peer();
}

size_t ShmChannel::write_some(const char* from, size_t n) {
  ShmRings::Ring& out = memory_->out(server_);
  const uint64_t used = written_ - out.taken.load(std::memory_order_acquire);
  if (used > kShmRingBytes) {
    broken_ = true;
    return 0;
  }
  n = std::min<size_t>(n, kShmRingBytes - used);
  const size_t at = written_ % kShmRingBytes;
  const size_t first = std::min(n, kShmRingBytes - at);
  std::memcpy(out.bytes + at, from, first);
  std::memcpy(out.bytes, from + first, n - first);
  written_ += n;
  return n;
}

void ShmChannel::put(std::string_view bytes) {
  const size_t n = waiting_.empty() ? write_some(bytes.data(), bytes.size()) : 0;
  waiting_.append(bytes.substr(n));
}

// Moves waiting bytes into the ring as room allows, then publishes the position.
void ShmChannel::flush() {
  ShmRings::Ring& out = memory_->out(server_);
  while (!waiting_.empty()) {
    waiting_at_ += write_some(waiting_.data() + waiting_at_, waiting_.size() - waiting_at_);
    if (broken_) return;
    if (waiting_at_ == waiting_.size()) {
      waiting_.clear();
      if (waiting_.capacity() > kKeptMax) std::string().swap(waiting_);
      waiting_at_ = 0;
      break;
    }
    out.crowded.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (written_ - out.taken.load() == kShmRingBytes) break;  // the reader will wake this side
  }
  if (waiting_at_ > kKeptMax && waiting_at_ > waiting_.size() / 2)
    waiting_.erase(0, std::exchange(waiting_at_, 0));
  out.written.store(written_, std::memory_order_release);
  wake_reader();
}

bool ShmChannel::send(std::string_view envelope, std::string_view body) {
  if (broken_ || waiting_.size() - waiting_at_ > kWaitingMax) return false;
  const uint32_t sizes[2] = {static_cast<uint32_t>(envelope.size()),
                             static_cast<uint32_t>(body.size())};
  static_assert(sizeof sizes == kHeadBytes);
  put({reinterpret_cast<const char*>(sizes), sizeof sizes});
  put(envelope);
  put(body);
  flush();
  return !broken_;
}

bool ShmChannel::has_input() const {
  return memory_->in(server_).written.load(std::memory_order_acquire) != taken_;
}

// Takes up to `there` bytes, as many as the message lacks. True when the message is complete.
bool ShmChannel::take(uint64_t there) {
  const ShmRings::Ring& in = memory_->in(server_);
  const auto copy = [&](std::string& to, size_t whole) {
    const size_t n = std::min<uint64_t>(whole - to.size(), there);
    const size_t at = taken_ % kShmRingBytes;
    const size_t first = std::min(n, kShmRingBytes - at);
    to.append(in.bytes + at, first);
    to.append(in.bytes, n - first);
    taken_ += n;
    there -= n;
    return to.size() == whole;
  };
  if (head_.size() < kHeadBytes) {
    if (!copy(head_, kHeadBytes)) return false;
    uint32_t sizes[2];
    std::memcpy(sizes, head_.data(), sizeof sizes);
    envelope_bytes_ = sizes[0];
    message_bytes_ = size_t{sizes[0]} + sizes[1];
    message_.clear();
    if (sizes[0] > wire::kMessageBytesMax || sizes[1] > wire::kMessageBytesMax) {
      broken_ = true;
      return false;
    }
  }
  if (!copy(message_, message_bytes_)) return false;
  head_.clear();
  return true;
}

std::optional<ShmChannel::Message> ShmChannel::receive() {
  if (broken_) return std::nullopt;
  if (!waiting_.empty()) flush();
  ShmRings::Ring& in = memory_->in(server_);
  const uint64_t there = in.written.load(std::memory_order_acquire) - taken_;
  if (there == 0) return std::nullopt;
  if (there > kShmRingBytes) {
    broken_ = true;
    return std::nullopt;
  }
  const bool whole = take(there);
  in_parts_ = !whole;
  in.taken.store(taken_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (in.crowded.load(std::memory_order_relaxed) != 0 && in.crowded.exchange(0) != 0) wake_peer();
  if (!whole || broken_) return std::nullopt;
  const std::string_view all = message_;
  return Message{all.substr(0, envelope_bytes_), all.substr(envelope_bytes_)};
}

void ShmChannel::forget_message() {
  if (!in_parts_ && message_.capacity() > kKeptMax) std::string().swap(message_);
}

void ShmChannel::end() {
  broken_ = true;
  in_parts_ = false;
  std::string().swap(message_);
  std::string().swap(waiting_);
  waiting_at_ = 0;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

bool ShmChannel::arm() {
  if (broken_) return false;
  memory_->in(server_).asleep.store(kAtSocket);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!has_input()) return true;
  memory_->in(server_).asleep.store(0);
  return false;
}

void ShmChannel::disarm() { memory_->in(server_).asleep.store(0, std::memory_order_relaxed); }

// A peer sends a packet of one byte for each `asleep` that it takes back, and for each `crowded`.
// Its end is behind them.
void ShmChannel::check_socket() {
  char byte;
  ssize_t n = 0;
  for (int i = 0; i < kWakeupsMax; ++i) {
    n = ::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT);
    if (n <= 0 || has_input()) break;
  }
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) broken_ = true;
}

void ShmChannel::woken() {
  memory_->in(server_).asleep.store(0, std::memory_order_relaxed);
  check_socket();
  if (!broken_ && !waiting_.empty()) flush();
}

// The word costs half of what the socket does, on either side. Only a byte over the socket tells
// that there is room in the ring.
void ShmChannel::await_input(Duration most) {
  ShmRings::Ring& in = memory_->in(server_);
  if (!waiting_.empty() || in.wakes_words.load(std::memory_order_relaxed) == 0) {
    if (!arm()) return;
    pollfd p{socket_.get(), POLLIN, 0};
    (void)::poll(&p, 1, static_cast<int>(most / std::chrono::milliseconds(1) + 1));
    return woken();
  }
  in.asleep.store(kAtWord);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!has_input()) wait_for_word(in.asleep, kAtWord, std::min(most, kLookAgain));
  in.asleep.store(0, std::memory_order_relaxed);
  if (!has_input()) check_socket();
}

Result<ShmChannel> connect_shm(const std::string& address, Duration budget, const Clock& clock) {
  const Time deadline = clock.now() + budget;
  MC_TRY(ShmHandshake handshake, ShmHandshake::to(address));
  for (;;) {
    const Duration left = deadline - clock.now();
    if (left.count() <= 0)
      return fail(Code::kTimeout, "%s: no shared-memory handshake within the time limit",
                  address.c_str());
    pollfd p{handshake.fd(), POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(left.count() / 1'000'000 + 1)) <= 0) continue;
    MC_TRY(std::optional<ShmChannel> end, handshake.step());
    if (end) return std::move(*end);
  }
}

}  // namespace mc::rpc
