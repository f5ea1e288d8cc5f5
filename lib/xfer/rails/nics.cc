#include "xfer/rails/nics.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>

#include "base/text.h"
#include "base/units.h"
#include "io/file.h"

namespace mc::xfer {
namespace {

std::string sysfs(const std::string& nic, const char* what) {
  std::string text = io::read_file("/sys/class/net/" + nic + "/" + what).value_or("");
  return text.substr(0, text.find('\n'));
}

uint32_t bits_set(const uint8_t* bytes, size_t n) {
  uint32_t bits = 0;
  for (size_t i = 0; i < n; ++i) bits += static_cast<uint32_t>(std::popcount(bytes[i]));
  return bits;
}

// The address as text and the length of its prefix; false for what cannot be advertised.
bool read_address(const ifaddrs& entry, Nic* nic) {
  char text[INET6_ADDRSTRLEN] = {};
  const sockaddr* mask = entry.ifa_netmask;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* a = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    ::inet_ntop(AF_INET, &a->sin_addr, text, sizeof text);
    const auto* m = reinterpret_cast<const sockaddr_in*>(mask);
    if (m != nullptr)
      nic->prefix_bits = bits_set(reinterpret_cast<const uint8_t*>(&m->sin_addr), 4);
  } else if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto* a = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr)) return false;
    ::inet_ntop(AF_INET6, &a->sin6_addr, text, sizeof text);
    const auto* m = reinterpret_cast<const sockaddr_in6*>(mask);
    if (m != nullptr) nic->prefix_bits = bits_set(m->sin6_addr.s6_addr, 16);
  } else {
    return false;
  }
  nic->address = text;
  return true;
}

bool is_wildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

bool on_loopback(const Advertised& a) {
  const auto address = io::parse_address(a.address);
  return address && io::is_loopback(address->host);
}

NicInfo info_of(const Nic& nic) {
  return {nic.name, nic.prefix_bits, nic.numa, nic.gpu, nic.speed_mbit};
}

}  // namespace

std::vector<Nic> system_nics() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Nic> out;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    Nic nic;
    nic.name = entry->ifa_name;
    if (!read_address(*entry, &nic)) continue;
    if (const auto node = parse_uint(sysfs(nic.name, "device/numa_node")); node && *node < 4096)
      nic.numa = static_cast<int>(*node);
    nic.speed_mbit = parse_uint(sysfs(nic.name, "speed")).value_or(0);
    out.push_back(std::move(nic));
  }
  return out;
}

Result<std::vector<Nic>> choose_nics(std::vector<Nic> all, const std::vector<std::string>& only) {
  std::vector<Nic> out, loopback;
  std::vector<std::string> names;
  for (const Nic& nic : all) {
    if (io::is_loopback(nic.address)) {
      loopback.push_back(nic);
    } else {
      if (std::ranges::find(names, nic.name) == names.end()) names.push_back(nic.name);
      if (only.empty()) out.push_back(nic);
    }
  }
  for (const std::string& name : only) {
    const size_t before = out.size();
    for (const Nic& nic : all)
      if (nic.name == name && !io::is_loopback(nic.address)) out.push_back(nic);
    if (out.size() == before && name != "lo")
      return fail(Code::kNotFound, "nics: no interface '%s' with an address is up: there is %s",
                  name.c_str(), names.empty() ? "none" : join(names).c_str());
  }
  out.insert(out.end(), loopback.begin(), loopback.end());
  return out;
}

std::vector<Advertised> advertise(const io::Address& bound, const std::vector<Nic>& nics) {
  std::vector<Advertised> out;
  const auto at = [&](const std::string& host) { return io::Address{host, bound.port}.text(); };
  if (!is_wildcard(bound.host)) {
    const auto of = std::find_if(nics.begin(), nics.end(),
                                 [&](const Nic& nic) { return nic.address == bound.host; });
    out.push_back({at(bound.host), of == nics.end() ? NicInfo{} : info_of(*of)});
    return out;
  }
  for (const Nic& nic :
       nics)  // a socket bound to 0.0.0.0 takes no IPv6; one bound to :: takes both
    if (bound.host == "::" || nic.address.find(':') == std::string::npos)
      out.push_back({at(nic.address), info_of(nic)});
  std::stable_partition(out.begin(), out.end(), std::not_fn(on_loopback));
  const auto here = std::find_if(out.begin(), out.end(), on_loopback);  // one serves as well as two
  if (here != out.end()) out.erase(here + 1, out.end());
  if (out.empty()) out.push_back({at(bound.host), {}});  // peers take the control address's host
  return out;
}

std::string net_id() {
  struct stat ns {};
  if (::stat("/proc/self/ns/net", &ns) != 0) return {};
  std::string boot = io::read_file("/proc/sys/kernel/random/boot_id").value_or("");
  return boot.substr(0, boot.find('\n')) + "/" + std::to_string(ns.st_ino);
}

}  // namespace mc::xfer
