// Device memory of an engine of the C interface. A kind is opened when it is first asked for, so a
// process that uses no device loads no driver: that would keep its children from using one.
//
// Thread: any.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/time.h"
#include "device/device.h"
#include "xfer/engine.h"
#include "xfer/memory/device_platform.h"

namespace mc::capi {

class Devices {
 public:
  // The kinds that may be opened: "auto" and "cuda", GPUs; "stand-in", for drills; "none".
  explicit Devices(std::string which) : which_(std::move(which)) {}

  // Opens what "cuda" and "stand-in" name, so that addresses tell where memory lies.
  Result<> open_named(xfer::Engine& engine, const Clock& clock);
  // Ensures that the engine knows memory at `location`; that of the host is always known.
  // kUnsupported: a kind that is not there.
  Result<> know(xfer::Engine& engine, const Clock& clock, const std::string& location);
  // Those that are there. Opens them.
  std::vector<device::Info> list(xfer::Engine& engine, const Clock& clock);
  // "cuda:1", or "cpu". kUnavailable: a device is lost, or does not open.
  Result<std::string> location_of(xfer::Engine& engine, const Clock& clock, const void* address);
  // Uses these, whatever may be opened: for tests.
  Result<> use(xfer::Engine& engine, std::shared_ptr<xfer::DevicePlatform> platform);

 private:
  std::string offered() const { return which_ == "auto" ? "cuda" : which_; }
  Result<> open(xfer::Engine& engine, const Clock& clock) MC_REQUIRES(mutex_);
  Result<> add(xfer::Engine& engine, std::shared_ptr<xfer::DevicePlatform> platform)
      MC_REQUIRES(mutex_);

  const std::string which_;
  Mutex mutex_;
  std::shared_ptr<xfer::DevicePlatform> platform_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::capi
