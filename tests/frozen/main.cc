// Prints what other versions of mc rely on and a compiler knows: every control message, the frames
// of the data plane, the numbers that travel, and the error codes. One fact a line, for
// scripts/frozen.
//
// A message has three lines. Its shape lists the types of its fields in the order of fields(); a
// field that is declared elsewhere than it is sent has "@place", so that two fields of one type
// cannot change places unseen. The other two are the encodings of T{} and of a value that has 1, 2,
// 3, "a", "b" in its fields and one element in every list.
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "messages.h"
#include "rpc/shm_channel.h"
#include "xfer/transports/tcp/frame.h"

namespace mc {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += strf("%02x", static_cast<unsigned char>(c));
  return out;
}
template <class T>
std::string hex_of_memory(const T& value) {
  return hex({reinterpret_cast<const char*>(&value), sizeof value});
}

// Fills what fields() names, and writes down its shape.
class Filler {
 public:
  template <class... F>
  void operator()(F&&... f) {
    [[maybe_unused]] const std::array<const void*, sizeof...(F)> at{address_of(f)...};
    [[maybe_unused]] const uint64_t first = next_;
    next_ += sizeof...(F);
    [[maybe_unused]] size_t index = 0;
    shape_ += '(';
    (field(f, at, index++, first), ...);
    shape_ += ')';
  }
  template <class... F>
  void lean(F&&... f) {
    shape_ += "lean";
    (*this)(std::forward<F>(f)...);
  }
  const std::string& shape() const { return shape_; }

 private:
  template <class F, size_t N>
  void field(F& f, const std::array<const void*, N>& at, size_t index, uint64_t first) {
    size_t place = 0;  // in the order of the declarations
    for (const void* other : at) place += std::less<>{}(other, at[index]) ? 1 : 0;
    if (index > 0) shape_ += ' ';
    fill(f, first + place);
    if (place != index) shape_ += '@' + std::to_string(place);
  }
  template <class F>
  static const void* address_of(const F& f) {
    return &f;
  }
  template <size_t N, class V>
  static const void* address_of(const wire::AtMost<N, V>& f) {
    return &f.list;
  }
  static std::string letter(uint64_t n) { return {static_cast<char>('a' + (n - 1) % 26)}; }
  void fill(bool& v, uint64_t) {
    v = true;
    shape_ += "bool";
  }
  void fill(double& v, uint64_t n) {
    v = static_cast<double>(n) + 0.5;
    shape_ += "double";
  }
  void fill(std::string& v, uint64_t n) {
    v = letter(n);
    shape_ += "str";
  }
  void fill(wire::Blob& v, uint64_t n) {
    v.bytes = letter(n);
    shape_ += "bin";
  }
  void fill(BlockHash& v, uint64_t n) {
    v.bytes.fill(static_cast<uint8_t>(n));
    shape_ += "hash";
  }
  void fill(Bytes& v, uint64_t n) { fill(v.n, n); }
  void fill(Generation& v, uint64_t n) { fill(v.n, n); }
  template <std::integral T>
  void fill(T& v, uint64_t n) {
    v = static_cast<T>(n);
    if constexpr (std::is_signed_v<T>) v = static_cast<T>(-v);
    shape_ += (std::is_signed_v<T> ? 'i' : 'u') + std::to_string(sizeof(T) * 8);
  }
  template <size_t N, class V>
  void fill(wire::AtMost<N, V>& v, uint64_t n) {
    shape_ += '[';
    fill(v.list.emplace_back(), n);
    shape_ += ']';
  }
  template <class T>
  requires requires(T& t, Filler& filler) { T::fields(filler, t); }
  void fill(T& t, uint64_t) { T::fields(*this, t); }

  uint64_t next_ = 1;
  std::string shape_;
};

template <class M>
std::string reply_of() {
  if constexpr (requires { typename M::Reply; })
    return M::Reply::kName;
  else
    return "-";
}

template <class M>
void print_message() {
  M filled{};
  Filler filler;
  M::fields(filler, filled);
  const std::string bytes = wire::encode(filled),
                    start = strf("message %s -> %s", M::kName, reply_of<M>().c_str());
  const auto read = wire::decode<M>(bytes);
  MC_CHECK(read.has_value() && wire::encode(*read) == bytes);
  std::printf("%s: shape %s\n", start.c_str(), filler.shape().c_str());
  std::printf("%s: empty %s\n", start.c_str(), hex(wire::encode(M{})).c_str());
  std::printf("%s: filled %s\n", start.c_str(), hex(bytes).c_str());
}
struct Printer {
  template <class... M>
  void all() const {
    (print_message<M>(), ...);
  }
};

void print_frames() {
  using namespace xfer::tcp;
  const Descriptor body{1, 2, 3, 4, 5, 6, 7};
  std::printf("frame header: %s\n",
              hex_of_memory(make_header(Kind::kRead, 7, &body, sizeof body, 5, kMore)).c_str());
  std::printf("frame descriptor: %s\n", hex_of_memory(body).c_str());
  std::printf("frame trailer: %s\n", hex_of_memory(Trailer{5}).c_str());
  std::printf("frame hello: nonce %zu bytes, proof %s\n", kNonceBytes,
              hex_of_memory(prove("secret", Nonce{})).c_str());
  for (const char* address : {"127.0.0.1:5550", "0.0.0.0:5550", "10.0.0.2:5550"})
    for (const std::string& name : rpc::shm_names(address))
      std::printf("socket of %s: @%s\n", address, name.c_str());
}

template <class E>
void print_number(const char* name, E value) {
  std::printf("number %s: %u\n", name, static_cast<unsigned>(value));
}

void print_numbers() {
  using namespace store;
  print_number("event stored", EventKind::kStored);
  print_number("event removed", EventKind::kRemoved);
  print_number("event moved", EventKind::kMoved);
  print_number("event joined", EventKind::kJoined);
  print_number("event tier memory", EventTier::kMemory);
  print_number("event tier disk", EventTier::kDisk);
  print_number("drain query", DrainAction::kQuery);
  print_number("drain start", DrainAction::kStart);
  print_number("drain cancel", DrainAction::kCancel);
  print_number("order record", OrderKind::kRecord);
  print_number("order forget", OrderKind::kForget);
  print_number("order copy", OrderKind::kCopy);
  print_number("order bury", OrderKind::kAddTombstone);
  print_number("order check", OrderKind::kCheck);
  print_number("beat ok", BeatStatus::kOk);
  print_number("beat remount", BeatStatus::kRemount);
  print_number("index-entry record", IndexEntry::kRecord);
  print_number("index-entry forget", IndexEntry::kForget);
  print_number("index-entry dead", IndexEntry::kDead);
  print_number("tier-job offload", TierJobKind::kOffload);
  print_number("tier-job forget", TierJobKind::kForget);
  print_number("tier-job bring", TierJobKind::kBring);
  print_number("tier-event stored", TierEvent::kStored);
  print_number("tier-event not-stored", TierEvent::kNotStored);
  print_number("tier-event gone", TierEvent::kGone);
  print_number("tier-event brought", TierEvent::kBrought);
  print_number("tier-event not-brought", TierEvent::kNotBrought);
  using Frame = xfer::tcp::Kind;
  print_number("frame hello", Frame::kHello);
  print_number("frame read", Frame::kRead);
  print_number("frame write", Frame::kWrite);
  print_number("frame raise", Frame::kRaise);
  print_number("frame reply", Frame::kReply);
  print_number("frame retire", Frame::kRetire);
  print_number("frame write many", Frame::kWriteMany);
  print_number("frame read many", Frame::kReadMany);
}

void print_codes() {
  for (unsigned n = 1; n < 256; ++n) {
    const CodeInfo& info = code_info(static_cast<Code>(n));
    if (static_cast<unsigned>(info.code) == n)
      std::printf("code %s: number %u exit %d http %d\n", info.name, n, info.exit_code,
                  info.http_status);
  }
}

}  // namespace
}  // namespace mc

int main() {
  mc::each_message(mc::Printer());
  mc::print_frames();
  mc::print_numbers();
  mc::print_codes();
  return 0;
}
