// Parts of values.
#include <algorithm>
#include <utility>
#include <vector>

#include "capi/common.h"
#include "capi/mc/store.h"
#include "capi/store_calls.h"

namespace {

using namespace mc;

constexpr uint64_t kRowsMax = 1 << 20;  // of an item

Result<> add_piece(const mc_piece& piece, std::vector<store::ValueRange>& out) {
  const uint64_t rows = std::max<uint64_t>(piece.rows, 1);
  if (rows > kRowsMax - std::min<uint64_t>(kRowsMax, out.size()))
    return fail(Code::kInvalid, "an item of more than %llu rows",
                static_cast<unsigned long long>(kRowsMax));
  if (piece.data == nullptr && piece.bytes != 0)
    return fail(Code::kInvalid, "a piece of %llu bytes at NULL",
                static_cast<unsigned long long>(piece.bytes));
  if (rows > 1 && piece.local_stride < piece.bytes)
    return fail(Code::kInvalid,
                "mc_piece.local_stride is %llu for rows of %llu bytes: they overlap",
                static_cast<unsigned long long>(piece.local_stride),
                static_cast<unsigned long long>(piece.bytes));
  uint64_t ignored = 0;
  for (const uint64_t stride : {piece.local_stride, piece.value_stride})
    if (__builtin_mul_overflow(rows - 1, stride, &ignored) ||
        __builtin_add_overflow(ignored, piece.offset, &ignored) ||
        __builtin_add_overflow(ignored, piece.bytes, &ignored))
      return fail(Code::kInvalid, "mc_piece: its rows end beyond all memory");
  auto* const data = static_cast<std::byte*>(piece.data);
  for (uint64_t row = 0; row < rows; ++row)
    out.push_back(
        {piece.offset + row * piece.value_stride, {data + row * piece.local_stride, piece.bytes}});
  return {};
}

}  // namespace

extern "C" {

mc_code mc_store_get_ranges(mc_store* store, const mc_range_item* items, size_t count,
                            unsigned wait_ms, mc_get_result* results) {
  return capi::guarded(store, [&]() -> Result<> {
    if (count > 0) MC_TRY_(capi::need(items, "items"));
    capi::GetCall call(*store, std::chrono::milliseconds(wait_ms), results);
    for (size_t i = 0; i < count; ++i) {
      store::GetItem item;
      MC_TRY(item.key, capi::key_of(items[i].key));
      if (items[i].piece_count > 0) MC_TRY_(capi::need(items[i].pieces, "mc_range_item.pieces"));
      for (size_t p = 0; p < items[i].piece_count; ++p)
        MC_TRY_(add_piece(items[i].pieces[p], item.ranges));
      if (item.ranges.empty())
        return fail(Code::kInvalid, "an item without pieces: mc_store_exists asks for no bytes");
      call.add(i, std::move(item));
    }
    (void)call.run();
    return {};
  });
}

}  // extern "C"
