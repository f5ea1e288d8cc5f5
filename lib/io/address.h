// Parses and prints "host:port".
//
// Thread: any. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc::io {

struct Address {
  std::string host;  // a name or an IPv4/IPv6 literal, without brackets
  uint16_t port = 0;
  std::string text() const;  // "127.0.0.1:5550", "[::1]:5550"
};

// Port 0 means "a free one" and is allowed. A leading "tcp://" is accepted.
Result<Address> parse_address(std::string_view text);
bool is_loopback(std::string_view host);  // 127.0.0.0/8, ::1, localhost

}  // namespace mc::io
