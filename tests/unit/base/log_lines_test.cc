#include "base/kept/log_lines.h"

#include <doctest/doctest.h>

#include <thread>

#include "base/log.h"

namespace mc {
namespace {

using namespace std::chrono_literals;

TEST_CASE("lines that are kept wait to be taken, in their order, and the level counts") {
  REQUIRE(set_up_logs("test", "info", "text"));
  keep_log(true);
  log_warn("store", "one %d", 1);
  log_debug("store", "not at this level");
  log_info("xfer", "two");
  const auto lines = take_kept_log(0s);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].level == static_cast<int>(LogLevel::kWarn));
  CHECK(lines[0].area == "store");
  CHECK(lines[0].text == "one 1");
  CHECK(lines[1].area == "xfer");
  CHECK(take_kept_log(0s).empty());
  keep_log(false);
}

TEST_CASE("who waits for a line is woken by one, and when no more are kept") {
  REQUIRE(set_up_logs("test", "info", "text"));
  keep_log(true);
  std::vector<KeptLine> lines;
  std::thread taker([&] {
    while (lines.empty()) lines = take_kept_log(60s);
  });
  log_warn("store", "here");
  taker.join();
  CHECK(lines[0].text == "here");
  std::thread last([&] { lines = take_kept_log(600s); });
  keep_log(false);
  last.join();
  CHECK(lines.empty());
  CHECK(take_kept_log(600s).empty());  // nothing is kept: it does not wait
}

TEST_CASE("lines beyond what is kept are counted") {
  REQUIRE(set_up_logs("test", "info", "text"));
  keep_log(true);
  for (int i = 0; i < 4100; ++i) log_warn("store", "%d", i);
  const auto lines = take_kept_log(0s);
  REQUIRE(lines.size() == 4097);
  CHECK(lines[4095].text == "4095");
  CHECK(lines[4096].text == "4 lines were lost");
  keep_log(false);
}

}  // namespace
}  // namespace mc
