#include "topo/model/pci.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/result.h"

namespace mc::topo {
namespace {

constexpr uint32_t kNvidia = 0x10de, kAmd = 0x1002, kIntel = 0x8086, kHabana = 0x1da3;

// ATI's VGA chips for the consoles of servers, under the vendor id that AMD's GPUs have too.
constexpr std::array kConsoleChips = {0x4752u, 0x4c59u, 0x5159u, 0x515eu, 0x5969u};

const char* vendor_name(uint32_t vendor) {
  switch (vendor) {
    case kNvidia: return "NVIDIA";
    case kAmd: return "AMD";
    case kIntel: return "Intel";
    case kHabana: return "Habana";
    default: return "vendor";
  }
}

bool hex(std::string_view s, size_t least, size_t most) {
  return s.size() >= least && s.size() <= most &&
         s.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

// 3D controllers, AMD's "other display" and accelerators. A VGA controller counts only when its
// vendor builds compute GPUs: servers have a small one for the console.
bool is_gpu(const PciFunction& f) {
  const uint32_t kind = f.class_code >> 8;
  const bool console =
      std::find(kConsoleChips.begin(), kConsoleChips.end(), f.device) != kConsoleChips.end();
  if (kind == 0x0302) return true;
  if (kind == 0x0300) return f.vendor == kNvidia || (f.vendor == kAmd && !console);
  if (kind == 0x0380) return f.vendor == kNvidia || f.vendor == kAmd || f.vendor == kIntel;
  if (kind == 0x1200) {
    return f.vendor == kNvidia || f.vendor == kAmd || f.vendor == kIntel || f.vendor == kHabana;
  }
  return false;
}

std::string gpu_name(const PciFunction& f) {
  return strf("%s %04x:%04x", vendor_name(f.vendor), f.vendor, f.device);
}

bool is_pci_address(std::string_view s) {
  const size_t a = s.find(':');
  if (a == std::string_view::npos || s.size() != a + 8) return false;
  return hex(s.substr(0, a), 4, 8) && hex(s.substr(a + 1, 2), 2, 2) && s[a + 3] == ':' &&
         hex(s.substr(a + 4, 2), 2, 2) && s[a + 6] == '.' && hex(s.substr(a + 7), 1, 1);
}

bool is_host_bridge(std::string_view s) {
  if (!s.starts_with("pci")) return false;
  s.remove_prefix(3);
  const size_t colon = s.find(':');
  return colon != std::string_view::npos && hex(s.substr(0, colon), 4, 8) &&
         hex(s.substr(colon + 1), 2, 2);
}

std::optional<std::string> kernel_pci_address(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (std::count(out.begin(), out.end(), ':') == 1) out = "0000:" + out;
  const size_t colon = out.find(':');
  if (colon > 4 && colon != std::string::npos) {  // NVML writes eight digits, the kernel four
    const size_t zeros = std::min(out.find_first_not_of('0'), colon - 4);
    out.erase(0, zeros);
  }
  return is_pci_address(out) ? std::optional(out) : std::nullopt;
}

double parse_gt_per_s(const std::string& s) {
  const size_t end = s.find(" GT/s");
  if (end == std::string::npos) return 0;
  double value = 0;
  const auto [stop, error] = std::from_chars(s.data(), s.data() + end, value);
  const bool good = error == std::errc() && stop == s.data() + end && value > 0 && value < 1000;
  return good ? value : 0;
}

}  // namespace mc::topo
