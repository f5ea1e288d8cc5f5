#include "serve/external/event_stream.h"

#include <doctest/doctest.h>

#include <set>

#include "base/random.h"
#include "conductor_fakes.h"
#include "publisher.h"
#include "serve/external/external_cache.h"
#include "sglang_frames.h"
#include "vllm_frames.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace event_stream_test {

namespace {

struct Followed {
  io::Loop& loop;
  sched::PrefixIndex index;
  ExternalCache cache{index, 0, 1, 100'000};
  std::unique_ptr<EventStream> stream;

  Followed(io::Loop& l, const std::string& events, const std::string& replay) : loop(l) {
    EventStreamOptions o;
    o.name = "e0";
    o.events = events;
    o.replay = replay;
    o.order = {.replay_timeout = 300ms, .probe_after = 200ms};
    stream = *EventStream::open(loop, o);
    stream->on_batch = [this](const ExternalBatch& b) { cache.apply(b); };
    stream->on_clear = [this] { cache.clear(); };
  }
  bool holds(int32_t token) {
    const std::vector<uint64_t> tag{chain_hashes(std::vector<int32_t>{token}, 1)[0].tag()};
    return index.match(tag, 1)[0] == 1;
  }
};

}  // namespace

TEST_CASE("five events in a hundred are lost: the index equals the truth within seconds") {
  SteadyClock clock;
  io::Loop loop(clock);
  Publisher engine(loop);
  Followed f(loop, engine.events(), engine.replay());
  Random random(5);
  std::set<int32_t> truth;
  for (int i = 0; i < 2000; ++i) {
    const auto token = static_cast<int32_t>(random.below(500));
    const bool lost = random.chance(0.05) || i == 1999;  // the very last one too
    const uint64_t name = static_cast<uint64_t>(token) + 1'000;
    if (random.chance(0.6)) {
      engine.publish({stored({name}, {}, {token}, 1)}, lost);
      truth.insert(token);
    } else {
      engine.publish({removed({name})}, lost);
      truth.erase(token);
    }
    if (i % 20 == 0) REQUIRE(loop.turn(1ms));
  }
  CHECK(until(
      loop, [&] { return f.stream->order().next() == 2000; }, 5s));
  CHECK(f.cache.blocks() == truth.size());
  for (int32_t t = 0; t < 500; ++t) REQUIRE(f.holds(t) == truth.contains(t));
  CHECK(f.stream->order().clears() == 0);
}

TEST_CASE("a publisher that forgot, and one that starts over, leave nothing stale behind") {
  SteadyClock clock;
  io::Loop loop(clock);
  std::string events, replay;
  auto engine = std::make_unique<Publisher>(loop, 4);
  events = engine->events();
  replay = engine->replay();
  Followed f(loop, events, replay);
  engine->publish({stored({1}, {}, {1}, 1)});
  REQUIRE(until(loop, [&] { return f.holds(1); }));
  engine->publish({removed({1})}, true);
  for (uint64_t i = 10; i < 15; ++i) engine->publish({stored({i}, {}, {int32_t(i)}, 1)}, i < 14);
  REQUIRE(until(loop, [&] { return f.holds(14); }));
  CHECK_FALSE(f.holds(1));
  CHECK(f.holds(11));
  CHECK(f.stream->order().clears() == 1);

  engine.reset();
  engine = std::make_unique<Publisher>(loop, 10'000, events.substr(6), replay.substr(6));
  engine->publish({stored({1}, {}, {77}, 1)}, true);
  for (int i = 0; i < 100; ++i) engine->publish({}, true);  // further than the old one
  REQUIRE(until(loop, [&] {
    engine->publish({});
    return f.holds(77);
  }));
  CHECK_FALSE(f.holds(14));
}

TEST_CASE("F174: what was published before is learned from either form of a repetition") {
  for (const bool with_topic : {false, true}) {
    SteadyClock clock;
    io::Loop loop(clock);
    Publisher engine(loop);
    engine.with_topic = with_topic;
    engine.publish({stored({1}, {}, {1}, 1)});
    engine.publish({stored({2}, {}, {2}, 1)});
    Followed f(loop, engine.events(), engine.replay());
    REQUIRE(until(loop, [&] { return f.holds(1) && f.holds(2); }));
    REQUIRE(until(loop, [&] { return !f.stream->order().replaying(); }));
    CHECK(f.stream->faults() == 0);
    engine.publish({stored({3}, {}, {3}, 1)});
    CHECK(until(loop, [&] { return f.holds(3); }));
  }
}

TEST_CASE("F174: frames that vLLM sent are understood, live and repeated") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 0, 0, 100);
  for (const char* payload : kVllmBatches) {
    const auto decoded = decode_events(from_hex(payload));
    REQUIRE_MESSAGE(decoded, decoded.error().what);
    CHECK(decoded->skipped == 0);
    cache.apply(*decoded);
  }
  const auto held = [&](const std::vector<int32_t>& prompt, const char* adapter, const char* salt) {
    std::vector<uint64_t> tags;
    for (const BlockHash& h : chain_hashes(prompt, 2, cache.chain_salt(adapter, salt)))
      tags.push_back(h.tag());
    return cache.match(tags, ExternalCache::kAny);
  };
  CHECK(cache.block_tokens() == 2);
  CHECK(cache.blocks() == 3);
  CHECK(cache.unknown_extra() == 0);
  CHECK(held({11, 12, 13, 14}, "", "") == 1);  // the second was removed
  CHECK(held({11, 12}, "", "salt") == 1);
  CHECK(held({21, 22}, "sql", "") == 0);  // with a picture it is another block

  // The same by sockets: a replay of four frames.
  SteadyClock clock;
  io::Loop loop(clock);
  Publisher engine(loop);
  engine.with_topic = true;
  for (const char* payload : kVllmBatches) engine.keep_raw(from_hex(payload));
  Followed f(loop, engine.events(), engine.replay());
  REQUIRE(until(loop, [&] { return f.stream->order().next() == 3; }));
  CHECK(f.stream->faults() == 0);
}

TEST_CASE("frames that SGLang sent are understood, live and repeated") {
  sched::PrefixIndex index;
  ExternalCache cache(index, 0, 0, 100);
  const auto held = [&](const std::vector<int32_t>& prompt, const char* adapter, const char* salt) {
    std::vector<uint64_t> tags;
    for (const BlockHash& h : chain_hashes(prompt, 2, cache.chain_salt(adapter, salt)))
      tags.push_back(h.tag());
    return std::pair(cache.match(tags, ExternalCache::kGpu),
                     cache.match(tags, ExternalCache::kAny));
  };
  const auto apply = [&](size_t i) {
    const auto decoded = decode_events(from_hex(kSglangBatches[i]));
    REQUIRE_MESSAGE(decoded, decoded.error().what);
    CHECK(decoded->skipped == 0);
    cache.apply(*decoded);
  };
  using Held = std::pair<size_t, size_t>;
  const std::vector<int32_t> prompt{11, 12, 13, 14};
  apply(0);
  CHECK(held(prompt, "", "") == Held{2, 2});
  apply(1);
  CHECK(held(prompt, "", "salt") == Held{2, 2});
  CHECK(held(prompt, "", "other") == Held{0, 0});
  CHECK(held(prompt, "", "") == Held{2, 2});
  apply(2);
  CHECK(held({21, 22}, "sql", "") == Held{1, 1});
  CHECK(held({21, 22}, "", "") == Held{0, 0});
  apply(3);
  CHECK(held(prompt, "", "") == Held{1, 2});
  const size_t blocks = cache.blocks();
  apply(4);
  CHECK(cache.blocks() == blocks);  // a pool's blocks are not the engine's
  CHECK(held(prompt, "", "") == Held{1, 2});
  apply(5);
  CHECK(held({31, 32}, "", "") == Held{1, 1});

  // The same by sockets: a replay of four frames, with an empty topic.
  SteadyClock clock;
  io::Loop loop(clock);
  Publisher engine(loop);
  engine.with_topic = true;
  engine.topic = "";
  for (const char* payload : kSglangBatches) engine.keep_raw(from_hex(payload));
  Followed f(loop, engine.events(), engine.replay());
  REQUIRE(until(loop, [&] { return f.stream->order().next() == kSglangBatches.size(); }));
  CHECK(f.stream->faults() == 0);
}

TEST_CASE("frames that make no sense are counted, and the stream goes on") {
  SteadyClock clock;
  io::Loop loop(clock);
  Publisher engine(loop);
  engine.deaf = true;
  Followed f(loop, engine.events(), "");
  REQUIRE(until(loop, [&] {
    engine.send_raw({"alone"});
    return f.stream->faults() > 0;
  }));
  engine.send_raw({"", "short", "x"});
  const std::string zero = number_frame(0), one = number_frame(1);
  engine.send_raw({"", zero, batch({stored({1}, {}, {1}, 1)})});
  REQUIRE(until(loop, [&] { return f.holds(1); }));
  const uint64_t before = f.stream->faults();
  engine.send_raw({"", one, "\xc1 no MessagePack"});
  REQUIRE(until(loop, [&] { return f.stream->faults() > before; }));
  CHECK_FALSE(f.holds(1));  // what the lost batch said is not known
  EventStreamOptions bad;
  for (const char* address : {"tcp://*:5557", "nonsense", "tcp://host:0", ""}) {
    bad.events = address;
    CHECK_FALSE(EventStream::open(loop, bad));
  }
}

}  // namespace event_stream_test
