#include "xfer/transports/rdma/connection.h"

#include <algorithm>
#include <cstring>

namespace mc::xfer::rdma {
namespace {

constexpr size_t kSlots = Connection::kFlightsMax + 1;

// Reads some bytes of the peer into one of the connection's words.
void fill_read(uint64_t from, const uint64_t& word, uint32_t bytes, const Region& words,
               ibv_send_wr& wr, ibv_sge& sge) {
  sge = {reinterpret_cast<uint64_t>(&word), bytes, words.lkey()};
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = from;
}

uint64_t last_byte(const Flight& f) {
  return f.remote + (f.piece.rows - 1) * f.piece.remote_stride + f.piece.bytes - 1;
}

}  // namespace

Connection::~Connection() {
  pair_.reset();
  uint32_t unanswered = 0;
  for (const Mark& mark : marks_) unanswered += mark.requests;
  device_->room().give(unanswered);
}

Result<> Connection::find_slot(Flight& flight) {
  if (words_region_ == nullptr) {
    words_.resize(2 * kSlots);
    MC_TRY(words_region_,
           device_->register_memory(reinterpret_cast<std::byte*>(words_.data()),
                                    words_.size() * sizeof words_[0], IBV_ACCESS_LOCAL_WRITE));
    for (int i = 0; i < static_cast<int>(kSlots); ++i) free_slots_.push_back(i);
  }
  if (free_slots_.empty()) return fail(Code::kBusy, "too many transfers on one queue pair");
  flight.slot = free_slots_.back();
  free_slots_.pop_back();
  return {};
}

Result<> Connection::add(const FlightPtr& flight) {
  if (flight->guarded || flight->ping || flight->settles) MC_TRY_(find_slot(*flight));
  if (flight->ping) {
    flight->local = reinterpret_cast<std::byte*>(&words_[2 * static_cast<size_t>(flight->slot)]);
    flight->region = words_region_;
  }
  flight->checking = flight->guarded && flight->op == Op::kWrite;
  begin(*flight);
  flights_.push_back(flight);
  unposted_.push_back(flight);
  return {};
}

void Connection::begin(Flight& flight) {
  const uint64_t messages = (flight.piece.bytes + kMessage - 1) / kMessage;
  flight.next = 0;
  flight.total = 1;
  if (flight.checking) return;
  flight.total = flight.piece.rows * messages;
  if (flight.guarded) flight.total += flight.op == Op::kRead ? 2 : 1;
  if (flight.settles) ++flight.total;
}

// The i-th request of what the flight does at present.
void Connection::fill(const Flight& f, uint64_t i, ibv_send_wr& wr, ibv_sge& sge) const {
  wr = {};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma.rkey = f.rkey;
  const bool before = f.guarded && f.op == Op::kRead, last = i == f.total - 1;
  const uint64_t* const words = f.slot < 0 ? nullptr : &words_[2 * static_cast<size_t>(f.slot)];
  if (f.checking || (before && i == 0))
    return fill_read(f.guard_at, words[0], sizeof words[0], *words_region_, wr, sge);
  if (f.guarded && last) {
    wr.send_flags = before ? static_cast<unsigned>(IBV_SEND_FENCE) : 0;
    return fill_read(f.guard_at, words[1], sizeof words[1], *words_region_, wr, sge);
  }
  if (f.settles && last) return fill_read(last_byte(f), words[0], 1, *words_region_, wr, sge);
  if (before) --i;
  const uint64_t messages = (f.piece.bytes + kMessage - 1) / kMessage;
  const uint64_t row = i / messages, at = i % messages * kMessage;
  sge.addr = reinterpret_cast<uint64_t>(f.local + row * f.piece.local_stride + at);
  sge.length = static_cast<uint32_t>(std::min(kMessage, f.piece.bytes - at));
  sge.lkey = f.region == nullptr ? 0 : f.region->lkey();
  wr.wr.rdma.remote_addr = f.remote + row * f.piece.remote_stride + at;
  wr.opcode = f.op == Op::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  wr.send_flags = f.region == nullptr ? static_cast<unsigned>(IBV_SEND_INLINE) : 0;
  if (before && i == 0) wr.send_flags |= IBV_SEND_FENCE;
}

Result<> Connection::post() {
  while (!unposted_.empty() && free_ > 0 && status_ == IBV_WC_SUCCESS) {
    CompletionRoom& queue = device_->room();
    const uint32_t room = std::min({kChain, free_, queue.entries()});
    if (!queue.take(room)) {
      queue.wait(id_);  // any completion of the device makes some, and then this is called again
      if (!queue.take(room)) return {};
    }
    Requests requests;
    Pieces pieces;
    uint32_t n = 0;
    while (n < room && !unposted_.empty()) {
      const FlightPtr flight = unposted_.front();
      Mark mark{next_seq_++, 0, flight};
      while (n < room && flight->next < flight->total) {
        fill(*flight, flight->next++, requests[n], pieces[n]);
        requests[n].wr_id = uint64_t{id_} << 32 | mark.seq;
        if (n > 0) requests[n - 1].next = &requests[n];
        ++n;
        ++mark.requests;
      }
      requests[n - 1].send_flags |= IBV_SEND_SIGNALED;
      flight->started = true;
      ++flight->unanswered;
      marks_.push_back(std::move(mark));
      if (flight->next == flight->total) unposted_.pop_front();
    }
    queue.give(room - n);
    free_ -= n;
    MC_TRY_(pair_->post(&requests[0]));
  }
  return {};
}

bool Connection::completed(const ibv_wc& wc, std::vector<Done>* done) {
  if (status_ != IBV_WC_SUCCESS) return true;  // what is flushed after the first error
  const auto seq = static_cast<uint32_t>(wc.wr_id);
  if (wc.status != IBV_WC_SUCCESS) {
    status_ = wc.status;
    for (const Mark& mark : marks_)
      if (mark.seq == seq) failed_ = mark.flight;
    return false;
  }
  while (!marks_.empty() && static_cast<int32_t>(marks_.front().seq - seq) <= 0) {
    const Mark mark = std::move(marks_.front());
    marks_.pop_front();
    free_ += mark.requests;
    device_->room().give(mark.requests);
    Flight& f = *mark.flight;
    if (--f.unanswered == 0 && f.next == f.total) ended(mark.flight, done);
  }
  return true;
}

Result<> Connection::verdict(const Flight& f) const {
  if (!f.guarded) return {};
  const uint64_t* words = &words_[2 * static_cast<size_t>(f.slot)];
  const bool before = f.op == Op::kRead || f.checking;
  const bool after = !f.checking;
  if ((!before || words[0] == f.expected) && (!after || words[1] == f.expected)) return {};
  return fail(Code::kStale, "the bytes at %llu have another owner now",
              static_cast<unsigned long long>(f.attempt->piece.remote));
}

void Connection::forget(const FlightPtr& flight) {
  if (flight->slot >= 0) free_slots_.push_back(flight->slot);
  const auto it = std::find(flights_.begin(), flights_.end(), flight);
  MC_CHECK(it != flights_.end());
  *it = std::move(flights_.back());
  flights_.pop_back();
}

void Connection::ended(const FlightPtr& flight, std::vector<Done>* done) {
  flight->cut = flight->cut || (flight->checking && flight->unwanted != Time{});
  Result<> outcome = fail(Code::kUnavailable, "recalled");
  if (!flight->cut) outcome = verdict(*flight);
  if (outcome && flight->checking) {
    flight->checking = false;
    if (flight->attempt != nullptr) stop_if_told(*flight->attempt->slice);
    begin(*flight);
    unposted_.push_back(flight);
    return;
  }
  if (outcome && flight->bounce != nullptr)
    for (uint64_t row = 0; row < flight->piece.rows; ++row)
      std::memcpy(flight->into + row * flight->into_stride,
                  flight->local + row * flight->piece.local_stride, flight->piece.bytes);
  done->push_back({flight, std::move(outcome)});
  forget(flight);
}

Connection::Dropped Connection::drop(const AttemptPtr& attempt, Time now) {
  const auto here = std::find_if(flights_.begin(), flights_.end(),
                                 [&](const FlightPtr& f) { return f->attempt == attempt; });
  if (here == flights_.end()) return Dropped::kUnknown;
  const FlightPtr flight = *here;
  if (flight->unwanted == Time{}) flight->unwanted = now;
  bool settling = false;
  if (const auto at = std::find(unposted_.begin(), unposted_.end(), flight);
      at != unposted_.end()) {
    settling = flight->settles && flight->started;
    flight->cut = true;
    flight->total = flight->next + (settling ? 1 : 0);
    if (!settling) unposted_.erase(at);
  }
  if (settling || flight->unanswered > 0) return Dropped::kEnding;
  forget(flight);
  return Dropped::kOver;
}

Patience::Pair Connection::state() const {
  Patience::Pair out{.heard = heard};
  for (const FlightPtr& f : flights_)
    if (f->unwanted != Time{})
      out.unwanted = std::min(out.unwanted, f->unwanted);
    else if (!f->ping)
      out.others = true;
  return out;
}

std::vector<FlightPtr> Connection::take_all() {
  unposted_.clear();
  return std::move(flights_);
}

}  // namespace mc::xfer::rdma
