#include "model/kernels/block_panels.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/files/dtype.h"
#include "model/kernels/kernels.h"

namespace mc::model {
namespace {

// Where the integer of element `e` of a group and of a lane lies, and its bits there.
struct IntegerPlace {
  uint32_t at, shift;    // its low bits, 4 or all 8
  uint32_t bit_at, bit;  // of the first one above them; each further one 64 bytes on
};

IntegerPlace place_of(uint32_t bits, uint32_t e, uint32_t lane) {
  const uint32_t step = e / 4, byte = lane * 4 + e % 4;
  if (bits == 8) return {64 * step + byte, 0, 0, 0};
  return {64 * (step % 4) + byte, step < 4 ? 0u : 4u, 256 + 8 * step + byte / 8, byte % 8};
}

void put_integer(std::byte* group, uint32_t bits, uint32_t e, uint32_t lane, uint32_t q) {
  const IntegerPlace p = place_of(bits, e, lane);
  group[p.at] |= static_cast<std::byte>((bits == 8 ? q : q & 15) << p.shift);
  for (uint32_t extra = 4; bits < 8 && extra < bits; ++extra)
    group[p.bit_at + 64 * (extra - 4)] |= static_cast<std::byte>((q >> extra & 1) << p.bit);
}

uint32_t integer_at(const std::byte* group, uint32_t bits, uint32_t e, uint32_t lane) {
  const IntegerPlace p = place_of(bits, e, lane);
  uint32_t q = std::to_integer<uint32_t>(group[p.at]) >> p.shift;
  if (bits == 8) return q;
  q &= 15;
  for (uint32_t extra = 4; extra < bits; ++extra)
    q |= (std::to_integer<uint32_t>(group[p.bit_at + 64 * (extra - 4)]) >> p.bit & 1) << extra;
  return q;
}

DType number_type(const BlockFormat& f) { return f.f16 ? DType::kF16 : DType::kF32; }

}  // namespace

BlockPanels BlockPanels::pack(const BlockRows& source, uint32_t columns, ThreadPool& threads) {
  MC_CHECK(source.rows > 0 && columns > 0 && columns % source.format->elements == 0);
  BlockPanels p;
  p.layout_.format = source.format;
  p.rows_ = source.rows;
  p.groups_ = columns / kGroup;
  p.data_ = allocate_panels(p.bytes());
  threads.run((source.rows + kLanes - 1) / kLanes,
              [&](size_t panel) { p.pack_panel(source, static_cast<uint32_t>(panel)); });
  return p;
}

size_t BlockPanels::bytes() const {
  return size_t{(rows_ + kLanes - 1) / kLanes} * layout_.panel_bytes(groups_);
}

void BlockPanels::pack_panel(const BlockRows& source, uint32_t panel) const {
  const BlockFormat& f = *layout_.format;
  std::byte* const integers = data_.get() + panel * layout_.panel_bytes(groups_);
  std::byte* const scales = integers + groups_ * layout_.integer_bytes();
  std::memset(integers, 0, layout_.panel_bytes(groups_));
  const uint32_t halves = f.halves ? 2 : 1;
  std::vector<QuantGroup> block(f.elements / kGroup);
  std::vector<std::byte> scratch;
  for (uint32_t lane = 0; lane < kLanes && panel * kLanes + lane < rows_; ++lane) {
    const std::byte* from = source.row(panel * kLanes + lane, scratch);
    for (uint32_t g = 0; g < groups_; ++g) {
      const uint32_t in = g % (f.elements / kGroup);
      if (in == 0) {
        f.unpack(from, block.data());
        from += f.bytes;
      }
      for (uint32_t e = 0; e < kGroup; ++e)
        put_integer(integers + g * layout_.integer_bytes(), f.bits, e, lane,
                    static_cast<uint32_t>(block[in].integers[e] + f.offset));
      const auto put = [&](uint32_t number, float value) {
        const size_t size = size_of(number_type(f));
        from_floats(number_type(f), &value,
                    scales + g * layout_.scale_bytes() + (number * kLanes + lane) * size, 1);
      };
      for (uint32_t h = 0; h < halves; ++h) {
        put(h, block[in].scale[h]);
        if (f.minimum) put(halves + h, block[in].minimum[h]);
      }
    }
  }
}

void BlockPanels::row(uint32_t n, float* out) const {
  const BlockFormat& f = *layout_.format;
  const std::byte* const integers = data_.get() + n / kLanes * layout_.panel_bytes(groups_);
  const std::byte* const scales = integers + groups_ * layout_.integer_bytes();
  const uint32_t lane = n % kLanes, halves = f.halves ? 2 : 1;
  for (uint32_t g = 0; g < groups_; ++g) {
    const auto number = [&](uint32_t i) {
      float value;
      const size_t at = g * layout_.scale_bytes() + (i * kLanes + lane) * size_of(number_type(f));
      to_floats(number_type(f), scales + at, &value, 1);
      return value;
    };
    float scale = 0, minimum = 0;
    for (uint32_t e = 0; e < kGroup; ++e, ++out) {
      if (e % 16 == 0) {
        scale = number(e / 16 % halves);
        minimum = f.minimum ? number(halves + e / 16 % halves) : 0;
      }
      const uint32_t q = integer_at(integers + g * layout_.integer_bytes(), f.bits, e, lane);
      *out = scale * static_cast<float>(static_cast<int32_t>(q) - f.offset);
      if (f.minimum) *out += minimum;
    }
  }
}

BlockJob BlockPanels::job(uint32_t first_panel) const {
  BlockJob job;
  job.layout = layout_;
  job.panel_bytes = layout_.panel_bytes(groups_);
  job.panels = data_.get() + first_panel * job.panel_bytes;
  job.groups = groups_;
  job.columns = rows_ - first_panel * kLanes;
  return job;
}

RoundedMemory::RoundedMemory(size_t rows, uint32_t groups)
    : memory_(rows * groups * (kGroup + 7 * sizeof(float))) {
  const size_t n = rows * groups;
  std::byte* at = memory_.get();
  const auto take = [&](size_t bytes) { return std::exchange(at, at + bytes); };
  rows_.integers = reinterpret_cast<int8_t*>(take(n * kGroup));
  rows_.scales = reinterpret_cast<float*>(take(n * sizeof(float)));
  rows_.minus_sums = reinterpret_cast<int32_t*>(take(3 * n * sizeof(int32_t)));
  rows_.shares = reinterpret_cast<float*>(take(3 * n * sizeof(float)));
}

}  // namespace mc::model
