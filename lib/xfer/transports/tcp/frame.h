// Frames of the tcp data plane: a fixed header, a fixed descriptor, then payload. Payload is never
// copied through a buffer. All words are little-endian. docs/wire.md describes the protocol.
//
// Thread: values.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/hash.h"
#include "base/result.h"

namespace mc::xfer::tcp {

inline constexpr uint32_t kMagic = 0x3158434d;  // "MCX1"
inline constexpr uint8_t kVersion = 1;
inline constexpr uint32_t kTextMax = 1024;  // of an error's text
inline constexpr size_t kNonceBytes = 32;

using Nonce = std::array<uint8_t, kNonceBytes>;
static_assert(std::endian::native == std::endian::little, "frames are sent as they lie in memory");

enum class Kind : uint8_t {
  kHello = 1,
  kRead = 2,
  kWrite = 3,
  kRaise = 4,
  kReply = 5,
  kRetire = 6,
  kWriteMany = 7,
  kReadMany = 8
};

struct Header {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  Kind kind = Kind::kReply;
  uint16_t code = 0;        // of a reply: 0, or the number of a Code
  uint32_t body_bytes = 0;  // the descriptor, or the error's text
  uint32_t body_check = 0;  // low half of the body's XXH3; payload is not covered
  uint64_t id = 0;          // chosen by the requester, repeated in the reply
  uint32_t flags = 0;
  uint32_t check = 0;  // low half of the XXH3 of the bytes before it
};
static_assert(sizeof(Header) == 32 && offsetof(Header, id) == 16 && offsetof(Header, check) == 28);

// Of a request: another one, with a Descriptor, follows behind its payload at once. The peer may
// read that one's frame together with this one's payload, and answer both at once.
inline constexpr uint32_t kMore = 1;
// Of the reply to a hello: the owner takes kWriteMany and kReadMany.
inline constexpr uint32_t kTakesMany = 1;

// Body of kRead, kWrite and kRaise; kRetire's is the nonce of another connection that was given up,
// and its reply says that no byte sent over that one will be applied any more. kWrite is followed
// by bytes x rows of payload; the reply to kRead by as much, then a Trailer.
struct Descriptor {
  uint64_t generation = 0;  // of the segment, as the requester knows it
  uint64_t offset = 0, bytes = 0, rows = 0, stride = 0;
  uint64_t guard_offset = 0, guard_value = 0;  // kRaise: the value to raise it to
};
static_assert(sizeof(Descriptor) == 56);
// Body of kWriteMany and kReadMany: so many descriptors at most, each of one row without a guard.
// It is as many requests, whose ids count up from the header's. The payloads of the writes follow,
// in that order. The reads are answered by a reply each, or by one whose flags are their number;
// then all their payloads follow, and a Trailer.
inline constexpr size_t kManyMax = 64;
inline constexpr uint64_t kManyBytesMax = 8u << 20;  // of all payloads

struct Frame {  // of a request
  Header header;
  Descriptor body;
};
static_assert(sizeof(Frame) == 88);

struct Trailer {  // after the payload of a read: did it go well until the last byte?
  uint64_t code = 0;
};

// First words of a connection: the server sends a nonce; the client proves that it knows the
// segment's secret, without showing it.
struct HelloBody {
  std::array<uint8_t, 32> proof{};
};

constexpr bool is_many(Kind kind) { return kind == Kind::kWriteMany || kind == Kind::kReadMany; }
Header make_header(Kind kind, uint64_t id, const void* body, uint32_t body_bytes, uint16_t code = 0,
                   uint32_t flags = 0);
Result<> check_header(const Header& header);  // kCorrupt
bool check_body(const Header& header, const void* body);
HelloBody prove(const std::string& secret, const Nonce& nonce);

}  // namespace mc::xfer::tcp
