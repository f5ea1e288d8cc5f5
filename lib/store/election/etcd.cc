#include "store/election/etcd.h"

#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "io/address.h"
#include "store/election/base64.h"

namespace mc::store {
namespace {

constexpr size_t kEndpointsMax = 16, kPrefixBytesMax = 256, kMastersMax = 64;

std::string leader_key(const std::string& prefix) { return prefix + "/store/leader/address"; }
std::string epoch_key(const std::string& prefix) { return prefix + "/store/leader/epoch"; }
std::string masters_key(const std::string& prefix) { return prefix + "/store/masters/"; }

// The range of all keys that start with `start`, which ends with a slash.
Json range_of(const std::string& start) {
  std::string end = start;
  end.back() = '0';  // the character after '/'
  return {{"key", to_base64(start)}, {"range_end", to_base64(end)}, {"limit", 2 * kMastersMax}};
}
Json both_keys(const std::string& prefix) { return range_of(prefix + "/store/leader/"); }

Json put_of(const std::string& key, const std::string& value, int64_t lease) {
  Json put = {{"key", to_base64(key)}, {"value", to_base64(value)}};
  if (lease != 0) put["lease"] = std::to_string(lease);
  return put;
}

Json campaign(const EtcdQuestion& q, const std::string& prefix, const std::string& me) {
  const Json nobody = {{"key", to_base64(leader_key(prefix))},
                       {"target", "CREATE"},
                       {"result", "EQUAL"},
                       {"create_revision", "0"}};
  const Json same = {{"key", to_base64(epoch_key(prefix))},
                     {"target", "MOD"},
                     {"result", "EQUAL"},
                     {"mod_revision", std::to_string(q.revision)}};
  const Json look = {{"request_range", both_keys(prefix)}};
  return {{"compare", {nobody, same}},
          {"success",
           {{{"request_put", put_of(leader_key(prefix), me, q.lease)}},
            {{"request_put", put_of(epoch_key(prefix), std::to_string(q.epoch), 0)}},
            look}},
          {"failure", Json::array({look})}};
}

Json raise(const EtcdQuestion& q, const std::string& prefix) {
  const Json mine = {{"key", to_base64(leader_key(prefix))},
                     {"target", "LEASE"},
                     {"result", "EQUAL"},
                     {"lease", std::to_string(q.lease)}};
  return {
      {"compare", Json::array({mine})},
      {"success",
       Json::array({{{"request_put", put_of(epoch_key(prefix), std::to_string(q.epoch), 0)}}})}};
}

Error damaged(const std::string& what) { return {Code::kCorrupt, "answer of etcd: " + what}; }

// A number as the gateway writes it: as text, or absent if 0.
Result<uint64_t> number_in(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return uint64_t{0};
  const Json& v = object[key];
  if (v.is_number_unsigned()) return v.get<uint64_t>();
  const auto n = v.is_string() ? parse_uint(v.get_ref<const std::string&>())
                               : Result<uint64_t>(fail(Code::kInvalid, "no number"));
  if (!n) return fail(damaged(strf("'%s' is no number", key)));
  return *n;
}
Result<int64_t> signed_in(const Json& object, const char* key) {
  MC_TRY(const uint64_t n, number_in(object, key));
  if (n > INT64_MAX) return fail(damaged(strf("'%s' is too large", key)));
  return static_cast<int64_t>(n);
}
Result<std::string> bytes_in(const Json& object, const char* key) {
  const auto text = get_string_or(object, key, "");
  auto bytes = text ? from_base64(*text) : Result<std::string>(fail(text.error()));
  if (!bytes) return fail(damaged(strf("'%s': %s", key, bytes.error().what.c_str())));
  return bytes;
}

struct KeyValue {
  std::string key, value;
  int64_t lease = 0, revision = 0;
};
Result<std::vector<KeyValue>> range_in(const Json& answer) {
  std::vector<KeyValue> out;
  if (!answer.is_object()) return fail(damaged("a range that is no object"));
  if (!answer.contains("kvs")) return out;
  if (!answer["kvs"].is_array()) return fail(damaged("'kvs' is no array"));
  for (const Json& kv : answer["kvs"]) {
    if (!kv.is_object()) return fail(damaged("a key that is no object"));
    KeyValue one;
    MC_TRY(one.key, bytes_in(kv, "key"));
    MC_TRY(one.value, bytes_in(kv, "value"));
    MC_TRY(one.lease, signed_in(kv, "lease"));
    MC_TRY(one.revision, signed_in(kv, "mod_revision"));
    out.push_back(std::move(one));
  }
  return out;
}

Result<EtcdAnswer> found_in(const Json& range, const std::string& prefix) {
  EtcdAnswer out;
  MC_TRY(const auto all, range_in(range));
  for (const KeyValue& kv : all) {
    if (kv.key == leader_key(prefix)) {
      out.leader = kv.value;
      out.leader_lease = kv.lease;
    } else if (kv.key == epoch_key(prefix)) {
      const auto epoch = parse_uint(kv.value);
      if (!epoch) return fail(damaged(strf("epoch '%s'", escape(kv.value).c_str())));
      out.epoch = *epoch;
      out.epoch_revision = kv.revision;
    }
  }
  return out;
}

// Parses the range response at the end of a campaign transaction, won or lost.
Result<EtcdAnswer> campaigned_in(const Json& json, const std::string& prefix) {
  if (!json.contains("responses") || !json["responses"].is_array() || json["responses"].empty() ||
      !json["responses"].back().is_object() || !json["responses"].back().contains("response_range"))
    return fail(damaged("a transaction without its range response"));
  return found_in(json["responses"].back()["response_range"], prefix);
}

Result<EtcdAnswer> granted_in(const Json& json) {
  EtcdAnswer out;
  MC_TRY(out.lease, signed_in(json, "ID"));
  MC_TRY(out.ttl_s, number_in(json, "TTL"));
  return out;
}

Result<Json> parsed(int status, const std::string& body) {
  auto json = parse_json(body);
  if (status != 200) {
    std::string why = json ? get_string_or(*json, "error", "").value_or("") : "";
    if (why.empty()) why = "no reason given";
    return fail(Code::kUnavailable, "etcd answered %d: %s", status, escape(why).c_str());
  }
  if (!json) return fail(damaged(json.error().what));
  if (!json->is_object()) return fail(damaged("no object"));
  return json;
}

}  // namespace

Result<EtcdUrl> EtcdUrl::parse(const std::string& text) {
  EtcdUrl url;
  const auto bad = [&](const std::string& why) {
    return fail(Code::kInvalid, "'%s': %s: want etcd://host:port[,host:port][/prefix]",
                escape(text).c_str(), why.c_str());
  };
  if (!is(text)) return bad("not an etcd URL");
  const std::string rest = text.substr(7);
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (slash + 1 < rest.size()) url.prefix = rest.substr(slash + 1);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  if (url.prefix.empty() || url.prefix.size() > kPrefixBytesMax)
    return bad(strf("a prefix of %zu bytes", url.prefix.size()));
  for (size_t at = 0; at <= slash;) {
    const size_t end = std::min(rest.find(',', at), slash);
    const auto address = io::parse_address(rest.substr(at, end - at));
    if (!address) return bad(address.error().what);
    if (address->port == 0) return bad("no port");
    url.endpoints.push_back(address->text());
    at = end + 1;
  }
  if (url.endpoints.size() > kEndpointsMax)
    return bad(strf("more than %zu endpoints", kEndpointsMax));
  return url;
}

EtcdCall call_of(const EtcdQuestion& q, const std::string& prefix, const std::string& me) {
  using Asked = EtcdQuestion::Kind;
  const std::string lease = std::to_string(q.lease);
  const auto make = [](const char* path, const Json& body) {
    return EtcdCall{path, dump_json(body)};
  };
  switch (q.kind) {
    case Asked::kGrant: return make("/v3/lease/grant", {{"TTL", std::to_string(q.ttl_s)}});
    case Asked::kJoin: return make("/v3/kv/put", put_of(masters_key(prefix) + me, me, q.lease));
    case Asked::kRenew: return make("/v3/lease/keepalive", {{"ID", lease}});
    case Asked::kLook: return make("/v3/kv/range", both_keys(prefix));
    case Asked::kCampaign: return make("/v3/kv/txn", campaign(q, prefix, me));
    case Asked::kRaise: return make("/v3/kv/txn", raise(q, prefix));
    case Asked::kResign: break;
  }
  return make("/v3/lease/revoke", {{"ID", lease}});
}

Result<EtcdAnswer> answer_to(const EtcdQuestion& q, const std::string& prefix, int status,
                             const std::string& body) {
  using Asked = EtcdQuestion::Kind;
  MC_TRY(const Json json, parsed(status, body));
  switch (q.kind) {
    case Asked::kGrant: return granted_in(json);
    case Asked::kRenew:  // a stream of one message, or an error
      if (!json.contains("result")) return fail(damaged("a renewal without a result"));
      return granted_in(json["result"]);
    case Asked::kLook: return found_in(json, prefix);
    case Asked::kCampaign: return campaigned_in(json, prefix);
    case Asked::kJoin:
    case Asked::kRaise:
    case Asked::kResign: break;
  }
  return EtcdAnswer{};
}

EtcdCall masters_call(const std::string& prefix) {
  return {"/v3/kv/range", dump_json(range_of(prefix + "/store/"))};
}

Result<std::vector<std::string>> masters_answer(const std::string& prefix, int status,
                                                const std::string& body) {
  MC_TRY(const Json json, parsed(status, body));
  MC_TRY(const auto all, range_in(json));
  std::vector<std::string> out;
  for (const KeyValue& kv : all) {
    const bool leader = kv.key == leader_key(prefix);
    if (!leader && !kv.key.starts_with(masters_key(prefix))) continue;
    MC_TRY_(io::parse_address(kv.value));
    std::erase(out, leader ? kv.value : std::string());
    if (leader)
      out.insert(out.begin(), kv.value);
    else if (std::find(out.begin(), out.end(), kv.value) == out.end())
      out.push_back(kv.value);
  }
  return out;
}

}  // namespace mc::store
