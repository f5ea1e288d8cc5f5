#include "wire/codec.h"

#include <array>
#include <bit>
#include <cstring>
#include <msgpack.hpp>

namespace mc::wire {
namespace {

struct Sink {
  std::string out;
  void write(const char* p, size_t n) { out.append(p, n); }
};
using Packer = msgpack::packer<Sink>;

constexpr uint8_t kArray16 = 0xdc;
constexpr size_t kBytesOfMany = 4;  // an element of a long list, about: room for all of it at once

uint32_t checked(size_t n) {
  MC_CHECK(n <= UINT32_MAX);
  return static_cast<uint32_t>(n);
}

}  // namespace

void Writer::grow(size_t n) { out_.resize(std::max(2 * out_.size(), used_ + n)); }

void Writer::put_bytes(const void* p, size_t n) {
  if (n > 0) std::memcpy(room(n), p, n);
  used_ += n;
}

// Source: the MessagePack specification, "Formats"; the shortest that holds the number.
void Writer::big_endian(uint8_t first, uint64_t v, size_t bytes) {
  char* at = room(1 + sizeof v);
  at[0] = static_cast<char>(first);
  v <<= 64 - 8 * bytes;
  if (std::endian::native == std::endian::little) v = __builtin_bswap64(v);
  std::memcpy(at + 1, &v, sizeof v);
  used_ += 1 + bytes;
}
void Writer::head(size_t n, uint8_t sixteen) {
  if (n <= UINT16_MAX) return big_endian(sixteen, n, 2);
  if (sixteen == kArray16) (void)room(kBytesOfMany * n);
  big_endian(static_cast<uint8_t>(sixteen + 1), checked(n), 4);
}
void Writer::put(bool v) { put_byte(v ? 0xc3 : 0xc2); }
void Writer::put(double v) {
  Sink sink;
  Packer(sink).pack(v);
  put_bytes(sink.out.data(), sink.out.size());
}
void Writer::put(const std::string& v) {
  if (v.size() < 32)
    put_byte(0xa0 | v.size());
  else if (v.size() <= UINT8_MAX)
    big_endian(0xd9, v.size(), 1);
  else
    head(v.size(), 0xda);
  put_bytes(v.data(), v.size());
}
void Writer::put_binary(const void* p, size_t n) {
  if (n <= UINT8_MAX)
    big_endian(0xc4, n, 1);
  else
    head(n, 0xc5);
  put_bytes(p, n);
}
void Writer::put(const Blob& v) { put_binary(v.bytes.data(), v.bytes.size()); }
void Writer::put(const BlockHash& v) { put_binary(v.bytes.data(), v.bytes.size()); }
// The bytes are one word, written whole; what counts of it follows from the number's bits, without
// a branch: the tokens of a prompt have no pattern to predict.
void Writer::put_number(uint64_t v) {
  struct Form {
    uint64_t first = 0;               // byte, where it has one of its own
    unsigned shift = 56, behind = 0;  // bits: to the word's top; 8 where a first byte precedes
    size_t bytes = 1;
  };
  static constexpr auto kForms = [] {
    std::array<Form, 33> forms{};  // by the number's bits
    forms[8] = {0xcc, 56, 8, 2};
    for (size_t bits = 9; bits <= 16; ++bits) forms[bits] = {0xcd, 48, 8, 3};
    for (size_t bits = 17; bits <= 32; ++bits) forms[bits] = {0xce, 32, 8, 5};
    return forms;
  }();
  static_assert(std::endian::native == std::endian::little, "a word's lowest byte comes first");
  if (v > UINT32_MAX) return big_endian(0xcf, v, 8);
  const Form& form = kForms[static_cast<size_t>(std::bit_width(v))];
  const uint64_t word = __builtin_bswap64(v << form.shift) << form.behind | form.first;
  std::memcpy(room(sizeof word), &word, sizeof word);
  used_ += form.bytes;
}
[[gnu::flatten]] void Writer::put_signed(int64_t v) {
  if (v >= 0) return put_number(static_cast<uint64_t>(v));  // the same forms
  Sink sink;
  Packer(sink).pack(v);
  put_bytes(sink.out.data(), sink.out.size());
}

Reader::Reader(std::string_view in) : at_(in.data()), end_(in.data() + in.size()) {
  if (in.size() > kMessageBytesMax) fault();
}

// Marks the input as bad: nothing more is read.
void Reader::fault() {
  bad_ = true;
  left_ = 0;
  at_ = end_;
}

void Reader::refuse(size_t elements, size_t most) {
  fault();
  elements_ = elements;
  most_ = most;
}

Failure Reader::failure(const char* name, size_t bytes) const {
  if (elements_ > most_)
    return fail(Code::kInvalid, "%s message with a list of %zu, %zu at most", name, elements_,
                most_);
  if (elements_ > 0)
    return fail(Code::kInvalid, "%s message of %zu bytes, which would take more than %s of memory",
                name, bytes, bytes_text(kDecodedBytesMax).c_str());
  return fail(Code::kInvalid, "malformed %s message of %zu bytes", name, bytes);
}

uint64_t Reader::big_endian(size_t bytes) {
  if (static_cast<size_t>(end_ - at_) < bytes) {
    fault();
    return 0;
  }
  uint64_t v = 0;
  if (bytes == sizeof v) {
    std::memcpy(&v, at_, sizeof v);
    at_ += sizeof v;
    return std::endian::native == std::endian::little ? __builtin_bswap64(v) : v;
  }
  for (size_t i = 0; i < bytes; ++i) v = v << 8 | static_cast<uint8_t>(*at_++);
  return v;
}

std::string_view Reader::take_bytes(uint64_t n) {
  if (static_cast<uint64_t>(end_ - at_) < n) {
    fault();
    return {};
  }
  at_ += n;
  return {at_ - n, n};
}

// Source: the MessagePack specification, "Formats". Our messages have no maps or extensions.
Reader::Token Reader::take() {
  using Kind = Token::Kind;
  if (bad_ || left_ == 0 || at_ == end_) {
    fault();
    return {};
  }
  --left_;
  const auto first = static_cast<uint8_t>(*at_++);
  const auto signed_of = [](uint64_t v, size_t bytes) -> Token {
    const auto shift = static_cast<int>(64 - 8 * bytes);
    const int64_t value = static_cast<int64_t>(v << shift) >> shift;
    return {value < 0 ? Kind::kNegative : Kind::kUnsigned, static_cast<uint64_t>(value), 0};
  };
  if (first < 0x80) return {Kind::kUnsigned, first, 0};
  if (first >= 0xe0) return signed_of(first, 1);
  if (first >= 0xa0 && first < 0xc0) return {Kind::kStr, first & 0x1fu, 0};
  if (first >= 0x90 && first < 0xa0) return {Kind::kArray, first & 0x0fu, 0};
  switch (first) {
    case 0xc0: return {Kind::kNil, 0, 0};
    case 0xc2:
    case 0xc3: return {Kind::kBool, first & 1u, 0};
    case 0xc4: return {Kind::kBin, big_endian(1), 0};
    case 0xc5: return {Kind::kBin, big_endian(2), 0};
    case 0xc6: return {Kind::kBin, big_endian(4), 0};
    case 0xca:
      return {Kind::kDouble, 0, std::bit_cast<float>(static_cast<uint32_t>(big_endian(4)))};
    case 0xcb: return {Kind::kDouble, 0, std::bit_cast<double>(big_endian(8))};
    case 0xcc: return {Kind::kUnsigned, big_endian(1), 0};
    case 0xcd: return {Kind::kUnsigned, big_endian(2), 0};
    case 0xce: return {Kind::kUnsigned, big_endian(4), 0};
    case 0xcf: return {Kind::kUnsigned, big_endian(8), 0};
    case 0xd0: return signed_of(big_endian(1), 1);
    case 0xd1: return signed_of(big_endian(2), 2);
    case 0xd2: return signed_of(big_endian(4), 4);
    case 0xd3: return signed_of(big_endian(8), 8);
    case 0xd9: return {Kind::kStr, big_endian(1), 0};
    case 0xda: return {Kind::kStr, big_endian(2), 0};
    case 0xdb: return {Kind::kStr, big_endian(4), 0};
    case 0xdc: return {Kind::kArray, big_endian(2), 0};
    case 0xdd: return {Kind::kArray, big_endian(4), 0};
    default: fault(); return {};
  }
}

// An element takes at least one byte: an array with more elements than bytes left is false.
size_t Reader::enter_long() {
  const Token t = take();
  const size_t outer = left_;
  if (!bad_ &&
      (t.kind != Token::Kind::kArray || t.n > kListMax || t.n > static_cast<uint64_t>(end_ - at_)))
    fault();
  left_ = bad_ ? 0 : t.n;
  return outer;
}

// Skips the rest of the array, with elements of any kind and depth.
void Reader::pass_over() {
  while (!bad_ && left_ > 0) {
    const Token t = take();
    if (t.kind == Token::Kind::kStr || t.kind == Token::Kind::kBin) take_bytes(t.n);
    if (t.kind != Token::Kind::kArray) continue;
    if (t.n > kListMax || t.n > static_cast<uint64_t>(end_ - at_)) fault();
    if (!bad_) left_ += t.n;
  }
}

uint64_t Reader::get_number(uint64_t max) {
  const Token t = take();
  if (t.kind != Token::Kind::kUnsigned || t.n > max) fault();
  return bad_ ? 0 : t.n;
}

int64_t Reader::get_signed(int64_t min, int64_t max) {
  const Token t = take();
  const auto value = static_cast<int64_t>(t.n);
  const bool fits = t.kind == Token::Kind::kNegative
                        ? value >= min
                        : t.kind == Token::Kind::kUnsigned && t.n <= static_cast<uint64_t>(max);
  if (!fits) fault();
  return bad_ ? 0 : value;
}

void Reader::get(bool& v) {
  const Token t = take();
  if (t.kind != Token::Kind::kBool) fault();
  v = !bad_ && t.n != 0;
}

void Reader::get(double& v) {
  const Token t = take();
  v = 0;
  switch (t.kind) {
    case Token::Kind::kDouble: v = t.d; break;
    // Some packers encode whole doubles as integers.
    case Token::Kind::kUnsigned: v = static_cast<double>(t.n); break;
    case Token::Kind::kNegative: v = static_cast<double>(static_cast<int64_t>(t.n)); break;
    case Token::Kind::kNil:
    case Token::Kind::kBool:
    case Token::Kind::kStr:
    case Token::Kind::kBin:
    case Token::Kind::kArray: fault(); break;
  }
  if (bad_) v = 0;
}

void Reader::get(std::string& v) {
  const Token t = take();
  if (t.kind != Token::Kind::kStr || t.n > kStringBytesMax) fault();
  if (!bad_) expect(t.n, kStringBytesMax, 1);
  v = bad_ ? std::string_view() : take_bytes(t.n);
}

void Reader::get(Blob& v) {
  const Token t = take();
  if (t.kind != Token::Kind::kBin) fault();
  if (!bad_) expect(t.n, kMessageBytesMax, 1);
  v.bytes = bad_ ? std::string_view() : take_bytes(t.n);
}

void Reader::get(BlockHash& v) {
  const Token t = take();
  if (t.kind != Token::Kind::kBin || t.n != v.bytes.size()) fault();
  const std::string_view bytes = bad_ ? std::string_view() : take_bytes(t.n);
  if (!bytes.empty()) std::memcpy(v.bytes.data(), bytes.data(), bytes.size());
}

}  // namespace mc::wire
