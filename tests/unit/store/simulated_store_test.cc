// What a seed may do to the store (simulated_store.h), and the promises that it keeps for all that.
#include "tests/unit/store/simulated_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/slow.h"

namespace mc::store {
namespace {

constexpr Duration kBeat = 100ms, kCall = 200ms, kPut = 1500ms;
constexpr uint64_t kChunk = 4;  // pages of a write
constexpr size_t kKeys = 6, kClients = 4;

}  // namespace

SimulatedStore::SimulatedStore(uint64_t seed, const Rules& rules) : rules_(rules), random_(seed) {
  options_.lease_ttl = 200ms;
  options_.client_ttl = 500ms;
  options_.suspect_after = 300ms;
  options_.put_discard = 600ms;
  options_.put_wait = 20ms;
  options_.rebuild_wait = 400ms;
  if (!rules_.tombstones) options_.tombstones = 0;
  restart_master();
  for (const char* name : {"a", "b", "c"}) {
    nodes_[name].name = name;
    born(nodes_[name]);
  }
  for (size_t i = 0; i < kClients; ++i) {
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->name = "client" + std::to_string(i);
  }
}

// ---- the network

void SimulatedStore::deliver(const std::string& from, const std::string& to, const Event& event) {
  const auto send = [&](Duration most) {
    after(50us + a_while(most), [this, from, to, event] {
      if (!cut(from, to)) arrive(to, event);
    });
  };
  if (faults_ && random_.chance(0.02)) {
    ++counts.lost;
    return;
  }
  send(faults_ && random_.chance(0.03) ? Duration(1s) : Duration(3ms));
  if (faults_ && random_.chance(0.02)) {
    ++counts.doubled;
    send(1s);
  }
}

void SimulatedStore::arrive(const std::string& to, const Event& event) {
  const auto it = still_.find(to);
  if (it != still_.end() && it->second > now_)
    at(it->second, [this, to, event] { arrive(to, event); });
  else
    event();
}

template <class M>
void SimulatedStore::call(const std::string& from, const M& message, Duration patience,
                          std::function<void(const Result<typename M::Reply>*)> done) {
  using Answer = Result<typename M::Reply>;
  const auto open = std::make_shared<bool>(true);
  const auto heard = [open, done = std::move(done)](const Answer* answer) {
    if (std::exchange(*open, false)) done(answer);
  };
  deliver(from, "master", [this, from, message, heard] {
    const auto answer = [this, from, heard, life = lives_](const Answer& a) {
      if (life != lives_) return;
      deliver("master", from, [heard, a] { heard(&a); });
    };
    if constexpr (requires { master_->handle(message, now_, answer); })
      master_->handle(message, now_, answer);
    else
      answer(Answer(master_->handle(message, now_)));
  });
  after(patience, [this, from, heard] { arrive(from, [heard] { heard(nullptr); }); });
}

template <class M>
void SimulatedStore::insist(const std::string& from, const M& message, Time until,
                            std::function<void(const Result<typename M::Reply>*)> done) {
  call(from, message, kCall,
       [this, from, message, until, done](const Result<typename M::Reply>* answer) {
         const bool unsure =
             answer == nullptr || (!*answer && answer->error().code == Code::kUnavailable);
         if (unsure && now_ < until)
           after(10ms, [this, from, message, until, done] { insist(from, message, until, done); });
         else
           done(answer);
       });
}

bool SimulatedStore::step(Time until) {
  const Time event = events_.empty() ? Time::max() : events_.begin()->first.first;
  const auto still = still_.find("master");
  Time tick = master_->deadline();
  if (still != still_.end()) tick = std::max(tick, still->second);
  const Time next = std::max(now_, std::min(event, tick));
  if (next > until) {
    now_ = until;
    return false;
  }
  now_ = next;
  if (tick <= event) {
    master_->tick(now_);
    return true;
  }
  const Event todo = std::move(events_.begin()->second);
  digest = mix64(digest ^ events_.begin()->first.second ^
                 static_cast<uint64_t>(now_.time_since_epoch().count()));
  events_.erase(events_.begin());
  todo();
  return true;
}

// ---- nodes

void SimulatedStore::again(Node& node, uint64_t turn) {
  after(kBeat, [this, &node, turn] {
    if (turn != node.turn) return;
    arrive(node.name, [this, &node, turn] {
      if (turn != node.turn) return;
      if (node.mounted)
        beat(node, turn);
      else
        mount(node);
    });
  });
}

std::vector<Extent> SimulatedStore::pieces_of(const ObjectRecord& record) {
  std::vector<Extent> out{{record.offset, record.more.empty() ? record.bytes : record.first_bytes,
                           layout().guard_of(record.offset)}};
  for (const Extent& piece : record.more) out.push_back(piece);
  return out;
}

bool SimulatedStore::claimed(const Node& node, uint64_t offset, uint64_t bytes) {
  return std::any_of(node.claims.begin(), node.claims.end(), [&](const auto& claim) {
    return claim.second.offset < offset + bytes &&
           offset < claim.second.offset + claim.second.bytes;
  });
}

void SimulatedStore::mount(Node& node) {
  const uint64_t turn = ++node.turn;
  node.mounted = false;
  node.done = 0;
  node.unfenced.clear();
  Mount m{node.ref(), layout(), rules_.epochs ? node.epoch_seen : 0, node.nodes_seen};
  call(node.name, m, kCall, [this, &node, turn](const Result<Mounted>* reply) {
    if (turn != node.turn) return;
    if (reply == nullptr || !*reply) return again(node, turn);
    if (rules_.epochs && (*reply)->epoch < node.epoch_seen) return again(node, turn);
    const bool first = node.epoch == 0;
    const Generation fence = std::max((*reply)->fence, Generation{node.epoch << 32});
    node.epoch = node.epoch_seen = (*reply)->epoch;
    node.mount = (*reply)->fence;
    if (!first && rules_.guards)
      for (const Extent& range : node.directory->free_ranges())
        for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kPage) {
          uint64_t& guard = node.guards[page_of(at)];
          guard = std::max(guard, fence.n);
        }
    inventory(node, turn);
  });
}

void SimulatedStore::inventory(Node& node, uint64_t turn) {
  Inventory m{node.name, Generation{node.generation}, node.directory->page(0, true, 4096), true};
  m.mount = node.mount;
  node.directory->tell_dead(m);
  if (rules_.fences)
    for (const Extent& range : node.directory->free_ranges())
      for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kPage)
        if (claimed(node, at, kPage)) m.unfenced.push_back({at, kPage, 0});
  call(node.name, m, kCall, [this, &node, turn](const Result<Mounted>* reply) {
    if (turn != node.turn) return;
    if (reply == nullptr || !*reply) return again(node, turn);
    node.mounted = true;
    node.nodes_seen = (*reply)->nodes;
    beat(node, turn);
  });
}

void SimulatedStore::beat(Node& node, uint64_t turn) {
  std::erase_if(node.unfenced, [&](const auto& order) {
    const auto pieces = pieces_of(order.second);
    return std::none_of(pieces.begin(), pieces.end(), [&](const Extent& piece) {
      return claimed(node, piece.offset, piece.bytes);
    });
  });
  Heartbeat m{node.name, Generation{node.generation}, node.done,
              node.unfenced.empty() ? 100U : 10U};
  for (const auto& [seq, record] : node.unfenced) m.unfenced.push_back(seq);
  m.mount = node.mount;
  call(node.name, m, kBeat + kCall, [this, &node, turn](const Result<HeartbeatReply>* reply) {
    if (turn != node.turn) return;
    if (reply == nullptr || !*reply) return again(node, turn);
    take(node, **reply, turn);
  });
}

void SimulatedStore::take(Node& node, const HeartbeatReply& reply, uint64_t turn) {
  if (reply.status == static_cast<uint8_t>(BeatStatus::kRemount)) return mount(node);
  if (rules_.epochs && reply.epoch < node.epoch_seen) return again(node, turn);
  node.epoch = node.epoch_seen = reply.epoch;
  node.nodes_seen = reply.nodes;
  for (const Order& order : reply.orders) {
    if (order.seq <= node.done) continue;
    if (!node.directory->carry_out(order)) wrong.push_back("an order that a node does not know");
    node.done = order.seq;
    if (order.kind == static_cast<uint8_t>(OrderKind::kForget)) forget(node, order);
  }
  beat(node, turn);
}

void SimulatedStore::forget(Node& node, const Order& order) {
  bool busy = false;
  for (const Extent& piece : pieces_of(order.record)) {
    uint64_t& guard = node.guards[page_of(piece.offset)];
    if (rules_.guards) guard = std::max(guard, order.fence.n);
    busy = busy || claimed(node, piece.offset, piece.bytes);
  }
  if (busy && rules_.fences) node.unfenced.emplace_back(order.seq, order.record);
}

// ---- clients

void SimulatedStore::next(Client& client) {
  if (!asks_) return;
  ++running_;
  const ObjectKey key = "k" + std::to_string(random_.below(kKeys));
  const double what = random_.uniform();
  if (what < 0.4)
    put(client, key);
  else if (what < 0.85)
    get(client, key);
  else
    remove(client, key);
}

void SimulatedStore::end(Client& client, size_t op, history::Fate fate, uint64_t value) {
  history::Op& o = ops[op];
  o.fate = fate;
  o.end_ns = now_.time_since_epoch().count();
  if (o.kind == history::Kind::kGet) o.value = value;
  uint64_t& count = fate != history::Fate::kDone    ? counts.failed
                    : o.kind == history::Kind::kPut ? counts.puts
                    : o.kind == history::Kind::kGet ? counts.gets
                                                    : counts.removals;
  ++count;
  --running_;
  after(a_while(4ms), [this, &client] { next(client); });
}

void SimulatedStore::put(Client& client, const ObjectKey& key) {
  auto w = std::make_shared<Write>();
  w->key = key;
  w->value = ++values_;
  w->pages = 1 + random_.below(12);
  w->until = now_ + kPut;
  w->at = ops.size();
  ops.push_back({history::Kind::kPut, history::Fate::kNot, key, w->value,
                 now_.time_since_epoch().count(), 0});
  written_[w->value] = {key, w->pages};
  PutStart start;
  start.items = {{key, w->pages * kPage, {}}};
  start.replicas = random_.chance(0.3) ? 2 : 1;
  start.nonce = std::max<uint64_t>(random_.next(), 1);
  insist<PutStart>(
      client.name, start, w->until,
      [this, &client, w, nonce = start.nonce](const Result<PutStarted>* reply) {
        if (reply == nullptr || (!*reply && (*reply).error().code == Code::kUnavailable)) {
          PutRevoke back{{{w->key, {}, 0}}, {}, nonce};
          call<PutRevoke>(client.name, back, kCall, [](const Result<Outcomes>*) {});
          return end(client, w->at, history::Fate::kNot);
        }
        if (!*reply || !accepts(client, (*reply)->epoch) || !(*reply)->items[0].outcome.ok())
          return end(client, w->at, history::Fate::kNot);
        write(client, w, **reply);
      });
}

std::vector<SimulatedStore::Piece> SimulatedStore::pieces(const ReplicaLocation& place,
                                                          const std::vector<NodeRef>& nodes,
                                                          Generation generation,
                                                          uint64_t bytes) const {
  const Generation of = place.generation.n != 0 ? place.generation : generation;
  std::vector<Piece> out{
      {nodes[place.node], place.offset, place.more.empty() ? bytes : place.bytes, place.guard, of}};
  for (const Extent& more : place.more)
    out.push_back({nodes[place.node], more.offset, more.bytes, more.guard, of});
  return out;
}

// A chunk takes its claim where the guard word is not higher, and lands a while later.
void SimulatedStore::write(Client& client, const std::shared_ptr<Write>& w,
                           const PutStarted& granted) {
  w->generation = granted.items[0].generation;
  newest_[w->key] = std::max(newest_[w->key], w->generation);
  for (const ReplicaLocation& place : granted.items[0].places)
    for (const Piece& piece : pieces(place, granted.nodes, w->generation, w->pages * kPage))
      for (uint64_t done = 0; done < piece.bytes; done += kChunk * kPage) {
        const uint64_t offset = piece.offset + done;
        const uint64_t bytes = std::min(kChunk * kPage, piece.bytes - done);
        ++w->open;
        const auto ended = [this, &client, w, open = std::make_shared<bool>(true)](bool well) {
          if (!std::exchange(*open, false)) return;
          w->failed = w->failed || !well;
          if (--w->open == 0) wrote(client, w);
        };
        after(kCall * 2,
              [this, name = client.name, ended] { arrive(name, [ended] { ended(false); }); });
        const NodeId to = piece.node.name;
        deliver(client.name, to, [this, name = client.name, to, piece, offset, bytes, w, ended] {
          Node& node = nodes_.at(to);
          uint64_t& guard = node.guards[page_of(layout().data + piece.guard / 8 * kPage)];
          if (node.generation != piece.node.generation.n || guard > piece.generation.n)
            return deliver(to, name, [ended] { ended(false); });
          guard = piece.generation.n;
          const uint64_t claim = ++claims_;
          node.claims[claim] = {piece.guard, offset, bytes};
          const Duration lands = faults_ && random_.chance(0.05) ? a_while(900ms) : a_while(300us);
          after(lands,
                [this, to, name, claim, generation = node.generation, value = w->value, ended] {
                  arrive(to, [this, to, name, claim, generation, value, ended] {
                    Node& there = nodes_.at(to);
                    const auto it = there.claims.find(claim);
                    if (there.generation != generation || it == there.claims.end()) return;
                    for (uint64_t at = 0; at < it->second.bytes; at += kPage)
                      there.pages[page_of(it->second.offset + at)] = value;
                    there.claims.erase(it);
                    deliver(to, name, [ended] { ended(true); });
                  });
                });
        });
      }
  if (w->open == 0) wrote(client, w);
}

void SimulatedStore::wrote(Client& client, const std::shared_ptr<Write>& w) {
  if (w->failed) {
    call<PutRevoke>(client.name, {{{w->key, w->generation, 0}}}, kCall,
                    [](const Result<Outcomes>*) {});
    return end(client, w->at, history::Fate::kNot);
  }
  const PutEnd ending{{{w->key, w->generation, w->value}}};
  insist<PutEnd>(client.name, ending, w->until, [this, &client, w](const Result<Outcomes>* reply) {
    const bool heard = reply != nullptr && *reply && accepts(client, (*reply)->epoch);
    if (heard && (*reply)->items[0].ok()) return end(client, w->at, history::Fate::kDone);
    end(client, w->at, history::Fate::kMaybe);  // an attempt before may have published it
  });
}

void SimulatedStore::get(Client& client, const ObjectKey& key) {
  auto r = std::make_shared<Write>();
  r->key = key;
  r->at = ops.size();
  ops.push_back(
      {history::Kind::kGet, history::Fate::kNot, key, 0, now_.time_since_epoch().count(), 0});
  const Time asked = now_;
  call<GetReplicas>(client.name, {{key}, 0}, kCall, [this, &client, r, asked](const auto* reply) {
    if (reply == nullptr || !*reply || !accepts(client, (*reply)->epoch) ||
        !(*reply)->items[0].outcome.ok() || (*reply)->items[0].places.empty())
      return end(client, r->at, history::Fate::kNot);
    r->lease = asked + std::chrono::milliseconds((*reply)->lease_ms);
    read(client, r, **reply);
  });
}

void SimulatedStore::read(Client& client, const std::shared_ptr<Write>& r, const Replicas& found) {
  const Located& at = found.items[0];
  r->pages = at.bytes / kPage;
  r->seen.assign(r->pages, 0);
  const ReplicaLocation& place = at.places[random_.below(at.places.size())];
  uint64_t first = 0;
  const auto all = [this, &client, r, checksum = at.checksum] {
    const auto it = written_.find(r->seen.empty() ? 0 : r->seen[0]);
    const bool one =
        std::all_of(r->seen.begin(), r->seen.end(), [&](uint64_t v) { return v == r->seen[0]; });
    if (r->failed || now_ > r->lease) return end(client, r->at, history::Fate::kNot);
    const bool decayed = std::any_of(r->seen.begin(), r->seen.end(),
                                     [&](uint64_t v) { return v != 0 && !written_.contains(v); });
    // A live client reports it and reads elsewhere. Nothing but decay may be the reason.
    if (rules_.checksums && decayed) return end(client, r->at, history::Fate::kNot);
    if (rules_.checksums && one && r->seen[0] != checksum)
      wrong.push_back(r->key + ": another value");
    if (!one || it == written_.end() || it->second != std::pair{r->key, r->pages}) {
      wrong.push_back(r->key + ": wrong bytes");
      return end(client, r->at, history::Fate::kNot);
    }
    end(client, r->at, history::Fate::kDone, r->seen[0]);
  };
  for (const Piece& piece : pieces(place, found.nodes, at.generation, at.bytes)) {
    ++r->open;
    const auto ended = [r, all, open = std::make_shared<bool>(true)](bool well) {
      if (!std::exchange(*open, false)) return;
      r->failed = r->failed || !well;
      if (--r->open == 0) all();
    };
    after(kCall * 2,
          [this, name = client.name, ended] { arrive(name, [ended] { ended(false); }); });
    const NodeId to = piece.node.name;
    deliver(client.name, to, [this, name = client.name, to, piece, first, r, ended] {
      const Node& node = nodes_.at(to);
      const uint64_t guard = node.guards[page_of(layout().data + piece.guard / 8 * kPage)];
      if (node.generation != piece.node.generation.n || guard != piece.generation.n)
        return deliver(to, name, [ended] { ended(false); });
      std::vector<uint64_t> bytes;
      for (uint64_t done = 0; done < piece.bytes; done += kPage)
        bytes.push_back(node.pages[page_of(piece.offset + done)]);
      deliver(to, name, [r, first, bytes, ended] {
        std::copy(bytes.begin(), bytes.end(), r->seen.begin() + static_cast<ptrdiff_t>(first));
        ended(true);
      });
    });
    first += piece.bytes / kPage;
  }
}

void SimulatedStore::remove(Client& client, const ObjectKey& key) {
  const size_t op = ops.size();
  ops.push_back(
      {history::Kind::kRemove, history::Fate::kNot, key, 0, now_.time_since_epoch().count(), 0});
  // No other key starts so. While a master waits for its nodes, it says nothing of what they have.
  if (random_.chance(0.3) && whole())
    return insist<RemovePrefix>(
        client.name, {key, {}, true}, now_ + 1s,
        [this, &client, op, life = lives_](const Result<RemovePrefixed>* reply) {
          const bool done = reply != nullptr && *reply && accepts(client, (*reply)->epoch) &&
                            (*reply)->removed == 1 && life == lives_;
          end(client, op, done ? history::Fate::kDone : history::Fate::kMaybe);
        });
  insist<Remove>(client.name, {{key}, random_.chance(0.5)}, now_ + 1s,
                 [this, &client, op](const Result<Outcomes>* reply) {
                   if (reply == nullptr || !*reply || !accepts(client, (*reply)->epoch))
                     return end(client, op, history::Fate::kMaybe);
                   const auto code = static_cast<Code>((*reply)->items[0].code);
                   const bool done = code == Code{} || code == Code::kNotFound;
                   end(client, op,
                       done                  ? history::Fate::kDone
                       : code == Code::kBusy ? history::Fate::kNot
                                             : history::Fate::kMaybe);
                 });
}

// ---- faults

void SimulatedStore::restart_master() {
  ++lives_;
  if (rules_.epochs && master_) epoch_ = master_->epoch() + 1;
  master_ = std::make_unique<Master>(options_, epoch_, random_.next() | 1, now_);
}

void SimulatedStore::fault() {
  if (!faults_) return;
  const std::vector<std::string> hosts{"master", "a", "b", "c", "client0", "client1"};
  const std::string& host = hosts[random_.below(hosts.size())];
  const std::string& other = hosts[random_.below(hosts.size())];
  const Duration lasts = random_.chance(0.5) ? a_while(300ms) : a_while(1200ms);
  const double what = random_.uniform();
  if (what < 0.3) {
    still_[host] = now_ + lasts;
  } else if (what < 0.5) {
    for (const std::string& h : hosts) cuts_[{host, h}] = cuts_[{h, host}] = now_ + lasts;
  } else if (what < 0.75) {
    cuts_[{host, other}] = now_ + lasts;  // one way
  } else if (what < 0.85) {
    if (settled()) {
      ++counts.kills;
      restart_master();
    }
  } else if (what < 0.93) {
    ++counts.kills;
    Node& node = nodes_.at(hosts[1 + random_.below(3)]);
    ++node.generation;
    born(node);
  } else {
    Node& node = nodes_.at(hosts[1 + random_.below(3)]);
    node.pages[random_.below(kPages)] = ++values_;  // of nobody
  }
  after(50ms + a_while(400ms), [this] { fault(); });
}

void SimulatedStore::run(Duration with_faults, Duration without) {
  for (const auto& client : clients_) next(*client);
  fault();
  const Time quiet = now_ + with_faults, end = quiet + without;
  while (step(quiet)) {
  }
  faults_ = false;
  still_.clear();
  cuts_.clear();
  const uint64_t before = counts.puts + counts.gets;
  while (step(quiet + without / 2)) {
  }
  if (counts.puts + counts.gets < before + 20) wrong.push_back("nothing goes on after the faults");
  asks_ = false;
  while (step(end)) {
  }
  if (running_ != 0) wrong.push_back(std::to_string(running_) + " operations never ended");
  check_room();
  for (std::string& w : history::check(ops)) wrong.push_back(std::move(w));
}

// All nodes serve, and with the last object all room is free.
void SimulatedStore::check_room() {
  for (const auto& [name, node] : nodes_)
    if (!node.mounted) wrong.push_back(name + " did not come back");
  for (size_t i = 0; i < kKeys; ++i)
    master_->handle(Remove{{"k" + std::to_string(i)}, true}, now_, [](const Result<Outcomes>&) {});
  while (step(now_ + 2s) && now_ < Time{1h}) {
    if (events_.empty()) break;
    if (master_->handle(Stat{}, now_).used == 0) return;
  }
  const ClusterStat left = master_->handle(Stat{}, now_);
  if (left.used != 0 || left.writing != 0)
    wrong.push_back(std::to_string(left.used / kPage) + " pages are in use by nothing");
}

// ---- tests

namespace {

uint64_t seeds() {
  const char* const told = std::getenv("MC_SEEDS");
  return told != nullptr ? std::strtoull(told, nullptr, 10) : fewer(20);
}

// Whether a history of these seeds is wrong.
bool found(const Rules& rules, uint64_t first, uint64_t last) {
  for (uint64_t seed = first; seed <= last; ++seed) {
    SimulatedStore store(seed, rules);
    store.run(6s, 6s);
    if (!store.wrong.empty()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("whatever hosts and networks do, a store keeps its promises, and is whole again") {
  SimulatedStore::Counts sum;
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    CAPTURE(seed);
    SimulatedStore store(seed, {});
    store.run(6s, 6s);
    for (const std::string& w : store.wrong) FAIL_CHECK(w);
    sum.puts += store.counts.puts;
    sum.gets += store.counts.gets;
    sum.removals += store.counts.removals;
    sum.kills += store.counts.kills;
    sum.doubled += store.counts.doubled;
  }
  MESSAGE(sum.puts << " puts, " << sum.gets << " gets, " << sum.removals << " removals, "
                   << sum.kills << " kills, " << sum.doubled << " doubled");
  CHECK(sum.puts > 100 * seeds());
  CHECK(sum.gets > 100 * seeds());
}

TEST_CASE("a seed gives the same history twice") {
  SimulatedStore one(5, {}), two(5, {});
  one.run(3s, 3s);
  two.run(3s, 3s);
  CHECK(one.digest == two.digest);
  CHECK(one.ops.size() == two.ops.size());
}

TEST_CASE("each promise is needed: with it broken, some histories are wrong") {
  if (kSlow > 1) return;  // it is about the simulation, not about the store
  // 24 seeds find each; it begins shortly before the one that does.
  const auto broken = [](bool Rules::*promise, uint64_t first) {
    Rules rules;
    rules.*promise = false;
    return found(rules, first, 80);
  };
  CHECK(broken(&Rules::guards, 1));
  CHECK(broken(&Rules::fences, 12));
  CHECK(broken(&Rules::epochs, 23));
  CHECK(broken(&Rules::tombstones, 20));
  CHECK(broken(&Rules::checksums, 4));
}

}  // namespace mc::store
