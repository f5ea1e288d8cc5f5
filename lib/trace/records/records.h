// Reads and writes request traces.
// A trace has one JSON object a line, as the public Mooncake traces. It gives a request's arrival
// time, the lengths of its prompt and answer, and the blocks of its prompt:
//
//   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, ...]}
//
// timestamp is milliseconds, from the start or since 1970; lengths are tokens; equal ids mean equal
// blocks with equal prefixes; there are ceil(input_length / 512) ids, the last one for a block that
// may be partial. A "class" of "ephemeral", "context" or "normal" says what to keep (CacheClass).
// Other keys are ignored. Malformed lines are skipped, counted and explained, or refused when
// strict.
//
// Thread: values; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::trace {

inline constexpr uint64_t kBlockTokens = 512;              // of the public traces
inline constexpr uint64_t kLengthMax = 10'000'000;         // tokens, of a prompt or an answer
inline constexpr uint64_t kTimestampMax = 1ull << 42;      // ms; 139 years
inline constexpr uint64_t kSince1970 = 1'000'000'000'000;  // ms; in 2001
inline constexpr size_t kLineBytesMax = 4u << 20;          // 10 M tokens in 512s, 20 digits an id
inline constexpr uint64_t kRecordsMax = 20'000'000;        // of a file
inline constexpr uint64_t kBlocksMax = 100'000'000;        // of a file, all records together

// The value of a prompt's blocks after its answer. Blocks of an ephemeral prompt hardly recur (a
// search result); blocks of a context are kept by contract.
enum class CacheClass : uint8_t { kNormal, kEphemeral, kContext };

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint64_t input_length = 0;   // at least 1
  uint64_t output_length = 0;  // may be 0
  std::vector<uint64_t> hash_ids;
  CacheClass cache_class = CacheClass::kNormal;
  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

struct BadLine {
  uint64_t line = 0;  // from 1
  std::string reason;
};

struct Trace {
  std::string name;  // the file's path
  uint64_t block_tokens = kBlockTokens;
  std::vector<TraceRequest> records;  // by time; equal times in the order of the file
  uint64_t lines = 0;                 // read, blank ones left out
  uint64_t skipped = 0;               // malformed
  uint64_t out_of_order = 0;          // lines earlier than a line before them; sorted
  BadLine first_out_of_order;         // the first of these
  std::vector<BadLine> bad;           // the first few of the skipped
};

struct ReadOptions {
  bool strict = false;  // the first malformed or out-of-order line is an error
  uint64_t limit = 0;   // stop after this many good records; 0: all
  uint64_t block_tokens = kBlockTokens;
  uint64_t input_max = 0;   // a longer prompt makes a line malformed; 0: none does
  std::string model = {};   // the model with that limit
  size_t reasons_max = 10;  // how many bad lines to keep
};

// Where the first time is since 1970 (from kSince1970 on), all become times since that request.
// Errors: kNotFound or kInvalid for the file, kInvalid "file:line: reason" when strict, kInvalid
// when no line is good, kNoSpace past the limits above.
Result<Trace> read_trace(const std::string& path, const ReadOptions& options = {});
// The same from text already in memory; `name` stands for the path.
Result<Trace> parse_trace(std::string_view text, const std::string& name,
                          const ReadOptions& options = {});

// One line of a trace. Errors: the reason, without file and line.
Result<TraceRequest> parse_record(std::string_view line, uint64_t block_tokens = kBlockTokens);
Result<> check_record(const TraceRequest& record, uint64_t block_tokens = kBlockTokens);
std::string record_line(const TraceRequest& record);  // with its newline
Result<> write_trace(const std::string& path, const std::vector<TraceRequest>& records);

// Of a prompt of `input_length` tokens: full blocks, and full blocks plus the partial one.
constexpr uint64_t full_blocks(uint64_t input_length, uint64_t block_tokens) {
  return input_length / block_tokens;
}
constexpr uint64_t blocks(uint64_t input_length, uint64_t block_tokens) {
  return input_length / block_tokens + (input_length % block_tokens != 0);
}

}  // namespace mc::trace
