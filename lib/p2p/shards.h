// Pure: the manifest of a published set, and the set of shards that a process holds. A manifest
// lists files, cut into shards, with a checksum of each shard.
//
// Requires: at most kFilesMax files and kShardsMax shards. Names come from a peer and become paths
// here, so they are checked before use.
// Thread: values.
// Source: the P2P store of the Mooncake transfer engine (read-only, 64 MiB shards).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "wire/codec.h"

namespace mc::p2p {

inline constexpr size_t kFilesMax = 10'000, kShardsMax = 500'000, kNameMax = 200, kPathMax = 1024;
inline constexpr size_t kFileNameMax = 240;  // its part has a longer one; the kernel takes 255
inline constexpr uint64_t kShardBytesMin = 64 * kKiB, kShardBytesMax = 1 * kGiB;

struct FileEntry {
  std::string path;  // relative, "/" between its parts
  uint64_t bytes = 0;
  static void fields(auto& a, auto& m) { a(m.path, m.bytes); }
};

struct Manifest {
  std::string name;
  uint64_t shard_bytes = 64 * kMiB;
  std::vector<FileEntry> files;
  std::vector<uint64_t> sums;  // XXH3-64 of each shard, files in order
  static void fields(auto& a, auto& m) {
    a(m.name, m.shard_bytes, wire::at_most<kFilesMax>(m.files), wire::at_most<kShardsMax>(m.sums));
  }

  uint64_t bytes() const;
  uint64_t id() const;  // differs when anything in it does
};

struct Shard {
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;  // in its file
};
std::vector<Shard> shards_of(const Manifest& manifest);

// kInvalid, naming what is wrong: a manifest from a peer is not to be trusted.
Result<> check(const Manifest& manifest);
Result<> check_name(const std::string& name);
// Relative, without empty parts, "." and "..": it stays below the folder it is put in.
bool safe_path(const std::string& path);
// Where the bytes of a file are until all of them are there: beside it, under a name of its own.
std::string part_path(const std::string& path);
bool is_part(const std::string& path);

// A bit a shard.
class ShardSet {
 public:
  ShardSet() = default;
  explicit ShardSet(size_t n) : n_(n), words_((n + 63) / 64) {}
  size_t size() const { return n_; }
  size_t count() const { return count_; }
  bool all() const { return count_ == n_; }
  bool has(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }
  void add(size_t i);
  void remove(size_t i);
  std::string bytes() const;  // little-endian words, for the wire
  static Result<ShardSet> from(const std::string& bytes, size_t n);

 private:
  size_t n_ = 0, count_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace mc::p2p
