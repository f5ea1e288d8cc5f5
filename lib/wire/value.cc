#include "wire/value.h"

#include <algorithm>
#include <msgpack.hpp>

#include "wire/codec.h"

namespace mc::wire {
namespace {

constexpr size_t kDepthMax = 8;
constexpr size_t kValuesMax = 1 << 19;

// Counts what a text has, before any of it is allocated.
struct ValueCounter : msgpack::null_visitor {
  size_t values = 0, depth = 0;
  bool more(size_t n) { return (values += n) <= kValuesMax && ++depth <= kDepthMax; }
  bool start_array(uint32_t n) { return more(n); }
  bool start_map(uint32_t n) { return more(size_t{2} * n); }
  bool end_array() { return --depth, true; }
  bool end_map() { return --depth, true; }
};

const msgpack::object& object_of(const void* p) { return *static_cast<const msgpack::object*>(p); }
const msgpack::object kNothing;

}  // namespace

Value::Kind Value::kind() const {
  switch (object_of(object_).type) {
    case msgpack::type::NIL: return Kind::kNil;
    case msgpack::type::BOOLEAN: return Kind::kBool;
    case msgpack::type::POSITIVE_INTEGER:
    case msgpack::type::NEGATIVE_INTEGER: return Kind::kInteger;
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64: return Kind::kFloat;
    case msgpack::type::STR: return Kind::kText;
    case msgpack::type::BIN: return Kind::kBinary;
    case msgpack::type::ARRAY: return Kind::kArray;
    case msgpack::type::MAP: return Kind::kMap;
    case msgpack::type::EXT: return Kind::kOther;
  }
  return Kind::kOther;
}

std::optional<uint64_t> Value::unsigned_integer() const {
  const msgpack::object& o = object_of(object_);
  if (o.type != msgpack::type::POSITIVE_INTEGER) return std::nullopt;
  return o.via.u64;
}

std::optional<int64_t> Value::integer() const {
  const msgpack::object& o = object_of(object_);
  if (o.type == msgpack::type::NEGATIVE_INTEGER) return o.via.i64;
  if (o.type != msgpack::type::POSITIVE_INTEGER || o.via.u64 > INT64_MAX) return std::nullopt;
  return static_cast<int64_t>(o.via.u64);
}

std::optional<double> Value::number() const {
  const msgpack::object& o = object_of(object_);
  if (o.type == msgpack::type::FLOAT32 || o.type == msgpack::type::FLOAT64) return o.via.f64;
  if (o.type == msgpack::type::POSITIVE_INTEGER) return static_cast<double>(o.via.u64);
  if (o.type == msgpack::type::NEGATIVE_INTEGER) return static_cast<double>(o.via.i64);
  return std::nullopt;
}

std::string_view Value::text() const {
  const msgpack::object& o = object_of(object_);
  if (o.type != msgpack::type::STR) return {};
  return {o.via.str.ptr, o.via.str.size};
}

std::string_view Value::bytes() const {
  const msgpack::object& o = object_of(object_);
  if (o.type == msgpack::type::BIN) return {o.via.bin.ptr, o.via.bin.size};
  return text();
}

size_t Value::size() const {
  const msgpack::object& o = object_of(object_);
  if (o.type == msgpack::type::ARRAY) return o.via.array.size;
  return o.type == msgpack::type::MAP ? o.via.map.size : 0;
}

Value Value::at(size_t i) const {
  const msgpack::object& o = object_of(object_);
  if (o.type != msgpack::type::ARRAY || i >= o.via.array.size) return Value(&kNothing);
  return Value(&o.via.array.ptr[i]);
}

Value Value::operator[](std::string_view key) const {
  const msgpack::object& o = object_of(object_);
  if (o.type != msgpack::type::MAP) return Value(&kNothing);
  for (size_t i = 0; i < o.via.map.size; ++i)
    if (Value(&o.via.map.ptr[i].key).text() == key) return Value(&o.via.map.ptr[i].val);
  return Value(&kNothing);
}

struct Document::Parsed {
  msgpack::object_handle handle;
};

Document::Document(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;
Document::~Document() = default;

Value Document::root() const { return Value(&parsed_->handle.get()); }

Result<Document> Document::parse(std::string_view in, size_t bytes_max) {
  if (in.size() > bytes_max)
    return fail(Code::kInvalid, "message of %zu bytes, more than the limit of %zu", in.size(),
                bytes_max);
  auto parsed = std::make_unique<Parsed>();
  try {
    size_t used = 0;
    ValueCounter counter;
    (void)msgpack::parse(in.data(), in.size(), used, counter);
    if (counter.values > kValuesMax)
      return fail(Code::kInvalid, "more than %zu values in %zu bytes", kValuesMax, in.size());
    used = 0;
    // An element takes at least one byte: a list with more elements than bytes is false.
    const size_t list = std::min(kListMax, in.size());
    const msgpack::unpack_limit limit(list, list, in.size(), in.size(), 0, kDepthMax);
    auto borrow = [](msgpack::type::object_type, size_t, void*) { return true; };
    parsed->handle = msgpack::unpack(in.data(), in.size(), used, borrow, nullptr, limit);
    if (used != in.size())
      return fail(Code::kInvalid, "%zu bytes follow the message", in.size() - used);
  } catch (const std::exception&) {
    return fail(Code::kInvalid, "%zu bytes that are not MessagePack", in.size());
  }
  return Document(std::move(parsed));
}

}  // namespace mc::wire
