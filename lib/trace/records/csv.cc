#include "trace/records/csv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "base/random.h"
#include "base/units.h"

namespace mc::trace {
namespace {

using ull = unsigned long long;

constexpr double kSecondsMax = static_cast<double>(kTimestampMax) / 1000;

struct Row {
  double at_s = 0;
  uint64_t input = 0, output = 0;
};

std::vector<std::string_view> fields(std::string_view line) {
  std::vector<std::string_view> out;
  if (line.ends_with('\r')) line.remove_suffix(1);
  for (size_t at = 0; at <= line.size();) {
    const size_t comma = std::min(line.find(',', at), line.size());
    out.push_back(line.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

std::optional<uint64_t> digits(std::string_view text, size_t from, size_t n) {
  if (from + n > text.size()) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text.substr(from, n)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

std::optional<double> plain(std::string_view text) {
  const auto n = parse_number(text);
  return n ? std::optional(*n) : std::nullopt;
}

// What a zone behind a time ("", "Z", "+02:00") is ahead of UTC, in seconds.
std::optional<double> zone_seconds(std::string_view zone) {
  if (zone.empty() || zone == "Z") return 0;
  const auto hours = digits(zone, 1, 2), minutes = digits(zone, 4, 2);
  if (zone.size() != 6 || zone[3] != ':' || !hours || !minutes) return std::nullopt;
  const auto ahead = static_cast<double>(*hours * 3600 + *minutes * 60);
  return zone[0] == '-' ? -ahead : ahead;
}

// "2023-11-16 18:15:46.6805900" in seconds since 1970, with a zone behind it or none.
std::optional<double> date_seconds(std::string_view t) {
  const auto year = digits(t, 0, 4), month = digits(t, 5, 2), day = digits(t, 8, 2),
             hour = digits(t, 11, 2), minute = digits(t, 14, 2), second = digits(t, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (*month < 1 || *month > 12 || *day < 1 || *day > 31 || *hour > 23 || *minute > 59 ||
      *second > 60)
    return std::nullopt;
  // Days of the civil calendar, years from March.
  const uint64_t y = *year - (*month <= 2), era = y / 400, of_era = y % 400;
  const uint64_t of_march = *month > 2 ? *month - 3 : *month + 9;
  const uint64_t of_year = (153 * of_march + 2) / 5 + *day - 1;
  const uint64_t days = era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
  const size_t zone_at = std::min(t.find_first_of("Z+-", 19), t.size());
  const auto zone = zone_seconds(t.substr(zone_at));
  if (!zone) return std::nullopt;
  double fraction = 0;
  if (zone_at > 19) {
    const auto f = parse_number("0" + std::string(t.substr(19, zone_at - 19)));
    if (t[19] != '.' || !f) return std::nullopt;
    fraction = *f;
  }
  return static_cast<double>(days * 86400 + *hour * 3600 + *minute * 60 + *second) + fraction -
         *zone;
}

struct Format {
  const char* name;
  std::array<const char*, 3> columns;  // time, input, output
  bool date;
};
constexpr Format kFormats[] = {
    {"azure", {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, true},
    {"burstgpt", {"Timestamp", "Request tokens", "Response tokens"}, false},
};

class Reader {
 public:
  Reader(const std::string& name, const CsvOptions& options) : options_(options) {
    trace_.name = name;
  }

  Result<> header(std::string_view line) {
    if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
    const auto names = fields(line);
    for (const Format& f : kFormats) {
      size_t found = 0;
      for (size_t c = 0; c < 3; ++c) {
        const auto at = std::find(names.begin(), names.end(), f.columns[c]);
        column_[c] = static_cast<size_t>(at - names.begin());
        found += at != names.end();
      }
      if (found == 3) {
        format_ = &f;
        return {};
      }
    }
    return fail(Code::kInvalid,
                "%s:1: unknown columns '%s'; want those of azure (TIMESTAMP,ContextTokens,"
                "GeneratedTokens) or burstgpt (Timestamp,Model,Request tokens,Response tokens)",
                trace_.name.c_str(), escape(line).c_str());
  }

  Result<> take(std::string_view line, uint64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return {};
    ++trace_.lines;
    auto row = parse(line);
    if (row && row->output == 0 && !format_->date)
      row = fail(Code::kInvalid, "%s is 0: a request that failed", format_->columns[2]);
    if (row) {
      blocks_ += blocks(row->input, kBlockTokens);
      if (rows_.size() >= kRecordsMax || blocks_ > kBlocksMax)
        return fail(Code::kNoSpace, "%s:%llu: more than %llu rows or %llu blocks; use --limit",
                    trace_.name.c_str(), static_cast<ull>(number), static_cast<ull>(kRecordsMax),
                    static_cast<ull>(kBlocksMax));
      if (!rows_.empty() && row->at_s < rows_.back().at_s) ++trace_.out_of_order;
      rows_.push_back(*row);
      return {};
    }
    if (options_.strict)
      return fail(Code::kInvalid, "%s:%llu: %s", trace_.name.c_str(), static_cast<ull>(number),
                  row.error().what.c_str());
    ++trace_.skipped;
    if (trace_.bad.size() < 10) trace_.bad.push_back({number, row.error().what});
    return {};
  }

  bool full() const { return options_.limit && rows_.size() >= options_.limit; }

  Result<Trace> finish() {
    if (rows_.empty())
      return fail(Code::kInvalid, "%s holds no requests%s", trace_.name.c_str(),
                  trace_.bad.empty() ? "" : (": " + trace_.bad[0].reason).c_str());
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.at_s < b.at_s; });
    share();
    return std::move(trace_);
  }

 private:
  Result<Row> parse(std::string_view line) const {
    const auto f = fields(line);
    Row row;
    for (size_t c = 0; c < 3; ++c) {
      const char* name = format_->columns[c];
      if (column_[c] >= f.size())
        return fail(Code::kInvalid, "no %s in %zu fields", name, f.size());
      const std::string_view text = f[column_[c]];
      const auto n = c == 0 && format_->date ? date_seconds(text) : plain(text);
      if (!n || !std::isfinite(*n) || *n < 0 || (c == 0 && *n > kSecondsMax))
        return fail(Code::kInvalid, "%s is '%s': want %s", name, escape(text).c_str(),
                    c > 0           ? "a number of tokens"
                    : format_->date ? "a time as 2023-11-16 18:15:46.68, before 2109"
                                    : "seconds, 4398046511 at most");
      if (c == 0) {
        row.at_s = *n;
        continue;
      }
      if (*n != std::floor(*n) || *n > static_cast<double>(kLengthMax) || (c == 1 && *n < 1))
        return fail(Code::kInvalid, "%s is %s: want a whole number from %d to %llu", name,
                    escape(text).c_str(), c == 1, static_cast<ull>(kLengthMax));
      (c == 1 ? row.input : row.output) = static_cast<uint64_t>(*n);
    }
    return row;
  }

  // Ids for every prompt, by the prefix model.
  void share() {
    const PrefixModel& m = options_.prefix;
    Random random(options_.seed);
    const uint64_t shared = m.kind == PrefixModel::Kind::kNone ? 0 : m.shared_tokens / kBlockTokens;
    uint64_t next = shared;
    std::map<uint64_t, std::vector<uint64_t>> youngest;  // by length: the full blocks of a prompt
    for (const Row& row : rows_) {
      TraceRequest r;
      r.timestamp_ms = static_cast<uint64_t>((row.at_s - rows_[0].at_s) * 1000);
      r.input_length = row.input;
      r.output_length = row.output;
      if (m.kind == PrefixModel::Kind::kSessions && random.chance(m.again)) {
        auto at = youngest.lower_bound(row.input);
        if (at != youngest.begin()) {
          --at;
          r.hash_ids = std::move(at->second);
          youngest.erase(at);  // a prompt is continued once
        }
      }
      const uint64_t want = blocks(row.input, kBlockTokens), full = row.input / kBlockTokens;
      for (uint64_t k = r.hash_ids.size(); k < std::min(shared, full); ++k) r.hash_ids.push_back(k);
      while (r.hash_ids.size() < want) r.hash_ids.push_back(next++);
      if (m.kind == PrefixModel::Kind::kSessions) {
        auto kept = r.hash_ids;
        kept.resize(full);
        youngest[row.input] = std::move(kept);
      }
      trace_.records.push_back(std::move(r));
    }
    std::map<uint64_t, uint64_t> dense;  // unused shared blocks leave no gaps
    for (TraceRequest& r : trace_.records)
      for (uint64_t& id : r.hash_ids) id = dense.try_emplace(id, dense.size()).first->second;
  }

  CsvOptions options_;
  Trace trace_;
  std::vector<Row> rows_;
  uint64_t blocks_ = 0;  // of their prompts
  const Format* format_ = nullptr;
  std::array<size_t, 3> column_{};
};

}  // namespace

Result<PrefixModel> parse_prefix_model(std::string_view text) {
  PrefixModel m;
  if (text == "none") return m;
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto bad = [&] {
    return fail(Code::kInvalid,
                "'%s' is no prefix model: want none, shared:TOKENS, sessions:P or "
                "sessions:P:TOKENS with P from 0 to 1",
                escape(text).c_str());
  };
  if (kind == "sessions") {
    m.kind = PrefixModel::Kind::kSessions;
    const size_t second = std::min(rest.find(':'), rest.size());
    const auto p = parse_number(rest.substr(0, second));
    if (!p || !(*p >= 0 && *p <= 1)) return bad();
    m.again = *p;
    if (second == rest.size()) return m;
    rest.remove_prefix(second + 1);
  } else if (kind == "shared") {
    m.kind = PrefixModel::Kind::kShared;
  } else {
    return bad();
  }
  const auto n = parse_number(rest);
  if (!n || !(*n >= 0 && *n <= static_cast<double>(kLengthMax)) || *n != std::floor(*n))
    return bad();
  m.shared_tokens = static_cast<uint64_t>(*n);
  return m;
}

Result<Trace> parse_csv(std::string_view text, const std::string& name, const CsvOptions& options) {
  Reader reader(name, options);
  uint64_t number = 0;
  while (!text.empty() && !reader.full()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (++number == 1) {
      MC_TRY_(reader.header(line));
    } else {
      MC_TRY_(reader.take(line, number));
    }
  }
  return reader.finish();
}

Result<Trace> read_csv(const std::string& path, const CsvOptions& options) {
  constexpr size_t kBytesMax = size_t{4} << 30, kStep = size_t{1} << 20;
  const auto too_long = [&] {
    return fail(Code::kNoSpace, "trace %s: want 4 GiB at most", path.c_str());
  };
  std::error_code no_size;
  const auto size = std::filesystem::file_size(path, no_size);
  if (!no_size && size > kBytesMax) return too_long();
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno("trace %s", path.c_str());
  std::string text;  // of a pipe nothing says how much comes
  for (size_t got = kStep; got == kStep;) {
    const size_t at = text.size();
    text.resize(at + kStep);
    file.read(text.data() + at, kStep);
    got = static_cast<size_t>(file.gcount());
    text.resize(at + got);
    if (text.size() > kBytesMax) return too_long();
  }
  if (file.bad()) return fail(Code::kInvalid, "trace %s: reading failed", path.c_str());
  return parse_csv(text, path, options);
}

}  // namespace mc::trace
