// Private types of `Client`: reads and writes in flight.
//
// Thread: one call.
#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/step_trace.h"
#include "store/client/client.h"
#include "store/protocol/transfer_plan.h"

namespace mc::store {

inline constexpr size_t kChunk = 1024;  // items of one round trip

Result<> check(const PutConfig& config);

inline constexpr Duration kAttempt = std::chrono::seconds(1);  // then a call is retried as lost

// How long a put that has `time` may wait for room: half of it, and a second at most, is left for
// answers.
inline Duration room_wait(Duration time, Duration put_wait) {
  return std::min(put_wait, time - std::min(time / 2, kAttempt));
}

// How long one try of a call may take that waits so long for room. Two fit into `time`.
inline Duration one_try(Duration time, Duration wait) {
  return std::min(wait + kAttempt, wait + (time - wait) / 2);
}

template <class T>
struct Answer {  // the result of an item
  Result<T> value = fail(Code::kInternal, "not decided");
  bool open = true;
  void set(Result<T> v) {
    value = std::move(v);
    open = false;
  }
};

template <class Part>
uint64_t total_bytes(const std::vector<Part>& parts) {
  uint64_t n = 0;
  for (const auto& part : parts) n += part.size();
  return n;
}

struct Client::Write {
  const PutItem* item = nullptr;
  uint64_t bytes = 0, checksum = 0;
  PutGrant grant;
  std::array<xfer::SegmentHandle, kReplicasMax> segments{};  // of its places
  bool raises = false;                 // its requests raise the guard words themselves
  size_t first_guard = 0, guards = 0;  // of its places, else
  size_t first = 0, count = 0;         // its requests
  bool moved = false;
  bool waits = false;      // the master has no nodes for it yet
  NodeId lost;             // of its nodes, the one that could not be reached
  bool node_lost = false;  // and was not known to be so
  Generation tried;        // of the first grant whose put-end failed: the value may be stored
  Answer<PutOutcome> answer;
  bool worth_another(int rounds) const;
  bool is_less_specific() const;
  Result<PutOutcome> outcome();  // ends it
  void append_guards(std::vector<xfer::Engine::GuardAdvance>& all);
  // Appends its requests. An error: of its guards, which are among these.
  Result<> append(std::span<const xfer::Engine::GuardAdvance> all, Time deadline,
                  std::vector<xfer::Request>& out);
};

struct Client::Read {
  static Read of(const GetItem& item) {
    Read read;
    read.item = &item;
    read.room = total_bytes(item.parts);
    return read;
  }
  const GetItem* item = nullptr;
  uint64_t room = 0;
  const Located* at = nullptr;
  const ReplicaLocation* chosen = nullptr;  // the place that is read
  xfer::SegmentHandle segment = 0;
  uint64_t replica = 0;  // a hash of what identifies it, for VerifiedReads
  size_t first = 0, count = 0;
  std::optional<uint64_t> checksum{};  // of the arrived bytes, if computed in transit
  bool corrupt = false;                // what arrived last
  bool silent = false;                 // the node did not answer
  bool verified = false;               // its checksum was compared
  bool asked = false;                  // the master answered
  bool unsettled = false;              // it rebuilds, and does not know yet
  Duration share{};                    // how long to ask for it
  std::vector<std::byte> copy{};  // the whole value, where only ranges are wanted but it is checked
  bool whole() const { return item->ranges.empty(); }
  // Of the item, from this replica.
  void append(const ReplicaLocation& place, Generation generation, xfer::SegmentHandle from,
              Time deadline, std::vector<xfer::Request>& out) {
    if (!copy.empty())
      return append_requests(xfer::Op::kRead, std::vector<std::span<std::byte>>{copy}, at->bytes,
                             place, generation, from, deadline, out);
    if (whole())
      return append_requests(xfer::Op::kRead, item->parts, at->bytes, place, generation, from,
                             deadline, out);
    for (const ValueRange& r : item->ranges)
      append_range(r.offset, r.into, at->bytes, place, generation, from, deadline, out);
  }
  bool is_unsettled() const { return unsettled; }
  bool is_stale() const {  // all replicas were replaced during the read
    return !answer.value && answer.value.error().code == Code::kStale;
  }
  // Takes over what another round came to. A lack of time says less than why it was needed.
  void renew(Read&& other) {
    if (is_unsettled() && !other.asked && other.lost_call()) return;
    *this = std::move(other);
  }
  bool lost_call() const {
    return !answer.value && (answer.value.error().code == Code::kTimeout ||
                             answer.value.error().code == Code::kUnavailable);
  }
  // Copies what the item wants of the value.
  void take(std::span<const std::byte> value) const;
  Result<> fits() const;             // kNoSpace, kInvalid
  Result<> check_completed() const;  // kCorrupt: of all reads of a value in parts
  Answer<uint64_t> answer;
  Error last{Code::kUnavailable, "no replica"};  // of the replicas tried so far
};

// Copies the value over the parts. Requires: the parts have space for it.
inline void scatter(std::span<const std::byte> value, const std::vector<std::span<std::byte>>& to) {
  for (const auto& part : to) {
    const size_t n = std::min(part.size(), value.size());
    std::copy_n(value.begin(), n, part.begin());
    value = value.subspan(n);
  }
}

inline void Client::Read::take(std::span<const std::byte> value) const {
  if (whole()) return scatter(value, item->parts);
  for (const ValueRange& r : item->ranges)
    std::copy_n(value.begin() + static_cast<ptrdiff_t>(r.offset), r.into.size(), r.into.begin());
}

// Adds an item of a transfer to its step, if it is traced.
inline void note_item(Step& step, uint64_t bytes, const NodeRef& node) {
  if (!step) return;
  ++step.facts.items;
  step.facts.bytes += bytes;
  std::string& where = step.facts.where;
  if (("," + where + ",").find("," + node.name + ",") == std::string::npos)
    where += (where.empty() ? "" : ",") + node.name;
}

}  // namespace mc::store
