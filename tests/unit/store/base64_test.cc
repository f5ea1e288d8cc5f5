#include "store/election/base64.h"

#include <doctest/doctest.h>

#include "base/random.h"

using namespace mc;

TEST_CASE("base64 goes there and back, and what is none is refused") {
  CHECK(to_base64("").empty());
  CHECK(to_base64("mc") == "bWM=");
  CHECK(to_base64("mc/") == "bWMv");
  Random random(1);
  for (size_t n = 0; n < 100; ++n) {
    std::string bytes;
    for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(random.below(256));
    const auto back = from_base64(to_base64(bytes));
    REQUIRE(back);
    CHECK(*back == bytes);
  }
  for (const char* bad : {"a", "abc", "====", "a===", "ab=c", "ab c", "a\nb=", "ab!="}) {
    CAPTURE(bad);
    CHECK(from_base64(bad).error().code == Code::kInvalid);
  }
}
