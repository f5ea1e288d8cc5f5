// Reads request logs without block hashes from CSV.
// A row has a request's time, input tokens and output tokens. A PrefixModel must say which prefixes
// the prompts share, because the log does not.
//
//   azure     TIMESTAMP,ContextTokens,GeneratedTokens             2023-11-16 18:15:46.6805900
//   burstgpt  Timestamp,Model,Request tokens,Response tokens,...  seconds
//
// The header line decides the format. Rows are sorted by time and shifted so that the first is at
// 0. BurstGPT's rows without an answer (failures) are skipped and counted.
//
// Thread: values; any thread. Errors: name file, line, field, the value seen and the value wanted.
#pragma once
#include <string>
#include <string_view>

#include "trace/records/records.h"

namespace mc::trace {

struct PrefixModel {
  enum class Kind { kNone, kShared, kSessions } kind = Kind::kNone;
  uint64_t shared_tokens = 0;  // kShared, kSessions: every prompt begins with these
  double again = 0;            // kSessions: the chance that a prompt continues an earlier one
};

// "none"; "shared:TOKENS", one system prompt; "sessions:P" or "sessions:P:TOKENS": with chance P a
// row continues the longest earlier prompt that is shorter than it, and shares all its full blocks;
// a prompt is continued once.
Result<PrefixModel> parse_prefix_model(std::string_view text);

struct CsvOptions {
  PrefixModel prefix = {};
  uint64_t seed = 0;
  bool strict = false;
  uint64_t limit = 0;
};

Result<Trace> parse_csv(std::string_view text, const std::string& name, const CsvOptions& options);
Result<Trace> read_csv(const std::string& path, const CsvOptions& options);

}  // namespace mc::trace
