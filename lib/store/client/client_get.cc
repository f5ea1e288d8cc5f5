// Gets: locate, read all items of a batch together, verify, and try the next replica of those that
// failed.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/random.h"
#include "store/client/client_impl.h"

namespace mc::store {
namespace {

// Whether it takes part in the round of this replica. One whose last replica took too long asks it
// again: the others of its batch may have further ones, and shares of the time.
template <class Read>
bool has_turn(const Read& r, size_t replica) {
  const size_t places = r.at->places.size();
  return r.answer.open && places > 0 && (replica < places || r.last.code == Code::kTimeout);
}

template <class Read>
const ReplicaLocation& place_of(const Read& r, size_t replica) {
  return r.at->places[std::min(replica, r.at->places.size() - 1)];
}

template <class Reads>
bool anything_to_read(const Reads& reads, size_t replica) {
  return std::any_of(reads.begin(), reads.end(),
                     [&](const auto& r) { return has_turn(r, replica); });
}

template <class Reads>
void note_read(Step& step, const Reads& reads, size_t replica, const Replicas& found) {
  for (const auto& r : reads) {
    if (!step || !has_turn(r, replica)) continue;
    const uint32_t node = place_of(r, replica).node;
    if (node < found.nodes.size()) note_item(step, r.item->wanted(r.at->bytes), found.nodes[node]);
  }
}

template <class Reads>
void note_trouble(Step& step, const Reads& reads) {
  for (const auto& r : reads)
    if (step && r.answer.open) step.facts.error = r.last.what;
}

// Calls `report` for each node that did not answer, once: a report may take a moment.
template <class Reads, class Report>
void each_silent(const Reads& reads, const Report& report) {
  std::set<uint32_t> reported;
  for (auto* r : reads)
    if (std::exchange(r->silent, false) && r->answer.open &&
        reported.insert(r->chosen->node).second)
      report(r->chosen->node);
}

// Whether this thread should copy the value itself: one value of this host, in one piece, small
// enough that its lease needs no renewal meanwhile.
bool is_one_piece(std::span<const xfer::Request> requests) {
  constexpr uint64_t kMost = 256 * kMiB;
  return requests.size() == 1 && requests[0].bytes <= kMost;
}

// Watches the nodes of a batch's requests.
class StallWatch {
 public:
  StallWatch(const xfer::Engine& engine, xfer::BatchId batch,
             std::span<const xfer::Request> requests)
      : engine_(engine), batch_(batch), requests_(requests) {}
  // Finds the nodes that have not finished: those that moved something since the last call, and
  // those that did not.
  void look() {
    const auto before = moved_;
    std::set<xfer::SegmentHandle> unfinished;
    moved_.clear();
    for (size_t i = 0; i < requests_.size(); ++i) {
      const xfer::Status status = engine_.status(batch_, i);
      moved_[requests_[i].segment] += status.bytes_done;
      if (!xfer::finished(status.state)) unfinished.insert(requests_[i].segment);
    }
    moving_.clear();
    stalled_.clear();
    for (const xfer::SegmentHandle segment : unfinished) {
      const auto it = before.find(segment);
      const bool more = moved_[segment] > (it == before.end() ? 0 : it->second);
      (more ? moving_ : stalled_).insert(segment);
    }
  }
  bool any_moves() const { return !moving_.empty(); }
  bool any_stalls() const { return !stalled_.empty(); }
  bool moves(xfer::SegmentHandle segment) const { return moving_.contains(segment); }
  // It moved nothing at all.
  bool silent(xfer::SegmentHandle segment) const {
    return stalled_.contains(segment) && moved_.at(segment) == 0;
  }

 private:
  const xfer::Engine& engine_;
  const xfer::BatchId batch_;
  const std::span<const xfer::Request> requests_;
  std::map<xfer::SegmentHandle, uint64_t> moved_;
  std::set<xfer::SegmentHandle> moving_, stalled_;
};

}  // namespace

Result<> Client::Read::fits() const {
  if ((whole() || item->completes) && at->bytes > room)
    return fail(Code::kNoSpace, "value of '%s' has %llu bytes: the buffer holds %llu",
                escape(item->key).c_str(), static_cast<unsigned long long>(at->bytes),
                static_cast<unsigned long long>(room));
  for (const ValueRange& r : item->ranges)
    if (r.offset > at->bytes || r.into.size() > at->bytes - r.offset)
      return fail(Code::kInvalid, "value of '%s' has %llu bytes: no %zu from %llu on",
                  escape(item->key).c_str(), static_cast<unsigned long long>(at->bytes),
                  r.into.size(), static_cast<unsigned long long>(r.offset));
  return {};
}

Result<> Client::Read::check_completed() const {
  const uint64_t arrived = checksum_of(item->parts, at->bytes);
  if (arrived == at->checksum) return {};
  return fail(Code::kCorrupt, "value of '%s', read in parts: checksum %016llx, %016llx was put",
              escape(item->key).c_str(), static_cast<unsigned long long>(arrived),
              static_cast<unsigned long long>(at->checksum));
}

uint64_t GetItem::wanted(uint64_t bytes) const {
  uint64_t n = 0;
  for (const ValueRange& r : ranges) n += r.into.size();
  return ranges.empty() ? bytes : n;
}

Result<uint64_t> Client::get(const ObjectKey& key, std::span<std::byte> into) {
  const GetItem item{key, {into}};
  return get_batch({&item, 1})[0];
}

Result<std::vector<std::byte>> Client::get(const ObjectKey& key) {
  MC_TRY(const Located at, locate(key));
  std::vector<std::byte> value(at.bytes);
  MC_TRY(const uint64_t bytes, get(key, value));
  value.resize(bytes);
  return value;
}

std::vector<Result<uint64_t>> Client::get_batch(std::span<const GetItem> items, Duration wait,
                                                std::vector<bool>* verified) {
  const Time deadline = clock_.now() + limits.timeout_or(options_.timeout) + wait;
  Step step("get");
  step.facts.items = items.size();
  std::vector<Read> reads;
  reads.reserve(items.size());
  for (const GetItem& item : items) reads.push_back(Read::of(item));
  get_rounds(reads, deadline, wait);
  std::vector<Result<uint64_t>> out;
  out.reserve(items.size());
  for (const Read& r : reads) {
    if (verified != nullptr) verified->push_back(r.answer.value && r.verified);
    out.push_back(r.answer.value);
    if (out.back()) {
      hits_.add();
      get_bytes_.add(*out.back());
      step.facts.bytes += *out.back();
    } else if (out.back().error().code == Code::kNotFound) {
      misses_.add();
    }
  }
  return out;
}

void Client::get_rounds(std::span<Read> reads, Time deadline, Duration wait) {
  // Of several chunks, one whose keys the master may not know yet leaves time for the others.
  const auto round = [&](std::span<Read> all, Duration patience) {
    const bool several = all.size() > kChunk;
    for (; !all.empty(); all = all.subspan(std::min(kChunk, all.size()))) {
      const auto some = all.first(std::min(kChunk, all.size()));
      const auto shares = static_cast<int64_t>(all.size() / kChunk + 2);  // and one for more rounds
      const Duration share = std::max((left(deadline) - patience) / shares, kAttempt);
      for (Read& r : some) r.share = several ? patience + share : Duration::max();
      get_round(some, deadline, patience);
    }
  };
  // Returns whether it picked any.
  const auto again = [&](bool (Read::*picked)() const) {
    std::vector<Read> anew;
    for (const Read& r : reads)
      if ((r.*picked)()) anew.push_back(Read::of(*r.item));
    round(anew, {});
    auto next = anew.begin();
    for (Read& r : reads)
      if ((r.*picked)()) r.renew(std::move(*next++));
    return !anew.empty();
  };
  round(reads, wait);
  if (limits.ends()) return;
  (void)again(&Read::is_stale);
  // Each such call is held for a moment by the master.
  while (left(deadline) > Duration::zero() && !limits.ends() && again(&Read::is_unsettled))
    continue;
  (void)again(&Read::is_stale);
}

void Client::get_round(std::span<Read> reads, Time deadline, Duration wait) {
  GetReplicas question;
  question.tenant = options_.tenant;
  question.wait_ms =
      static_cast<uint32_t>(std::clamp<int64_t>(wait / std::chrono::milliseconds(1), 0, 60'000));
  for (const Read& r : reads) question.keys.push_back(r.item->key);
  const Duration share = std::min(reads[0].share, left(deadline));
  const bool part = share < left(deadline);
  auto found = ask(question, clock_.now() + share, wait);
  if (found && found->items.size() != reads.size())
    found = fail(Code::kCorrupt, "get-replicas: %zu answers to %zu keys", found->items.size(),
                 reads.size());
  if (!found) {
    for (Read& r : reads) {
      r.answer.set(fail(found.error()));
      r.unsettled = part && r.lost_call();
    }
    return;
  }
  size_t replicas = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    Read& r = reads[i];
    r.at = &found->items[i];
    r.asked = true;
    if (auto ok = r.at->outcome.result(); !ok) {
      r.unsettled = ok.error().code == Code::kUnavailable;
      r.answer.set(fail(ok.error()));
    } else if (auto fits = r.fits(); !fits) {
      r.answer.set(fail(fits.error()));
    } else {
      replicas = std::max(replicas, r.at->places.size());
    }
  }
  read_hot(reads);
  order_places(*found);
  const bool disks = std::any_of(reads.begin(), reads.end(), [](const Read& r) {
    return r.answer.open && !r.at->disks.empty();
  });
  // A replica that does not answer leaves the others, and the disks, their shares of the time.
  for (size_t n = 0; n < replicas && !limits.ends(); ++n) {
    if (!anything_to_read(reads, n)) continue;
    Step step("read");
    note_read(step, reads, n, *found);
    const auto shares = static_cast<int64_t>(replicas - n + (disks ? 1 : 0));
    read_replicas(reads, n, *found, left(deadline) / shares, deadline);
    note_trouble(step, reads);
  }
  read_disks(reads, *found, deadline);
  for (Read& r : reads) {
    if (r.answer.open) r.answer.set(fail(r.last));
    if (!r.answer.value || !r.item->completes) continue;
    const Result<> good = r.check_completed();
    r.verified = good.has_value();
    if (good) continue;
    corrupt_.add();
    r.answer.set(fail(good.error()));
    for (const ReplicaLocation& place : r.at->places)  // any may have given it: each is checked
      if (place.node < found->nodes.size()) report_corrupt(r, place, found->nodes[place.node]);
  }
}

void Client::read_replicas(std::span<Read> reads, size_t replica, const Replicas& found,
                           Duration share, Time deadline) {
  const Time until = clock_.now() + share;
  std::vector<xfer::Request> requests;
  Opened opened;
  std::vector<Read*> reading;
  for (Read& r : reads) {
    if (!has_turn(r, replica)) continue;
    const ReplicaLocation& place = place_of(r, replica);
    r.chosen = &place;
    if (place.node >= found.nodes.size()) {
      r.last = {Code::kCorrupt, "get-replicas: place on a node that is not named"};
      continue;
    }
    auto segment = segment_of(found.nodes[place.node], opened, until);
    if (!segment) {
      r.last = segment.error();
      continue;
    }
    r.segment = *segment;
    const Generation generation = place.generation ? place.generation : r.at->generation;
    r.replica = mix64(generation.n ^ mix64(*segment ^ mix64(place.offset)));
    r.checksum.reset();
    r.first = requests.size();
    const bool checks = !r.whole() && options_.verify == "always" && far(*segment);
    r.copy.resize(checks ? r.at->bytes : 0);
    r.append(place, r.at->generation, *segment, deadline, requests);
    r.count = requests.size() - r.first;
    if (r.count == 1 && r.whole() && far(*segment)) requests.back().digest = true;
    reading.push_back(&r);
  }
  if (reading.empty()) return;
  if (reading.size() == 1 && !options_.progress && !limits.progress && is_one_piece(requests) &&
      !far(reading[0]->segment)) {
    const Result<> moved = engine_.transfer_sync(requests[0], left(until), limits.stopped);
    Read& r = *reading[0];
    complete(r, moved, found.nodes[r.chosen->node], verifies(r), false);
    if (r.corrupt) report_corrupt(r, *r.chosen, found.nodes[r.chosen->node]);
    r.silent = r.silent || (!moved && moved.error().code == Code::kTimeout);
    each_silent(reading, [&](uint32_t at) { report(found.nodes[at]); });
    return;
  }
  read_batch(reading, requests, replica, found, opened, share, deadline);
}

void Client::read_batch(std::span<Read* const> reading, std::span<const xfer::Request> requests,
                        size_t replica, const Replicas& found, Opened& opened, Duration share,
                        Time deadline) {
  uint64_t total = 0;
  std::vector<ObjectKey> keys;
  for (const Read* r : reading) {
    keys.push_back(r->item->key);
    total += r->item->wanted(r->at->bytes);
  }
  const xfer::BatchId batch = engine_.allocate_batch();
  Result<> submitted;
  const Time start = clock_.now(), until = start + share;
  const bool over_network =
      std::any_of(reading.begin(), reading.end(), [&](Read* r) { return far(r->segment); });
  const Duration late = over_network && options_.hedge ? times_.late_after(total) : Duration::max();
  const bool may_hedge = late < left(until);
  if (!requests.empty())
    submitted = engine_.submit_awaited(batch, requests, may_hedge ? late : left(until));
  if (submitted && !requests.empty()) {
    const Time hedge_at = may_hedge ? start + late : until;
    if (over_network && reading.size() > 1) check_early(reading, batch, hedge_at);
    if (may_hedge && !engine_.wait(batch, std::max(left(hedge_at), Duration{1})))
      hedge(reading, batch, replica, found, opened, until);
    StallWatch watch(engine_, batch, requests);
    Time turn = until;
    // Its share is over only for a node that moves nothing; and not while one moves what is nowhere
    // else, which would have to begin anew.
    const auto only_there = [&](const Read* r) {
      return watch.moves(r->segment) && r->at->places.size() <= replica + 1 && r->at->disks.empty();
    };
    bool goes_on = false;
    do {
      wait_moved(batch, requests.size(), total, keys, std::chrono::milliseconds(found.lease_ms),
                 std::min(turn, deadline), limits.stopped);
      turn = clock_.now() + share;
      watch.look();
      goes_on =
          watch.any_moves() && (!watch.any_stalls() || std::ranges::any_of(reading, only_there));
    } while (clock_.now() < deadline && goes_on && !limits.ends());
    for (Read* r : reading) r->silent = !limits.ends() && watch.silent(r->segment);
    if (over_network) times_.took(total, clock_.now() - start);
  }
  for (Read* r : reading) {
    if (!r->answer.open) continue;
    const NodeRef& node = found.nodes[r->chosen->node];
    if (!submitted)
      r->last = submitted.error();
    else
      complete(*r, moved_of(*r, batch), node, verifies(*r), far(r->segment));
    if (r->corrupt) report_corrupt(*r, *r->chosen, node);
  }
  engine_.free_batch(batch);
  each_silent(reading, [&](uint32_t at) { report(found.nodes[at]); });
}

Result<> Client::moved_of(Read& r, xfer::BatchId batch) const {
  for (size_t i = 0; i < r.count; ++i) {
    const xfer::Status status = engine_.status(batch, r.first + i);
    if (status.state == xfer::TransferState::kCompleted) {
      if (r.count == 1 && status.digest) r.checksum = status.digest;
      continue;
    }
    if (status.state == xfer::TransferState::kFailed) return fail(status.error);
    if (limits.ends()) return fail(Code::kUnavailable, "cancelled");
    return fail(Code::kTimeout, "get of '%s': not read within %s", escape(r.item->key).c_str(),
                to_text(limits.timeout_or(options_.timeout)).c_str());
  }
  return {};
}

void Client::complete(Read& r, const Result<>& moved, const NodeRef& node, bool verify, bool far) {
  r.corrupt = false;
  if (!moved) {
    r.last = moved.error();
    if (r.last.code == Code::kStale) stale_.add();
    r.silent = r.silent || (r.last.code == Code::kUnavailable && !limits.ends());
    return;
  }
  const uint64_t wanted = r.item->wanted(r.at->bytes);
  if (!verify || (!r.whole() && r.copy.empty())) return r.answer.set(wanted);
  const uint64_t checksum = !r.whole()   ? xxh3(r.copy.data(), r.copy.size())
                            : r.checksum ? *r.checksum
                                         : checksum_of(r.item->parts, r.at->bytes);
  r.corrupt = checksum != r.at->checksum;
  if (r.corrupt) {
    corrupt_.add();
    r.last = {Code::kCorrupt, strf("value of '%s' on node %s: checksum %016llx, %016llx was put",
                                   escape(r.item->key).c_str(), escape(node.name).c_str(),
                                   static_cast<unsigned long long>(checksum),
                                   static_cast<unsigned long long>(r.at->checksum))};
    return;
  }
  r.verified = true;
  if (!r.whole())
    r.take(r.copy);
  else if (far)
    keep_hot(r);
  else
    verified_.verified(r.replica);
  r.answer.set(wanted);
}

}  // namespace mc::store
