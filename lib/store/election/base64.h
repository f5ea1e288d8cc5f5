// Base64 with padding (RFC 4648), as JSON gateways carry bytes.
//
// Thread: any. Errors of from_base64(): kInvalid.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc {

std::string to_base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);

}  // namespace mc
