#include "telemetry/trace_context.h"

#include <doctest/doctest.h>

using namespace mc::telemetry;

namespace {
const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";
const std::string kHeader = "00-" + kTrace + "-" + kSpan + "-01";
}  // namespace

TEST_CASE("traceparent: read and written") {
  const auto c = read_traceparent(kHeader, "congo=t61rcWkgMzE,rojo@eu=00f067aa0ba902b7");
  REQUIRE(c);
  CHECK(hex(c->trace.data(), c->trace.size()) == kTrace);
  CHECK(hex(c->span.data(), c->span.size()) == kSpan);
  CHECK(c->sampled);
  CHECK(c->state == "congo=t61rcWkgMzE,rojo@eu=00f067aa0ba902b7");
  CHECK(traceparent(*c) == kHeader);
  CHECK_FALSE(read_traceparent("00-" + kTrace + "-" + kSpan + "-00")->sampled);
  // Flags that this version does not know are not passed on.
  CHECK(traceparent(*read_traceparent("00-" + kTrace + "-" + kSpan + "-ff")) == kHeader);
  CHECK(read_traceparent(" " + kHeader + "\t"));
}

TEST_CASE("traceparent: a later version may have more") {
  CHECK(read_traceparent("cc-" + kTrace + "-" + kSpan + "-01"));
  CHECK(read_traceparent("cc-" + kTrace + "-" + kSpan + "-01-what-the-future-brings"));
  CHECK_FALSE(read_traceparent("cc-" + kTrace + "-" + kSpan + "-01.what"));
  CHECK_FALSE(read_traceparent("ff-" + kTrace + "-" + kSpan + "-01"));
}

TEST_CASE("traceparent: what is invalid is no trace") {
  for (const std::string& bad :
       {std::string(), std::string("00"), kHeader + "-", kHeader + "0",
        kHeader.substr(0, kHeader.size() - 1), kHeader + "," + kHeader,
        "00-" + std::string(32, '0') + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + std::string(16, '0') + "-01",
        "00-" + std::string(32, 'A') + "-" + kSpan + "-01",
        "00-" + std::string(32, 'g') + "-" + kSpan + "-01", "00-" + kTrace + "-" + kSpan + "-0x",
        "0x-" + kTrace + "-" + kSpan + "-01", "00_" + kTrace + "-" + kSpan + "-01",
        "00-" + kTrace + "_" + kSpan + "-01", "00-" + kTrace + "-" + kSpan + "_01",
        std::string(1 << 20, '0')}) {
    CAPTURE(bad.substr(0, 60));
    CHECK_FALSE(read_traceparent(bad, "a=1"));
  }
}

TEST_CASE("tracestate: an invalid one is dropped alone") {
  for (const std::string& bad :
       {std::string("a"), std::string("=1"), std::string("A=1"), std::string("a=1,a=2"),
        std::string("a=1=2"), std::string("a@=1"), std::string("a@b@c=1"), std::string("a=\x01"),
        "a=" + std::string(300, 'x'), std::string(300, 'k') + "=1", std::string(9000, ',')}) {
    CAPTURE(bad.substr(0, 60));
    const auto c = read_traceparent(kHeader, bad);
    REQUIRE(c);
    CHECK(c->state.empty());
  }
  std::string many;
  for (int i = 0; i < 33; ++i) many += "k" + std::to_string(i) + "=v,";
  CHECK(read_traceparent(kHeader, many)->state.empty());
  CHECK(read_traceparent(kHeader, "a=1, ,b@x=2 ")->state == "a=1, ,b@x=2");
}

TEST_CASE("trace context: 24 bytes between processes, where it is sampled") {
  const auto c = read_traceparent(kHeader);
  const std::string bytes = to_wire(*c);
  CHECK(bytes.size() == 24);
  const auto back = from_wire(bytes);
  REQUIRE(back);
  CHECK(traceparent(*back) == kHeader);
  CHECK(to_wire(*read_traceparent("00-" + kTrace + "-" + kSpan + "-00")).empty());
  CHECK(to_wire({}).empty());
  for (const std::string& bad : {std::string(), bytes.substr(1), bytes + "x", std::string(24, '\0'),
                                 bytes.substr(0, 16) + std::string(8, '\0')})
    CHECK_FALSE(from_wire(bad));
}
