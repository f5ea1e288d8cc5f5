// Blocks of a KV cache: keys and addresses are made here from flat arrays.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "capi/common.h"
#include "capi/mc/store.h"
#include "capi/store_calls.h"

struct mc_kv_layout {
  mc::ProcessMark mark;
  std::vector<mc_kv_region> regions;
  uint64_t blocks = 0;
  std::vector<mc::xfer::Memory> memory;  // registered
};

namespace {

using namespace mc;
using mc::capi::guarded;
using mc::capi::sized;

struct Range {
  uint64_t begin = 0, end = 0;  // addresses
};

// What all blocks of a region cover. Errors: kInvalid.
Result<Range> range_of(const mc_kv_region& r, uint64_t blocks) {
  if (r.base == nullptr || r.bytes == 0)
    return fail(Code::kInvalid, "mc_kv_region: %llu bytes at %p: want some",
                static_cast<unsigned long long>(r.bytes), r.base);
  if ((blocks > 1 && r.block_stride < r.bytes) || (r.rows > 1 && r.row_stride < r.bytes))
    return fail(Code::kInvalid,
                "mc_kv_region: strides of %llu and %llu bytes for pieces of %llu: they overlap",
                static_cast<unsigned long long>(r.block_stride),
                static_cast<unsigned long long>(r.row_stride),
                static_cast<unsigned long long>(r.bytes));
  const auto begin = reinterpret_cast<uintptr_t>(r.base);
  uint64_t last_block = 0, last_row = 0, end = 0;
  if (__builtin_mul_overflow(blocks - 1, r.block_stride, &last_block) ||
      __builtin_mul_overflow(uint64_t{r.rows - 1}, r.row_stride, &last_row) ||
      __builtin_add_overflow(begin, last_block, &end) ||
      __builtin_add_overflow(end, last_row, &end) || __builtin_add_overflow(end, r.bytes, &end))
    return fail(Code::kInvalid, "mc_kv_region: its blocks end beyond the address space");
  return Range{begin, end};
}

std::vector<Range> merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> out;
  for (const Range& r : ranges) {
    if (!out.empty() && r.begin <= out.back().end)
      out.back().end = std::max(out.back().end, r.end);
    else
      out.push_back(r);
  }
  return out;
}

// The places of one call's values.
class Places {
 public:
  static Result<Places> of(const mc_kv_layout* of, const mc_kv_blocks* given) {
    MC_TRY_(capi::need(of, "the layout"));
    const mc_kv_layout& layout = *of;
    MC_TRY_(capi::in_its_process(layout.mark));
    MC_TRY(const mc_kv_blocks b, sized(given, "mc_kv_blocks"));
    if (b.hash_bytes == 0 || b.hash_bytes > store::kHashBytesMax)
      return fail(Code::kInvalid, "mc_kv_blocks.hash_bytes is %u: want 1 to %zu", b.hash_bytes,
                  store::kHashBytesMax);
    if ((b.prefix == nullptr && b.prefix_bytes != 0) ||
        (b.count != 0 && (b.hashes == nullptr || b.blocks == nullptr)))
      return fail(Code::kInvalid, "mc_kv_blocks: prefix, hashes or blocks is NULL");
    const size_t all = layout.regions.size();
    if (b.first_region > all || b.region_count > all - b.first_region ||
        (b.region_count == 0 && b.first_region != 0))
      return fail(Code::kInvalid, "mc_kv_blocks: %u regions from %u on, of %zu", b.region_count,
                  b.first_region, all);
    return Places(layout, b);
  }
  size_t count() const { return blocks_.count; }
  uint64_t bytes() const {  // of a value
    uint64_t n = 0;
    for (const mc_kv_region& r : regions_) n += r.rows * r.bytes;
    return n;
  }
  ObjectKey key(size_t i) const {
    ObjectKey key(blocks_.prefix == nullptr ? "" : blocks_.prefix, blocks_.prefix_bytes);
    append_hex(key, {blocks_.hashes + i * blocks_.hash_bytes, blocks_.hash_bytes});
    return key;
  }
  // kInvalid: the layout has no such block.
  template <class Byte>
  Result<std::vector<std::span<Byte>>> parts(size_t i) const {
    const uint64_t block = blocks_.blocks[i];
    if (block >= layout_.blocks)
      return fail(Code::kInvalid, "block %llu of a layout of %llu",
                  static_cast<unsigned long long>(block),
                  static_cast<unsigned long long>(layout_.blocks));
    std::vector<std::span<Byte>> out;
    out.reserve(regions_.size());
    for (const mc_kv_region& r : regions_) {
      Byte* const first = static_cast<std::byte*>(r.base) + block * r.block_stride;
      for (uint32_t row = 0; row < r.rows; ++row) {
        Byte* const at = first + row * r.row_stride;
        if (!out.empty() && out.back().data() + out.back().size() == at)
          out.back() = {out.back().data(), out.back().size() + r.bytes};
        else
          out.emplace_back(at, r.bytes);
      }
    }
    return out;
  }

 private:
  Places(const mc_kv_layout& layout, const mc_kv_blocks& blocks)
      : layout_(layout),
        blocks_(blocks),
        regions_(std::span(layout.regions)
                     .subspan(blocks.first_region, blocks.region_count == 0
                                                       ? layout.regions.size()
                                                       : blocks.region_count)) {}
  const mc_kv_layout& layout_;
  const mc_kv_blocks blocks_;
  const std::span<const mc_kv_region> regions_;
};

Result<> check_hashes(const uint8_t* hashes, size_t hash_bytes, size_t count) {
  if (hash_bytes == 0 || hash_bytes > store::kHashBytesMax || (hashes == nullptr && count > 0))
    return fail(Code::kInvalid, "%zu hashes of %zu bytes at %p: want 1 to %zu bytes", count,
                hash_bytes, static_cast<const void*>(hashes), store::kHashBytesMax);
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, hash_bytes, &bytes))
    return fail(Code::kInvalid, "%zu hashes: their bytes overflow", count);
  return {};
}

Result<> open_layout(mc_store& store, const mc_kv_region* regions, size_t count, uint64_t blocks,
                     mc_kv_layout& out) {
  if (count == 0 || blocks == 0 || regions == nullptr)
    return fail(Code::kInvalid, "a layout of %zu regions and %llu blocks: want some", count,
                static_cast<unsigned long long>(blocks));
  out.blocks = blocks;
  std::vector<Range> ranges;
  const auto* at = reinterpret_cast<const std::byte*>(regions);
  for (size_t i = 0; i < count; ++i, at += regions->size) {
    const auto* given = reinterpret_cast<const mc_kv_region*>(at);
    if (given->size != regions->size)
      return fail(Code::kInvalid, "mc_kv_region.size is %u, %u in the first", given->size,
                  regions->size);
    MC_TRY(mc_kv_region region, sized(given, "mc_kv_region"));
    region.rows = std::max(region.rows, 1u);
    MC_TRY(const Range range, range_of(region, blocks));
    ranges.push_back(range);
    out.regions.push_back(region);
  }
  for (const Range& r : merged(std::move(ranges))) {
    const std::span memory(reinterpret_cast<std::byte*>(r.begin), r.end - r.begin);
    MC_TRY(auto registered, store.engine->engine->register_memory(memory, false));
    out.memory.push_back(std::move(registered));
  }
  return {};
}

}  // namespace

extern "C" {

mc_code mc_kv_layout_new(mc_store* store, const mc_kv_region* regions, size_t count,
                         uint64_t blocks, mc_kv_layout** out) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY_(capi::need(out, "out"));
    auto layout = std::make_unique<mc_kv_layout>();
    MC_TRY_(open_layout(*store, regions, count, blocks, *layout));
    *out = layout.release();
    return {};
  });
}

void mc_kv_layout_free(mc_kv_layout* layout) { capi::destroy(layout); }

mc_code mc_store_match_blocks(mc_store* store, const mc_key* prefixes, size_t prefix_count,
                              const uint8_t* hashes, size_t hash_bytes, size_t count,
                              size_t* matched) {
  return mc_store_match_blocks_within(store, prefixes, prefix_count, hashes, hash_bytes, count, 0,
                                      matched);
}

mc_code mc_store_match_blocks_within(mc_store* store, const mc_key* prefixes, size_t prefix_count,
                                     const uint8_t* hashes, size_t hash_bytes, size_t count,
                                     unsigned timeout_ms, size_t* matched) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto names, capi::keys_of(prefixes, prefix_count));
    MC_TRY_(check_hashes(hashes, hash_bytes, count));
    MC_TRY_(capi::need(matched, "matched"));
    MC_TRY(const auto client, store->clients.take());
    MC_TRY(*matched, client->match_blocks(names, {hashes, count * hash_bytes}, hash_bytes,
                                          std::chrono::milliseconds(timeout_ms)));
    return {};
  });
}

mc_code mc_store_match_blocks_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                    const mc_key* prefixes, size_t prefix_count,
                                    const uint8_t* hashes, size_t hash_bytes, size_t count,
                                    size_t* matched) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto names, capi::keys_of(prefixes, prefix_count));
    MC_TRY_(check_hashes(hashes, hash_bytes, count));
    MC_TRY_(capi::need(matched, "matched"));
    std::vector<uint8_t> all(hashes, hashes + count * hash_bytes);
    const auto ask = [store, names = std::move(names), all = std::move(all), hash_bytes,
                      matched]() -> Result<uint32_t> {
      MC_TRY(const auto client, store->clients.take());
      MC_TRY(*matched, client->match_blocks(names, all, hash_bytes));
      return 0;
    };
    return capi::queue_up(*store, queue, tag, std::make_shared<capi::AskCall>(ask));
  });
}

mc_code mc_store_put_blocks(mc_store* store, const mc_kv_layout* layout, const mc_kv_blocks* blocks,
                            mc_queue* queue, uint64_t tag, const mc_put_options* options,
                            mc_put_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const Places places, Places::of(layout, blocks));
    auto call = std::make_shared<capi::PutCall>(*store, results);
    MC_TRY(const size_t group, call->group(options));
    for (size_t i = 0; i < places.count(); ++i) {
      auto parts = places.parts<const std::byte>(i);
      if (parts)
        call->add(group, i, {places.key(i), std::move(*parts)});
      else
        call->refuse(i, parts.error());
    }
    return capi::carry_out(*store, queue, tag, call);
  });
}

mc_code mc_store_get_blocks(mc_store* store, const mc_kv_layout* layout, const mc_kv_blocks* blocks,
                            mc_queue* queue, uint64_t tag, unsigned wait_ms,
                            mc_get_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const Places places, Places::of(layout, blocks));
    auto call =
        std::make_shared<capi::GetCall>(*store, std::chrono::milliseconds(wait_ms), results);
    call->want(places.bytes());
    for (size_t i = 0; i < places.count(); ++i) {
      auto parts = places.parts<std::byte>(i);
      if (parts)
        call->add(i, {places.key(i), std::move(*parts)});
      else
        call->refuse(i, parts.error());
    }
    return capi::carry_out(*store, queue, tag, call);
  });
}

}  // extern "C"
