// Digests: XXH3-64 for contents and tables, SHA-256 for block hashes and secrets.
//
// Thread: any.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc {

uint64_t xxh3(const void* data, size_t n, uint64_t seed = 0);
inline uint64_t xxh3(std::string_view s, uint64_t seed = 0) {
  return xxh3(s.data(), s.size(), seed);
}

// Computes XXH3-64 of bytes that arrive in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&& other) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) = delete;
  void update(const void* data, size_t n);
  uint64_t digest() const;

 private:
  void* state_;
};

using Digest = std::array<uint8_t, 32>;
Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::string_view key, std::string_view data);

// Identifies a block of tokens *and everything before it*: a chained SHA-256. Block i's hash is
// SHA-256(parent's 32 bytes, then the block's tokens as int32 little-endian); the first block's
// parent is 32 zero bytes or the digest of the tenant's cache salt. Source: design, "Blocks and
// keys"; vLLM's sha256 prefix hashing has the same shape.
struct BlockHash {
  Digest bytes{};
  uint64_t tag() const {  // the index key: the first 8 bytes
    uint64_t t;
    std::memcpy(&t, bytes.data(), sizeof t);
    return t;
  }
  std::string hex() const;  // 64 digits
  friend auto operator<=>(const BlockHash&, const BlockHash&) = default;
};
Result<BlockHash> parse_block_hash(std::string_view hex);
BlockHash chain_root(std::string_view salt);  // the parent of a prompt's first block
BlockHash chain_hash(const BlockHash& parent, std::span<const int32_t> tokens);
// The hashes of all full blocks of a prompt; a trailing partial block has none.
std::vector<BlockHash> chain_hashes(std::span<const int32_t> tokens, size_t block_size,
                                    std::string_view salt = {});

std::string hex(std::span<const uint8_t> bytes);
void append_hex(std::string& to, std::span<const uint8_t> bytes);

}  // namespace mc

template <>
struct std::hash<mc::BlockHash> {
  size_t operator()(const mc::BlockHash& h) const noexcept { return h.tag(); }
};
