#include "serve/frontend/tenants.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <ctime>

#include "base/json.h"
#include "io/file.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace tenants_test {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::optional<Tenants::Over> begun(Tenants& t, Tenants::Index tenant, uint64_t tokens, Time now) {
  if (auto over = t.begin(tenant, now)) return over;
  return t.spend(tenant, tokens, now);
}

Result<Tenants> parsed(const std::string& json) {
  return Tenants::parse(*parse_json(json), "file");
}

Tenants two(const std::string& limits = "") {
  auto t = parsed(R"({"tenants":[{"name":"a","keys":["key-of-a","other-of-a"])" + limits +
                  R"(},{"name":"b","keys":["key-of-b"],"cache":"shared","admin":true}]})");
  REQUIRE_MESSAGE(t, t.error().what);
  return std::move(*t);
}

}  // namespace

TEST_CASE("without keys every client may do everything, and all share one cache") {
  const Tenants t;
  CHECK(!t.keyed());
  REQUIRE(t.find("") == 0);
  CHECK(t.at(0).admin);
  CHECK(t.salt(0, "mine") == "mine");
}

TEST_CASE("a key finds its tenant, and nothing else does") {
  const Tenants t = two();
  CHECK(t.find("Bearer key-of-a") == 0);
  CHECK(t.find("bearer other-of-a") == 0);
  CHECK(t.find("Bearer key-of-b") == 1);
  for (const char* bad : {"", "key-of-a", "Bearer ", "Bearer key-of-", "Bearer key-of-aa",
                          "Basic key-of-a", "Bearer  key-of-a"})
    CHECK_MESSAGE(!t.find(bad), bad);
  CHECK(!t.find("Bearer " + std::string(100'000, 'x')));
  CHECK(!t.at(0).admin);
  CHECK(t.at(1).admin);
}

TEST_CASE("caches are apart, but for those that share, and no salt reaches another's") {
  const Tenants t = two();
  CHECK(t.salt(0, "") != "");
  CHECK(t.salt(0, "") != t.salt(0, "x"));
  CHECK(t.salt(1, "") == "");
  CHECK(t.salt(1, t.salt(0, "")) != t.salt(0, ""));
  CHECK(t.salt(1, "x") != "x");
}

TEST_CASE("a file read anew changes what may be asked, and nothing that is under way") {
  Tenants t = two(R"(,"in-flight":1)");
  const Time now{};
  CHECK(!begun(t, 0, 10, now));
  t.renew(*parsed(R"({"tenants":[{"name":"c","keys":["key-of-c"]},)"
                  R"({"name":"a","keys":["newer-of-a"],"in-flight":2,"requests-per-minute":1}]})"));
  CHECK(!t.find("Bearer key-of-a"));
  CHECK(!t.find("Bearer key-of-b"));
  CHECK(t.find("Bearer newer-of-a") == 0);  // the index that is in flight is still its own
  CHECK(t.find("Bearer key-of-c") == 1);    // b left, with nothing in flight
  CHECK(t.at(1).name == "c");
  CHECK(!begun(t, 0, 10, now));  // a new limit begins with a minute's worth
  CHECK(begun(t, 0, 10, now));
  t.ended(0, 1, now);
  t.ended(0, 1, now);
  CHECK(begun(t, 0, 10, now)->why.find("requests per minute") != std::string::npos);
  // Who leaves with something in flight keeps its place until that ended.
  CHECK(!begun(t, 1, 10, now));
  t.renew(*parsed(R"({"tenants":[{"name":"d","keys":["key-of-d"]}]})"));
  CHECK(t.find("Bearer key-of-d") == 0);
  t.renew(*parsed(R"({"tenants":[{"name":"d","keys":["key-of-d"]},)"
                  R"({"name":"e","keys":["key-of-e"]}]})"));
  CHECK(t.find("Bearer key-of-e") == 2);
  t.ended(1, 1, now);
}

TEST_CASE("many keys are read in a time that is linear in them, and found without looking at all") {
  const auto many = [](const char* name, int tenants) {
    Json list = Json::array();
    for (int i = 0; i < tenants; ++i) {
      const std::string who = name + std::to_string(i);
      Json keys = Json::array();
      for (int k = 0; k < 10; ++k) keys.push_back(who + "-key-" + std::to_string(k));
      list.push_back({{"name", who}, {"keys", keys}});
    }
    return Json{{"tenants", list}};
  };
  const Json json = many("old", 10'000);
  const double before = cpu_seconds();
  auto t = Tenants::parse(json, "file");
  REQUIRE_MESSAGE(t, t.error().what);
  CHECK(cpu_seconds() - before < 5 * kSlow);  // half a minute, were each compared with all others
  t->renew(*Tenants::parse(many("new", 10'000), "file"));
  CHECK(t->find("Bearer new9999-key-9") == 9999);
  CHECK(!t->find("Bearer old0-key-0"));
  const double asked = cpu_seconds();
  for (uint64_t i = 0; i < 50'000; ++i) {  // one of them is nobody's
    const uint64_t tenant = i % 10'001;
    CHECK(t->find("Bearer new" + std::to_string(tenant) + "-key-3").has_value() ==
          (tenant < 10'000));
  }
  CHECK(cpu_seconds() - asked < 5 * kSlow);  // minutes, were each compared with all
}

TEST_CASE("requests in flight are limited, and give their place back") {
  Tenants t = two(R"(,"in-flight":2)");
  const Time now{};
  CHECK(!begun(t, 0, 10, now));
  CHECK(!begun(t, 0, 10, now));
  const auto over = begun(t, 0, 10, now);
  REQUIRE(over);
  CHECK(over->why.find("tenant a has 2 requests in flight") != std::string::npos);
  CHECK(!begun(t, 1, 10, now));  // another's limit
  t.ended(0, 5, now);
  CHECK(!begun(t, 0, 10, now));
}

TEST_CASE("limits are looked at before a prompt's tokens are known (F7)") {
  Tenants t = two(R"(,"requests-per-minute":2,"tokens-per-minute":600)");
  Time now{};
  CHECK(!t.begin(0, now));
  CHECK(t.spend(0, 5000, now) == std::nullopt);  // a minute's worth, and owed
  t.ended(0, 0, now);
  const auto owed = t.begin(0, now);
  REQUIRE(owed);
  CHECK(owed->why.find("600 tokens per minute") != std::string::npos);
}

TEST_CASE("rates are limited per minute, and a refusal says when there will be room") {
  Tenants t = two(R"(,"requests-per-minute":2,"tokens-per-minute":600)");
  Time now{};
  CHECK(!begun(t, 0, 100, now));
  t.ended(0, 200, now);  // 300 tokens are left
  auto over = begun(t, 0, 360, now);
  REQUIRE(over);
  CHECK(over->why.find("600 tokens per minute") != std::string::npos);
  CHECK(over->retry_after == 6s);
  now += 6s;
  CHECK(!begun(t, 0, 360, now));
  over = begun(t, 0, 0, now);
  REQUIRE(over);  // 1.2 requests were left, then 0.2
  CHECK(over->why.find("2 requests per minute") != std::string::npos);
  CHECK(to_seconds(over->retry_after) == doctest::Approx(24));
  now += 120s;
  CHECK(!begun(t, 0, 5000, now));  // more than a minute's worth, when nothing was used for a minute
  now += 60s;
  CHECK(begun(t, 0, 1, now));  // that is owed
}

TEST_CASE("what a prompt was taken for is made good when its tokens are counted") {
  Tenants t = two(R"(,"tokens-per-minute":1000)");
  const Time now{};
  REQUIRE(!begun(t, 0, 300'000, now));
  t.recount(0, 300'000, 400);
  t.ended(0, 100, now);
  CHECK(!begun(t, 0, 500, now));
  t.recount(0, 500, 700);
  t.ended(0, 0, now);
  const auto over = begun(t, 0, 1, now);
  REQUIRE(over);
  CHECK(over->retry_after > 12s);
  CHECK(over->retry_after < 13s);
}

TEST_CASE("what is wrong with a file of keys is said") {
  const auto what = [](const std::string& json) {
    const auto t = parsed(json);
    REQUIRE(!t);
    return t.error().what;
  };
  const auto has = [](const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  has(what("{}"), "want {\"tenants\"");
  has(what("[]"), "want {\"tenants\"");
  has(what(R"({"tenants":[]})"), "want {");
  has(what(R"({"tenants":[7]})"), "file, tenant 1: want an object");
  has(what(R"({"tenants":[{"keys":["12345678"]}]})"), "name");
  has(what(R"({"tenants":[{"name":"a"}]})"), "'keys' is not an array");
  has(what(R"({"tenants":[{"name":"a","keys":["short"]}]})"), "8 to 512 printable");
  has(what(R"({"tenants":[{"name":"a","keys":["with a space"]}]})"), "printable");
  has(what(R"({"tenants":[{"name":"a","keys":["12345678","12345678"]}]})"), "given before");
  has(what(R"({"tenants":[{"name":"a","keys":["12345678"]},{"name":"a","keys":["12345679"]}]})"),
      "tenant 2: a second tenant 'a'");
  has(what(R"({"tenants":[{"name":"a","keys":["12345678"],"cache":"no"}]})"), "own or shared");
  has(what(R"({"tenants":[{"name":"a","keys":["12345678"],"priorty":1}]})"),
      "did you mean priority?");
  has(what(R"({"tenants":[{"name":"a","keys":["12345678"],"priority":0.5}]})"), "whole number");
  CHECK(Tenants::open("/no/such/file").error().what.find("/no/such/file") != std::string::npos);
}

TEST_CASE("what is wrong with a torn file of keys is said without a key") {
  const std::string path = "/tmp/mc-torn-keys-" + std::to_string(::getpid());
  for (const char* torn : {R"({"tenants":[{"name":"a","keys":["sk-secret-of-a)",
                           R"({"tenants":[{"name":"a","keys":["k" "sk-secret-of-a"]}]})"}) {
    REQUIRE(io::write_file_atomically(path, torn, 0600));
    const auto t = Tenants::open(path);
    REQUIRE(!t);
    CHECK(t.error().what.find("line 1, column") != std::string::npos);
    CHECK_MESSAGE(t.error().what.find("secret") == std::string::npos, t.error().what);
  }
  ::unlink(path.c_str());
}

}  // namespace tenants_test
