// The client's local hot cache and hedge timer.
#include <doctest/doctest.h>

#include "store/client/hedge_timer.h"
#include "store/client/local_hot_cache.h"

namespace mc::store {
namespace {

using namespace std::chrono_literals;

LocalHotCache::Value value_of(size_t n, int fill) {
  return std::make_shared<std::vector<std::byte>>(n, static_cast<std::byte>(fill));
}
LocalHotCache::Version version(uint64_t generation, uint64_t bytes) {
  return {Generation{generation}, bytes, generation * 31};
}

TEST_CASE("a value is taken in at its second read, and counts only in the version that was read") {
  LocalHotCache cache(8000);
  CHECK(!cache.wants("k", version(1, 100)));
  CHECK(cache.wants("k", version(1, 100)));
  cache.insert("k", version(1, 100), value_of(100, 1));
  REQUIRE(cache.find("k", version(1, 100)) != nullptr);
  CHECK((*cache.find("k", version(1, 100)))[99] == std::byte{1});
  CHECK(cache.find("k", version(2, 100)) == nullptr);  // put anew
  CHECK(cache.find("k", version(1, 100)) == nullptr);  // and the old one is gone
  CHECK(cache.bytes() == 0);
  CHECK(!cache.wants("large", version(1, 1001)));
  CHECK(!cache.wants("large", version(1, 1001)));
}

TEST_CASE("the least recently used value goes, and its bytes are never more than was allowed") {
  LocalHotCache cache(1000);
  for (uint64_t i = 0; i < 10; ++i)
    cache.insert(std::to_string(i), version(i + 1, 100), value_of(100, 0));
  CHECK(cache.bytes() == 1000);
  CHECK(cache.find("0", version(1, 100)) != nullptr);
  cache.insert("new", version(99, 100), value_of(100, 9));
  CHECK(cache.bytes() == 1000);
  CHECK(cache.find("1", version(2, 100)) == nullptr);
  CHECK(cache.find("0", version(1, 100)) != nullptr);
  cache.insert("huge", version(5, 5000), value_of(5000, 9));
  CHECK(cache.find("huge", version(5, 5000)) == nullptr);
  CHECK(cache.bytes() <= 1000);
  cache.erase("new");
  CHECK(cache.find("new", version(99, 100)) == nullptr);
}

TEST_CASE("a read is late when nineteen of twenty of its size were faster") {
  HedgeTimer times;
  CHECK(times.late_after(1 << 20) == Duration::max());
  for (int i = 0; i < 100; ++i) times.took(1 << 20, i < 96 ? 2ms : 50ms);
  CHECK(times.late_after(1 << 20) == 2ms);
  CHECK(times.late_after(64 << 20) == Duration::max());    // another size
  for (int i = 0; i < 200; ++i) times.took(1 << 20, 8ms);  // what was long ago is forgotten
  CHECK(times.late_after(1 << 20) == 8ms);
  for (int i = 0; i < 200; ++i) times.took(100, 10us);
  CHECK(times.late_after(100) == 1ms);  // not worth another request
}

}  // namespace
}  // namespace mc::store
