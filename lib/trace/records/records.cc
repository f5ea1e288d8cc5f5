#include "trace/records/records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/units.h"

namespace mc::trace {
namespace {

using ull = unsigned long long;

// A whole number in [0, max]; 27000.0 is whole, as some converters write times.
Result<uint64_t> whole(const Json& v, const std::string& what, uint64_t max) {
  if (v.is_number_unsigned() && v.get<uint64_t>() <= max) return v.get<uint64_t>();
  if (v.is_number_float()) {
    const double d = v.get<double>();
    if (d >= 0 && d <= static_cast<double>(std::min(max, uint64_t{1} << 53)) && d == std::floor(d))
      return static_cast<uint64_t>(d);
  }
  return fail(Code::kInvalid, "%s is %s: want a whole number from 0 to %llu", what.c_str(),
              escape(v.dump()).c_str(), static_cast<ull>(max));
}

Result<uint64_t> member(const Json& object, const char* key, uint64_t max) {
  const auto at = object.find(key);
  if (at == object.end()) return fail(Code::kInvalid, "no \"%s\"", key);
  return whole(*at, key, max);
}

constexpr const char* kClassNames[] = {"normal", "ephemeral", "context"};

Result<CacheClass> class_of(const Json& json) {
  const auto at = json.find("class");
  if (at == json.end()) return CacheClass::kNormal;
  for (size_t i = 0; i < std::size(kClassNames); ++i)
    if (*at == kClassNames[i]) return static_cast<CacheClass>(i);
  return fail(Code::kInvalid, "class is %s: want \"normal\", \"ephemeral\" or \"context\"",
              escape(at->dump()).c_str());
}

// Collects lines into a Trace.
class Collector {
 public:
  Collector(const std::string& name, const ReadOptions& options) : options_(options) {
    trace_.name = name;
    trace_.block_tokens = options.block_tokens;
  }
  bool full() const { return options_.limit && trace_.records.size() >= options_.limit; }

  Result<> take(std::string_view line) {
    ++number_;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return {};
    ++trace_.lines;
    auto record = parse_record(line, options_.block_tokens);
    if (!record) return refuse(record.error().what + hint(line));
    if (options_.input_max && record->input_length > options_.input_max)
      return refuse(
          strf("input_length is %llu: %s has room for %llu tokens; leave the request out "
               "or give another --model",
               static_cast<ull>(record->input_length), options_.model.c_str(),
               static_cast<ull>(options_.input_max)));
    if (record->timestamp_ms < latest_) MC_TRY_(out_of_order(*record));
    latest_ = std::max(latest_, record->timestamp_ms);
    blocks_ += record->hash_ids.size();
    if (trace_.records.size() >= kRecordsMax || blocks_ > kBlocksMax)
      return fail(Code::kNoSpace, "%s:%llu: more than %llu requests or %llu blocks; use --limit",
                  trace_.name.c_str(), static_cast<ull>(number_), static_cast<ull>(kRecordsMax),
                  static_cast<ull>(kBlocksMax));
    trace_.records.push_back(std::move(*record));
    return {};
  }

  Result<> take_overlong() {
    ++number_;
    ++trace_.lines;
    return refuse(strf("longer than %zu bytes", kLineBytesMax));
  }

  Result<Trace> finish() {
    if (trace_.records.empty() && trace_.skipped)
      return fail(Code::kInvalid, "%s: none of %llu lines is a request; line %llu: %s",
                  trace_.name.c_str(), static_cast<ull>(trace_.lines),
                  static_cast<ull>(first_bad_.line), first_bad_.reason.c_str());
    if (trace_.records.empty())
      return fail(Code::kInvalid, "%s holds no requests", trace_.name.c_str());
    if (trace_.out_of_order)
      std::stable_sort(trace_.records.begin(), trace_.records.end(),
                       [](const TraceRequest& a, const TraceRequest& b) {
                         return a.timestamp_ms < b.timestamp_ms;
                       });
    if (const uint64_t first = trace_.records.front().timestamp_ms; first >= kSince1970)
      for (TraceRequest& r : trace_.records) r.timestamp_ms -= first;
    return std::move(trace_);
  }

 private:
  // For the first line of a file of another kind.
  std::string hint(std::string_view line) const {
    const bool is_table = line.find(',') != line.npos && line.find_first_of("{[") == line.npos;
    if (number_ > 1 || !is_table) return "";
    return "; of CSV, mc-replay synth --from FILE --prefix none --out TRACE makes a trace";
  }
  Result<> out_of_order(const TraceRequest& record) {
    const std::string reason =
        strf("timestamp %llu is before the %llu of an earlier line",
             static_cast<ull>(record.timestamp_ms), static_cast<ull>(latest_));
    if (options_.strict)
      return refuse(reason + ": sort the lines by timestamp, or have it done without --strict");
    if (!trace_.out_of_order++) trace_.first_out_of_order = {number_, reason};
    return {};
  }
  Result<> refuse(const std::string& reason) {
    if (options_.strict)
      return fail(Code::kInvalid, "%s:%llu: %s", trace_.name.c_str(), static_cast<ull>(number_),
                  reason.c_str());
    if (!trace_.skipped++) first_bad_ = {number_, reason};
    if (trace_.bad.size() < options_.reasons_max) trace_.bad.push_back({number_, reason});
    return {};
  }

  ReadOptions options_;
  Trace trace_;
  BadLine first_bad_;
  uint64_t number_ = 0, latest_ = 0, blocks_ = 0;
};

// Passes complete lines to the collector, keeps an incomplete one, drops overlong ones.
class Splitter {
 public:
  explicit Splitter(Collector& to) : to_(to) {}

  Result<> feed(std::string_view text) {
    while (!text.empty() && !to_.full()) {
      const size_t end = text.find('\n');
      const std::string_view piece = text.substr(0, end);
      if (rest_.size() + piece.size() > kLineBytesMax) overlong_ = true;
      if (end == std::string_view::npos) {
        if (!overlong_) rest_ += piece;
        return {};
      }
      MC_TRY_(finish_line(piece));
      text.remove_prefix(end + 1);
    }
    return {};
  }
  Result<> end() {
    if (to_.full() || (rest_.empty() && !overlong_)) return {};
    return finish_line({});
  }

 private:
  Result<> finish_line(std::string_view piece) {
    const bool overlong = std::exchange(overlong_, false);
    const std::string line = std::exchange(rest_, {});
    if (overlong) return to_.take_overlong();
    return line.empty() ? to_.take(piece) : to_.take(line + std::string(piece));
  }

  Collector& to_;
  std::string rest_;
  bool overlong_ = false;
};

Result<> check_unpacked(const std::string& path, std::string_view begin) {
  if (!begin.starts_with("\x1f\x8b")) return {};
  return fail(Code::kInvalid, "trace %s is packed by gzip: unpack it first, as gunzip does",
              path.c_str());
}

}  // namespace

Result<> check_record(const TraceRequest& r, uint64_t block_tokens) {
  if (r.input_length < 1 || r.input_length > kLengthMax)
    return fail(Code::kInvalid, "input_length is %llu: want 1 to %llu tokens",
                static_cast<ull>(r.input_length), static_cast<ull>(kLengthMax));
  const uint64_t want = blocks(r.input_length, block_tokens);
  if (r.hash_ids.size() != want)
    return fail(Code::kInvalid,
                "%zu hash_ids for input_length %llu: want %llu, one for each %llu tokens",
                r.hash_ids.size(), static_cast<ull>(r.input_length), static_cast<ull>(want),
                static_cast<ull>(block_tokens));
  return {};
}

Result<TraceRequest> parse_record(std::string_view line, uint64_t block_tokens) {
  auto parsed = parse_json(line);
  if (!parsed) {  // it counts lines too, but this is one of many
    std::string why = parsed.error().what;
    constexpr std::string_view kLine = "parse error at line 1, ";
    if (why.starts_with(kLine)) why = "not JSON at " + why.substr(kLine.size());
    return fail(Code::kInvalid, "%s", why.c_str());
  }
  const Json& json = *parsed;
  if (!json.is_object()) return fail(Code::kInvalid, "is %s: want an object", json.type_name());
  TraceRequest r;
  MC_TRY(r.timestamp_ms, member(json, "timestamp", kTimestampMax));
  MC_TRY(r.input_length, member(json, "input_length", kLengthMax));
  MC_TRY(r.output_length, member(json, "output_length", kLengthMax));
  const auto ids = json.find("hash_ids");
  if (ids == json.end()) return fail(Code::kInvalid, "no \"hash_ids\"");
  if (!ids->is_array())
    return fail(Code::kInvalid, "hash_ids is %s: want an array", ids->type_name());
  r.hash_ids.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned())
      return fail(Code::kInvalid, "hash_ids[%zu] is %s: want a whole number of 64 bits",
                  r.hash_ids.size(), escape(id.dump()).c_str());
    r.hash_ids.push_back(id.get<uint64_t>());
  }
  MC_TRY(r.cache_class, class_of(json));
  MC_TRY_(check_record(r, block_tokens));
  return r;
}

Result<Trace> parse_trace(std::string_view text, const std::string& name,
                          const ReadOptions& options) {
  Collector collector(name, options);
  Splitter splitter(collector);
  MC_TRY_(splitter.feed(text));
  MC_TRY_(splitter.end());
  return collector.finish();
}

Result<Trace> read_trace(const std::string& path, const ReadOptions& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return fail(Code::kInvalid, "trace %s is a directory: want a .jsonl file", path.c_str());
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno("trace %s", path.c_str());
  Collector collector(path, options);
  Splitter splitter(collector);
  std::string chunk(1 << 18, '\0');
  for (bool first = true; file && !collector.full(); first = false) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    const auto part = std::string_view(chunk).substr(0, static_cast<size_t>(file.gcount()));
    if (first) MC_TRY_(check_unpacked(path, part));
    MC_TRY_(splitter.feed(part));
  }
  if (file.bad()) return fail(Code::kInvalid, "trace %s: reading failed", path.c_str());
  MC_TRY_(splitter.end());
  return collector.finish();
}

std::string record_line(const TraceRequest& r) {
  std::string out = strf(
      "{\"timestamp\": %llu, \"input_length\": %llu, \"output_length\": %llu, "
      "\"hash_ids\": [",
      static_cast<ull>(r.timestamp_ms), static_cast<ull>(r.input_length),
      static_cast<ull>(r.output_length));
  for (size_t i = 0; i < r.hash_ids.size(); ++i)
    out += (i ? ", " : "") + std::to_string(r.hash_ids[i]);
  out += "]";
  if (r.cache_class != CacheClass::kNormal)
    out += strf(", \"class\": \"%s\"", kClassNames[static_cast<size_t>(r.cache_class)]);
  return out + "}\n";
}

Result<> write_trace(const std::string& path, const std::vector<TraceRequest>& records) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return fail_errno("write %s", path.c_str());
  for (const TraceRequest& r : records) file << record_line(r);
  file.flush();
  if (!file) return fail_errno("write %s", path.c_str());
  return {};
}

}  // namespace mc::trace
