#include "p2p/shards.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/hash.h"

namespace mc::p2p {
namespace {

constexpr const char* kPartEnd = ".mc-part";

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

uint64_t shard_count(uint64_t bytes, uint64_t shard_bytes) {
  return bytes / shard_bytes + (bytes % shard_bytes != 0 ? 1 : 0);
}

}  // namespace

bool safe_path(const std::string& path) {
  if (path.empty() || path.size() > kPathMax || path.front() == '/' || path.back() == '/')
    return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(at, slash - at);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos)
      return false;
    at = slash + 1;
  }
  return true;
}

std::string part_path(const std::string& path) {
  const std::string_view name = last_name(path);
  return path.substr(0, path.size() - name.size()) + "." + std::string(name) + kPartEnd;
}

bool is_part(const std::string& path) {
  const std::string_view name = last_name(path);
  return name.starts_with('.') && name.ends_with(kPartEnd);
}

uint64_t Manifest::bytes() const {
  uint64_t n = 0;
  for (const FileEntry& f : files) n += f.bytes;
  return n;
}

uint64_t Manifest::id() const {
  uint64_t id = xxh3(name, shard_bytes);
  for (const FileEntry& f : files) id = xxh3(f.path, id ^ f.bytes);
  return xxh3(sums.data(), sums.size() * sizeof(uint64_t), id);
}

std::vector<Shard> shards_of(const Manifest& m) {
  std::vector<Shard> out;
  for (uint32_t f = 0; f < m.files.size(); ++f)
    for (uint64_t at = 0; at < m.files[f].bytes; at += m.shard_bytes)
      out.push_back({f, at, std::min(m.shard_bytes, m.files[f].bytes - at)});
  return out;
}

Result<> check_name(const std::string& name) {
  const auto ordinary = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == '/' || c == ':';
  };
  if (name.empty() || name.size() > kNameMax || !std::all_of(name.begin(), name.end(), ordinary))
    return fail(Code::kInvalid,
                "set name '%.40s': want 1 to %zu of A-Z a-z 0-9 . - _ / :", name.c_str(), kNameMax);
  return {};
}

Result<> check(const Manifest& m) {
  MC_TRY_(check_name(m.name));
  const char* name = m.name.c_str();
  if (m.shard_bytes < kShardBytesMin || m.shard_bytes > kShardBytesMax)
    return fail(Code::kInvalid, "set %s: shards of %llu bytes; want 64 KiB to 1 GiB", name,
                static_cast<unsigned long long>(m.shard_bytes));
  if (m.files.empty() || m.files.size() > kFilesMax)
    return fail(Code::kInvalid, "set %s: %zu files; want 1 to %zu", name, m.files.size(),
                kFilesMax);
  uint64_t count = 0;
  std::set<std::string> paths;
  for (const FileEntry& f : m.files) {
    if (!safe_path(f.path))
      return fail(Code::kInvalid, "set %s: '%.80s' is no path below a folder", name,
                  f.path.c_str());
    if (is_part(f.path) || last_name(f.path).size() > kFileNameMax)
      return fail(Code::kInvalid, "set %s: '%.80s': the name is reserved, or longer than %zu bytes",
                  name, f.path.c_str(), kFileNameMax);
    if (!paths.insert(f.path).second)
      return fail(Code::kInvalid, "set %s: '%.80s' is there twice", name, f.path.c_str());
    count += shard_count(f.bytes, m.shard_bytes);
    if (count > kShardsMax)
      return fail(Code::kInvalid, "set %s: more than %zu shards: make them larger", name,
                  kShardsMax);
  }
  if (count != m.sums.size())
    return fail(Code::kInvalid, "set %s: %llu shards, %zu checksums", name,
                static_cast<unsigned long long>(count), m.sums.size());
  return {};
}

void ShardSet::add(size_t i) {
  if (has(i)) return;
  words_[i / 64] |= uint64_t{1} << (i % 64);
  ++count_;
}

void ShardSet::remove(size_t i) {
  if (!has(i)) return;
  words_[i / 64] &= ~(uint64_t{1} << (i % 64));
  --count_;
}

std::string ShardSet::bytes() const {
  return {reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(uint64_t)};
}

Result<ShardSet> ShardSet::from(const std::string& bytes, size_t n) {
  ShardSet s(n);
  if (bytes.size() != s.words_.size() * sizeof(uint64_t))
    return fail(Code::kInvalid, "a set of %zu shards in %zu bytes", n, bytes.size());
  if (!bytes.empty()) std::memcpy(s.words_.data(), bytes.data(), bytes.size());
  if (n % 64 != 0) s.words_.back() &= (uint64_t{1} << (n % 64)) - 1;
  for (uint64_t w : s.words_) s.count_ += static_cast<size_t>(std::popcount(w));
  return s;
}

}  // namespace mc::p2p
