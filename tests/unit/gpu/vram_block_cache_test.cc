// Blocks that stay on the device: which are found again, which go, and that tokens are the same
// however small the cache is.
#include "gpu/vram_block_cache.h"

#include "tests/slow.h"
#include "texts.h"

using namespace mc;
using namespace mc::gpu;
using device::must;
using model::DType;

namespace {

// A cache of so many slots of six layers.
struct Slots {
  explicit Slots(size_t n) : cache({bytes(n), nullptr}, {64, 6, kTokens}) {}
  std::span<std::byte> bytes(size_t n) {
    memory.resize(n * 6 * 64);
    return memory;
  }
  std::unique_ptr<VramBlockCache::Claim> claim(const Text& t, size_t begin) {
    const model::Slice slice = t.slice(begin);
    const Content content = t.content();
    return cache.claim({&slice, 1}, {&content, 1});
  }
  std::vector<std::byte> memory;
  VramBlockCache cache;
};

std::vector<bool> there(const VramBlockCache::Claim& claim) {
  std::vector<bool> out;
  for (const VramBlockCache::BlockSlot& p : claim.block_slots()) out.push_back(p.there);
  return out;
}

}  // namespace

TEST_CASE("the cache finds blocks by content after the pass that filled them commits") {
  Slots s(8);
  const Text prompt = text(40, 1);
  {
    const auto dropped = s.claim(prompt, 0);
    CHECK(there(*dropped) == std::vector<bool>{false, false, false});
  }
  s.claim(prompt, 0)->commit();
  CHECK(s.cache.counts().used == 3);
  Text longer = prompt, other = prompt;
  longer.append(7);
  CHECK(there(*s.claim(longer, 40)) == std::vector<bool>{true, true, true});
  // The claim before was dropped: what it would have written is no longer known.
  CHECK(there(*s.claim(longer, 40)) == std::vector<bool>{true, true, false});
  other.tokens[20] = (other.tokens[20] + 1) % 150;
  other.chain();
  other.append(7);
  CHECK(there(*s.claim(other, 40)) == std::vector<bool>{true, false, false});
  // What a block chains on is unknown: nothing is found, nothing kept.
  Text unknown = longer;
  unknown.parents[1] = unknown.parents[2] = {};
  const auto used = s.cache.counts().used;
  const auto claim = s.claim(unknown, 40);
  CHECK(there(*claim) == std::vector<bool>{true, false, false});
  claim->commit();
  CHECK(s.cache.counts().used == used);
}

TEST_CASE("a writer of a block holds it alone; readers share it") {
  Slots s(8);
  Text a = text(40, 1);
  s.claim(a, 0)->commit();
  Text b = a;
  a.append(7);
  b.append(8);
  const auto first = s.claim(a, 40), second = s.claim(b, 40);
  CHECK(there(*first) == std::vector<bool>{true, true, true});
  CHECK(there(*second) == std::vector<bool>{true, true, false});
  CHECK(first->block_slots()[1].at == second->block_slots()[1].at);
  CHECK(first->block_slots()[2].at != second->block_slots()[2].at);
  first->commit();
  second->commit();
  a.append(1);
  b.append(1);
  CHECK(there(*s.claim(a, 41)) == std::vector<bool>{true, true, true});
  CHECK(there(*s.claim(b, 41)) == std::vector<bool>{true, true, true});
}

TEST_CASE("a full cache evicts the least recently used, a sequence's end first, and streams") {
  Slots s(4);
  const Text a = text(32, 1), b = text(32, 2), c = text(16, 3);
  s.claim(a, 0)->commit();
  s.claim(b, 0)->commit();
  s.claim(c, 0)->commit();
  CHECK(s.cache.counts().evictions == 1);
  Text again = a;
  again.append(1);
  CHECK(there(*s.claim(again, 32))[0]);
  // Five blocks in four slots: three of their own, two streamed through the fourth.
  const Text large = text(80, 4);
  const auto claim = s.claim(large, 0);
  CHECK_FALSE(claim == nullptr);
  CHECK(claim->streams());
  size_t streamed = 0;
  for (const VramBlockCache::BlockSlot& p : claim->block_slots()) streamed += p.streamed;
  CHECK(streamed == 2);
  CHECK(s.claim(c, 0) == nullptr);  // all is held
}

TEST_CASE("a step with kept blocks moves a token's KV, however long the contexts are") {
  for (const std::string& kind : device::kinds()) {
    CAPTURE(kind);
    Both both(device::open_kind(kind), {DType::kF32, kTokens}, DType::kF32, six_layers());
    CHECK(must(both.gpu->keep_blocks(64 * both.gpu->block_bytes())) == 64);
    std::vector<uint64_t> out;
    for (const size_t n : {20u, kThreadSanitizer ? 60u : 200u}) {
      CAPTURE(n);
      std::vector<Text> kept, moved;
      for (const size_t more : {0u, 3u}) kept.push_back(text(n + more, 1 + more, n + 43));
      for (const Text& t : kept) prefill(*both.gpu, t);
      moved = kept;  // of other memory, with the same KV
      for (size_t i = 0; i < moved.size(); ++i)
        for (size_t b = 0; b < moved[i].blocks.blocks.size(); ++b)
          moved[i].blocks.blocks[b] = moved[i].blocks.memory[b].data();
      const KvTraffic before = both.gpu->traffic();
      std::vector<std::vector<int32_t>> tokens;
      for (int i = 0; i < 20; ++i) tokens.push_back(step(*both.gpu, kept));
      const KvTraffic after = both.gpu->traffic();
      CHECK(after.bytes_in == before.bytes_in);  // all was there
      CHECK(after.cache.hits > before.cache.hits);
      out.push_back(after.bytes_out - before.bytes_out);
      for (int i = 0; i < 20; ++i) CHECK(step(*both.gpu, moved, false) == tokens[size_t(i)]);
      CHECK(both.gpu->traffic().bytes_in > after.bytes_in);
      for (size_t i = 0; i < kept.size(); ++i)
        CHECK(kept[i].blocks.memory == moved[i].blocks.memory);
    }
    CHECK(out[0] == out[1]);
  }
}

TEST_CASE("tokens and KV are the same with caches of all sizes, too small ones included") {
  const auto run = [](uint64_t slots) {
    Both both(device::open_kind("stand-in"), {DType::kF32, kTokens}, DType::kF32, six_layers());
    const uint64_t bytes = slots * both.gpu->block_bytes();
    CHECK(must(both.gpu->keep_blocks(bytes)) == slots);
    std::vector<Text> texts;
    for (size_t i = 0; i < 4; ++i) texts.push_back(text(30 + 17 * i, 20 + i, 120));
    for (const Text& t : texts) prefill(*both.gpu, t);
    std::vector<std::vector<int32_t>> said;
    for (int i = 0; i < 24; ++i) said.push_back(step(*both.gpu, texts));
    std::vector<std::vector<std::byte>> kv;
    for (const Text& t : texts) kv.insert(kv.end(), t.blocks.memory.begin(), t.blocks.memory.end());
    return std::tuple(said, kv, both.gpu->traffic());
  };
  const auto [want, want_kv, nothing] = run(0);
  CHECK(nothing.cache.hits == 0);
  for (const uint64_t slots : {1u, 3u, 9u, 17u, 22u, 40u}) {
    if (kThreadSanitizer && slots != 3 && slots != 17) continue;
    CAPTURE(slots);
    const auto [said, kv, traffic] = run(slots);
    CHECK(said == want);
    CHECK(kv == want_kv);
    CHECK(traffic.bytes_out == nothing.bytes_out);
    if (slots >= 9) CHECK(traffic.cache.hits > 0);
    if (slots == 17) CHECK(traffic.cache.evictions > 0);
    if (slots == 17) CHECK(traffic.cache.streamed > 0);
    if (slots >= 9) CHECK(traffic.bytes_in < nothing.bytes_in);
    if (slots == 40) CHECK(traffic.bytes_in == 0);
  }
}
