#include "store/metadata/tenants.h"

#include "base/units.h"
#include "store/protocol/messages.h"

namespace mc::store {
namespace {
constexpr const char* kDefault = "default";
}

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

Tenants::Tenants(Slab<Object>& objects, EvictPolicy policy, Quotas quotas, Quotas disk_quotas)
    : objects_(objects),
      policy_(policy),
      quotas_(std::move(quotas)),
      disk_quotas_(std::move(disk_quotas)) {
  MC_CHECK(get(kDefault).has_value());
}

uint16_t Tenants::find(std::string_view name) const {
  if (name.empty()) return 0;
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? kNone : it->second;
}

Result<uint16_t> Tenants::get(std::string_view name) {
  if (const uint16_t known = name.empty() && !all_.empty() ? uint16_t{0} : find(name);
      !all_.empty() && known != kNone)
    return known;
  if (name.size() > kTenantBytesMax || name.find('\0') != std::string_view::npos)
    return fail(Code::kInvalid, "tenant '%s': want 1 to %zu bytes, any but NUL",
                escape(name).c_str(), kTenantBytesMax);
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

}  // namespace mc::store
