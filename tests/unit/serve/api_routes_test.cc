// Every route, by method and key.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "api_site.h"

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

}  // namespace

TEST_CASE("every route by method and key") {
  struct Row {
    const char* path;
    // GET, then POST of {}: without keys; with keys: no key, a tenant's, an admin's
    int got[4], posted[4];
  };
  const Row rows[] = {
      {"/v1/completions", {405, 401, 405, 405}, {400, 401, 400, 400}},
      {"/v1/chat/completions", {405, 401, 405, 405}, {400, 401, 400, 400}},
      {"/v1/models", {200, 401, 200, 200}, {405, 401, 405, 405}},
      {"/tokenize", {405, 401, 405, 405}, {400, 401, 400, 400}},
      {"/detokenize", {405, 401, 405, 405}, {400, 401, 400, 400}},
      {"/live", {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/ready", {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/health", {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/metrics", {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/cluster", {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/config", {200, 401, 403, 200}, {405, 401, 403, 405}},
      {"/debug/route", {400, 401, 403, 400}, {400, 401, 403, 400}},
      {"/explain/x", {404, 401, 403, 404}, {405, 401, 403, 405}},
      {"/query", {405, 401, 403, 405}, {400, 401, 403, 400}},
      {"/query_by_hash", {405, 401, 403, 405}, {400, 401, 403, 400}},
      {"/register", {405, 401, 403, 405}, {400, 401, 403, 400}},
      {"/admin/register", {405, 401, 403, 405}, {400, 401, 403, 400}},
      {"/unregister", {405, 401, 403, 405}, {400, 401, 403, 400}},
      {"/admin/scale-in", {405, 401, 403, 405}, {409, 401, 403, 409}},
      {"/", {200, 200, 200, 200}, {405, 405, 405, 405}},
      {"/nothing", {404, 401, 404, 404}, {405, 401, 405, 405}},
      {"/explain", {404, 401, 404, 404}, {405, 401, 405, 405}},
  };
  const RouteKeys keys;
  Site open, keyed(quick(), {.http = "127.0.0.1:0", .api_keys = keys.name});
  const char* const given[] = {"", "", "key-of-a", "key-of-b"};
  for (const Row& row : rows)
    for (size_t i = 0; i < 4; ++i) {
      CAPTURE(row.path);
      CAPTURE(i);
      Site& s = i == 0 ? open : keyed;
      CHECK(status_of(s, row.path, false, given[i]) == row.got[i]);
      CHECK(status_of(s, row.path, true, given[i]) == row.posted[i]);
    }
}
