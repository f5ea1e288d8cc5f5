#include "io/free_port.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/random.h"

using namespace mc;

TEST_CASE("ports for listeners are below those of outgoing connections") {
  Random random(7);
  std::vector<uint16_t> tried;
  const auto taken = [&](uint16_t port) {
    tried.push_back(port);
    return false;
  };
  CHECK_FALSE(io::listen_on_free_port(random, 32'768, taken));
  REQUIRE(tried.size() > 10);
  CHECK(tried.back() == 0);  // the kernel's choice when all are taken
  tried.pop_back();
  for (const uint16_t port : tried) {
    CHECK(port >= 16'384);
    CHECK(port < 32'768);
  }

  tried.clear();
  CHECK(io::listen_on_free_port(random, 32'768, [&](uint16_t port) {
    tried.push_back(port);
    return tried.size() == 3;
  }));
  CHECK(tried.size() == 3);
}

TEST_CASE("without ports below those of outgoing connections the kernel chooses") {
  Random random(7);
  for (const uint32_t first : {0u, 1'024u, 16'384u}) {
    std::vector<uint16_t> tried;
    CHECK(io::listen_on_free_port(random, first, [&](uint16_t port) {
      tried.push_back(port);
      return true;
    }));
    CHECK(tried == std::vector<uint16_t>{0});
  }
}
