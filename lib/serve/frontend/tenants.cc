#include "serve/frontend/tenants.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/json.h"
#include "base/options.h"
#include "io/file.h"
#include "io/secret_json.h"

namespace mc::serve {
namespace {

constexpr size_t kTenantsMax = 10'000, kKeysMax = 100, kKeyBytesMin = 8, kKeyBytesMax = 512;
constexpr uint64_t kLimitMax = uint64_t{1} << 53;
constexpr size_t kFileMax = 64 << 20;

Digest digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

bool same(const Digest& a, const Digest& b) {
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned>(a[i] ^ b[i]);
  return differ == 0;
}

std::string_view key_in(std::string_view authorization) {
  constexpr std::string_view kBearer = "bearer ";
  const bool bearer =
      authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(),
                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + ('a' - 'A') : b); });
  return bearer ? authorization.substr(kBearer.size()) : std::string_view();
}

bool is_key(std::string_view key) {
  return key.size() >= kKeyBytesMin && key.size() <= kKeyBytesMax &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

Result<Tenant> read_tenant(const Json& j, const std::string& where) {
  static const std::vector<std::string> known = {
      "name",  "keys", "priority", "in-flight", "requests-per-minute", "tokens-per-minute",
      "cache", "admin"};
  if (!j.is_object()) return fail(Code::kInvalid, "%s: want an object", where.c_str());
  for (const auto& [key, value] : j.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string near = nearest(key, known);
      return fail(Code::kInvalid, "%s: unknown member '%s'%s", where.c_str(), escape(key).c_str(),
                  near.empty() ? "" : (": did you mean " + near + "?").c_str());
    }
  Tenant t;
  MC_TRY(t.name, get_string(j, "name"));
  if (t.name.empty() || t.name.size() > 256)
    return fail(Code::kInvalid, "%s: a name of %zu bytes, want 1 to 256", where.c_str(),
                t.name.size());
  MC_TRY(t.admin, get_bool_or(j, "admin", false));
  MC_TRY(const std::string cache, get_string_or(j, "cache", "own"));
  if (cache != "own" && cache != "shared")
    return fail(Code::kInvalid, "%s: cache '%s', want own or shared", where.c_str(),
                escape(cache).c_str());
  t.own_cache = cache == "own";
  MC_TRY(const double priority, get_number_or(j, "priority", 0));
  if (!(priority >= -1e6 && priority <= 1e6) || priority != std::trunc(priority))
    return fail(Code::kInvalid, "%s: priority %g, want a whole number of -1000000 to 1000000",
                where.c_str(), priority);
  t.priority = static_cast<int64_t>(priority);
  MC_TRY(t.in_flight_max, get_uint_or(j, "in-flight", 0));
  MC_TRY(t.requests_per_minute, get_uint_or(j, "requests-per-minute", 0));
  MC_TRY(t.tokens_per_minute, get_uint_or(j, "tokens-per-minute", 0));
  if (std::max({t.in_flight_max, t.requests_per_minute, t.tokens_per_minute}) > kLimitMax)
    return fail(Code::kInvalid, "%s: a limit above 2^53", where.c_str());
  return t;
}

}  // namespace

Result<ApiKey> ApiKey::open(const std::string& path) {
  MC_TRY(std::string key, io::read_secret_file(path, 4096));
  while (!key.empty() && (key.back() == '\n' || key.back() == ' ')) key.pop_back();
  if (!is_key(key))
    return fail(Code::kInvalid, "%s: want one key of %zu to %zu printable characters", path.c_str(),
                kKeyBytesMin, kKeyBytesMax);
  return ApiKey(digest_of(key));
}

bool ApiKey::matches(std::string_view authorization) const {
  const std::string_view key = key_in(authorization);
  return key.size() <= kKeyBytesMax && same(digest_of(key), digest_);
}

size_t Tenants::FirstWord::operator()(const Digest& d) const {
  uint64_t word;
  std::memcpy(&word, d.data(), sizeof word);
  return word;
}

bool Tenants::Same::operator()(const Digest& a, const Digest& b) const { return same(a, b); }

Tenants::Tenants() { entries_.emplace_back(); }

Result<Tenants> Tenants::open(const std::string& path) {
  MC_TRY(const std::string text, io::read_secret_file(path, kFileMax));
  const auto json = io::unquoted(parse_json(text, kJsonFile));
  if (!json) return fail(Code::kInvalid, "%s: %s", path.c_str(), json.error().what.c_str());
  return parse(*json, path);
}

Result<Tenants> Tenants::parse(const Json& json, const std::string& where) {
  const Json* const list = member(json, "tenants");
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kTenantsMax)
    return fail(Code::kInvalid, "%s: want {\"tenants\": [{\"name\": .., \"keys\": [..]}, ..]}",
                where.c_str());
  Tenants out;
  out.entries_.clear();
  std::set<std::string> names;
  for (const Json& j : *list) {
    const std::string at = strf("%s, tenant %zu", where.c_str(), out.entries_.size() + 1);
    MC_TRY(Tenant tenant, read_tenant(j, at));
    if (!names.insert(tenant.name).second)
      return fail(Code::kInvalid, "%s: a second tenant '%s'", at.c_str(),
                  escape(tenant.name).c_str());
    const Json* const keys = member(j, "keys");
    if (keys == nullptr || !keys->is_array() || keys->empty() || keys->size() > kKeysMax)
      return fail(Code::kInvalid, "%s: 'keys' is not an array of 1 to %zu strings", at.c_str(),
                  kKeysMax);
    for (const Json& k : *keys) {
      const std::string key = k.is_string() ? k.get<std::string>() : "";
      if (!is_key(key))
        return fail(Code::kInvalid,
                    "%s: a key that is not a text of %zu to %zu printable characters", at.c_str(),
                    kKeyBytesMin, kKeyBytesMax);
      const Digest digest = digest_of(key);
      if (out.keys_.contains(digest))
        return fail(Code::kInvalid, "%s: a key that was given before", at.c_str());
      out.keys_.emplace(digest, out.entries_.size());
    }
    Entry entry;
    entry.tenant = std::move(tenant);
    out.entries_.push_back(std::move(entry));
  }
  return out;
}

// A tenant keeps its place. A new one gets that of one who left and has nothing in flight.
void Tenants::renew(Tenants fresh) {
  std::set<std::string_view> stay;
  for (const Entry& f : fresh.entries_) stay.insert(f.tenant.name);
  std::map<std::string, Index> places;
  std::vector<Index> free;  // the last of them is the next to be taken
  for (Index i = entries_.size(); i-- > 0;) {
    const Entry& e = entries_[i];
    places[e.tenant.name] = i;
    if (e.in_flight == 0 && !stay.contains(e.tenant.name)) free.push_back(i);
  }
  std::vector<Index> moved;
  for (const Entry& f : fresh.entries_) {
    Index at = entries_.size();
    if (const auto own = places.find(f.tenant.name); own != places.end()) {
      at = own->second;
    } else if (!free.empty()) {
      at = free.back();
      free.pop_back();
      entries_[at] = {};
    } else {
      entries_.emplace_back();
    }
    Entry& e = entries_[at];
    // What was not counted so far begins with a minute's worth.
    if (e.tenant.requests_per_minute == 0)
      e.requests.left = static_cast<double>(f.tenant.requests_per_minute);
    if (e.tenant.tokens_per_minute == 0)
      e.tokens.left = static_cast<double>(f.tenant.tokens_per_minute);
    e.tenant = f.tenant;
    moved.push_back(at);
  }
  keys_ = std::move(fresh.keys_);
  for (auto& [digest, tenant] : keys_) tenant = moved[tenant];
}

std::optional<Tenants::Index> Tenants::find(std::string_view authorization) const {
  if (!keyed()) return Index{0};
  const std::string_view key = key_in(authorization);
  if (key.size() > kKeyBytesMax) return std::nullopt;
  const auto at = keys_.find(digest_of(key));
  return at == keys_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<Tenants::Index> Tenants::named(const std::string& name) const {
  for (const auto& [digest, tenant] : keys_)
    if (entries_[tenant].tenant.name == name) return tenant;
  return std::nullopt;
}

void Tenants::fill(Bucket& b, uint64_t per_minute, Time now) {
  const auto most = static_cast<double>(per_minute);
  b.left = std::min(most, b.left + most / 60 * to_seconds(now - b.at));
  b.at = now;
}

std::optional<Tenants::Over> Tenants::over(const Tenant& t, const Bucket& b, uint64_t per_minute,
                                           double wanted, const char* what) {
  const auto most = static_cast<double>(per_minute);
  const double need = std::min(wanted, most);  // more than a minute's worth: all of it
  if (per_minute == 0 || b.left >= need) return std::nullopt;
  return Over{strf("tenant %s may have %llu %s per minute", t.name.c_str(),
                   static_cast<unsigned long long>(per_minute), what),
              from_seconds((need - b.left) * 60 / most)};
}

std::optional<Tenants::Over> Tenants::begin(Index tenant, Time now) {
  Entry& e = entries_[tenant];
  const Tenant& t = e.tenant;
  if (!e.used) {
    e.used = true;
    e.requests = {static_cast<double>(t.requests_per_minute), now};
    e.tokens = {static_cast<double>(t.tokens_per_minute), now};
  }
  fill(e.requests, t.requests_per_minute, now);
  fill(e.tokens, t.tokens_per_minute, now);
  if (t.in_flight_max > 0 && e.in_flight >= t.in_flight_max)
    return Over{strf("tenant %s has %llu requests in flight, as many as it may", t.name.c_str(),
                     static_cast<unsigned long long>(e.in_flight)),
                std::chrono::seconds(1)};
  if (auto o = over(t, e.requests, t.requests_per_minute, 1, "requests")) return o;
  if (auto o = over(t, e.tokens, t.tokens_per_minute, 1, "tokens")) return o;
  e.requests.left -= 1;
  ++e.in_flight;
  return std::nullopt;
}

std::optional<Tenants::Over> Tenants::spend(Index tenant, uint64_t prompt_tokens, Time now) {
  Entry& e = entries_[tenant];
  fill(e.tokens, e.tenant.tokens_per_minute, now);
  const auto tokens = static_cast<double>(prompt_tokens);
  auto refused = over(e.tenant, e.tokens, e.tenant.tokens_per_minute, tokens, "tokens");
  if (refused) {
    e.requests.left += 1;
    --e.in_flight;
  } else {
    e.tokens.left -= tokens;
  }
  return refused;
}

void Tenants::recount(Index tenant, uint64_t spent, uint64_t real) {
  entries_[tenant].tokens.left += static_cast<double>(spent) - static_cast<double>(real);
}

void Tenants::ended(Index tenant, uint64_t output_tokens, Time now) {
  Entry& e = entries_[tenant];
  fill(e.tokens, e.tenant.tokens_per_minute, now);
  e.tokens.left -= static_cast<double>(output_tokens);
  --e.in_flight;
}

std::string Tenants::salt(Index tenant, const std::string& asked) const {
  if (!keyed()) return asked;
  const Tenant& t = entries_[tenant].tenant;
  // A text that no tenant's name begins, so that none can ask for another's.
  if (!t.own_cache) return asked.empty() ? "" : hex(digest_of(std::string(1, '\0') + asked));
  return hex(digest_of(t.name + std::string(1, '\0') + asked));
}

}  // namespace mc::serve
