// One connection to a peer over one address pair. Private to tcp/. It is made on demand, sends
// requests, and receives their answers in order.
//
// Thread: one at a time; shut_down() from any.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "xfer/rails/rail_queue.h"
#include "xfer/transports/tcp/address_pair.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

namespace mc::xfer::tcp {

class Link {
 public:
  Link(PeerPtr peer, AddressPair route, const Clock& clock, Duration peer_timeout)
      : peer_(std::move(peer)),
        route_(std::move(route)),
        clock_(clock),
        peer_timeout_(peer_timeout) {}
  // Connects and proves to be entitled. Errors say which advertised address failed, and what to
  // set. `round_trip`: of the proof.
  Result<> open(const Stream::GiveUp& give_up, Duration* round_trip = nullptr);
  bool is_open() const { return static_cast<bool>(stream_); }
  void close();
  void abort();      // and what was not sent yet never is
  void shut_down();  // wakes the thread that waits in it
  // Was it closed by the peer, as far as is known here?
  bool ended() const { return stream_.readable_now(); }
  void eager(bool on) { stream_.eager(on); }
  // Returns: errors of the connection, which is broken then. `answer`, a success so far, gets the
  // peer's outcome.
  // Several requests leave together, all of them reads or none. A write that raises its guard word
  // first is two frames, and has two answers.
  struct Asked {
    const Attempt* attempt;
    uint64_t id;
    bool shares = false;  // its frame with other reads: their answer may be one
  };
  static constexpr size_t kTogether = 32;
  // `share`: reads may be answered together.
  Result<> send(std::span<Asked> all, bool share, const Stream::GiveUp& give_up);
  // `more`: others were sent behind it, and their answers follow without further ado.
  struct Answer {
    Result<> outcome;
    std::optional<uint64_t> digest{};  // of what was read, where the slice wants it
  };
  Result<> receive(const Asked& asked, bool more, const Stream::GiveUp& give_up, Answer* answer);
  // Of a read that shares its frame: how many reads the next answer is for.
  Result<size_t> answered_together(const Stream::GiveUp& give_up);
  // The answer to several.
  Result<> receive_many(std::span<const Asked> all, bool more, const Stream::GiveUp& give_up,
                        Result<>* outcome);
  // Whether receive() has the whole answer without a system call: of a write, as a rule.
  bool has_answer(const Asked& asked) const;
  // Waits until receive() has the whole answer, or learns that there is none; false: `until` came
  // first.
  bool answers_by(const Asked& asked, Time until);
  // No byte sent over the connection of that nonce will be applied any more.
  Result<> retire(const Nonce& nonce, const Stream::GiveUp& give_up);
  const Nonce& nonce() const { return nonce_; }
  const AddressPair& route() const { return route_; }

 private:
  Result<> greet(Stream& stream, const Stream::GiveUp& give_up, Duration* round_trip);
  Result<> reply_on(Stream& stream, uint64_t id, const Stream::GiveUp& give_up, Result<>* outcome,
                    uint32_t* flags = nullptr);
  size_t in_one_frame(std::span<const Asked> all, bool share) const;
  Result<> ended_well(const Trailer& trailer) const;
  Descriptor body_of(const Asked& asked) const;
  Result<> receive_bytes(const Attempt& attempt, std::span<iovec> behind,
                         const Stream::GiveUp& give_up);
  Result<uint64_t> receive_digested(const Attempt& attempt, std::span<iovec> behind,
                                    const Stream::GiveUp& give_up);
  void frame(Frame& f, Kind kind, const Asked& asked, bool more) const;

  const PeerPtr peer_;
  const AddressPair route_;
  const Clock& clock_;
  const Duration peer_timeout_;
  Mutex mutex_;  // the stream comes and goes under it, so that shut_down() meets no other socket
  Stream stream_;
  Nonce nonce_{};
  bool takes_many_ = false;
  std::array<Frame, 2 * kTogether> frames_;
  std::array<Descriptor, kTogether> bodies_;  // of frames of several requests
  std::vector<iovec> parts_;
  std::optional<Header> next_;  // of an answer: it came with the bytes before it
};

}  // namespace mc::xfer::tcp
