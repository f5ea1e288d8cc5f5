// Every route, by method and key.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "api_site.h"
#include "io/local_socket.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

struct RouteKeys {
  RouteKeys() {
    char path[] = "/tmp/mc-routes-XXXXXX";
    const int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    ::close(fd);
    name = path;
    std::ofstream(name) << R"({"tenants":[{"name":"a","keys":["key-of-a"]},)"
                        << R"({"name":"b","keys":["key-of-b"],"admin":true}]})";
  }
  ~RouteKeys() { std::remove(name.c_str()); }
  std::string name;
};

int status_of(Site& s, const char* path, bool post, const char* key) {
  s.headers.clear();
  if (*key != '\0') s.headers.push_back({"authorization", std::string("Bearer ") + key});
  return s.ask(path, post ? "{}" : "").status;
}

int status_at(Site& s, const std::string& address, const char* path, bool post, bool forwarded) {
  std::string headers = "Content-Type: application/json\r\n";
  if (forwarded) headers += "X-Forwarded-For: 192.0.2.1\r\n";
  return http::testing::ask_at(s.loop, address, path, post ? "{}" : "", headers).status;
}

}  // namespace

// F13: a loopback address shows nothing; F12: who changes the cluster has a key or the socket.
TEST_CASE("every route by method, key and way") {
  struct Row {
    const char* path;
    // GET, then POST of {}: without keys; with keys: no key, a tenant's, an admin's
    int got[4], posted[4];
    // The same without a key: through a proxy on this host without keys; by the admin socket
    // without keys and with; through a proxy to that socket with keys
    int more_got[4], more_posted[4];
  };
  const Row rows[] = {
      {"/v1/completions",
       {405, 401, 405, 405},
       {400, 401, 400, 400},
       {405, 405, 401, 401},
       {400, 400, 401, 401}},
      {"/v1/chat/completions",
       {405, 401, 405, 405},
       {400, 401, 400, 400},
       {405, 405, 401, 401},
       {400, 400, 401, 401}},
      {"/v1/models",
       {200, 401, 200, 200},
       {405, 401, 405, 405},
       {200, 200, 401, 401},
       {405, 405, 401, 401}},
      {"/tokenize",
       {405, 401, 405, 405},
       {400, 401, 400, 400},
       {405, 405, 401, 401},
       {400, 400, 401, 401}},
      {"/detokenize",
       {405, 401, 405, 405},
       {400, 401, 400, 400},
       {405, 405, 401, 401},
       {400, 400, 401, 401}},
      {"/live",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/ready",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/health",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/version",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/openapi.json",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/metrics",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/cluster",
       {200, 200, 200, 200},
       {405, 405, 405, 405},
       {200, 200, 200, 200},
       {405, 405, 405, 405}},
      {"/config",
       {200, 401, 403, 200},
       {405, 401, 403, 405},
       {403, 200, 200, 401},
       {403, 405, 405, 401}},
      {"/debug/route",
       {400, 401, 403, 400},
       {400, 401, 403, 400},
       {403, 400, 400, 401},
       {403, 400, 400, 401}},
      {"/explain/x",
       {404, 401, 403, 404},
       {405, 401, 403, 405},
       {403, 404, 404, 401},
       {403, 405, 405, 401}},
      {"/query",
       {405, 401, 403, 405},
       {400, 401, 403, 400},
       {403, 405, 405, 401},
       {403, 400, 400, 401}},
      {"/query_by_hash",
       {405, 401, 403, 405},
       {400, 401, 403, 400},
       {403, 405, 405, 401},
       {403, 400, 400, 401}},
      {"/register",
       {403, 401, 403, 405},
       {403, 401, 403, 400},
       {403, 405, 405, 401},
       {403, 400, 400, 401}},
      {"/admin/register",
       {403, 401, 403, 405},
       {403, 401, 403, 400},
       {403, 405, 405, 401},
       {403, 400, 400, 401}},
      {"/unregister",
       {403, 401, 403, 405},
       {403, 401, 403, 400},
       {403, 405, 405, 401},
       {403, 400, 400, 401}},
      {"/admin/scale-in",
       {403, 401, 403, 405},
       {403, 401, 403, 409},
       {403, 405, 405, 401},
       {403, 409, 409, 401}},
      {"/", {200, 200, 200, 200}, {405, 405, 405, 405}, {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/nothing",
       {404, 401, 404, 404},
       {404, 401, 404, 404},
       {404, 404, 401, 401},
       {404, 404, 401, 401}},
      {"/explain",
       {404, 401, 404, 404},
       {404, 401, 404, 404},
       {404, 404, 401, 401},
       {404, 404, 401, 401}},
  };
  const RouteKeys keys;
  const std::string socket = "/tmp/mc-routes-{port}.sock";
  Site open(patient(), {.http = "127.0.0.1:0", .admin_socket = socket});
  Site keyed(patient(), {.http = "127.0.0.1:0", .api_keys = keys.name, .admin_socket = socket});
  const char* const given[] = {"", "", "key-of-a", "key-of-b"};
  for (const Row& row : rows)
    for (size_t i = 0; i < 4; ++i) {
      CAPTURE(std::string(row.path));
      CAPTURE(i);
      Site& s = i == 0 ? open : keyed;
      CHECK(status_of(s, row.path, false, given[i]) == row.got[i]);
      CHECK(status_of(s, row.path, true, given[i]) == row.posted[i]);
      Site& t = i < 2 ? open : keyed;
      const bool proxy = i == 0 || i == 3;
      const std::string& at = i == 0 ? t.api->http() : t.api->admin_socket();
      CHECK(status_at(t, at, row.path, false, proxy) == row.more_got[i]);
      CHECK(status_at(t, at, row.path, true, proxy) == row.more_posted[i]);
    }
}

TEST_CASE("the admin socket is its owner's alone, replaces one left behind, and goes at the end") {
  std::string path;
  struct stat info {};
  {
    Site s(patient(), {.http = "127.0.0.1:0", .admin_socket = "/tmp/mc-socket-{port}.sock"});
    path = s.api->admin_socket();
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    const auto again = ApiServer::open(s.loop, {.http = "127.0.0.1:0", .admin_socket = path},
                                       *s.conductor, s.metrics);
    REQUIRE(!again);
    CHECK(again.error().code == Code::kUnavailable);
  }
  CHECK(::stat(path.c_str(), &info) != 0);
  {  // as a process that was killed leaves it
    const auto fd = io::listen_at_path(path, 1);
    REQUIRE(fd);
  }
  REQUIRE(::stat(path.c_str(), &info) == 0);
  Site s(patient(), {.http = "127.0.0.1:0", .admin_socket = path});
  CHECK(s.api->admin_socket() == path);
  Site none(patient(), {.http = "127.0.0.1:0", .admin_socket = "none"});
  CHECK(none.api->admin_socket().empty());
  Site automatic(patient(), {.http = "127.0.0.1:0", .runtime_folder = "/nowhere/at/all"});
  CHECK(automatic.api->admin_socket().empty());  // it serves without
}
