#include "gpu/vram_block_cache.h"

#include <algorithm>
#include <utility>

namespace mc::gpu {

// A block of a pass: its tokens before and after the pass.
struct VramBlockCache::Wanted {
  BlockHash parent{};
  bool known = false, written = false;
  bool filled = false;  // it holds tokens before the pass
  std::span<const int32_t> before{}, after{};
};

VramBlockCache::VramBlockCache(device::Memory memory, const Shape& shape)
    : memory_(std::move(memory)), shape_(shape) {
  const auto n = static_cast<uint32_t>(memory_.size() / shape.slot_bytes());
  MC_CHECK(n > 0 && shape.layers >= 2);
  slots_.resize(n);
  for (uint32_t i = n; i > 0; --i) free_.push_back(i - 1);
  counts_.slots = n;
}

VramBlockCache::Counts VramBlockCache::counts() const {
  Lock lock(mutex_);
  return counts_;
}

void VramBlockCache::list(uint32_t slot) {
  slots_[slot].listed = true;
  index_.emplace(slots_[slot].parent.tag(), slot);
  ++counts_.used;
}

void VramBlockCache::unlist(uint32_t slot) {
  slots_[slot].listed = false;
  const auto [begin, end] = index_.equal_range(slots_[slot].parent.tag());
  index_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == slot; }));
  unused_.erase(slots_[slot].touched);
  --counts_.used;
}

// No claim holds the slot any more: it becomes the last to be evicted.
void VramBlockCache::make_evictable(uint32_t slot) {
  slots_[slot].touched = ++touches_;
  unused_.emplace(slots_[slot].touched, slot);
}

uint32_t VramBlockCache::take() {
  if (free_.empty()) {
    const uint32_t oldest = unused_.begin()->second;
    unlist(oldest);
    ++counts_.evictions;
    return oldest;
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

// A slot that begins with the tokens of the block before the pass. A slot to be written must have
// no other holder; its further tokens are lost.
std::optional<uint32_t> VramBlockCache::find(const Wanted& w) {
  if (!w.known || w.before.empty()) return {};
  const auto [begin, end] = index_.equal_range(w.parent.tag());
  for (auto it = begin; it != end; ++it) {
    const Slot& s = slots_[it->second];
    if (s.parent != w.parent || s.tokens.size() < w.before.size() ||
        !std::equal(w.before.begin(), w.before.end(), s.tokens.begin()) ||
        (w.written && s.holders > 0))
      continue;
    const uint32_t slot = it->second;
    if (w.written)
      unlist(slot);
    else if (slots_[slot].holders++ == 0)
      unused_.erase(slots_[slot].touched);
    return slot;
  }
  return {};
}

// The number of blocks to stream when `missing` exceeds the free and evictable slots. `in_a_slot`
// streamed blocks share a slot, so each saves a part of one.
std::optional<size_t> VramBlockCache::to_stream(size_t missing) const {
  const size_t room = free_.size() + unused_.size(), in_a_slot = shape_.layers / 2;
  if (missing <= room) return 0;
  if (in_a_slot < 2) return {};
  return ((missing - room) * in_a_slot + in_a_slot - 2) / (in_a_slot - 1);
}

// Undoes find().
void VramBlockCache::forgo(uint32_t slot, bool written) {
  if (written)
    list(slot);
  else if (--slots_[slot].holders > 0)
    return;
  make_evictable(slot);
}

std::unique_ptr<VramBlockCache::Claim> VramBlockCache::claim(std::span<const model::Slice> slices,
                                                             std::span<const Content> contents) {
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < slices.size(); ++i) {
    const size_t begin = slices[i].begin, end = slices[i].end;
    for (size_t b = 0, from = 0; from < end; ++b, from += shape_.block_tokens) {
      const size_t to = from + shape_.block_tokens;
      Wanted w;
      w.written = begin < to;
      w.filled = begin > from;
      w.known = i < contents.size() && b < contents[i].parents.size() &&
                contents[i].tokens.size() >= end &&
                (b == 0 || contents[i].parents[b] != BlockHash{});
      if (w.known) {
        w.parent = contents[i].parents[b];
        w.before = contents[i].tokens.subspan(from, begin > from ? std::min(begin, to) - from : 0);
        w.after = contents[i].tokens.subspan(from, std::min(end, to) - from);
      }
      wanted.push_back(w);
    }
  }
  std::unique_ptr<Claim> claim(new Claim(*this));
  claim->block_slots_.resize(wanted.size());
  Lock lock(mutex_);
  std::vector<std::optional<uint32_t>> found;
  size_t missing = 0;
  for (const Wanted& w : wanted) {
    found.push_back(find(w));
    missing += found.back() ? 0 : 1;
  }
  auto streamed = to_stream(missing);
  // If fewer are missing than must be streamed, resident blocks are streamed too.
  for (size_t i = wanted.size(); i-- > 0 && (!streamed || missing < *streamed);)
    if (found[i]) {
      forgo(*std::exchange(found[i], {}), wanted[i].written);
      streamed = to_stream(++missing);
    }
  if (!streamed || missing < *streamed) return nullptr;
  const auto hold = [&](uint32_t slot, const Wanted& w, bool shared) {
    claim->held_.push_back({slot, shared, w.known, w.parent, {w.after.begin(), w.after.end()}});
  };
  uint32_t area = 0;
  size_t in_area = shape_.layers / 2, own = missing - *streamed;
  for (size_t i = 0; i < wanted.size(); ++i) {
    BlockSlot& block_slot = claim->block_slots_[i];
    if (found[i] || own > 0) {
      block_slot.there = found[i].has_value();
      const uint32_t slot = found[i] ? *found[i] : (--own, take());
      hold(slot, wanted[i], block_slot.there && !wanted[i].written);
      block_slot.at = slot * shape_.slot_bytes();
      if (wanted[i].filled) ++(block_slot.there ? counts_.hits : counts_.uploads);
      continue;
    }
    if (in_area == shape_.layers / 2) {
      area = take();
      in_area = 0;
      hold(area, {}, false);
    }
    block_slot = {area * shape_.slot_bytes() + 2 * in_area++ * shape_.layer_bytes, true, false};
    claim->streams_ = true;
    if (wanted[i].filled) ++counts_.streamed;
  }
  return claim;
}

// From the last block to the first, so that a sequence's last ones are evicted first.
void VramBlockCache::release(std::vector<Claim::Held>& held, bool committed) {
  Lock lock(mutex_);
  for (; !held.empty(); held.pop_back()) {
    Claim::Held& h = held.back();
    Slot& s = slots_[h.slot];
    if (h.shared) {
      if (--s.holders == 0) make_evictable(h.slot);
      continue;
    }
    const auto [begin, end] = index_.equal_range(h.parent.tag());
    bool twice = false;
    for (auto it = begin; it != end; ++it) {
      const Slot& other = slots_[it->second];
      twice = twice || (other.parent == h.parent && other.tokens == h.tokens);
    }
    if (!committed || !h.known || twice) {
      free_.push_back(h.slot);
      continue;
    }
    s.parent = h.parent;
    s.tokens = std::move(h.tokens);
    list(h.slot);
    make_evictable(h.slot);
  }
}

void VramBlockCache::Claim::commit() { cache_.release(held_, true); }
VramBlockCache::Claim::~Claim() { cache_.release(held_, false); }

}  // namespace mc::gpu
