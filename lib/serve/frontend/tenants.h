// Who may use the API: tenants with their API keys, what each may ask for, and how their caches
// are kept apart. A file of them:
//
//   { "tenants": [ { "name": "search", "keys": ["sk-1f.."], "priority": 0, "in-flight": 64,
//                    "requests-per-minute": 600, "tokens-per-minute": 2000000,
//                    "cache": "own", "admin": false } ] }
//
// Only `name` and `keys` are needed. `priority`: lower waits less, and a request may only add to
// it. Limits of 0 are none; a minute's worth may come at once. `cache` own: what the tenant
// computed is reused for nobody else, as the hashes of its blocks begin with its name; shared: with
// all others that say so. `admin` may see other tenants' requests (/explain, /debug/route,
// /config).
//
// Without a file everybody is one tenant that may do all. Keys are kept as SHA-256 and compared in
// a time that does not depend on them.
//
// A file that was read anew replaces them by renew(): who stays keeps what is in flight and what it
// used of its limits.
//
// Thread: one owner. Pure: time is an argument (open() reads a file).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/json_fwd.h"
#include "base/result.h"
#include "base/time.h"

namespace mc::serve {

struct Tenant {
  std::string name;
  bool admin = true, own_cache = false;
  int64_t priority = 0;
  uint64_t in_flight_max = 0, requests_per_minute = 0, tokens_per_minute = 0;  // 0: no limit
};

class Tenants {
 public:
  Tenants();  // one tenant without a name, for everybody
  // Errors: kNotFound, kInvalid that name the file and the member.
  static Result<Tenants> open(const std::string& path);
  static Result<Tenants> parse(const Json& json, const std::string& where);

  // Takes over what `fresh` says. Indexes stay good: who is gone has no keys any more, but what it
  // began may end.
  void renew(Tenants fresh);

  using Index = size_t;
  // By the value of an Authorization header, "Bearer KEY"; nothing: no such key.
  std::optional<Index> find(std::string_view authorization) const;
  const Tenant& at(Index tenant) const { return entries_[tenant].tenant; }
  bool keyed() const { return !keys_.empty(); }

  struct Over {
    std::string why;
    Duration retry_after;
  };
  // A request with so many prompt tokens begins, if it may; then ended() is due.
  std::optional<Over> begin(Index tenant, uint64_t prompt_tokens, Time now);
  void ended(Index tenant, uint64_t output_tokens, Time now);
  // What its blocks' hashes begin with.
  std::string salt(Index tenant, const std::string& asked) const;

 private:
  // A minute's worth at most, filled evenly; one that is full gives more than it has.
  struct Bucket {
    double left = 0;
    Time at{};
  };
  struct Entry {
    Tenant tenant;
    uint64_t in_flight = 0;
    Bucket requests, tokens;
    bool used = false, gone = false;
  };
  struct Key {
    Digest digest;
    Index tenant;
  };
  Index place_for(const std::string& name, const Tenants& fresh);
  static void fill(Bucket& bucket, uint64_t per_minute, Time now);
  std::vector<Entry> entries_;
  std::vector<Key> keys_;
};

}  // namespace mc::serve
