#include "xfer/qos/priority_queue.h"

#include <charconv>

namespace mc::xfer {

const char* name(Priority priority) {
  switch (priority) {
    case Priority::kHigh: return "high";
    case Priority::kMedium: return "medium";
    case Priority::kLow: return "low";
  }
  return "?";
}

Result<std::array<uint32_t, kPriorities>> parse_weights(const std::string& text) {
  std::array<uint32_t, kPriorities> out{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t c = 0; c < kPriorities; ++c) {
    const auto [after, error] = std::from_chars(at, end, out[c]);
    const bool ended = c + 1 == kPriorities ? after == end : after != end && *after == ':';
    if (error != std::errc{} || !ended || out[c] < 1 || out[c] > 1000)
      return fail(Code::kInvalid, "class weights '%s': want three from 1 to 1000, such as 16:4:1",
                  text.c_str());
    at = after + 1;
  }
  return out;
}

ClassChooser::ClassChooser(QosConfig config) : age_max_(config.age_max) {
  for (size_t c = 0; c < kPriorities; ++c) classes_[c].weight = std::max(1u, config.weights[c]);
}

void ClassChooser::filled(Priority p, Time now) {
  Class& c = classes_[static_cast<size_t>(p)];
  c.start = std::max(c.start, virtual_now_);
  c.head_since = now;
}

std::optional<Priority> ClassChooser::aged(ClassMask of, Time now) const {
  if (since_aged_ + 1 < kAgedEvery) return std::nullopt;
  std::optional<Priority> oldest;
  for (size_t i = 0; i < kPriorities; ++i) {
    const auto p = static_cast<Priority>(i);
    if ((of & mask_of(p)) == 0 || now - classes_[i].head_since < age_max_) continue;
    if (!oldest || classes_[i].head_since < classes_[static_cast<size_t>(*oldest)].head_since)
      oldest = p;
  }
  return oldest;
}

std::optional<Priority> ClassChooser::choose(ClassMask waiting, ClassMask may, Time now) const {
  const auto of = static_cast<ClassMask>(waiting & may);
  if (const auto oldest = aged(of, now)) return oldest;
  std::optional<Priority> best;  // the higher class among equals
  for (size_t i = 0; i < kPriorities; ++i) {
    const auto p = static_cast<Priority>(i);
    if ((of & mask_of(p)) == 0) continue;
    if (!best || classes_[i].start < classes_[static_cast<size_t>(*best)].start) best = p;
  }
  return best;
}

void ClassChooser::served(Priority p, uint64_t bytes, ClassMask waiting, ClassMask may, Time now) {
  Class& c = classes_[static_cast<size_t>(p)];
  const bool was_aged = since_aged_ + 1 >= kAgedEvery && now - c.head_since >= age_max_;
  since_aged_ = was_aged ? 0 : std::min(since_aged_ + 1, kAgedEvery);
  if (waiting == 0) {  // idle: the past is forgotten, and the numbers stay small
    for (Class& each : classes_) each.start = 0;
    virtual_now_ = 0;
    return;
  }
  if (!was_aged) virtual_now_ = std::max(virtual_now_, c.start);
  c.start += static_cast<double>(bytes) / c.weight;
  c.head_since = now;
  // Who might not go has no claim later on what it missed.
  for (size_t i = 0; i < kPriorities; ++i)
    if ((may & mask_of(static_cast<Priority>(i))) == 0)
      classes_[i].start = std::max(classes_[i].start, virtual_now_);
}

}  // namespace mc::xfer
