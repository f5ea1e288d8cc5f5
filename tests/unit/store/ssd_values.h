// Self-describing values for tests of the SSD tier.
#pragma once
#include <optional>

#include "base/random.h"
#include "store/ssd/aligned_buffer.h"
#include "store/ssd/backend.h"

namespace mc::store::ssd {

inline std::string value_of(const ObjectKey& key, uint64_t generation, uint64_t bytes) {
  Random random(xxh3(key) ^ generation);
  std::string out;
  while (out.size() < bytes) {
    const uint64_t x = random.next();
    out.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  out.resize(bytes);
  return out;
}

inline Stored stored(const ObjectKey& key, uint64_t generation, uint64_t bytes) {
  return {key, bytes, xxh3(value_of(key, generation, bytes)), Generation{generation}, 0, 0};
}

class Saves {  // with the memory they point into
 public:
  void add(const ObjectKey& key, uint64_t generation, uint64_t bytes) {
    auto& pages =
        *memory_.emplace_back(std::make_unique<AlignedBuffer>(std::max<uint64_t>(bytes, 1)));
    pages.put(0, value_of(key, generation, bytes));
    items_.push_back({stored(key, generation, bytes), pages.data()});
  }
  std::span<const Save> items() const { return items_; }

 private:
  std::vector<std::unique_ptr<AlignedBuffer>> memory_;
  std::vector<Save> items_;
};

// The value's generation when it is there, whole and right; an error otherwise.
inline Result<uint64_t> read_one(Backend& backend, const ObjectKey& key) {
  const auto object = backend.find(key);
  if (!object) return fail(object.error());
  AlignedBuffer into(std::max<uint64_t>(object->bytes, 1));
  Load load{key, {}, {into.data(), into.size()}};
  backend.read({&load, 1});
  if (!load.outcome) return fail(load.outcome.error());
  const uint64_t generation = load.outcome->generation.n;
  if (into.text(0, object->bytes) != value_of(key, generation, object->bytes))
    return fail(Code::kInternal, "WRONG BYTES of '%s'", key.c_str());
  return generation;
}

}  // namespace mc::store::ssd
