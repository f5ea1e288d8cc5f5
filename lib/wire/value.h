// Parses MessagePack of other systems into a tree that callers walk. Our own messages list their
// fields instead (wire/codec.h).
//
//   MC_TRY(const wire::Document doc, wire::Document::parse(bytes, 4 * kMiB));
//   for (size_t i = 0; i < doc.root().size(); ++i) use(doc.root().at(i)["name"].text());
//
// Nothing fails after parse(): an absent value, or one of another kind, reads as nil, empty or
// nullopt.
//
// Thread: values; a Value lives no longer than its Document, and that no longer than its input.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace mc::wire {

class Value {
 public:
  enum class Kind { kNil, kBool, kInteger, kFloat, kText, kBinary, kArray, kMap, kOther };
  Kind kind() const;
  bool nil() const { return kind() == Kind::kNil; }
  std::optional<uint64_t> unsigned_integer() const;
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;          // integers too
  std::string_view text() const;                 // of a string
  std::string_view bytes() const;                // of a string or binary
  size_t size() const;                           // elements of an array, pairs of a map
  Value at(size_t i) const;                      // of an array
  Value operator[](std::string_view key) const;  // of a map: the first of that name

 private:
  friend class Document;
  explicit Value(const void* object) : object_(object) {}
  const void* object_;
};

class Document {
 public:
  // At most 2^19 values in all: one of a byte takes 24 in memory. Errors: kInvalid when it is
  // truncated, not MessagePack, too deep, or over a limit.
  static Result<Document> parse(std::string_view in, size_t bytes_max);
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;
  ~Document();
  Value root() const;

 private:
  struct Parsed;
  explicit Document(std::unique_ptr<Parsed> parsed);
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace mc::wire
