#include "sched/holder_set.h"

#include <algorithm>
#include <cstddef>

namespace mc::sched {
namespace {

constexpr uint64_t bit_of(HolderSet::Slot slot) { return uint64_t{1} << (slot % 64); }
constexpr size_t word_of(HolderSet::Slot slot) { return slot / 64 * size_t{2}; }

}  // namespace

void HolderSet::assign(std::span<const Slot> values) {
  list_.assign(values.begin(), values.end());
  size_ = static_cast<uint32_t>(values.size());
  if (size_ > kListMax) widen();
}

void HolderSet::clear() { *this = {}; }

std::vector<HolderSet::Slot> HolderSet::values() const {
  if (!wide()) return list_;
  std::vector<Slot> all;
  all.reserve(size_);
  for (size_t k = 0; k < words(); ++k)
    for (uint64_t left = bits_[2 * k]; left != 0; left &= left - 1) {
      const auto slot = static_cast<Slot>(64 * k + static_cast<size_t>(std::countr_zero(left)));
      const bool guessed = (bits_[2 * k + 1] & bit_of(slot)) != 0;
      all.push_back(guessed ? slot | kGuessed : slot);
    }
  return all;
}

void HolderSet::widen() {
  const std::vector<Slot> all = std::move(list_);
  list_ = {};
  size_ = 0;
  bits_.assign(2, 0);
  for (const Slot value : all) hold(value);
}

void HolderSet::narrow() {
  list_ = values();
  bits_ = {};
}

void HolderSet::hold(Slot value) {
  const Slot slot = value & static_cast<Slot>(~kGuessed);
  if (wide()) {
    const size_t at = word_of(slot);
    if (at >= bits_.size()) bits_.resize(at + 2);
    const bool there = (bits_[at] & bit_of(slot)) != 0;
    bits_[at] |= bit_of(slot);
    if (!there) ++size_;
    if (value == slot)
      bits_[at + 1] &= ~bit_of(slot);
    else if (!there)
      bits_[at + 1] |= bit_of(slot);
    return;
  }
  for (Slot& h : list_) {
    if ((h & ~kGuessed) != slot) continue;
    h &= value;
    return;
  }
  list_.push_back(value);
  if (++size_ > kListMax) widen();
}

bool HolderSet::drop(Slot slot, bool guesses_only) {
  if (wide()) {
    const size_t at = word_of(slot);
    if (at >= bits_.size() || (bits_[at] & bit_of(slot)) == 0) return false;
    if (guesses_only && (bits_[at + 1] & bit_of(slot)) == 0) return false;
    bits_[at] &= ~bit_of(slot);
    bits_[at + 1] &= ~bit_of(slot);
    // Half of what widens it: a node that comes and goes does not rebuild it each time.
    if (--size_ <= kListMax / 2) narrow();
    return true;
  }
  const auto it =
      std::find_if(list_.begin(), list_.end(), [&](Slot h) { return (h & ~kGuessed) == slot; });
  if (it == list_.end() || (guesses_only && (*it & kGuessed) == 0)) return false;
  *it = list_.back();
  list_.pop_back();
  --size_;
  return true;
}

bool HolderSet::holds(Slot slot) const {
  if (wide()) return (word(slot / 64) & bit_of(slot)) != 0;
  return std::any_of(list_.begin(), list_.end(), [&](Slot h) { return (h & ~kGuessed) == slot; });
}

bool RetiredSlots::retire(Slot slot) {
  if (slot / 64u >= used_.size() || (used_[slot / 64u] >> slot % 64u & 1) == 0) return false;
  if (all_.empty()) at = 0;
  set(bits_, slot);
  all_.push_back(slot);
  if (of_pass_ == 0) of_pass_ = 1;
  return true;
}

std::vector<RetiredSlots::Slot> RetiredSlots::end_pass() {
  const auto end = all_.begin() + static_cast<std::ptrdiff_t>(of_pass_);
  std::vector<Slot> swept(all_.begin(), end);
  all_.erase(all_.begin(), end);
  for (const Slot slot : swept)
    for (auto* bits : {&bits_, &used_}) (*bits)[slot / 64u] &= ~(uint64_t{1} << slot % 64u);
  of_pass_ = all_.size();
  at = 0;
  return swept;
}

}  // namespace mc::sched
