// The tokens of a vocabulary by their bytes, as a tree in the order in which it is walked.
//
// Node 0 is the root. The nodes under node i are i + 1 to end(i), without that. Tokens without
// bytes are in no node.
//
// Thread: const calls, any. Pure.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mc::model::grammar {

// One bit a token.
class TokenSet {
 public:
  explicit TokenSet(size_t tokens = 0) : tokens_(tokens), words_((tokens + 63) / 64) {}
  size_t size() const { return tokens_; }
  bool has(size_t token) const {
    return token < tokens_ && (words_[token / 64] >> token % 64 & 1) != 0;
  }
  void add(size_t token) { words_[token / 64] |= uint64_t{1} << token % 64; }
  void remove(size_t token) { words_[token / 64] &= ~(uint64_t{1} << token % 64); }
  void add(const TokenSet& other);  // of as many tokens
  void clear() { words_.assign(words_.size(), 0); }
  bool none() const;
  size_t count() const;
  std::span<const uint64_t> words() const { return words_; }

 private:
  size_t tokens_ = 0;
  std::vector<uint64_t> words_;
};

// The bytes that stand for a token that is no text, as the mark of a call: a grammar names it so,
// and no text has them, as UTF-8 has no byte 0xff.
std::string mark_bytes(uint32_t token);

class TokenTrie {
 public:
  static constexpr size_t kLongest = 512;  // bytes; longer tokens are left out
  // `tokens[i]`: what token i stands for.
  explicit TokenTrie(std::span<const std::string_view> tokens);

  size_t vocab() const { return vocab_; }
  size_t nodes() const { return bytes_.size(); }
  uint8_t byte(uint32_t node) const { return bytes_[node]; }
  uint16_t depth(uint32_t node) const { return depths_[node]; }
  uint32_t end(uint32_t node) const { return ends_[node]; }
  std::span<const int32_t> tokens(uint32_t node) const {
    return std::span(tokens_).subspan(first_[node], first_[node + 1] - first_[node]);
  }

 private:
  size_t vocab_;
  std::vector<uint8_t> bytes_;
  std::vector<uint16_t> depths_;
  std::vector<uint32_t> ends_, first_;
  std::vector<int32_t> tokens_;
};

}  // namespace mc::model::grammar
