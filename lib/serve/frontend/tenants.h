// Authenticates API keys, and limits and separates the tenants they belong to.
//
// A file lists them:
//
//   { "tenants": [ { "name": "search", "keys": ["sk-1f.."], "priority": 0, "in-flight": 64,
//                    "requests-per-minute": 600, "tokens-per-minute": 2000000,
//                    "cache": "own", "admin": false } ] }
//
// Only `name` and `keys` are required. A lower `priority` waits less; a request may only add to it.
// A limit of 0 means none; a burst may use a whole minute's worth. With `cache` own no other tenant
// reuses what this one computed: the hashes of its blocks begin with its name. With shared it
// shares with all others that say so. `admin` may see other tenants' requests (/explain,
// /debug/route, /config), register engines and dismiss workers.
//
// Without a file all clients are one tenant without restrictions. Keys are stored as SHA-256, found
// by it, and compared in constant time. renew() replaces the tenants by those of a file read again:
// a tenant in both keeps its requests in flight and what it used of its limits.
//
// Thread: one owner. Time is an argument.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
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

// One key in a file of its own, which its owner alone may read.
class ApiKey {
 public:
  static Result<ApiKey> open(const std::string& path);
  bool matches(std::string_view authorization) const;  // the header, "Bearer KEY"

 private:
  explicit ApiKey(const Digest& digest) : digest_(digest) {}
  Digest digest_;
};

class Tenants {
 public:
  Tenants();  // one tenant without a name, for all clients
  // Errors: kNotFound; kDenied for a file that others may read; kInvalid that names the file and
  // the member.
  static Result<Tenants> open(const std::string& path);
  static Result<Tenants> parse(const Json& json, const std::string& where);

  // Replaces the tenants by `fresh`. Indexes stay valid: a tenant that is gone has no keys, but its
  // requests may end.
  void renew(Tenants fresh);

  using Index = size_t;
  // By the value of an Authorization header, "Bearer KEY"; nothing: no such key.
  std::optional<Index> find(std::string_view authorization) const;
  std::optional<Index> named(const std::string& name) const;
  const Tenant& at(Index tenant) const { return entries_[tenant].tenant; }
  bool keyed() const { return !keys_.empty(); }

  struct Over {
    std::string why;
    Duration retry_after;
  };
  // Begins a request within the limits, before its prompt is tokenized. If it may, ended() must
  // follow, or spend() refuse it.
  std::optional<Over> begin(Index tenant, Time now);
  // Its prompt has so many tokens. Over: as if it had not begun.
  std::optional<Over> spend(Index tenant, uint64_t prompt_tokens, Time now);
  // It had `real` tokens, where `spent` were told to spend().
  void recount(Index tenant, uint64_t spent, uint64_t real);
  void ended(Index tenant, uint64_t output_tokens, Time now);
  // The salt that its blocks' hashes begin with.
  std::string salt(Index tenant, const std::string& asked) const;

 private:
  // A token bucket of a minute's worth; a full one admits a request that needs more.
  struct Bucket {
    double left = 0;
    Time at{};
  };
  struct Entry {
    Tenant tenant;
    uint64_t in_flight = 0;
    Bucket requests, tokens;
    bool used = false;
  };
  struct FirstWord {  // a digest's bits are as good as a hash's
    size_t operator()(const Digest& d) const;
  };
  struct Same {  // in a time that does not depend on where they differ
    bool operator()(const Digest& a, const Digest& b) const;
  };
  static std::optional<Over> over(const Tenant& t, const Bucket& b, uint64_t per_minute,
                                  double wanted, const char* what);
  static void fill(Bucket& bucket, uint64_t per_minute, Time now);
  std::vector<Entry> entries_;
  std::unordered_map<Digest, Index, FirstWord, Same> keys_;
};

}  // namespace mc::serve
