// Encodes and decodes the SSD tier's on-disk structures. Fields are fixed little-endian; an XXH3-64
// checksum covers each structure. Input is untrusted. docs/formats.md describes the formats.
//
// Errors: kCorrupt (torn or changed); kUnsupported (a newer version wrote it).
// Thread: any. Pure: bytes in, values out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace mc::store::ssd {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint64_t kPageBytes = 4096;  // a record's header; values start at a multiple
inline constexpr uint64_t kValueBytesMax = uint64_t{1} << 40;
inline constexpr uint32_t kBucketKeysMax = 1 << 16;

struct Stored {                      // an object on the disk
  std::string key;                   // or tenant, NUL, key: see check_name()
  uint64_t bytes = 0, checksum = 0;  // of the value; XXH3-64
  Generation generation;
  uint64_t keep_until_s = 0;  // of a context, as KeepClock counts; 0: until evicted
  uint32_t klass = 0;         // ObjectClass
  friend bool operator==(const Stored&, const Stored&) = default;
};

// Checks a name on disks: a key, or tenant, NUL, key. Errors: kInvalid.
Result<> check_name(std::string_view name);

// ---- the folder: which backend wrote it
std::string encode_folder(std::string_view backend);
// Returns: the backend's name.
Result<std::string> decode_folder(std::string_view bytes);

// ---- the folder's clock: how far a process had counted, and the machine beside it
struct FolderMark {
  uint64_t own_s = 0, wall_s = 0, boot_s = 0;  // as ClockMark and HostTimes have them
  std::string boot;
};
std::string encode_mark(const FolderMark& mark);
Result<FolderMark> decode_mark(std::string_view bytes);

// ---- a record: this page, then the value (backends file and offset)
std::string encode_record(const Stored& object);  // kPageBytes long
Result<Stored> decode_record(std::string_view page);

// ---- a bucket: a header page, then the values; and its table of contents
struct BucketEntry {
  Stored object;
  uint64_t at = 0;  // of the value, in the .bucket file
};
struct BucketTable {
  uint64_t id = 0;
  uint64_t bytes = 0;  // of the .bucket file
  std::vector<BucketEntry> entries;
};
std::string encode_bucket_head(uint64_t id, uint64_t bytes);
Result<> decode_bucket_head(std::string_view page, uint64_t id, uint64_t bytes);
std::string encode_bucket_table(const BucketTable& table);
Result<BucketTable> decode_bucket_table(std::string_view bytes);

// ---- the index log of the offset backend: a header, then entries
struct LogEntry {
  uint64_t sequence = 0;
  bool add = true;  // false: the object of that key and generation was removed
  Stored object;
  uint64_t at = 0;  // of its record, in the data file
};
struct LogHead {
  uint64_t number = 0;    // of this log; the log with the largest counts
  uint64_t capacity = 0;  // of the data file
  uint64_t entries = 0;   // of the checkpoint at its start
};
inline constexpr size_t kLogHeadBytes = 64;
std::string encode_log_head(const LogHead& head);
Result<LogHead> decode_log_head(std::string_view bytes);
std::string encode_log_entry(const LogEntry& entry);  // a multiple of 8 bytes
struct LogRead {
  std::vector<LogEntry> entries;  // complete ones, in order
  uint64_t good_bytes = 0;        // up to the end of the last complete entry
  uint64_t bad_bytes = 0;         // skipped between them
  bool torn_tail = false;         // bytes that are no entry follow the last one
};
LogRead read_log(std::string_view after_head);

}  // namespace mc::store::ssd
