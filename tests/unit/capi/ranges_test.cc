// Parts of values, through the C interface.
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

mc_get_result get_one(mc_store* store, const std::string& key,
                      const std::vector<mc_piece>& pieces) {
  const mc_range_item item{key_of(key), pieces.data(), pieces.size()};
  mc_get_result result{99, 99, 99};
  REQUIRE(mc_store_get_ranges(store, &item, 1, 0, &result) == MC_OK);
  return result;
}

TEST_CASE("parts of a value go each to its place, in rows too") {
  Pool pool;
  mc_store* const store = pool.store();
  std::string value;
  for (int i = 0; i < 1000; ++i) value += static_cast<char>('a' + i % 23);
  REQUIRE(mc_store_put(store, "k", 1, value.data(), value.size()) == MC_OK);
  std::string to(100, '-');
  mc_get_result got = get_one(store, "k", {{to.data(), 500, 10, 0, 0, 0}});
  CHECK(got.code == MC_OK);
  CHECK(got.bytes == 10);
  CHECK((got.flags & MC_GET_VERIFIED) == 0);
  CHECK(to == value.substr(500, 10) + std::string(90, '-'));
  // Two pieces, one of three rows of four bytes: heads of a rank, say.
  std::string rows(32, '-'), other(5, '-');
  got = get_one(store, "k", {{rows.data(), 100, 4, 3, 8, 200}, {other.data(), 995, 5, 1, 0, 0}});
  CHECK(got.code == MC_OK);
  CHECK(got.bytes == 17);
  for (size_t row = 0; row < 3; ++row) {
    CHECK(rows.substr(8 * row, 4) == value.substr(100 + 200 * row, 4));
    CHECK(rows.substr(8 * row + 4, 4) == "----");
  }
  CHECK(other == value.substr(995));
}

TEST_CASE("a part beyond its value is invalid for its item, and others go on") {
  Pool pool;
  mc_store* const store = pool.store();
  REQUIRE(mc_store_put(store, "k", 1, "0123456789", 10) == MC_OK);
  char to[16] = {};
  const mc_piece fine{to, 4, 6, 1, 0, 0}, beyond{to, 4, 7, 1, 0, 0}, behind{to, 11, 0, 1, 0, 0};
  const mc_range_item items[] = {{{"k", 1}, &beyond, 1},
                                 {{"k", 1}, &fine, 1},
                                 {{"k", 1}, &behind, 1},
                                 {{"absent", 6}, &fine, 1}};
  mc_get_result got[4];
  REQUIRE(mc_store_get_ranges(store, items, 4, 0, got) == MC_OK);
  CHECK(got[0].code == MC_INVALID);
  CHECK(got[1].code == MC_OK);
  CHECK(std::string(to, 6) == "456789");
  CHECK(got[2].code == MC_INVALID);
  CHECK(got[3].code == MC_NOT_FOUND);
}

TEST_CASE("pieces that cannot be are invalid for the call") {
  Pool pool;
  char to[16];
  const auto code_of = [&](const std::vector<mc_piece>& pieces) {
    const mc_range_item item{{"k", 1}, pieces.data(), pieces.size()};
    return mc_store_get_ranges(pool.store(), &item, 1, 0, nullptr);
  };
  CHECK(code_of({}) == MC_INVALID);
  CHECK(code_of({{nullptr, 0, 1, 1, 0, 0}}) == MC_INVALID);
  CHECK(code_of({{to, 0, 4, 2, 3, 4}}) == MC_INVALID);
  CHECK(code_of({{to, 0, 1, 1 << 21, 1, 1}}) == MC_INVALID);
  CHECK(code_of({{to, 0, 1, 1 << 20, 1, 0}, {to, 0, 1, 1, 0, 0}}) == MC_INVALID);
  CHECK(code_of({{to, UINT64_MAX, 1, 1, 0, 0}}) == MC_INVALID);
  CHECK(code_of({{to, 0, 1, 3, 1, UINT64_MAX}}) == MC_INVALID);
}

// A value of another host is read whole where all reads are to be checked.
TEST_CASE("with verify=always parts of values of other hosts are checked") {
  Pool pool;
  REQUIRE(mc_store_put(pool.store(), "k", 1, "0123456789", 10) == MC_OK);
  mc_options* options = nullptr;
  REQUIRE(mc_options_new(&options) == MC_OK);
  REQUIRE(mc_options_set(options, "verify", "always") == MC_OK);
  REQUIRE(mc_options_set(options, "transports", "tcp") == MC_OK);
  mc_store* far = nullptr;
  REQUIRE(mc_store_setup("far", pool.address().c_str(), options, &far) == MC_OK);
  mc_options_free(options);
  char to[5] = {};
  const mc_get_result got = get_one(far, "k", {{to, 3, 4, 1, 0, 0}});
  CHECK(got.code == MC_OK);
  CHECK(got.flags == MC_GET_VERIFIED);
  CHECK(got.bytes == 4);
  CHECK(std::string(to) == "3456");
  mc_store_close(far);
}

}  // namespace
}  // namespace mc::capi
