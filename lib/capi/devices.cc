#include "capi/devices.h"

#include "base/units.h"

namespace mc::capi {
namespace {

bool of_host(const std::string& location) {
  return location == "*" || location == "cpu" || location.starts_with("cpu:");
}

}  // namespace

Result<> Devices::open(xfer::Engine& engine, const Clock& clock) {
  if (platform_ != nullptr) return {};
  MC_TRY(auto platform, xfer::open_device_platform(offered(), clock));
  return add(engine, std::move(platform));
}

Result<> Devices::add(xfer::Engine& engine, std::shared_ptr<xfer::DevicePlatform> platform) {
  MC_TRY_(engine.add_memory_kind(platform->first().kind, platform));
  platform_ = std::move(platform);
  return {};
}

Result<> Devices::use(xfer::Engine& engine, std::shared_ptr<xfer::DevicePlatform> platform) {
  Lock lock(mutex_);
  return add(engine, std::move(platform));
}

Result<> Devices::open_named(xfer::Engine& engine, const Clock& clock) {
  if (which_ == "auto" || which_ == "none") return {};
  Lock lock(mutex_);
  return open(engine, clock);
}

Result<> Devices::know(xfer::Engine& engine, const Clock& clock, const std::string& location) {
  if (of_host(location)) return {};
  const std::string kind = location.substr(0, location.find(':'));
  if (which_ == "none" || kind != offered())
    return fail(Code::kUnsupported, "memory at %s: this engine has memory of the host (cpu:N)%s%s",
                escape(location).c_str(), which_ == "none" ? " only" : " and of ",
                which_ == "none" ? "" : (offered() + " devices").c_str());
  Lock lock(mutex_);
  if (auto opened = open(engine, clock); !opened)
    return fail(Code::kUnsupported, "memory at %s: %s", escape(location).c_str(),
                opened.error().what.c_str());
  return {};
}

std::vector<device::Info> Devices::list(xfer::Engine& engine, const Clock& clock) {
  if (which_ == "none") return {};
  Lock lock(mutex_);
  if (!open(engine, clock)) return {};
  return platform_->devices();
}

Result<std::string> Devices::location_of(xfer::Engine& engine, const Clock& clock,
                                         const void* address) {
  if (which_ == "none") return std::string("cpu");
  Lock lock(mutex_);
  if (const auto opened = open(engine, clock); !opened) {
    const Code code = opened.error().code;
    if (code == Code::kUnsupported || code == Code::kNotFound) return std::string("cpu");  // none
    return fail(opened.error());
  }
  auto found = platform_->locate({static_cast<const std::byte*>(address), 1});
  if (!found && found.error().code != Code::kUnavailable) return std::string("cpu");
  return found;
}

}  // namespace mc::capi
