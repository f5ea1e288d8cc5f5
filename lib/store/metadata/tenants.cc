#include "store/metadata/tenants.h"

#include "base/units.h"
#include "store/protocol/messages.h"

namespace mc::store {
namespace {
constexpr const char* kDefault = "default";
constexpr size_t kGroupMax = 4096;  // further objects join no group

std::string group_name(uint16_t tenant, const std::string& name) {
  return std::to_string(tenant) + ':' + name;
}
}  // namespace

Result<Tenants::Quotas> Tenants::parse(const char* option, const std::string& quotas) {
  Quotas out;
  for (size_t at = 0; at < quotas.size();) {
    const size_t end = std::min(quotas.find(',', at), quotas.size());
    const std::string part = quotas.substr(at, end - at);
    const size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0 || equals > kTenantBytesMax)
      return fail(Code::kInvalid, "%s '%s': want NAME=SIZE, separated by commas", option,
                  escape(part).c_str());
    const auto bytes = parse_bytes(part.substr(equals + 1));
    if (!bytes)
      return fail(bytes.error().code, "%s '%s': %s", option, escape(part).c_str(),
                  bytes.error().what.c_str());
    if (!out.emplace(part.substr(0, equals), *bytes).second)
      return fail(Code::kInvalid, "%s: '%s' is named twice", option,
                  escape(part.substr(0, equals)).c_str());
    at = end + 1;
  }
  return out;
}

Tenants::Tenants(Slab<Object>& objects, EvictPolicy policy, Quotas quotas, Quotas disk_quotas,
                 PinShares shares)
    : objects_(objects),
      policy_(policy),
      quotas_(std::move(quotas)),
      disk_quotas_(std::move(disk_quotas)),
      shares_(shares) {
  MC_CHECK(get(kDefault).has_value());
}

uint16_t Tenants::find(std::string_view name) const {
  if (name.empty()) return 0;
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? kNone : it->second;
}

Result<> Tenants::check(std::string_view name) {
  if (name.size() <= kTenantBytesMax && name.find('\0') == std::string_view::npos) return {};
  return fail(Code::kInvalid, "tenant '%s': want 1 to %zu bytes, any but NUL", escape(name).c_str(),
              kTenantBytesMax);
}

Result<uint16_t> Tenants::of_reader(std::string_view name, bool waits) {
  MC_TRY_(check(name));
  const uint16_t known = find(name);
  return known == kNone && waits && all_.size() < kMax / 2 ? get(name) : Result<uint16_t>(known);
}

Result<uint16_t> Tenants::get(std::string_view name) {
  if (const uint16_t known = name.empty() && !all_.empty() ? uint16_t{0} : find(name);
      !all_.empty() && known != kNone)
    return known;
  MC_TRY_(check(name));
  if (all_.size() >= kMax)
    return fail(Code::kBusy, "tenant '%s': there are %zu tenants already", escape(name).c_str(),
                all_.size());
  const auto quota = quotas_.find(std::string(name));
  all_.push_back(std::make_unique<Tenant>(
      std::string(name), quota == quotas_.end() ? 0 : quota->second, objects_, policy_));
  if (const auto disk = disk_quotas_.find(std::string(name)); disk != disk_quotas_.end())
    all_.back()->disk_quota = disk->second;
  const auto id = static_cast<uint16_t>(all_.size() - 1);
  by_name_.emplace(std::string(name), id);
  return id;
}

EvictQueue* Tenants::queue_of(const Object& object) {
  auto& queues = all_[object.tenant]->queues;
  switch (object.pin) {
    case Pin::kHard: return nullptr;
    case Pin::kSoft: return &queues[2];
    case Pin::kNone: break;
  }
  switch (object.cls) {
    case ObjectClass::kContext: return nullptr;
    case ObjectClass::kEphemeral: return &queues[0];
    case ObjectClass::kNormal: break;
  }
  return &queues[1];
}

const Group* Tenants::find_group(uint16_t tenant, const std::string& name) const {
  const auto it = groups_.find(group_name(tenant, name));
  return it == groups_.end() ? nullptr : &it->second;
}

Group* Tenants::join(const Object& object, const std::string& name) {
  Group& group = groups_[group_name(object.tenant, name)];
  if (group.members.size() >= kGroupMax) return nullptr;
  group.name = name;
  group.members.push_back(object.self);
  return &group;
}

void Tenants::leave(const Object& object, Group& group) {
  std::erase(group.members, object.self);
  if (group.members.empty()) groups_.erase(group_name(object.tenant, group.name));
}

void Tenants::count(const Object& object, Group* group, uint64_t bytes, bool in) {
  const bool stay = stays(object.cls, object.pin);
  uint64_t before = in || !stay ? 0 : bytes, after = in && stay ? bytes : 0;
  if (group != nullptr) {
    before = group->pinned();
    group->bytes = in ? group->bytes + bytes : group->bytes - bytes;
    if (stay) group->staying = in ? group->staying + 1 : group->staying - 1;
    after = group->pinned();
  }
  Tenant& tenant = *all_[object.tenant];
  tenant.pinned = tenant.pinned - before + after;
  pinned_ = pinned_ - before + after;
}

Result<> Tenants::may_add(uint16_t tenant, const Group* group, bool stays, uint64_t bytes,
                          uint64_t capacity) const {
  if (group != nullptr && group->staying > 0) return may_pin(tenant, bytes, capacity);
  if (!stays) return {};
  return may_pin(tenant, bytes + (group != nullptr ? group->bytes : 0), capacity);
}

Result<> Tenants::may_copy(const Object& object, const Group* group, uint64_t bytes,
                           uint64_t capacity) const {
  const Tenant& t = *all_[object.tenant];
  if (t.quota == 0 || t.used + bytes <= t.quota)
    return may_add(object.tenant, group, stays(object.cls, object.pin), bytes, capacity);
  return fail(Code::kNoSpace,
              "tenant '%s' is at its quota: %s of %s used, %s more is beyond it: remove some, or "
              "raise --tenant-quotas",
              escape(t.name).c_str(), rounded_bytes_text(t.used).c_str(),
              rounded_bytes_text(t.quota).c_str(), rounded_bytes_text(bytes).c_str());
}

Result<> Tenants::may_pin(uint16_t tenant, uint64_t more, uint64_t capacity) const {
  const Tenant& t = *all_[tenant];
  const auto within = [&](double share, uint64_t pinned) {
    return static_cast<double>(pinned) + static_cast<double>(more) <=
           share * static_cast<double>(capacity);
  };
  if (within(shares_.of_tenant, t.pinned) && within(shares_.of_all, pinned_)) return {};
  const bool own = !within(shares_.of_tenant, t.pinned);
  return fail(Code::kNoSpace,
              "%s%s: %s of a pool of %s are pinned or contexts: %s more is beyond %s %s: unpin or "
              "remove some, or raise it",
              own ? "tenant '" : "all tenants together", own ? (escape(t.name) + "'").c_str() : "",
              rounded_bytes_text(own ? t.pinned : pinned_).c_str(),
              rounded_bytes_text(capacity).c_str(), rounded_bytes_text(more).c_str(),
              own ? "--tenant-pin-share" : "--pin-share",
              number_text(own ? shares_.of_tenant : shares_.of_all).c_str());
}

}  // namespace mc::store
