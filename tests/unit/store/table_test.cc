#include "store/metadata/table.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"

namespace mc::store {
namespace {

TEST_CASE("over random operations the table finds and orders what a map does") {
  Random random(5);
  Table table;
  std::map<std::pair<uint16_t, std::string>, Id> model;
  for (int step = 0; step < 60000; ++step) {
    const auto tenant = static_cast<uint16_t>(random.below(3));
    const std::string key = "key-" + std::to_string(random.below(4000));
    const auto known = model.find({tenant, key});
    Object* found = table.find(tenant, key);
    REQUIRE((found != nullptr) == (known != model.end()));
    if (found == nullptr) {
      Object& object = table.insert(tenant, key);
      table.list(object);
      model[{tenant, key}] = object.self;
    } else if (random.chance(0.45)) {
      CHECK(found->self == known->second);
      table.erase(*found);
      model.erase(known);
    }
    if (step % 1000 == 7) table.sort(random.below(50));  // some, and others wait
    if (step % 100 != 0) continue;
    CHECK(table.sort());
    const auto next = model.upper_bound({tenant, key});
    const Object* after = table.after(tenant, key, false);
    const bool there = next != model.end() && next->first.first == tenant;
    REQUIRE((after != nullptr) == there);
    if (there) CHECK(after->self == next->second);
  }
  CHECK(table.size() == model.size());
  CHECK(table.listed() == model.size());
  table.sort();
  auto at = model.begin();
  for (uint16_t tenant = 0; tenant < 3; ++tenant)
    for (const Object* o = table.after(tenant, "", true); o != nullptr;
         o = table.after(tenant, o->key(), false), ++at)
      REQUIRE(o->self == at->second);
  CHECK(at == model.end());
}

TEST_CASE("what is being written is found but not listed") {
  Table table;
  Object& a = table.insert(0, "a");
  CHECK(table.find(0, "a") == &a);
  CHECK(table.find(1, "a") == nullptr);
  CHECK(table.after(0, "", true) == nullptr);
  table.list(a);
  CHECK_FALSE(table.sorted());
  CHECK(table.listed() == 1);
  CHECK(table.sort());
  CHECK(table.after(0, "", true) == &a);
  table.unlist(a);
  table.unlist(a);  // harmless
  CHECK(table.listed() == 0);
}

TEST_CASE("the order is made in parts, and what goes meanwhile is never in it") {
  Table table;
  for (const char* key : {"c", "a", "b", "d"}) table.list(table.insert(0, key));
  CHECK_FALSE(table.sort(2));
  table.erase(*table.find(0, "c"));
  table.erase(*table.find(0, "d"));
  CHECK(table.sort(2));
  CHECK(table.listed() == 2);
  const Object* first = table.after(0, "", true);
  REQUIRE(first != nullptr);
  CHECK(first->key() == "a");
  CHECK(table.after(0, "a", false)->key() == "b");
  CHECK(table.after(0, "b", false) == nullptr);
}

TEST_CASE("a hundred thousand objects take less than 160 bytes each beside their keys") {
  Table table;
  for (int i = 0; i < 100000; ++i) table.list(table.insert(0, "object-" + std::to_string(i)));
  CHECK(table.memory() / 100000 < 160);
}

}  // namespace
}  // namespace mc::store
