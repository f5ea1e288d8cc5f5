// F7: texts are worked on beside the loop.
#include "serve/frontend/text_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>

#include "serve/frontend/text_work.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace {

constexpr size_t kLarge = 1 << 20;

struct Texts {
  bool until(const std::function<bool()>& done) {
    const Time end = clock.now() + 30s;
    while (!done() && clock.now() < end) REQUIRE(loop.turn(5ms).has_value());
    return done();
  }
  // Work that lasts until `open` is set.
  std::function<void()> gate() {
    return [this] {
      ++begun;
      opened.wait();
    };
  }
  SteadyClock clock;
  io::Loop loop{clock};
  std::promise<void> open;
  std::shared_future<void> opened{open.get_future()};
  std::atomic<int> begun = 0;
  std::string log;
};

}  // namespace

TEST_CASE("the loop goes on beside long work, and short work passes it") {
  Texts t;
  TextPool pool(t.loop);
  REQUIRE(pool.submit(0, kLarge, t.gate(), [&] { t.log += "long "; }).has_value());
  REQUIRE(pool.submit(
                  0, kLarge, [] {}, [&] { t.log += "next "; })
              .has_value());
  REQUIRE(pool.submit(
                  0, 10, [] {}, [&] { t.log += "short "; })
              .has_value());
  REQUIRE(t.until([&] { return t.log == "short " && t.begun == 1; }));
  CHECK(pool.waiting() == 1);
  t.open.set_value();
  REQUIRE(t.until([&] { return t.log == "short long next "; }));
}

TEST_CASE("cancelled work is not begun, or not answered") {
  Texts t;
  TextPool pool(t.loop);
  const auto held = std::make_shared<int>(0);  // by what is submitted
  const auto runs = pool.submit(0, kLarge, t.gate(), [&, held] { t.log += "runs "; });
  REQUIRE(runs.has_value());
  REQUIRE(t.until([&] { return t.begun == 1; }));
  const auto waits = pool.submit(
      0, kLarge, [&] { t.log += "begun "; }, [held] {});
  REQUIRE(waits.has_value());
  pool.cancel(*waits);
  CHECK(pool.waiting() == 0);
  pool.cancel(*runs);
  CHECK(held.use_count() == 2);  // what runs may read what it was given
  t.open.set_value();
  REQUIRE(t.until([&] { return held.use_count() == 1; }));
  pool.cancel(*runs);
  CHECK(t.log == "");
}

TEST_CASE("full queues refuse, and a pool that ends forgets what waits") {
  Texts t;
  {
    TextPool pool(t.loop, {.owner_count = 1, .count = 2});
    const auto never = [&] { t.log += "never "; };
    REQUIRE(pool.submit(0, kLarge, t.gate(), never).has_value());
    REQUIRE(t.until([&] { return t.begun == 1; }));
    CHECK(pool.submit(
                  1, kLarge, [] {}, never)
              .has_value());
    CHECK(pool.submit(
                  1, kLarge, [] {}, never)
              .error()
              .code == Code::kBusy);
    CHECK(pool.submit(
                  2, kLarge, [] {}, never)
              .has_value());
    CHECK(pool.submit(
                  3, kLarge, [] {}, never)
              .error()
              .code == Code::kNoSpace);
    t.open.set_value();
  }
  for (int i = 0; i < 3; ++i) REQUIRE(t.loop.turn(0ms).has_value());
  CHECK(t.log == "");
}

TEST_CASE("templates that take long hold up each other, and no other text") {
  Texts t;
  TextWork texts(t.loop, [&](const http::Exchange& x, const std::string&, const ApiError& e) {
    x.reply(e.status, "text/plain", "no\n");
  });
  std::atomic<int> bounded = 0;
  const auto opened = http::Server::open(t.loop, "127.0.0.1:0", {}, [&](http::Exchange x) {
    const std::string& path = x.request().path;
    const auto then = [x](bool done) {
      if (done) x.reply(200, "text/plain", "yes\n");
    };
    const size_t bytes = path.ends_with("large") ? kLarge : path.ends_with("long") ? 10'000 : 10;
    if (!path.starts_with("/slow"))
      return texts.run(
          x, "id", 1, bytes, [] {}, then);
    const auto slow = [&t, &bounded](RenderingBound* bound) {
      if (bound == nullptr) return t.gate()();
      bound->exceeded = true;
      ++bounded;
    };
    texts.render(x, "id", 0, bytes, slow, then);
  });
  REQUIRE(opened);
  const std::string& address = (*opened)->address();
  std::vector<http::testing::RawClient> clients;
  for (const char* path : {"/slow", "/slow-long", "/slow-large", "/slow", "/slow-long"}) {
    clients.emplace_back(t.loop, address);
    clients.back().send(strf("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
  }
  {
    const std::shared_ptr<void> end(nullptr, [&](void*) { t.open.set_value(); });
    // On the loop and beside it; beside it.
    REQUIRE(t.until([&] { return bounded == 2 * 2 + 3 && t.begun == 1; }));
    for (const char* path : {"/short", "/long", "/large"}) {
      CAPTURE(path);
      CHECK(http::testing::ask_at(t.loop, address, path, "").status == 200);
    }
    CHECK(t.begun == 1);
  }
  for (auto& client : clients) CHECK(client.wait_for("yes\n"));
}

TEST_CASE("work that throws refuses its request, and no other") {
  Texts t;
  std::vector<ApiError> refused;
  TextWork texts(t.loop, [&](const http::Exchange& x, const std::string&, const ApiError& e) {
    refused.push_back(e);
    x.reply(e.status, "text/plain", "no\n");
  });
  size_t bytes = 1;
  const auto opened = http::Server::open(t.loop, "127.0.0.1:0", {}, [&](http::Exchange x) {
    const auto work = [&, path = x.request().path] {
      if (path == "/throws") throw std::length_error("a library's word");
      if (path == "/large") throw std::bad_alloc();
    };
    texts.run(x, "id", 0, bytes, work, [x](bool done) {
      if (done) x.reply(200, "text/plain", "yes\n");
    });
  });
  REQUIRE(opened);
  for (const size_t n : {size_t{1}, TextWork::kShort + 1}) {  // at once; on a thread
    bytes = n;
    const auto ask = [&](const char* path) {
      return http::testing::ask_at(t.loop, (*opened)->address(), path, "").status;
    };
    CHECK(ask("/throws") == 500);
    CHECK(ask("/large") == 503);
    CHECK(ask("/well") == 200);
  }
  REQUIRE(refused.size() == 4);
  CHECK(refused[0].code == "internal");
  CHECK(refused[0].message.find("library") == std::string::npos);  // that is for the log
}
