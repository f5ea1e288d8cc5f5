#include "io/address.h"

#include <arpa/inet.h>

#include "base/units.h"

namespace mc::io {

std::string Address::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Address> parse_address(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("tcp://")) rest.remove_prefix(6);
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0)
    return fail(Code::kInvalid, "address '%s': want host:port", escape(text).c_str());
  std::string_view host = rest.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string_view bad = bracketed ? "[] \t\r\n" : "[]: \t\r\n";
  if (host.empty() || host.find_first_of(bad) != std::string_view::npos)
    return fail(Code::kInvalid, "address '%s': want host:port, or [host]:port for IPv6",
                escape(text).c_str());
  auto port = parse_uint(rest.substr(colon + 1));
  if (!port || *port > 65535)
    return fail(Code::kInvalid, "address '%s': port must be 0 to 65535", escape(text).c_str());
  return Address{std::string(host), static_cast<uint16_t>(*port)};
}

bool is_loopback(std::string_view host) {
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

}  // namespace mc::io
