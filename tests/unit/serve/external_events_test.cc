#include "serve/external/external_events.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "publisher.h"
#include "serve/external/external_cache.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_events_test {

namespace {

using Tokens = std::vector<int32_t>;

ExternalBatch one(const std::string& event) {
  auto b = decode_events(batch({event}));
  REQUIRE_MESSAGE(b, b.error().what);
  return std::move(*b);
}

std::string why(const std::string& payload) {
  const auto b = decode_events(payload);
  return b ? "" : b.error().what;
}

}  // namespace

TEST_CASE("events come as arrays, with hashes as integers or bytes") {
  const auto b = one(stored({7, UINT64_MAX}, 5, {1, 2, 3, 4}, 2, "CPU"));
  CHECK(b.time == 1.5);
  CHECK(b.rank == 0);
  REQUIRE(b.events.size() == 1);
  const ExternalEvent& e = b.events[0];
  CHECK(e.kind == ExternalEvent::Kind::kStored);
  CHECK(e.hashes == Hashes{7, UINT64_MAX});
  CHECK(e.parent == 5u);
  CHECK(e.tokens == Tokens{1, 2, 3, 4});
  CHECK(e.block_tokens == 2);
  CHECK(e.medium == "CPU");
  CHECK_FALSE(e.adapter);

  const std::string sha(32, '\x01');
  const auto r = one(Pack().array(2).text("BlockRemoved").array(2).bytes(sha).negative(-2).out);
  CHECK(r.events[0].kind == ExternalEvent::Kind::kRemoved);
  CHECK(r.events[0].hashes == Hashes{0x0101010101010101, UINT64_MAX - 1});
  CHECK(one(cleared()).events[0].kind == ExternalEvent::Kind::kCleared);
  Pack lora;
  lora.array(6).text("BlockStored").array(1).integer(1).nil().array(1).integer(9).integer(1);
  CHECK(one(lora.integer(3).out).events[0].adapter);
}

TEST_CASE("events come as maps, by vLLM's names and by those of Mooncake's RFC") {
  Pack a;
  a.map(5).text("type").text("BlockStored").text("block_hashes").array(1).integer(4);
  a.text("parent_block_hash").nil().text("token_ids").array(1).integer(9);
  const auto b = one(a.text("block_size").integer(1).out);
  CHECK(b.events[0].hashes == Hashes{4});
  CHECK_FALSE(b.events[0].parent);
  CHECK(b.events[0].tokens == Tokens{9});
  Pack r;
  r.map(2).text("event_type").text("removed").text("seq_hashes").array(1).integer(4);
  CHECK(one(r.out).events[0].hashes == Hashes{4});
  CHECK(one(Pack().map(1).text("event_type").text("cleared").out).events[0].kind ==
        ExternalEvent::Kind::kCleared);
}

TEST_CASE("an event of an unknown type is skipped; one that contradicts itself is named") {
  const auto b = one(Pack().array(2).text("BlockPondered").integer(1).out);
  CHECK(b.events.empty());
  CHECK(b.skipped == 1);
  CHECK(why(batch({stored({1}, {}, {1, 2, 3}, 2)})) == "event 0: 3 token_ids for 1 blocks of 2");
  CHECK(why(batch({cleared(), stored({1}, {}, {1}, 0)})) ==
        "event 1: block_size 0, want 1 to 65536");
  CHECK(why(batch({Pack().array(2).text("BlockRemoved").text("x").out})).find("list of at most") !=
        std::string::npos);
  CHECK(why(batch({Pack().array(2).text("BlockRemoved").array(1).text("x").out})) ==
        "event 0: block hash 0 is no integer or bytes");
  Pack token;
  token.array(5).text("BlockStored").array(1).integer(1).nil().array(1).negative(-1).integer(1);
  CHECK(why(batch({token.out})) == "event 0: token_ids[0]");
  CHECK(why(Pack().integer(3).out) == "want [time, [events], rank]");
  CHECK(why("") == "0 bytes that are not MessagePack");
  CHECK(why(batch({}) + "x") == "1 bytes follow the message");
  CHECK(why(std::string(kEventBytesMax + 1, '\x01')).find("more than") != std::string::npos);
}

TEST_CASE("lengths that lie and nesting without end are refused") {
  CHECK_FALSE(decode_events(Pack().array(0xffffffff).out));
  CHECK_FALSE(decode_events(Pack().array(2).integer(1).array(0xffffffff).out));
  CHECK_FALSE(decode_events(Pack().map(0x7fffffff).out));
  CHECK_FALSE(decode_events(std::string("\xdb\xff\xff\xff\xff", 5)));
  CHECK_FALSE(decode_events(std::string(100'000, '\x91')));
}

TEST_CASE("every truncation and any changed byte is decoded or refused, and bounded") {
  sched::PrefixIndex index(1000);
  ExternalCache cache(index, 0, 2, 500);
  const std::string whole =
      batch({stored({1, 2}, {}, {1, 2, 3, 4}, 2), removed({1}), stored({3}, 2, {5, 6}, 2, "CPU"),
             Pack().map(2).text("type").text("BlockRemoved").text("block_hashes").array(0).out,
             cleared()});
  for (size_t n = 0; n < whole.size(); ++n) CHECK_FALSE(decode_events(whole.substr(0, n)));
  Random random(11);
  size_t good = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bad = whole;
    for (uint64_t k = 0; k <= random.below(4); ++k)
      bad[random.below(bad.size())] = static_cast<char>(random.below(256));
    if (const auto b = decode_events(bad)) {
      ++good;
      cache.apply(*b);
    }
  }
  CHECK(good > 100);
  CHECK(cache.blocks() <= 500);
  CHECK(index.blocks() <= 500);
}

TEST_CASE("an external cache matches prompts by their tokens, whatever its own names are") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 3, 0, 100);
  const Tokens prompt{1, 2, 3, 4, 5, 6, 7};
  std::vector<uint64_t> tags;
  for (const BlockHash& h : chain_hashes(prompt, 2)) tags.push_back(h.tag());
  const auto matched = [&] { return index.match(tags, 4)[3]; };

  cache.apply(one(stored({100, 200}, {}, {1, 2, 3, 4}, 2)));
  CHECK(cache.block_tokens() == 2);
  CHECK(matched() == 2);
  cache.apply(one(stored({300}, 200, {5, 6}, 2)));
  CHECK(matched() == 3);
  CHECK(cache.match_names(Hashes{100, 200, 300, 400}, ExternalCache::kAny) == 3);
  cache.apply(one(stored({900}, 777, {5, 6}, 2)));  // of an unknown parent
  CHECK(cache.orphans() == 1);
  cache.apply(one(stored({901}, {}, {5, 6, 7}, 3)));  // of another size
  CHECK(cache.skipped() == 1);
  cache.apply(one(removed({200})));
  CHECK(matched() == 1);
  cache.apply(one(removed({200, 12345})));  // again, and one it never had
  cache.apply(one(stored({200}, 100, {3, 4}, 2)));
  CHECK(matched() == 3);
  cache.apply(one(cleared()));
  CHECK(matched() == 0);
  CHECK(index.blocks() == 0);
}

TEST_CASE("a block in two media stays until the last one drops it") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 0, 1, 100);
  const std::vector<uint64_t> tags{chain_hashes(Tokens{8}, 1)[0].tag()};
  cache.apply(one(stored({1}, {}, {8}, 1, "GPU")));
  cache.apply(one(stored({1}, {}, {8}, 1, "CPU")));
  cache.apply(one(removed({1}, "GPU")));
  CHECK(cache.match(tags, ExternalCache::kGpu) == 0);
  CHECK(cache.match(tags, ExternalCache::kCpu) == 1);
  CHECK(index.match(tags, 1)[0] == 1);
  cache.apply(one(removed({1}, "CPU")));
  CHECK(index.match(tags, 1)[0] == 0);
}

TEST_CASE("over its bound an external cache takes no more, and what is dropped makes room") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 0, 1, 2);
  cache.apply(one(stored({1, 2, 3}, {}, {1, 2, 3}, 1)));
  CHECK(cache.blocks() == 2);
  CHECK(cache.skipped() == 1);
  cache.apply(one(removed({2})));
  cache.apply(one(stored({5}, {}, {9}, 1)));
  CHECK(cache.blocks() == 2);
}

TEST_CASE("F85: what enters a block's hash beside its tokens enters ours") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 0, 2, 100);
  const Tokens prompt{1, 2, 3, 4};
  const auto matched = [&](const std::string& adapter, const std::string& salt) {
    std::vector<uint64_t> tags;
    for (const BlockHash& h : chain_hashes(prompt, 2, cache.chain_salt(adapter, salt)))
      tags.push_back(h.tag());
    return cache.match(tags, ExternalCache::kAny);
  };
  cache.apply(one(stored({1, 2}, {}, prompt, 2)));  // tells nothing of salts
  CHECK(matched("", "") == 2);
  CHECK(matched("", "any") == 2);
  cache.apply(one(stored_map({3, 4}, {}, prompt, 2, "s", "")));
  CHECK(matched("", "s") == 2);
  CHECK(matched("", "any") == 0);
  CHECK(matched("", "") == 2);
  CHECK(matched("sql", "s") == 0);
  cache.apply(one(stored_map({5}, {}, {1, 2}, 2, "s", "sql")));
  cache.apply(one(stored_map({6}, 5, {3, 4}, 2, "", "sql")));
  CHECK(matched("sql", "s") == 2);
  CHECK(matched("sql", "") == 0);
  CHECK(cache.unknown_extra() == 0);

  // A picture makes a block another; what is not understood is known by its name alone.
  const auto event = [](uint64_t hash, const std::string& extra) {
    Pack p;
    p.map(7).text("type").text("BlockStored").text("block_hashes").array(1).integer(hash);
    p.text("parent_block_hash").nil().text("token_ids").array(2).integer(7).integer(8);
    p.text("block_size").integer(2).text("group_idx").integer(0).text("extra_keys").array(1);
    return p.out + extra;
  };
  const auto of_picture = [&](const char* id) {
    cache.clear();
    cache.apply(one(event(9, Pack().array(1).array(2).text(id).integer(0).out)));
    return cache.blocks() == 1 && cache.match_names(Hashes{9}, ExternalCache::kAny) == 1;
  };
  CHECK(of_picture("a"));
  std::vector<uint64_t> plain{chain_hashes(Tokens{7, 8}, 2)[0].tag()};
  CHECK(cache.match(plain, ExternalCache::kAny) == 0);
  cache.apply(one(event(10, Pack().array(1).map(0).out)));
  CHECK(cache.unknown_extra() == 1);
  CHECK(cache.match(plain, ExternalCache::kAny) == 0);
  CHECK(cache.match_names(Hashes{10}, ExternalCache::kAny) == 1);
}

TEST_CASE("blocks of sliding windows, and those that lie elsewhere, are no prefixes") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 0, 2, 100);
  const auto event = [](uint64_t group, const char* kind, const char* where) {
    Pack p;
    p.map(8).text("type").text("BlockStored").text("block_hashes").array(1).integer(1);
    p.text("parent_block_hash").nil().text("token_ids").array(2).integer(7).integer(8);
    p.text("block_size").integer(2).text("group_idx").integer(group);
    return p.text("kv_cache_spec_kind").text(kind).text("locality").text(where).out;
  };
  cache.apply(one(event(0, "full_attention", "LOCAL")));
  CHECK(cache.blocks() == 1);
  cache.apply(one(event(1, "sliding_window", "LOCAL")));
  CHECK(cache.skipped() == 1);
  Pack gone;
  gone.map(3).text("type").text("BlockRemoved").text("block_hashes").array(1).integer(1);
  cache.apply(one(gone.text("group_idx").integer(1).out));
  CHECK(cache.blocks() == 1);  // its name in another group
  cache.clear();
  cache.apply(one(event(0, "full_attention", "REMOTE")));
  CHECK(cache.blocks() == 0);
}

}  // namespace external_events_test
