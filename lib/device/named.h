// Opens a device by its name on a command line.
//
// Thread: any.
#pragma once
#include <string>

#include "base/time.h"
#include "device/device.h"

namespace mc::device {

// "cuda" and "cuda:1"; "stand-in" and "stand-in:1" for trying what needs a device without one
// (`clock` outlives it). kInvalid: another word; kUnsupported, kNotFound: why there is none.
Result<DevicePtr> open_named(const std::string& word, const Clock& clock);

}  // namespace mc::device
