#include "serve/kvcache/block_manager.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "base/random.h"
#include "trace/analyze/stats.h"

namespace mc::serve {
namespace {

using namespace std::chrono_literals;
constexpr uint32_t kB = 4;  // tokens in a block

std::vector<int32_t> iota_tokens(size_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

BlockRequest prompt(const std::vector<int32_t>& tokens, uint64_t extra_blocks = 0) {
  BlockRequest r;
  r.request = std::string("r");
  r.hashes = chain_hashes(tokens, kB);
  r.prompt_tokens = tokens.size();
  r.blocks = (tokens.size() + kB - 1) / kB + extra_blocks;
  r.lease = 10s;
  return r;
}

// Allocates, computes and commits. Returns the hits.
size_t serve(BlockManager& m, const std::vector<int32_t>& tokens) {
  const auto tx = m.allocate(prompt(tokens), Time{});
  REQUIRE(tx);
  const size_t hit = *m.start(*tx);
  m.computed(*tx, m.find(*tx)->blocks.size());
  REQUIRE(m.commit(*tx));
  m.check();
  return hit;
}

void serve_at(BlockManager& m, BlockRequest request, Time now) {
  const auto tx = m.allocate(std::move(request), now);
  REQUIRE(tx);
  REQUIRE(m.start(*tx));
  m.computed(*tx, m.find(*tx)->blocks.size());
  REQUIRE(m.commit(*tx));
  m.check();
}

std::set<BlockHash> all_pages(const BlockManager& m, size_t max) {
  std::set<BlockHash> keys;
  uint64_t from = 0;
  do {
    const KvSnapshot page = m.snapshot(from, max);
    CHECK(page.blocks.size() <= max);
    for (const BlockHash& key : page.blocks) CHECK(keys.insert(key).second);
    from = page.next;
  } while (from != 0);
  return keys;
}

}  // namespace

TEST_CASE("blocks: a committed prompt is found by the next one, but never as a whole") {
  BlockManager m(16, kB, 1);
  CHECK(serve(m, iota_tokens(10)) == 0);
  CHECK(serve(m, iota_tokens(10)) == 2);  // 10 tokens: 2 full blocks and 2 tokens
  CHECK(serve(m, iota_tokens(8)) == 1);   // all there, yet its last token is computed
  CHECK(serve(m, iota_tokens(9)) == 2);
  CHECK(serve(m, iota_tokens(4)) == 0);
  const BlockCounts c = m.counts();
  CHECK(c.cached == 2);  // the copies that were computed again are free
  CHECK(c.used == 0);
  CHECK(c.free == 14);
}

TEST_CASE("blocks: a request that does not fit is refused and changes nothing") {
  BlockManager m(4, kB, 1);
  REQUIRE(serve(m, iota_tokens(8)) == 0);
  const auto held = m.allocate(prompt(iota_tokens(9)), Time{});  // 2 hits and one more
  REQUIRE(held);
  const uint64_t events = m.events_last();
  const auto tx = m.allocate(prompt(iota_tokens(8, 100)), Time{});
  REQUIRE(!tx);
  CHECK(tx.error().code == Code::kNoSpace);
  CHECK(m.events_last() == events);
  CHECK(m.counts().used == 3);
  const auto never = m.allocate(prompt(iota_tokens(20, 100)), Time{});
  REQUIRE(!never);
  CHECK(never.error().code == Code::kInvalid);
  BlockRequest bad = prompt(iota_tokens(7));
  bad.hashes.resize(2);  // 7 tokens have one full block
  CHECK(m.allocate(bad, Time{}).error().code == Code::kInvalid);
  CHECK(m.allocate({}, Time{}).error().code == Code::kInvalid);
  m.check();
}

TEST_CASE("a transaction takes more blocks while it runs, evicts cached ones, and frees all") {
  BlockManager m(6, kB, 1);
  serve(m, iota_tokens(3 * kB));  // cached
  const auto tx = m.allocate(prompt(iota_tokens(2 * kB, 500)), Time{});
  REQUIRE(tx);
  REQUIRE(m.start(*tx));
  std::set<BlockId> taken(m.find(*tx)->blocks.begin(), m.find(*tx)->blocks.end());
  for (int i = 0; i < 4; ++i) {
    const auto block = m.extend(*tx);
    REQUIRE(block);
    CHECK(taken.insert(*block).second);
    m.check();
  }
  CHECK(m.counts().cached == 0);
  CHECK(m.extend(*tx).error().code == Code::kNoSpace);
  CHECK(m.extend(*tx + 1).error().code == Code::kNotFound);
  m.abort(*tx);
  m.check();
  CHECK(m.counts().free == 6);
}

TEST_CASE("blocks: leaves are evicted before their prefixes") {
  BlockManager m(4, kB, 1);
  const auto chain = chain_hashes(iota_tokens(16), kB);
  REQUIRE(serve(m, iota_tokens(16)) == 0);
  for (size_t gone = 1; gone < 4; ++gone) {
    const auto tx = m.allocate(prompt(iota_tokens(4 * gone, 1000)), Time{});
    REQUIRE(tx);
    for (size_t i = 0; i < 4; ++i) CHECK(m.lookup(chain[i]).has_value() == (i < 4 - gone));
    m.abort(*tx);
    m.check();
  }
}

TEST_CASE("blocks: computed blocks are shared before the commit") {
  BlockManager m(16, kB, 1);
  const auto first = m.allocate(prompt(iota_tokens(12)), Time{});
  const auto second = m.allocate(prompt(iota_tokens(13)), Time{});  // nothing there yet
  REQUIRE(second);
  CHECK(m.find(*second)->hit == 0);
  REQUIRE(m.start(*first));
  m.computed(*first, 2);
  CHECK(m.events_last() == 0);  // not for the world
  CHECK(m.rematch(*second) == 2);
  CHECK(m.find(*second)->blocks[1] == m.find(*first)->blocks[1]);
  CHECK(m.find(*second)->blocks[2] != m.find(*first)->blocks[2]);
  CHECK(m.counts().used == 3 + 4 - 2);
  m.abort(*first);  // while the second holds them
  CHECK(m.events_last() == 2);
  m.computed(*second, 3);
  CHECK(m.rematch(*second) == 3);
  CHECK(m.find(*second)->hit == 2);  // the third it computed itself
  REQUIRE(m.commit(*second));
  CHECK(m.events_last() == 3);
  CHECK(m.commit(*second).error().code == Code::kNotFound);
  m.check();
}

TEST_CASE(
    "blocks: two requests that computed one block leave one copy, also if the first is evicted") {
  BlockManager m(5, kB, 1);
  const auto a = m.allocate(prompt(iota_tokens(8)), Time{});
  const auto b = m.allocate(prompt(iota_tokens(8)), Time{});
  REQUIRE(b);
  m.computed(*a, 2);
  m.computed(*b, 2);
  REQUIRE(m.commit(*a));
  const auto c = m.allocate(prompt(iota_tokens(12, 50)), Time{});  // evicts what a had
  REQUIRE(c);
  CHECK(m.snapshot(0, 9).blocks.empty());
  REQUIRE(m.commit(*b));
  m.check();
  CHECK(m.snapshot(0, 9).blocks.size() == 2);
  m.abort(*c);
  CHECK(m.counts().free == 3);
}

TEST_CASE("blocks: an abort keeps valid blocks and frees the others") {
  BlockManager m(8, kB, 1);
  const auto tx = m.allocate(prompt(iota_tokens(12), 2), Time{});
  REQUIRE(m.start(*tx));
  m.computed(*tx, 1);
  m.abort(*tx);
  m.abort(*tx);
  CHECK(m.counts().cached == 1);
  CHECK(m.counts().free == 7);
  const auto events = m.events_since(0, 10);
  REQUIRE(events);
  REQUIRE(events->size() == 1);
  CHECK((*events)[0].stored);
  CHECK((*events)[0].hash == chain_hashes(iota_tokens(4), kB)[0]);
}

TEST_CASE("blocks: a pinned block outlives its transaction, valid or not") {
  BlockManager m(2, kB, 1);
  const auto tx = m.allocate(prompt(iota_tokens(8)), Time{});
  const std::vector<BlockId> held = m.find(*tx)->blocks;
  m.computed(*tx, 1);
  m.pin(held[0]);
  m.pin(held[1]);
  m.abort(*tx);
  CHECK(m.counts().used == 2);
  CHECK(m.allocate(prompt(iota_tokens(2)), Time{}).error().code == Code::kNoSpace);
  m.unpin(held[1]);
  CHECK(m.counts().free == 1);
  m.unpin(held[0]);
  CHECK(m.counts().cached == 1);
  m.check();
}

TEST_CASE("blocks: a lease ends only transactions that were not started or committed in time") {
  BlockManager m(8, kB, 1);
  const Time t0{};
  const auto idle = m.allocate(prompt(iota_tokens(8)), t0);
  const auto runs = m.allocate(prompt(iota_tokens(8, 100)), t0 + 1s);
  REQUIRE(m.start(*runs));
  CHECK(m.deadline() == t0 + 10s);
  CHECK(m.tick(t0 + 9s).empty());
  const auto expired = m.tick(t0 + 1000s);
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].tx == *idle);
  CHECK(m.start(*idle).error().code == Code::kNotFound);
  CHECK(!m.deadline());
  m.computed(*runs, 2);
  m.await_commit(*runs, t0 + 1000s);
  CHECK(m.deadline() == t0 + 1010s);
  CHECK(m.tick(t0 + 1010s).size() == 1);
  CHECK(m.counts().cached == 2);  // its content is valid all the same
  m.check();
}

TEST_CASE("blocks: events that are no longer kept, or of another process, are a gap") {
  BlockManager m(8, kB, 1, 2);
  REQUIRE(serve(m, iota_tokens(16)) == 0);
  CHECK(m.events_last() == 4);
  CHECK(!m.events_since(1, 10));
  CHECK(!m.events_since(5, 10));
  CHECK(m.events_since(2, 10)->size() == 2);
  CHECK(m.events_since(2, 1)->size() == 1);
  CHECK(m.events_since(4, 10)->empty());
}

TEST_CASE("blocks: ids of another process are unknown") {
  BlockManager a(8, kB, 1), b(8, kB, 99);
  const auto tx = a.allocate(prompt(iota_tokens(8)), Time{});
  CHECK(b.find(*tx) == nullptr);
  CHECK(b.commit(*tx).error().code == Code::kNotFound);
}

TEST_CASE("blocks: hits of a serial trace are those that trace::predict_hits expects") {
  Random random(7);
  const uint64_t block = kB, capacity = 40;
  std::vector<trace::TraceRequest> records;
  for (int i = 0; i < 2000; ++i) {
    trace::TraceRequest r;
    r.timestamp_ms = static_cast<uint64_t>(i);
    const uint64_t blocks = 1 + random.below(8);
    r.input_length = (blocks - 1) * block + 1 + random.below(block);
    uint64_t id = random.below(3);  // a tree: an id names the path to it
    for (uint64_t k = 0; k < blocks; ++k) r.hash_ids.push_back(id = id * 3 + 5 + random.below(2));
    r.output_length = 1;
    records.push_back(r);
  }
  // With little room the pool does a little worse: a fully cached prompt takes a block more than
  // the prediction counts, as its last one is computed in a copy.
  for (const bool endless : {true, false}) {
    BlockManager m(endless ? 20000 : static_cast<uint32_t>(capacity), kB, 1);
    const auto expect =
        trace::predict_hits(records, block, {endless ? trace::kUnlimited : capacity, 1, 0});
    uint64_t hits = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      std::vector<int32_t> tokens;
      for (const uint64_t id : records[i].hash_ids)
        for (uint64_t k = 0; k < block; ++k) tokens.push_back(static_cast<int32_t>(id * block + k));
      tokens.resize(records[i].input_length);
      const size_t hit = serve(m, tokens);
      if (endless) CHECK(hit * block == expect->cached[i]);
      hits += hit;
    }
    CHECK(hits > 0);
    CHECK(hits <= expect->hit_blocks);
    CHECK(static_cast<double>(hits) > 0.9 * static_cast<double>(expect->hit_blocks));
  }
}

namespace {

// Random operations of many requests. Checks the invariants after each, and sometimes the events.
class Chaos {
 public:
  explicit Chaos(uint64_t seed) : random_(seed), m_(24, kB, seed, 64) {}
  void step() {
    now_ += Duration(random_.below(2'000'000'000));
    const uint64_t what = random_.below(100);
    if (what < 35) {
      allocate();
    } else if (what < 40) {
      for (const auto& gone : m_.tick(now_)) CHECK(m_.find(gone.tx) == nullptr);
    } else if (what < 50) {
      pins();
    } else if (!txs_.empty()) {
      transact(what);
    }
    std::erase_if(txs_, [&](TxId tx) { return m_.find(tx) == nullptr; });
    m_.check();
    const BlockCounts c = m_.counts();
    CHECK(c.free + c.cached + c.used == 24);
    CHECK(c.kept <= 12);
    if (random_.chance(0.3)) replay();
  }
  void end() {
    for (const TxId tx : txs_) m_.abort(tx);
    for (const BlockId block : pinned_) m_.unpin(block);
    m_.check();
    CHECK(m_.counts().used == 0);
    CHECK(m_.transactions() == 0);
    replay();
    CHECK(m_.counts().cached == mirror_.size());
  }

 private:
  void allocate() {
    std::vector<int32_t> tokens;
    const size_t n = 1 + random_.below(30);
    int32_t path = 0;
    for (size_t i = 0; i < n; ++i)
      tokens.push_back(i % kB == 0 ? path = static_cast<int32_t>(random_.below(2)) : path);
    if (random_.chance(0.1)) return pin_for_peer(tokens);
    BlockRequest want = prompt(tokens, random_.below(3));
    want.ephemeral = random_.chance(0.2);
    if (random_.chance(0.2)) want.context_blocks = random_.below(8), want.keep = 5s;
    const auto tx = m_.allocate(std::move(want), now_);
    if (tx) txs_.push_back(*tx);
    if (!tx) CHECK(tx.error().code == Code::kNoSpace);
  }
  void pin_for_peer(const std::vector<int32_t>& tokens) {
    const auto hashes = chain_hashes(tokens, kB);
    const auto tx = m_.pin_for_peer("l", hashes, 3s, now_);
    CHECK(tx.has_value() == (!hashes.empty() && m_.lookup(hashes[0]).has_value()));
    if (!tx) return;
    txs_.push_back(*tx);
    for (size_t i = 0; i < m_.find(*tx)->blocks.size(); ++i)
      CHECK(m_.lookup(hashes[i]) == m_.find(*tx)->blocks[i]);
  }
  void pins() {
    if (!pinned_.empty() && random_.chance(0.6)) {
      m_.unpin(pinned_.back());
      pinned_.pop_back();
    } else if (!txs_.empty() && pinned_.size() < 4) {
      const Tx& tx = *m_.find(txs_[random_.below(txs_.size())]);
      pinned_.push_back(tx.blocks[random_.below(tx.blocks.size())]);
      m_.pin(pinned_.back());
    }
  }
  void transact(uint64_t what) {
    const TxId id = txs_[random_.below(txs_.size())];
    const Tx& tx = *m_.find(id);
    if (what < 58) {
      const size_t before = tx.valid;
      CHECK(m_.rematch(id) >= before);
    } else if (what < 65) {
      CHECK(m_.start(id));
    } else if (what < 85) {
      m_.computed(id, tx.valid + random_.below(tx.blocks.size() - tx.valid + 1));
    } else if (what < 88) {
      m_.await_commit(id, now_);
    } else if (what < 95) {
      CHECK(m_.commit(id));
    } else {
      m_.abort(id);
    }
  }
  // A follower that reads events, or after a gap a snapshot, knows exactly the published keys.
  void replay() {
    while (true) {
      const auto events = m_.events_since(seen_, 1 + random_.below(8));
      if (!events) {
        mirror_ = all_pages(m_, 1 + random_.below(5));
        seen_ = m_.events_last();
        break;
      }
      if (events->empty()) break;
      for (const KvEvent& e : *events) {
        if (e.stored) CHECK(mirror_.insert(e.hash).second);
        if (!e.stored) CHECK(mirror_.erase(e.hash) == 1);
      }
      seen_ += events->size();
    }
    CHECK(mirror_ == all_pages(m_, 7));
  }

  Random random_;
  BlockManager m_;
  Time now_{};
  std::vector<TxId> txs_;
  std::vector<BlockId> pinned_;
  std::set<BlockHash> mirror_;
  uint64_t seen_ = 0;
};

TEST_CASE("a block that gets a key later is cached, reported and evicted as others") {
  BlockManager blocks(4, kB, 1);
  const auto room = [](const char* request) {
    BlockRequest r;
    r.request = request;
    r.blocks = 3;
    return r;
  };
  const auto tx = blocks.allocate(room("a"), Time{});
  REQUIRE(tx);
  REQUIRE(blocks.start(*tx));
  const std::vector<BlockId> mine = blocks.find(*tx)->blocks;
  const auto keys = chain_hashes(std::vector<int32_t>(3 * kB, 7), kB);
  CHECK(blocks.cache(mine[1], keys[1]));
  CHECK(blocks.cache(mine[0], keys[0]));
  CHECK_FALSE(blocks.cache(mine[0], keys[2]));  // it has one
  CHECK_FALSE(blocks.cache(mine[2], keys[0]));  // it is another's
  CHECK(blocks.events_last() == 2);
  blocks.abort(*tx);
  blocks.check();
  CHECK(blocks.counts().cached == 2);
  CHECK(blocks.match(keys, 3 * kB) == 2);
  REQUIRE(blocks.allocate(room("b"), Time{}));  // needs one of them
  CHECK(blocks.lookup(keys[0]));
  CHECK_FALSE(blocks.lookup(keys[1]));  // the follower went first
  CHECK(blocks.events_last() == 3);
  blocks.check();
}

}  // namespace

TEST_CASE("blocks: a context is kept for its time after each use, up to half of the pool") {
  BlockManager m(16, kB, 1);
  const auto context = iota_tokens(5 * kB, 1000);
  Time now{};
  const auto flood = [&](int32_t first) {  // more than the pool holds
    for (int32_t i = 0; i < 20; ++i) serve_at(m, prompt(iota_tokens(kB, first + i * 50)), now);
  };
  BlockRequest kept = prompt(context);
  kept.context_blocks = 4;
  kept.keep = 60s;
  serve_at(m, kept, now);
  CHECK(m.counts().kept == 4);
  now += 50s;
  flood(5000);
  CHECK(m.match(chain_hashes(context, kB), context.size() + 1) == 4);  // and not what is behind it
  serve_at(m, prompt(context), now);  // used by one that asks for nothing
  now += 50s;
  (void)m.tick(now);
  flood(7000);
  CHECK(m.match(chain_hashes(context, kB), context.size()) == 4);
  now += 20s;
  (void)m.tick(now);
  CHECK(m.counts().kept == 0);
  flood(9000);
  CHECK(m.match(chain_hashes(context, kB), context.size()) == 0);
  // With contexts only, at most half is kept, and no request is refused for them.
  for (int32_t i = 0; i < 12; ++i) {
    BlockRequest want = prompt(iota_tokens(2 * kB, 20000 + i * 50));
    want.context_blocks = 2;
    want.keep = 60s;
    serve_at(m, want, now);
    CHECK(m.counts().kept <= 8);
  }
  const auto all = m.allocate(prompt(iota_tokens(16 * kB, 40000)), now);
  REQUIRE(all);
  m.check();
}

TEST_CASE("blocks: ephemeral blocks are evicted first, unless other requests share them") {
  BlockManager m(8, kB, 1);
  const auto mine = iota_tokens(3 * kB, 100), once = iota_tokens(3 * kB, 500);
  serve(m, mine);
  BlockRequest want = prompt(once);
  want.ephemeral = true;
  serve_at(m, want, {});
  serve(m, iota_tokens(3 * kB, 900));  // needs one more than is free
  CHECK(m.match(chain_hashes(mine, kB), mine.size() + 1) == 3);
  CHECK(m.match(chain_hashes(once, kB), once.size() + 1) < 3);
  want = prompt(mine);
  want.ephemeral = true;  // it only finds what another computed
  serve_at(m, want, {});
  serve(m, iota_tokens(3 * kB, 1300));
  CHECK(m.match(chain_hashes(mine, kB), mine.size() + 1) == 3);
}

TEST_CASE("blocks: random operations keep every invariant, and events replay to the snapshot") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Chaos chaos(seed);
    for (int i = 0; i < 1500; ++i) chaos.step();
    chaos.end();
  }
}

}  // namespace mc::serve
