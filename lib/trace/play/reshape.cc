#include "trace/play/reshape.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

namespace mc::trace {
namespace {

using ull = unsigned long long;
constexpr double kFactorMax = 1000;

Result<> check_factor(const char* name, double value) {
  if (std::isfinite(value) && value > 0 && value <= kFactorMax) return {};
  return fail(Code::kInvalid, "%s is %g: want a number above 0, at most %g", name, value,
              kFactorMax);
}

// How many requests hold each id.
std::unordered_map<uint64_t, uint32_t> holders(const std::vector<TraceRequest>& records) {
  std::unordered_map<uint64_t, uint32_t> out;
  for (const TraceRequest& r : records)
    for (const uint64_t id : r.hash_ids) ++out[id];
  return out;
}

// The new ids of each old id: copy 0, copy 1, ...
class Ids {
 public:
  uint64_t fresh() { return next_++; }
  uint64_t copy(uint64_t id, uint64_t n) {
    const auto [at, is_new] = known_.try_emplace({id, n}, next_);
    if (is_new) ++next_;
    return at->second;
  }

 private:
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> known_;
  uint64_t next_ = 0;
};

uint64_t times(uint64_t n, double factor) {
  return static_cast<uint64_t>(std::floor(static_cast<double>(n) * factor + 1e-9));
}

}  // namespace

Result<std::vector<TraceRequest>> stretch(const std::vector<TraceRequest>& records, uint64_t block,
                                          const Stretch& by) {
  MC_TRY_(check_factor("--rate-scale", by.rate));
  MC_TRY_(check_factor("--prefix-scale", by.prefix));
  MC_TRY_(check_factor("--prompt-scale", by.prompt));
  const auto held = holders(records);
  Ids ids;
  uint64_t total = 0;
  std::vector<TraceRequest> out;
  out.reserve(records.size());
  for (const TraceRequest& r : records) {
    TraceRequest& made = out.emplace_back();
    made.timestamp_ms =
        static_cast<uint64_t>(std::llround(static_cast<double>(r.timestamp_ms) / by.rate));
    made.output_length = r.output_length;
    const uint64_t full = full_blocks(r.input_length, block);
    uint64_t shared = 0;
    while (shared < r.hash_ids.size() && held.at(r.hash_ids[shared]) > 1) ++shared;
    // A repeated whole prompt also shares its partial block, which stays as it is.
    const bool partial = shared > full;
    shared = std::min(shared, full);
    if (times(shared, by.prefix) > kLengthMax / block)  // before so many are made
      return fail(Code::kInvalid, "a prompt would have more than %llu tokens",
                  static_cast<ull>(kLengthMax));
    for (uint64_t i = 0; i < shared; ++i)
      for (uint64_t n = times(i, by.prefix); n < times(i + 1, by.prefix); ++n)
        made.hash_ids.push_back(ids.copy(r.hash_ids[i], n));
    made.input_length = made.hash_ids.size() * block;
    const uint64_t rest = r.input_length - shared * block;
    if (partial) {
      made.hash_ids.push_back(ids.copy(r.hash_ids[full], UINT64_MAX));
      made.input_length += rest;
    } else if (rest > 0) {
      made.input_length += std::max<uint64_t>(1, times(rest, by.prompt));
    }
    made.input_length = std::max<uint64_t>(made.input_length, 1);
    if (made.input_length > kLengthMax)
      return fail(Code::kInvalid, "a prompt would have %llu tokens, more than %llu",
                  static_cast<ull>(made.input_length), static_cast<ull>(kLengthMax));
    while (made.hash_ids.size() < blocks(made.input_length, block))
      made.hash_ids.push_back(ids.fresh());
    total += made.hash_ids.size();
    if (total > kBlocksMax || made.timestamp_ms > kTimestampMax)
      return fail(Code::kInvalid, "the trace would pass %llu blocks, or its times %llu ms",
                  static_cast<ull>(kBlocksMax), static_cast<ull>(kTimestampMax));
  }
  return out;
}

Result<std::vector<TraceRequest>> fixed(const FixedShape& s, uint64_t block) {
  if (s.requests < 1 || s.requests > kRecordsMax)
    return fail(Code::kInvalid, "%llu requests: want 1 to %llu", static_cast<ull>(s.requests),
                static_cast<ull>(kRecordsMax));
  if (s.input < 1 || s.input > kLengthMax || s.output < 1 || s.output > kLengthMax)
    return fail(Code::kInvalid, "%llu tokens in and %llu out: want 1 to %llu of each",
                static_cast<ull>(s.input), static_cast<ull>(s.output),
                static_cast<ull>(kLengthMax));
  if (!std::isfinite(s.qps) || s.qps <= 0)
    return fail(Code::kInvalid, "--qps is %g: want a number above 0", s.qps);
  if (s.shared_tokens >= s.input)
    return fail(Code::kInvalid,
                "%llu shared tokens of %llu: want fewer shared tokens than a prompt has",
                static_cast<ull>(s.shared_tokens), static_cast<ull>(s.input));
  const uint64_t each = blocks(s.input, block), shared = full_blocks(s.shared_tokens, block);
  if (each > kBlocksMax / s.requests ||
      static_cast<double>(s.requests) * 1e3 / s.qps > static_cast<double>(kTimestampMax))
    return fail(Code::kInvalid, "%llu requests of %llu blocks at %g a second: too many",
                static_cast<ull>(s.requests), static_cast<ull>(each), s.qps);
  std::vector<TraceRequest> out(s.requests);
  uint64_t next = shared;
  for (uint64_t i = 0; i < s.requests; ++i) {
    TraceRequest& r = out[i];
    r.timestamp_ms = static_cast<uint64_t>(std::llround(static_cast<double>(i) * 1e3 / s.qps));
    r.input_length = s.input;
    r.output_length = s.output;
    for (uint64_t b = 0; b < each; ++b) r.hash_ids.push_back(b < shared ? b : next++);
  }
  return out;
}

}  // namespace mc::trace
