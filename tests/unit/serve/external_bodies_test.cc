// Bodies for external engines: they count for the server's bound as long as they are held.
#include <doctest/doctest.h>

#include "mixed_site.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_bodies_test {
namespace {

const std::string kBody = R"({"model":"tiny","stream":true,"max_tokens":3,"prompt":"x","pad":")" +
                          std::string(2000, 'x') + "\"}";

ApiServerOptions room_for_one() {
  ApiServerOptions web;
  web.bodies_max = Bytes(3000);
  return web;
}

}  // namespace

TEST_CASE("the body of a request to an engine counts until its answer begins, or it is given up") {
  Mixed m(patient(), false, {}, room_for_one());
  MockEngine& e = m.engine("e0");
  e.hang = true;  // behind the head of its answer
  Mixed::Answer first, third, fourth;
  m.send("/v1/completions", kBody, first);
  REQUIRE(until(m.loop, [&] { return e.held.size() == 1; }));
  const auto refused = m.ask("/v1/completions", kBody);
  CHECK(refused.status == 503);
  CHECK(refused.body.find("too many large requests") != std::string::npos);
  e.held[0].write("data: {}\n\n");
  REQUIRE(until(m.loop, [&] { return !first.body.empty(); }));
  const auto id = m.send("/v1/completions", kBody, third);
  REQUIRE(until(m.loop, [&] { return e.held.size() == 2; }));
  m.client.cancel(id);
  REQUIRE(until(m.loop, [&] { return m.conductor->in_flight() == 1; }));
  m.send("/v1/completions", kBody, fourth);
  REQUIRE(until(m.loop, [&] { return e.held.size() == 3; }));
  e.held.clear();
}

TEST_CASE("a body that an engine could have had counts until own workers' first token") {
  Mixed m(patient(), true, {}, room_for_one());
  m.engine("e0").well = false;
  REQUIRE(until(m.loop, [&] { return !m.conductor->external().find("e0")->up; }));
  m.prefill->then = [&m](const std::string& r) { m.decode->send(r, {65}, ""); };
  Mixed::Answer first, second;
  m.send("/v1/completions", kBody, first);
  REQUIRE(until(m.loop, [&] { return !first.body.empty(); }));
  m.send("/v1/completions", kBody, second);
  REQUIRE(until(m.loop, [&] { return !second.body.empty(); }));
  CHECK(second.status == 200);
}

}  // namespace external_bodies_test
