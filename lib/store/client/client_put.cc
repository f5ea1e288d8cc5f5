// Puts: reserve, raise the guard words, write, publish. A put that fails is rolled back. A write
// raises its guard word itself where the transport can do that. The guard words of a round's other
// writes are raised together, because each costs a round trip otherwise.
#include <algorithm>
#include <deque>

#include "store/client/client_impl.h"

namespace mc::store {
namespace {
constexpr Duration kRevoke = std::chrono::milliseconds(500);
constexpr int kRoundsMax = 100;  // per put: each may wait for space or be refused at once

constexpr int kNodeTries = 3;  // of a put whose nodes were not known to be out of reach

// A write there can raise its guard word itself.
bool raises_guards(const xfer::Engine& engine, xfer::SegmentHandle segment) {
  const std::string transport = engine.transport_of(segment);
  return transport == "tcp" || transport == "shm" || transport == "self";
}
}  // namespace

// Whether it may do better in another round, after `rounds`.
bool Client::Write::worth_another(int rounds) const {
  if (answer.value) return false;
  const Code code = answer.value.error().code;
  if (waits && (code == Code::kStale || code == Code::kUnavailable)) return true;
  if (node_lost) return rounds < kNodeTries;
  return rounds == 1 && (code == Code::kStale || code == Code::kUnavailable);
}

// A lack of time for another attempt says less than why the previous one failed.
bool Client::Write::is_less_specific() const {
  return !answer.value && !tried && answer.value.error().code == Code::kTimeout;
}

// A refusal does not prove that nothing was stored: an earlier round may have stored it.
Result<PutOutcome> Client::Write::outcome() {
  Result<PutOutcome>& value = answer.value;
  if (value || !tried) return std::move(value);
  const Code code = value.error().code;
  if (code != Code::kBusy && code != Code::kNoSpace) return std::move(value);
  return fail(Code::kUnavailable, "put of '%s': may be stored, its master went away; then: %s",
              escape(item->key).c_str(), value.error().what.c_str());
}

Result<PutOutcome> Client::put(const ObjectKey& key, std::span<const std::byte> value) {
  const PutItem item{key, {value}};
  return std::move(put_batch({&item, 1})[0]);
}

std::vector<Result<PutOutcome>> Client::put_batch(std::span<const PutItem> items) {
  PutAs as;
  as.tenant = options_.tenant;
  as.config = options_.put;
  return put_batch(items, as);
}

std::vector<Result<PutOutcome>> Client::put_batch(std::span<const PutItem> items,
                                                  const PutAs& given) {
  PutAs as = given;
  if (as.stopped == nullptr) as.stopped = limits.stopped;
  if (auto sane = check(as.config); !sane)
    return std::vector<Result<PutOutcome>>(items.size(), fail(sane.error()));
  const Time deadline = std::min(clock_.now() + limits.timeout_or(options_.timeout), as.until);
  Step step("put");
  step.facts.items = items.size();
  std::vector<Write> writes(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    writes[i].item = &items[i];
    writes[i].bytes = total_bytes(items[i].parts);
    step.facts.bytes += writes[i].bytes;
  }
  std::vector<Result<PutOutcome>> out;
  for (size_t at = 0; at < writes.size(); at += kChunk) {
    const auto chunk = std::span(writes).subspan(at, std::min(kChunk, writes.size() - at));
    put_round(chunk, as, false, deadline);
    // Retry puts that failed by a restarted master or a lost node: the node is avoided, so the
    // master grants another. Retry also while the master's nodes are not back.
    std::vector<Write*> last;
    for (Write& w : chunk) last.push_back(&w);
    std::deque<std::vector<Write>> rounds;
    for (int round = 1; round < kRoundsMax && left(deadline) > Duration::zero() && !as.ends();
         ++round) {
      std::vector<Write> again;
      std::vector<size_t> of;
      for (size_t i = 0; i < last.size(); ++i)
        if (last[i]->worth_another(round)) {
          again.push_back({});
          again.back().item = last[i]->item;
          again.back().bytes = last[i]->bytes;
          again.back().tried = last[i]->tried;
          of.push_back(i);
        }
      if (again.empty()) break;
      rounds.push_back(std::move(again));
      put_round(rounds.back(), as, true, deadline);
      for (size_t i = 0; i < of.size(); ++i)
        if (!rounds.back()[i].is_less_specific()) last[of[i]] = &rounds.back()[i];
    }
    for (Write* w : last) out.push_back(w->outcome());
  }
  return out;
}

// `again`: after a round that failed. Then guard words are raised before the writes, whatever
// transport these end up with.
void Client::put_round(std::span<Write> writes, const PutAs& as, bool again, Time deadline) {
  PutStart start;
  start.promote = as.promote;
  start.replicas = as.replicas > 0 ? as.replicas : options_.replicas;
  start.prefer = as.prefer.empty() ? options_.prefer : as.prefer;
  const Duration wait = room_wait(left(deadline), options_.put_wait);
  start.wait_ms = static_cast<uint32_t>(std::max<int64_t>(wait / std::chrono::milliseconds(1), 1));
  const PutConfig& config = as.config;
  start.tenant = as.tenant;
  start.host = config.host;
  start.prefer_local = config.prefer_local;
  start.cls = config.cls == "context" ? 2 : config.cls == "ephemeral" ? 1 : 0;
  start.pin = config.pin == "hard" ? 2 : config.pin == "soft" ? 1 : 0;
  start.ttl_ms = static_cast<uint64_t>(config.ttl / std::chrono::milliseconds(1));
  start.group = config.group;
  start.avoid = shared_->unreached.now(clock_.now());
  start.nonce = std::max<uint64_t>(options_.random(), 1);
  for (const Write& w : writes) start.items.push_back({w.item->key, w.bytes, w.tried});
  const bool sent = left(deadline) > Duration::zero();
  auto started = ask(start, deadline, wait);
  if (started && started->items.size() != writes.size())
    started = fail(Code::kCorrupt, "put-start: %zu answers to %zu items", started->items.size(),
                   writes.size());
  if (!started) {
    // If it was sent, nobody knows whether it was granted, or will be.
    const Duration a_moment = std::min<Duration>(kRevoke, limits.timeout_or(options_.timeout) / 10);
    if (sent && unheard(started.error()))
      shared_->unheard.give_back(*master_, shared_->epoch, start, a_moment);
    for (Write& w : writes) w.answer.set(fail(started.error()));
    return;
  }
  std::vector<xfer::Engine::GuardAdvance> guards;
  Opened opened;
  for (size_t i = 0; i < writes.size(); ++i) {
    Write& w = writes[i];
    w.grant = std::move(started->items[i]);
    w.waits =
        started->rebuilding && w.grant.outcome.code == static_cast<uint8_t>(Code::kUnavailable);
    if (w.grant.outcome.code == static_cast<uint8_t>(Code::kExists))
      w.answer.set(PutOutcome::kExisted);
    else if (w.grant.outcome.code == static_cast<uint8_t>(Code::kDenied))
      w.answer.set(PutOutcome::kNotAdmitted);
    else if (!w.grant.outcome.ok())
      w.answer.set(fail(w.grant.outcome.result().error()));
    else if (auto ready = prepare(w, started->nodes, opened, deadline); !ready)
      w.answer.value = fail(ready.error());  // still open, so that it is rolled back
    else
      w.moved = true;
    if (!w.moved) continue;
    w.raises = w.raises && !again;
    if (!w.raises) w.append_guards(guards);
  }
  if (!guards.empty()) engine_.advance_guards(guards, left(deadline));
  std::vector<xfer::Request> requests;
  for (Write& w : writes) {
    if (!w.moved) continue;
    if (auto added = w.append(guards, deadline, requests); !added) {
      w.answer.value = fail(added.error());
      w.moved = false;
    }
  }
  write_out(writes, as, requests, started->nodes, deadline);
  for (Write& w : writes)
    w.node_lost = !w.lost.empty() && std::ranges::find(start.avoid, w.lost) == start.avoid.end();
  finish_puts(writes, as.tenant, deadline);
}

// Opens the segments of its places.
Result<> Client::prepare(Write& w, const std::vector<NodeRef>& nodes, Opened& opened,
                         Time deadline) {
  if (w.grant.places.empty()) return fail(Code::kCorrupt, "put-start: a grant without a place");
  if (w.grant.places.size() > w.segments.size())
    return fail(Code::kCorrupt, "put-start: %zu places of a value", w.grant.places.size());
  w.raises = w.bytes > 0;  // without a byte there is no request
  for (size_t i = 0; i < w.grant.places.size(); ++i) {
    const uint32_t node = w.grant.places[i].node;
    if (node >= nodes.size())
      return fail(Code::kCorrupt, "put-start: place on node %u of %zu", node, nodes.size());
    auto segment = segment_of(nodes[node], opened, deadline);
    if (!segment) w.lost = nodes[node].name;
    MC_TRY(w.segments[i], std::move(segment));
    w.raises = w.raises && raises_guards(engine_, w.segments[i]);
  }
  return {};
}

// Appends a guard for each piece of its places, in their order.
void Client::Write::append_guards(std::vector<xfer::Engine::GuardAdvance>& all) {
  first_guard = all.size();
  for (size_t i = 0; i < grant.places.size(); ++i)
    each_piece(grant.places[i], bytes, [&](const Extent& piece) {
      all.push_back({segments[i], piece.guard, grant.generation.n, {}});
    });
  guards = all.size() - first_guard;
}

Result<> Client::Write::append(std::span<const xfer::Engine::GuardAdvance> all, Time deadline,
                               std::vector<xfer::Request>& out) {
  const auto own = all.subspan(first_guard, guards);
  for (const auto& guard : own) MC_TRY_(guard.outcome);
  first = out.size();
  for (size_t i = 0; i < grant.places.size(); ++i)
    append_requests(xfer::Op::kWrite, item->parts, bytes, grant.places[i], grant.generation,
                    segments[i], deadline, out);
  count = out.size() - first;
  for (xfer::Request& r : std::span(out).last(count)) r.guard.raises = raises;
  return {};
}

void Client::write_out(std::span<Write> writes, const PutAs& as,
                       const std::vector<xfer::Request>& requests,
                       const std::vector<NodeRef>& nodes, Time deadline) {
  std::optional<Step> step;
  if (!requests.empty()) step.emplace("write");
  const xfer::BatchId batch = engine_.allocate_batch();
  Result<> submitted;
  if (step) submitted = engine_.submit_awaited(batch, requests, left(deadline));
  uint64_t total = 0;
  for (Write& w : writes) {
    if (!w.moved) continue;
    total += w.bytes * w.grant.places.size();
    for (const ReplicaLocation& place : w.grant.places)
      if (step) note_item(*step, w.bytes, nodes[place.node]);
    w.checksum = checksum_of(w.item->parts, w.bytes);  // while the bytes move
  }
  if (submitted && step) wait_moved(batch, requests.size(), total, {}, {}, deadline, as.stopped);
  for (Write& w : writes) {
    if (!w.moved) continue;
    for (size_t i = 0; i < w.count && w.moved; ++i) {
      const xfer::Status status =
          submitted ? engine_.status(batch, w.first + i)
                    : xfer::Status{xfer::TransferState::kFailed, 0, submitted.error()};
      if (status.state == xfer::TransferState::kCompleted) continue;
      w.moved = false;
      const NodeRef& node = nodes[w.grant.places[i * w.grant.places.size() / w.count].node];
      const bool failed = status.state == xfer::TransferState::kFailed;
      if (failed && status.error.code == Code::kUnavailable) {
        w.lost = node.name;
        report(node);
      } else if (!failed && status.bytes_done == 0 && !as.ends()) {
        shared_->unreached.failed(node.name, clock_.now());
      }
      w.answer.value = failed      ? fail(status.error)
                       : as.ends() ? fail(Code::kUnavailable, "cancelled")
                                   : fail(Code::kTimeout, "put of '%s': not written within %s",
                                          escape(w.item->key).c_str(),
                                          to_text(limits.timeout_or(options_.timeout)).c_str());
      if (step) step->facts.error = w.answer.value.error().what;
    }
  }
  engine_.free_batch(batch);  // from here on it writes nothing
}

void Client::finish_puts(std::span<Write> writes, const std::string& tenant, Time deadline) {
  PutEnd end;
  PutRevoke revoke;
  end.tenant = revoke.tenant = tenant;
  std::vector<Write*> ending;
  for (Write& w : writes) {
    if (!w.answer.open) continue;
    const PutClaim claim{w.item->key, w.grant.generation, w.checksum};
    if (w.moved) {
      end.items.push_back(claim);
      ending.push_back(&w);
    } else {
      revoke.items.push_back(claim);
      w.answer.open = false;
    }
  }
  // If the revocation is lost, the master discards the grant after its timeout.
  if (!revoke.items.empty()) (void)ask(revoke, clock_.now() + kRevoke);
  if (end.items.empty()) return;
  auto ended = ask(end, deadline);
  if (ended && ended->items.size() != ending.size())
    ended = fail(Code::kCorrupt, "put-end: %zu answers to %zu items", ended->items.size(),
                 ending.size());
  for (size_t i = 0; i < ending.size(); ++i) {
    Write& w = *ending[i];
    if (!ended)
      w.answer.set(fail(ended.error()));
    else if (!ended->items[i].ok())
      w.answer.set(fail(ended->items[i].result().error()));
    else
      w.answer.set(PutOutcome::kStored);
    if (!w.answer.value && !w.tried) w.tried = w.grant.generation;
    if (w.answer.value) put_bytes_.add(w.bytes);
  }
}

}  // namespace mc::store
