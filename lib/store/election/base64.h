// Encodes and decodes base64 with padding (RFC 4648), as JSON gateways carry bytes.
//
// Errors: from_base64() fails with kInvalid.
// Thread: any.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc {

std::string to_base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);

}  // namespace mc
