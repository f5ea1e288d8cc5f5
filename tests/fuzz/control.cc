// What comes from other processes of the cluster, from engines and from etcd, and what is read back
// from disks, fuzzed: it is read, or refused with a reason; what was read is written and read again
// as the same.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "base/json.h"
#include "serve/external/external_events.h"
#include "store/election/etcd.h"
#include "store/node/segment_index.h"
#include "store/ssd/format.h"
#include "tests/frozen/messages.h"
#include "tests/fuzz/target.h"
#include "trace/records/csv.h"
#include "trace/records/records.h"
#include "wire/value.h"

namespace mc::fuzz {
namespace {

namespace ssd = store::ssd;

template <class T>
void check_reason(const Result<T>& outcome) {
  MC_CHECK(outcome || !outcome.error().what.empty());
}

// Reads the input as every message.
struct Reread {
  std::string_view input;
  template <class... M>
  void all() const {
    (one<M>(), ...);
  }
  template <class M>
  void one() const {
    const auto read = wire::decode<M>(input);
    check_reason(read);
    if (!read) return;
    const std::string bytes = wire::encode(*read);
    const auto again = wire::decode<M>(bytes);
    MC_CHECK(again && wire::encode(*again) == bytes);
  }
};
struct Encode {
  std::vector<std::string>& out;
  template <class... M>
  void all() const {
    (out.push_back(wire::encode(M{})), ...);
  }
};

// A literal that may hold NUL.
template <size_t N>
std::string literal(const char (&text)[N]) {
  return {text, N - 1};
}

// Every field of a tree of MessagePack, to a depth.
size_t walk(const wire::Value& value, int depth) {
  size_t seen = 1 + value.text().size() + value.bytes().size();
  seen += value.integer() ? 1 : 0;
  seen += value.unsigned_integer() ? 1 : 0;
  seen += value.number() && std::isfinite(*value.number()) ? 1 : 0;
  seen += value["type"].text().size();
  if (value.kind() != wire::Value::Kind::kArray || depth > 64) return seen;
  for (size_t i = 0; i < value.size(); ++i) seen += walk(value.at(i), depth + 1);
  return seen + walk(value.at(value.size()), 65);
}

// The last eight bytes hash those before them, so that what is behind the hash is reached.
std::string sealed(std::string_view input) {
  std::string out(input);
  if (out.size() < 8) return out;
  const uint64_t hash = xxh3(std::string_view(out).substr(0, out.size() - 8));
  std::memcpy(out.data() + out.size() - 8, &hash, sizeof hash);
  return out;
}

// The same for entries that have their length as their second u32: of all of them (`whole`), or
// between the first eight bytes and the hash.
std::string sealed_entries(std::string_view input, bool whole) {
  std::string out(input);
  for (size_t at = 0; at + 16 <= out.size();) {
    uint32_t length = 0;
    std::memcpy(&length, out.data() + at + 4, sizeof length);
    const size_t n = whole ? length : size_t{length} + 16;
    if (n < 16 || n > out.size() - at) break;
    const uint64_t hash = xxh3(std::string_view(out).substr(at, n - 8));
    std::memcpy(out.data() + at + n - 8, &hash, sizeof hash);
    at += n;
  }
  return out;
}

std::string read_back(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A log of a segment without entries, and a file to put others into.
struct IndexPlace {
  std::string path = "/dev/shm/mc-fuzz-index." + std::to_string(::getpid());
  store::SegmentIndex::Segment of;
  std::string header;
  IndexPlace() {
    of.device = of.inode = 1;
    of.capacity = of.bytes = 1 << 20;
    of.path = "segment";
    of.boot = "boot";
    header = with({});
  }
  ~IndexPlace() { remove(); }
  void remove() const {
    std::error_code error;
    std::filesystem::remove(path, error);
    std::filesystem::remove(path + ".next", error);
  }
  std::string with(const std::vector<store::IndexEntry>& entries) const {
    remove();
    auto fresh = of;
    fresh.bytes = 0;  // no content yet that the index must know
    auto index = store::SegmentIndex::open(path, fresh);
    MC_CHECK(index && (*index)->begin(of, entries));
    return read_back(path);
  }
};
IndexPlace& index_place() {
  static IndexPlace place;
  return place;
}

}  // namespace

void run_messages(std::string_view input) { each_message(Reread{input}); }
std::vector<std::string> seeds_messages() {
  std::vector<std::string> out;
  each_message(Encode{out});
  return out;
}

void run_values(std::string_view input) {
  const auto read = wire::Document::parse(input, 64 * kKiB);
  check_reason(read);
  if (read) MC_CHECK(walk(read->root(), 0) > 0);
}

void run_events(std::string_view input) {
  run_values(input);
  const auto batch = serve::decode_events(input);
  check_reason(batch);
  if (!batch) return;
  for (const serve::ExternalEvent& e : batch->events)
    if (e.kind == serve::ExternalEvent::Kind::kStored)
      MC_CHECK(e.tokens.size() == e.hashes.size() * e.block_tokens);
}
std::vector<std::string> seeds_events() {
  // [1.5, [["BlockStored", [1, 2], nil, [1, 2, 3, 4], 2, nil, "GPU"]], 0], and the map's form
  const std::string array = literal(
      "\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x97\xab"
      "BlockStored\x92\1\2\xc0\x94\1\2\3\4\2\xc0\xa3GPU\0");
  const std::string map = literal(
      "\x92\1\x92\x82\xa4type\xac"
      "BlockRemoved\xac"
      "block_hashes\x91\xc4\x08"
      "12345678\x81\xa4type\xb0"
      "AllBlocksCleared");
  for (const std::string& seed : {array, map}) MC_CHECK(serve::decode_events(seed).has_value());
  return {array, map};
}

void run_etcd(std::string_view input) {
  const std::string body(input);
  using Kind = store::EtcdQuestion::Kind;
  for (const Kind kind : {Kind::kGrant, Kind::kJoin, Kind::kRenew, Kind::kLook, Kind::kCampaign,
                          Kind::kRaise, Kind::kResign})
    for (const int status : {200, 503})
      check_reason(store::answer_to({.kind = kind, .lease = 7}, "mc", status, body));
  const auto masters = store::masters_answer("mc", 200, body);
  check_reason(masters);
}
std::vector<std::string_view> words_etcd() {
  return {"\"ID\":\"7\"",
          "\"TTL\":\"3\"",
          "\"kvs\":[]",
          "\"succeeded\":true",
          "\"responses\":[{\"response_range\":{\"kvs\":[]}}]",
          "\"key\":\"bWMvc3RvcmUvbGVhZGVyL2Fk ZHJlc3M=\"",
          "\"value\":\"MTI3LjAuMC4xOjE=\"",
          "\"mod_revision\":\"18446744073709551616\"",
          "\"lease\":\"-1\"",
          "null",
          "{}",
          "[]"};
}

void run_traces(std::string_view input) {
  for (const bool strict : {false, true}) {
    const auto trace = trace::parse_trace(input, "input", {.strict = strict});
    check_reason(trace);
    if (trace)
      for (const trace::TraceRequest& r : trace->records) {
        const auto again = trace::parse_record(trace::record_line(r));
        MC_CHECK(again && *again == r);
      }
    check_reason(trace::parse_csv(input, "input", {.strict = strict}));
  }
}
std::vector<std::string_view> words_traces() {
  return {"\"timestamp\": 0",
          "\"input_length\": 1",
          "\"output_length\": 18446744073709551616",
          "\"hash_ids\": [0, 1]",
          "\"class\": \"context\"",
          "TIMESTAMP,ContextTokens,GeneratedTokens\n",
          "2023-11-16 18:15:46.6805900,4808,10\n",
          "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
          "5,ChatGPT,472,18,490,Conversation log\n",
          "1e999",
          "-1",
          "nan",
          "\r\n",
          "\"",
          ",",
          "\n"};
}

void run_disk(std::string_view input) {
  const std::string whole = sealed(input);
  check_reason(ssd::decode_folder(whole));
  const auto record = ssd::decode_record(whole);
  check_reason(record);
  if (record) {
    const auto again = ssd::decode_record(ssd::encode_record(*record));
    MC_CHECK(again && *again == *record);
  }
  check_reason(ssd::decode_bucket_head(whole, 1, 8192));
  const auto table = ssd::decode_bucket_table(whole);
  check_reason(table);
  if (table) {
    const auto again = ssd::decode_bucket_table(ssd::encode_bucket_table(*table));
    MC_CHECK(again && again->entries.size() == table->entries.size());
  }
  check_reason(ssd::decode_log_head(whole));
  const std::string entries = sealed_entries(input, true);
  const ssd::LogRead log = ssd::read_log(entries);
  MC_CHECK(log.good_bytes <= entries.size());
  for (const ssd::LogEntry& e : log.entries)
    MC_CHECK(ssd::read_log(ssd::encode_log_entry(e)).entries.size() == 1);
}
std::vector<std::string> seeds_disk() {
  const ssd::Stored object{"key", 100, 7, Generation{3}, 9, 1};
  return {ssd::encode_folder("bucket"),
          ssd::encode_record(object),
          ssd::encode_bucket_head(1, 8192),
          ssd::encode_bucket_table(
              {1, 12288, {{object, 4096}, {{"other", 1, 2, Generation{4}, 0, 0}, 8192}}}),
          ssd::encode_log_head({1, 1 << 20, 0}),
          ssd::encode_log_entry({1, true, object, 4096}) +
              ssd::encode_log_entry({2, false, object, 4096})};
}

void run_index(std::string_view input) {
  const IndexPlace& place = index_place();
  std::ofstream(place.path, std::ios::binary) << place.header << sealed_entries(input, false);
  const auto index = store::SegmentIndex::open(place.path, place.of);
  check_reason(index);
  if (!index) return;
  for (const store::ObjectRecord& r : (*index)->records())
    MC_CHECK(r.bytes <= place.of.capacity && r.offset <= place.of.capacity - r.bytes);
}
std::vector<std::string> seeds_index() {
  const IndexPlace& place = index_place();
  std::vector<store::IndexEntry> entries(3);
  for (store::IndexEntry& e : entries) {
    const auto n = static_cast<uint64_t>(&e - entries.data());
    e.kind = static_cast<uint8_t>(1 + n);
    e.record.offset = n * 4096;
    e.record.bytes = 100;
  }
  return {place.with(entries).substr(place.header.size())};
}

}  // namespace mc::fuzz
