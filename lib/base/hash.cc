#include "base/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
// Short inputs are digested inline, long ones by the library, with the widest instructions that
// this CPU has: the inline ones are those of the oldest x86-64, at half the speed.
#define XXH_INLINE_ALL
#include <xxhash.h>
#undef XXH_PUBLIC_API
#define XXH_PUBLIC_API
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>

#include <bit>
#include <utility>

#include "base/units.h"

namespace mc {

static_assert(std::endian::native == std::endian::little, "add byte swaps before porting");

// The sanitizers see what the inline ones read, but nothing of the library's. g++ says by a macro
// that one is there, clang by a feature.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kInlineMax = SIZE_MAX;
#elif defined(__clang__)
constexpr size_t kInlineMax = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
                                  ? SIZE_MAX
                                  : XXH3_MIDSIZE_MAX;
#else
constexpr size_t kInlineMax = XXH3_MIDSIZE_MAX;
#endif

uint64_t xxh3(const void* data, size_t n, uint64_t seed) {
  if (n > kInlineMax) return XXH3_64bits_withSeed_dispatch(data, n, seed);
  return XXH3_64bits_withSeed(data, n, seed);
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  MC_CHECK(state_ != nullptr);
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}
Xxh3Stream::~Xxh3Stream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
Xxh3Stream::Xxh3Stream(Xxh3Stream&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)) {}
void Xxh3Stream::update(const void* data, size_t n) {
  auto* state = static_cast<XXH3_state_t*>(state_);
  if (n > kInlineMax)
    XXH3_64bits_update_dispatch(state, data, n);
  else
    XXH3_64bits_update(state, data, n);
}
uint64_t Xxh3Stream::digest() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

Digest sha256(std::span<const std::byte> data) {
  Digest out;
  unsigned n = 0;
  MC_CHECK(EVP_Digest(data.data(), data.size(), out.data(), &n, EVP_sha256(), nullptr) == 1);
  return out;
}

Digest hmac_sha256(std::string_view key, std::string_view data) {
  Digest out;
  unsigned n = 0;
  MC_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(data.data()), data.size(), out.data(),
                &n) != nullptr);
  return out;
}

void append_hex(std::string& to, std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  size_t at = to.size();
  to.resize(at + bytes.size() * 2);
  for (uint8_t b : bytes) {
    to[at++] = kDigits[b >> 4];
    to[at++] = kDigits[b & 15];
  }
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  append_hex(out, bytes);
  return out;
}

std::string BlockHash::hex() const { return mc::hex(bytes); }

Result<BlockHash> parse_block_hash(std::string_view text) {
  BlockHash h;
  auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() != 64)
    return fail(Code::kInvalid, "block hash '%s': want 64 hex digits", escape(text).c_str());
  for (size_t i = 0; i < 32; ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0)
      return fail(Code::kInvalid, "block hash '%s': want 64 hex digits", escape(text).c_str());
    h.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return h;
}

BlockHash chain_root(std::string_view salt) {
  BlockHash root;
  if (!salt.empty()) root.bytes = sha256(std::as_bytes(std::span(salt)));
  return root;
}

namespace {

// SHA-256 of many short texts: to look the algorithm up and to make a context for each costs more
// than a block of 16 tokens does. One a thread.
class ManySha256 {
 public:
  ManySha256() : algorithm_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
    MC_CHECK(algorithm_ != nullptr && context_ != nullptr);
  }
  ~ManySha256() {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(algorithm_);
  }
  ManySha256(const ManySha256&) = delete;
  ManySha256& operator=(const ManySha256&) = delete;
  Digest of(std::span<const std::byte> begin, std::span<const std::byte> end) {
    Digest out;
    MC_CHECK(EVP_DigestInit_ex2(context_, algorithm_, nullptr) == 1 &&
             EVP_DigestUpdate(context_, begin.data(), begin.size()) == 1 &&
             EVP_DigestUpdate(context_, end.data(), end.size()) == 1 &&
             EVP_DigestFinal_ex(context_, out.data(), nullptr) == 1);
    return out;
  }

 private:
  EVP_MD* const algorithm_;
  EVP_MD_CTX* const context_;
};

}  // namespace

BlockHash chain_hash(const BlockHash& parent, std::span<const int32_t> tokens) {
  static thread_local ManySha256 sha256;
  return {sha256.of(std::as_bytes(std::span(parent.bytes)), std::as_bytes(tokens))};
}

std::vector<BlockHash> chain_hashes(std::span<const int32_t> tokens, size_t block_size,
                                    std::string_view salt) {
  MC_CHECK(block_size > 0);
  BlockHash parent = chain_root(salt);
  std::vector<BlockHash> out;
  out.reserve(tokens.size() / block_size);
  for (size_t at = 0; at + block_size <= tokens.size(); at += block_size) {
    parent = chain_hash(parent, tokens.subspan(at, block_size));
    out.push_back(parent);
  }
  return out;
}

}  // namespace mc
