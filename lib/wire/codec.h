// Encodes and decodes the bodies of control messages as MessagePack. A message lists its fields
// once:
//
//   struct PutStart {
//     static constexpr const char* kName = "put-start";
//     using Reply = PutStarted;
//     std::string key;
//     uint64_t bytes = 0;
//     std::vector<NodeId> nodes;
//     static void fields(auto& a, auto& m) { a(m.key, m.bytes, wire::at_most<8>(m.nodes)); }
//   };
//
// It travels as an array of those fields, in that order. Fields are only ever appended: missing
// trailing ones keep their defaults, and a reader ignores unknown trailing ones. A struct that
// travels in large numbers lists its fields with a.lean(...): trailing fields that are zero or
// empty are then not sent. Such fields must have zero or empty as their default.
//
// Field types: bool, integers, double, std::string (str), Blob (bin), BlockHash (bin 32),
// std::vector of those, and structs with fields() (nested arrays). Enums travel as integers; the
// receiver checks them.
//
// Limits: kMessageBytesMax a message, kStringBytesMax a string, and the number of elements that
// fields() gives for each list: one without does not compile. Every length is checked before
// anything is allocated, against its limit, the bytes left, and kDecodedBytesMax: what all lists
// and strings of a message take in memory, for a byte on the wire may be an element of hundreds.
// Reading is one pass over the bytes: a tree of values doubled the time of a batch of calls.
//
// Thread: values; any thread.
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "base/units.h"

namespace mc::wire {

inline constexpr size_t kMessageBytesMax = 16 * kMiB;
inline constexpr size_t kStringBytesMax = 64 * kKiB;
inline constexpr size_t kListMax = 1 << 20;  // of lists in fields of a newer version
inline constexpr size_t kDecodedBytesMax = 24 * kMiB;

struct Blob {  // raw bytes, up to a whole message
  std::string bytes;
};

// A list in fields(), and how many elements it may have.
template <size_t N, class V>
struct AtMost {
  static constexpr size_t kMost = N;
  V& list;
  bool empty() const { return list.empty(); }
  void clear() { list.clear(); }
};
template <size_t N, class V>
AtMost<N, V> at_most(V& list) {
  return {list};
}

class Writer {
 public:
  template <class... F>
  void operator()(const F&... f) {
    array(sizeof...(F));
    (put(f), ...);
  }
  template <class... F>
  void lean(const F&... f) {
    size_t at = 0, n = 0;  // n: fields up to the last that is not blank
    ((++at, n = blank(f) ? n : at), ...);
    array(n);
    at = 0;
    ((at++ < n ? put(f) : void()), ...);
  }
  void reserve(size_t bytes) { (void)room(bytes); }
  std::string take() {
    out_.resize(used_);
    used_ = 0;
    return std::move(out_);
  }

  template <class T>
  static bool blank(const T& v) {
    if constexpr (std::is_arithmetic_v<T>)
      return v == T{};
    else if constexpr (requires { v.empty(); })
      return v.empty();
    else if constexpr (std::is_same_v<T, Generation>)
      return v.n == 0;
    else
      return false;  // a struct is never blank, unless it has empty()
  }
  void array(size_t n) {
    if (n < 16) return put_byte(0x90 | n);
    head(n, 0xdc);
  }
  void put(bool v);
  void put(double v);
  void put(const std::string& v);
  void put(const Blob& v);
  void put(const BlockHash& v);
  void put(const Bytes& v) { put_unsigned(v.n); }
  void put(const Generation& v) { put_unsigned(v.n); }
  template <std::unsigned_integral T>
  void put(T v) {
    put_unsigned(v);
  }
  template <std::signed_integral T>
  void put(T v) {
    put_signed(v);
  }
  template <class T>
  void put(const std::vector<T>& v) {
    array(v.size());
    for (const auto& e : v) put(static_cast<const T&>(e));
  }
  template <size_t N, class V>
  void put(const AtMost<N, V>& v) {
    put(v.list);
  }
  template <class T>
  requires std::is_class_v<T> && requires(const T& t, Writer& w) { T::fields(w, t); }
  void put(const T& t) { T::fields(*this, t); }

 private:
  void put_unsigned(uint64_t v) {
    if (v < 0x80) return put_byte(v);
    put_number(v);
  }
  void put_number(uint64_t v);
  void put_signed(int64_t v);
  void put_binary(const void* p, size_t n);
  void head(size_t n, uint8_t sixteen);  // with a length of 16 or of 32 bits
  void big_endian(uint8_t first, uint64_t v, size_t bytes);
  void put_bytes(const void* p, size_t n);
  void put_byte(size_t v) {
    *room(1) = static_cast<char>(v);
    ++used_;
  }
  char* room(size_t n) {  // for n more bytes
    if (out_.size() - used_ < n) grow(n);
    return out_.data() + used_;
  }
  void grow(size_t n);
  std::string out_;  // its first used_ bytes are the output
  size_t used_ = 0;
};

// Reads untrusted bytes. After a fault every field reads as its default, and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view in);  // `in` must outlive it
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  template <class... F>
  void operator()(F&&... f) {
    const size_t outer = enter();
    (get_if(f), ...);
    leave(outer);  // what is left are fields of a newer version
  }
  template <class... F>
  void lean(F&&... f) {
    const size_t outer = enter();
    ((left_ > 0 && !bad_ ? get(f) : clear(f)), ...);
    leave(outer);
  }
  bool ok() const { return !bad_ && at_ == end_; }  // read all of the input
  bool lacked() const { return short_; }  // fields were missing, and keep their old values
  Failure failure(const char* name, size_t bytes) const;  // kInvalid: why it is not ok

  void get(bool& v);
  void get(double& v);
  void get(std::string& v);
  void get(Blob& v);
  void get(BlockHash& v);
  void get(Bytes& v) { v.n = get_unsigned(UINT64_MAX); }
  void get(Generation& v) { v.n = get_unsigned(UINT64_MAX); }
  template <std::unsigned_integral T>
  void get(T& v) {
    v = static_cast<T>(get_unsigned(std::numeric_limits<T>::max()));
  }
  template <std::signed_integral T>
  void get(T& v) {
    v = static_cast<T>(get_signed(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
  template <size_t N, class T>
  void get(AtMost<N, std::vector<T>>& limited) {
    std::vector<T>& v = limited.list;
    const size_t outer = enter();
    expect(left_, N, sizeof(T));
    v.reserve(left_);
    size_t n = 0;
    for (; left_ > 0 && !bad_; ++n) {  // reuses the memory of old elements
      if (n == v.size()) v.emplace_back();
      get(v[n]);
    }
    v.resize(n);
    leave(outer);
  }
  template <class T>
  requires std::is_class_v<T> && requires(T& t, Reader& r) { T::fields(r, t); }
  void get(T& t) { T::fields(*this, t); }

 private:
  struct Token {  // an element, or the head of one with a length
    enum class Kind : uint8_t { kNil, kBool, kUnsigned, kNegative, kDouble, kStr, kBin, kArray };
    Kind kind = Kind::kNil;
    uint64_t n = 0;  // the number, or the length
    double d = 0;
  };
  template <class F>
  void get_if(F& f) {
    if (left_ > 0 && !bad_)
      get(f);
    else
      short_ = true;
  }
  template <class F>
  static void clear(F& f) {
    if constexpr (requires { f.clear(); })
      f.clear();
    else
      f = F{};
  }
  // Most elements are small numbers and short arrays. Those are read inline.
  bool small(uint8_t from, uint8_t to) const {
    return left_ > 0 && at_ != end_ && static_cast<uint8_t>(*at_) >= from &&
           static_cast<uint8_t>(*at_) < to;
  }
  uint64_t get_unsigned(uint64_t max) {
    if (!small(0, 0x80)) return get_number(max);
    --left_;
    return static_cast<uint8_t>(*at_++);
  }
  size_t enter() {  // enters an array. Returns: the elements left in the outer one
    if (!small(0x90, 0xa0) || static_cast<uint8_t>(*at_ & 0x0f) >= end_ - at_) return enter_long();
    const size_t outer = left_ - 1;
    left_ = static_cast<uint8_t>(*at_++) & 0x0f;
    return outer;
  }
  size_t enter_long();
  // A list of that many elements: faults when it is too long or too large.
  void expect(size_t elements, size_t most, size_t element_bytes) {
    if (elements > most || elements > room_ / element_bytes) return refuse(elements, most);
    room_ -= elements * element_bytes;
  }
  void refuse(size_t elements, size_t most);
  void leave(size_t outer) {
    if (left_ > 0) pass_over();
    left_ = bad_ ? 0 : outer;
  }
  void pass_over();
  Token take();  // the next element's head
  std::string_view take_bytes(uint64_t n);
  uint64_t big_endian(size_t bytes);
  uint64_t get_number(uint64_t max);
  int64_t get_signed(int64_t min, int64_t max);
  void fault();

  const char *at_, *end_;
  size_t left_ = 1;                 // elements of the array it is in
  size_t room_ = kDecodedBytesMax;  // for what is decoded
  size_t elements_ = 0, most_ = 0;  // of the list that was refused
  bool bad_ = false, short_ = false;
};

template <class M>
std::string encode(const M& m) {
  constexpr size_t kMost = 240;  // most messages are shorter
  Writer w;
  w.reserve(kMost);
  M::fields(w, m);
  return w.take();
}

// Decodes into a message that was read before, and reuses its memory. After an error `m` is
// invalid.
template <class M>
Result<> decode_over(std::string_view bytes, M& m) {
  Reader r(bytes);
  M::fields(r, m);
  if (!r.ok()) return r.failure(M::kName, bytes.size());
  if (r.lacked()) {  // from an older writer: no old values may remain
    m = M{};
    Reader again(bytes);
    M::fields(again, m);
  }
  return {};
}

template <class M>
Result<M> decode(std::string_view bytes) {
  M m;
  Reader r(bytes);
  M::fields(r, m);
  if (!r.ok()) return r.failure(M::kName, bytes.size());
  return m;
}

}  // namespace mc::wire
