#include "wire/codec.h"

#include <algorithm>
#include <msgpack.hpp>

namespace mc::wire {
namespace {

struct Sink {
  std::string& out;
  void write(const char* p, size_t n) { out.append(p, n); }
};
using Packer = msgpack::packer<Sink>;

uint32_t checked(size_t n) {
  MC_CHECK(n <= UINT32_MAX);
  return static_cast<uint32_t>(n);
}

void pack_binary(std::string& out, const void* p, size_t n) {
  Sink sink{out};
  Packer packer(sink);
  packer.pack_bin(checked(n));
  packer.pack_bin_body(static_cast<const char*>(p), checked(n));
}

const msgpack::object& as_object(const void* p) { return *static_cast<const msgpack::object*>(p); }

}  // namespace

void Writer::array(size_t n) {
  Sink sink{out_};
  Packer(sink).pack_array(checked(n));
}
void Writer::put(bool v) {
  Sink sink{out_};
  Packer(sink).pack(v);
}
void Writer::put(double v) {
  Sink sink{out_};
  Packer(sink).pack(v);
}
void Writer::put(const std::string& v) {
  Sink sink{out_};
  Packer packer(sink);
  packer.pack_str(checked(v.size()));
  packer.pack_str_body(v.data(), checked(v.size()));
}
void Writer::put(const Blob& v) { pack_binary(out_, v.bytes.data(), v.bytes.size()); }
void Writer::put(const BlockHash& v) { pack_binary(out_, v.bytes.data(), v.bytes.size()); }
void Writer::put_unsigned(uint64_t v) {
  Sink sink{out_};
  Packer(sink).pack(v);
}
void Writer::put_signed(int64_t v) {
  Sink sink{out_};
  Packer(sink).pack(v);
}

struct Reader::Parsed {
  msgpack::object_handle handle;
};

Reader::Reader(std::string_view in) : parsed_(std::make_unique<Parsed>()) {
  bad_ = in.size() > kMessageBytesMax;
  if (bad_) return;
  try {
    size_t used = 0;
    // An element takes a byte at least: a list longer than the message lies about its length.
    const msgpack::unpack_limit limit(std::min(kListMax, in.size()), 0, kMessageBytesMax,
                                      kMessageBytesMax, 0, 16);
    // Strings and binaries stay in `in`: the reader does not outlive its input.
    auto borrow = [](msgpack::type::object_type, size_t, void*) { return true; };
    parsed_->handle = msgpack::unpack(in.data(), in.size(), used, borrow, nullptr, limit);
    bad_ = used != in.size();
    cursor_ = {&parsed_->handle.get(), 1};
  } catch (const std::exception&) {  // truncated, over a limit, or not MessagePack
    bad_ = true;
  }
}
Reader::~Reader() = default;

const void* Reader::take() {
  if (bad_ || cursor_.left == 0) {
    bad_ = true;
    return nullptr;
  }
  const void* object = cursor_.next;
  cursor_ = {&as_object(object) + 1, cursor_.left - 1};
  return object;
}

Reader::Cursor Reader::enter() {
  const void* p = take();
  const Cursor outer = cursor_;
  cursor_ = {};
  if (p == nullptr) return outer;
  if (as_object(p).type != msgpack::type::ARRAY) {
    bad_ = true;
  } else {
    cursor_ = {as_object(p).via.array.ptr, as_object(p).via.array.size};
  }
  return outer;
}

uint64_t Reader::get_unsigned(uint64_t max) {
  const void* p = take();
  if (p == nullptr) return 0;
  if (as_object(p).type != msgpack::type::POSITIVE_INTEGER || as_object(p).via.u64 > max) {
    bad_ = true;
    return 0;
  }
  return as_object(p).via.u64;
}

int64_t Reader::get_signed(int64_t min, int64_t max) {
  const void* p = take();
  if (p == nullptr) return 0;
  const msgpack::object& o = as_object(p);
  if (o.type == msgpack::type::POSITIVE_INTEGER && o.via.u64 <= static_cast<uint64_t>(max))
    return static_cast<int64_t>(o.via.u64);
  if (o.type == msgpack::type::NEGATIVE_INTEGER && o.via.i64 >= min) return o.via.i64;
  bad_ = true;
  return 0;
}

void Reader::get(bool& v) {
  const void* p = take();
  v = p != nullptr && as_object(p).type == msgpack::type::BOOLEAN && as_object(p).via.boolean;
  if (p != nullptr && as_object(p).type != msgpack::type::BOOLEAN) bad_ = true;
}

void Reader::get(double& v) {
  v = 0;
  const void* p = take();
  if (p == nullptr) return;
  const msgpack::object& o = as_object(p);
  if (o.type == msgpack::type::FLOAT64 || o.type == msgpack::type::FLOAT32)
    v = o.via.f64;
  else if (o.type == msgpack::type::POSITIVE_INTEGER)  // packers shorten whole doubles
    v = static_cast<double>(o.via.u64);
  else if (o.type == msgpack::type::NEGATIVE_INTEGER)
    v = static_cast<double>(o.via.i64);
  else
    bad_ = true;
}

void Reader::get(std::string& v) {
  v.clear();
  const void* p = take();
  if (p == nullptr) return;
  const msgpack::object& o = as_object(p);
  if (o.type != msgpack::type::STR || o.via.str.size > kStringBytesMax)
    bad_ = true;
  else
    v.assign(o.via.str.ptr, o.via.str.size);
}

void Reader::get(Blob& v) {
  v.bytes.clear();
  const void* p = take();
  if (p == nullptr) return;
  const msgpack::object& o = as_object(p);
  if (o.type != msgpack::type::BIN)
    bad_ = true;
  else
    v.bytes.assign(o.via.bin.ptr, o.via.bin.size);
}

void Reader::get(BlockHash& v) {
  const void* p = take();
  if (p == nullptr) return;
  const msgpack::object& o = as_object(p);
  if (o.type != msgpack::type::BIN || o.via.bin.size != v.bytes.size())
    bad_ = true;
  else
    std::memcpy(v.bytes.data(), o.via.bin.ptr, v.bytes.size());
}

}  // namespace mc::wire
