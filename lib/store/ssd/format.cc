#include "store/ssd/format.h"

#include <cstring>

#include "base/hash.h"

namespace mc::store::ssd {
namespace {

constexpr std::string_view kFolderMagic = "mcssddir", kRecordMagic = "mcrecord",
                           kHeadMagic = "mcbucket", kTableMagic = "mctables",
                           kLogMagic = "mcindex\n", kClockMagic = "mcsclock";
constexpr uint32_t kEntryMagic = 0x4543'4d49;
constexpr size_t kTenantBytesMax = 255;
constexpr size_t kEntryBytesMax = 128 + kTenantBytesMax + kObjectKeyBytesMax;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the disk is little-endian");

template <class T>
void put(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
void put_hash(std::string& out) { put(out, xxh3(out)); }

class In {  // reads fields; after an error all are zero and ok() is false
 public:
  explicit In(std::string_view bytes) : left_(bytes) {}
  template <class T>
  T get() {
    T v{};
    if (left_.size() < sizeof v) {
      bad_ = true;
      return v;
    }
    std::memcpy(&v, left_.data(), sizeof v);
    left_.remove_prefix(sizeof v);
    return v;
  }
  std::string_view text(size_t n) {
    if (left_.size() < n) {
      bad_ = true;
      return {};
    }
    const auto out = left_.substr(0, n);
    left_.remove_prefix(n);
    return out;
  }
  size_t left() const { return left_.size(); }
  bool ok() const { return !bad_; }

 private:
  std::string_view left_;
  bool bad_ = false;
};

// Every version has: magic 8, version u32, fields; the last 8 bytes hash everything before them.
Result<In> open_sealed(std::string_view bytes, std::string_view magic, const char* what) {
  if (bytes.size() < magic.size() + 4 + 8) return fail(Code::kCorrupt, "%s: too short", what);
  In in(bytes.substr(0, bytes.size() - 8));
  if (in.text(magic.size()) != magic) return fail(Code::kCorrupt, "%s: no such magic", what);
  const auto version = in.get<uint32_t>();
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + bytes.size() - 8, 8);
  const bool whole = hash == xxh3(bytes.substr(0, bytes.size() - 8));
  if (whole && version > kFormatVersion)
    return fail(Code::kUnsupported, "%s of version %u: this mc knows versions up to %u", what,
                version, kFormatVersion);
  if (!whole || version == 0) return fail(Code::kCorrupt, "%s: checksum does not match", what);
  return in;
}

std::string start(std::string_view magic) {
  std::string out(magic);
  put(out, kFormatVersion);
  return out;
}

// Pads with zeros so that the hash ends the page.
std::string seal_page(std::string out) {
  out.resize(kPageBytes - 8);
  put_hash(out);
  return out;
}

void put_object(std::string& out, const Stored& o, uint64_t at) {
  put(out, at);
  put(out, o.bytes);
  put(out, o.checksum);
  put(out, o.generation.n);
  put(out, o.keep_until_s);
  put(out, o.klass);
  put(out, static_cast<uint32_t>(o.key.size()));
  out += o.key;
}

Result<BucketEntry> get_object(In& in, const char* what) {
  BucketEntry e;
  e.at = in.get<uint64_t>();
  e.object.bytes = in.get<uint64_t>();
  e.object.checksum = in.get<uint64_t>();
  e.object.generation = Generation{in.get<uint64_t>()};
  e.object.keep_until_s = in.get<uint64_t>();
  e.object.klass = in.get<uint32_t>();
  const auto key_bytes = in.get<uint32_t>();
  e.object.key = in.text(key_bytes);
  if (!in.ok() || !check_name(e.object.key) || e.object.bytes > kValueBytesMax ||
      !e.object.generation || e.at % kPageBytes != 0)
    return fail(Code::kCorrupt, "%s: impossible fields of an object", what);
  return e;
}

}  // namespace

Result<> check_name(std::string_view name) {
  const size_t nul = name.find('\0');
  if (nul == std::string_view::npos) return check_object_key(name);
  if (nul == 0 || nul > kTenantBytesMax)
    return fail(Code::kInvalid, "a tenant of %zu bytes: want 1 to %zu", nul, kTenantBytesMax);
  return check_object_key(name.substr(nul + 1));
}

std::string encode_folder(std::string_view backend) {
  std::string out = start(kFolderMagic);
  put(out, static_cast<uint32_t>(backend.size()));
  out += backend;
  put_hash(out);
  return out;
}

Result<std::string> decode_folder(std::string_view bytes) {
  MC_TRY(In in, open_sealed(bytes, kFolderMagic, "folder"));
  const auto n = in.get<uint32_t>();
  std::string backend(in.text(n));
  if (!in.ok()) return fail(Code::kCorrupt, "folder: too short");
  return backend;
}

std::string encode_mark(const FolderMark& mark) {
  std::string out = start(kClockMagic);
  put(out, mark.own_s);
  put(out, mark.wall_s);
  put(out, mark.boot_s);
  put(out, static_cast<uint32_t>(mark.boot.size()));
  out += mark.boot;
  put_hash(out);
  return out;
}

Result<FolderMark> decode_mark(std::string_view bytes) {
  MC_TRY(In in, open_sealed(bytes, kClockMagic, "clock"));
  FolderMark out;
  out.own_s = in.get<uint64_t>();
  out.wall_s = in.get<uint64_t>();
  out.boot_s = in.get<uint64_t>();
  const auto n = in.get<uint32_t>();
  out.boot = in.text(n);
  if (!in.ok()) return fail(Code::kCorrupt, "clock: too short");
  return out;
}

std::string encode_record(const Stored& object) {
  std::string out = start(kRecordMagic);
  put_object(out, object, 0);
  return seal_page(std::move(out));
}

Result<Stored> decode_record(std::string_view page) {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "record: too short");
  MC_TRY(In in, open_sealed(page, kRecordMagic, "record"));
  MC_TRY(BucketEntry e, get_object(in, "record"));
  return std::move(e.object);
}

std::string encode_bucket_head(uint64_t id, uint64_t bytes) {
  std::string out = start(kHeadMagic);
  put(out, uint32_t{0});
  put(out, id);
  put(out, bytes);
  return seal_page(std::move(out));
}

Result<> decode_bucket_head(std::string_view page, uint64_t id, uint64_t bytes) {
  if (page.size() != kPageBytes) return fail(Code::kCorrupt, "bucket: too short");
  MC_TRY(In in, open_sealed(page, kHeadMagic, "bucket"));
  (void)in.get<uint32_t>();
  if (in.get<uint64_t>() != id || in.get<uint64_t>() != bytes)
    return fail(Code::kCorrupt, "bucket: it belongs to another table of contents");
  return {};
}

std::string encode_bucket_table(const BucketTable& table) {
  std::string out = start(kTableMagic);
  put(out, static_cast<uint32_t>(table.entries.size()));
  put(out, table.id);
  put(out, table.bytes);
  for (const BucketEntry& e : table.entries) put_object(out, e.object, e.at);
  put_hash(out);
  return out;
}

Result<BucketTable> decode_bucket_table(std::string_view bytes) {
  MC_TRY(In in, open_sealed(bytes, kTableMagic, "bucket table"));
  BucketTable table;
  const auto count = in.get<uint32_t>();
  table.id = in.get<uint64_t>();
  table.bytes = in.get<uint64_t>();
  if (count > kBucketKeysMax) return fail(Code::kCorrupt, "bucket table: %u entries", count);
  for (uint32_t i = 0; i < count; ++i) {
    MC_TRY(BucketEntry e, get_object(in, "bucket table"));
    if (e.at < kPageBytes || e.at > table.bytes || e.object.bytes > table.bytes - e.at)
      return fail(Code::kCorrupt, "bucket table: an object outside its bucket");
    table.entries.push_back(std::move(e));
  }
  if (!in.ok() || in.left() > 0) return fail(Code::kCorrupt, "bucket table: bad length");
  return table;
}

std::string encode_log_head(const LogHead& head) {
  std::string out = start(kLogMagic);
  put(out, uint32_t{0});
  put(out, head.number);
  put(out, head.capacity);
  put(out, head.entries);
  out.resize(kLogHeadBytes - 8);
  put_hash(out);
  return out;
}

Result<LogHead> decode_log_head(std::string_view bytes) {
  if (bytes.size() < kLogHeadBytes) return fail(Code::kCorrupt, "index log: too short");
  MC_TRY(In in, open_sealed(bytes.substr(0, kLogHeadBytes), kLogMagic, "index log"));
  (void)in.get<uint32_t>();
  LogHead head;
  head.number = in.get<uint64_t>();
  head.capacity = in.get<uint64_t>();
  head.entries = in.get<uint64_t>();
  return head;
}

// magic u32, total length u32, sequence u64, kind u32, zero u32, the object, padding to 8, hash
// u64.
std::string encode_log_entry(const LogEntry& entry) {
  std::string out;
  put(out, kEntryMagic);
  put(out, uint32_t{0});
  put(out, entry.sequence);
  put(out, uint32_t{entry.add ? 1u : 2u});
  put(out, uint32_t{0});
  put_object(out, entry.object, entry.at);
  out.resize((out.size() + 7) / 8 * 8);
  const auto length = static_cast<uint32_t>(out.size() + 8);
  std::memcpy(out.data() + 4, &length, sizeof length);
  put_hash(out);
  return out;
}

namespace {

std::optional<LogEntry> entry_at(std::string_view bytes, size_t& length) {
  In in(bytes);
  if (in.get<uint32_t>() != kEntryMagic) return std::nullopt;
  const auto n = in.get<uint32_t>();
  if (!in.ok() || n % 8 != 0 || n < 80 || n > kEntryBytesMax || n > bytes.size())
    return std::nullopt;
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + n - 8, 8);
  if (hash != xxh3(bytes.substr(0, n - 8))) return std::nullopt;
  LogEntry entry;
  entry.sequence = in.get<uint64_t>();
  const auto kind = in.get<uint32_t>();
  (void)in.get<uint32_t>();
  auto object = get_object(in, "index log");
  if (!object || kind < 1 || kind > 2) return std::nullopt;
  entry.add = kind == 1;
  entry.object = std::move(object->object);
  entry.at = object->at;
  length = n;
  return entry;
}

}  // namespace

LogRead read_log(std::string_view bytes) {
  LogRead out;
  uint64_t bad = 0;  // bytes since the last complete entry
  for (size_t at = 0; at + 8 <= bytes.size();) {
    size_t length = 0;
    auto entry = entry_at(bytes.substr(at), length);
    if (!entry || (!out.entries.empty() && entry->sequence <= out.entries.back().sequence)) {
      bad += 8;
      at += 8;
      continue;
    }
    out.bad_bytes += bad;
    bad = 0;
    at += length;
    out.good_bytes = at;
    out.entries.push_back(std::move(*entry));
  }
  const auto tail = bytes.substr(out.good_bytes);
  out.torn_tail = tail.find_first_not_of('\0') != std::string_view::npos;
  return out;
}

}  // namespace mc::store::ssd
