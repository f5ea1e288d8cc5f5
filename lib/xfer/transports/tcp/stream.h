// A connected socket with bounded, cancellable waits. Every wait ends when bytes moved, when
// `give_up` returns an error (called a few times a second), or when the peer was silent for too
// long; a peer whose host is gone is noticed by the kernel's probes even where nothing is expected
// of it (vanished_after).
//
// Input is read ahead into a small buffer, so that a frame, a short payload and the next frame
// cost one system call, and a run of short ones a few; long payloads go directly to their
// destination. An `eager` stream polls
// for a moment before it sleeps, because an idle CPU wakes up slower than a peer answers.
//
// Thread: one at a time; shut_down() from any.
#pragma once
#include <sys/uio.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "io/fd.h"

namespace mc::xfer::tcp {

class Stream {
 public:
  using GiveUp = std::function<Result<>()>;  // an error ends the wait

  Stream() = default;
  Stream(io::Fd fd, const Clock& clock, Duration silence_max);
  explicit operator bool() const { return static_cast<bool>(fd_); }
  // From the local address `bind` and the interface `device`, if they are given. Errors:
  // kUnavailable (closed, reset, silent), kInvalid (no such host).
  struct Local {
    std::string bind, device;
  };
  static Result<Stream> connect(const std::string& address, const Clock& clock,
                                Duration silence_max, const GiveUp& give_up,
                                const Local& local = {});

  // Errors: kUnavailable (closed, reset), kTimeout (silent; past receive_by), what `give_up` says.
  Result<> send(std::span<iovec> parts, const GiveUp& give_up);
  Result<> receive(std::span<iovec> parts, const GiveUp& give_up);
  Result<> send(const void* p, size_t n, const GiveUp& give_up);
  Result<> receive(void* p, size_t n, const GiveUp& give_up);
  // No receive() takes longer, however often a byte comes in.
  void receive_by(Time limit) { receive_by_ = limit; }
  // Waits for the first byte without the limit on silence; false when the peer closed. Errors:
  // kUnavailable when the peer's host does not even answer probes for vanished_after().
  Result<bool> wait_for_request(const GiveUp& give_up);
  bool readable_now() const;
  // Waits until so many bytes are there to receive, or the end; false: `until` came first.
  bool has_by(size_t bytes, Time until);
  // The first bytes of what is there, which stay there; false: fewer are.
  bool peek(void* p, size_t n) const;
  size_t ahead() const { return to_ - from_; }  // bytes that receive() has without a call
  void eager(bool on) { eager_ = on; }
  static constexpr uint64_t kShortRun = 8 * 1024;    // of a payload in a run of short ones
  void expect_short(bool run) { short_run_ = run; }  // many follow: it reads ahead further
  void shut_down();
  void discard();  // what was not sent yet, when it closes
  void tune();     // no delay; a congestion control that suits local, lossless paths; probes
  // How long the kernel waits for a host that answers nothing: ten times the silence that is
  // allowed, 10 s to 45 s.
  static Duration vanished_after(Duration silence_max);

 private:
  static constexpr size_t kAheadBytes = 8192, kFarAheadBytes = 64 * 1024;
  Result<> leave_by(const Local& local);
  Result<> connected(const std::string& to, const GiveUp& give_up) const;
  void probe() const;
  struct Patience {  // of one wait
    Time heard{}, asked{}, until = Time::max();
  };
  Result<> nothing_moved(Patience& patience, const GiveUp& give_up) const;
  void take(std::span<iovec>& parts);
  Result<> fill(Patience& patience, const GiveUp& give_up);
  bool fill_eagerly();
  ssize_t read_ahead(int flags);

  io::Fd fd_;
  const Clock* clock_ = nullptr;
  Duration silence_max_{};
  Time receive_by_ = Time::max();
  bool eager_ = false, short_run_ = false;
  std::unique_ptr<std::byte[]> ahead_;
  size_t room_ = kAheadBytes;  // of ahead_
  size_t from_ = 0, to_ = 0;   // what ahead_ holds
};

// Rows of a strided piece of memory as iovecs, a bounded number at a time.
class RowWalk {
 public:
  RowWalk(std::byte* first, uint64_t bytes, uint64_t rows, uint64_t stride)
      : at_(first), bytes_(bytes), rows_(rows), stride_(stride) {}
  // The next rows, behind `before` others that the caller fills in; only those: done.
  std::span<iovec> next(size_t before = 0);
  // What next() gave last, and one part more behind it, or two.
  std::span<iovec> with(std::span<iovec> given, const iovec& behind) {
    parts_[given.size()] = behind;
    return {parts_, given.size() + 1};
  }
  bool done() const { return rows_ == 0; }
  static constexpr size_t kParts = 256;  // at a time

 private:
  std::byte* at_;
  uint64_t bytes_, rows_, stride_;
  iovec parts_[kParts + 2];
};

}  // namespace mc::xfer::tcp
