#include "topo/discover/sysfs.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "io/file.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace fs = std::filesystem;
namespace {

constexpr size_t kFileBytesMax = 64u << 10;
constexpr size_t kEntriesMax = 65536;

// The address and bridges of the innermost PCI function on a path below devices/.
DeviceLocation location_on_path(const std::string& path) {
  DeviceLocation found;
  std::vector<std::string> chain;
  for (const fs::path& part : fs::path(path)) {
    const std::string name = part.string();
    if (is_host_bridge(name) || (!chain.empty() && is_pci_address(name))) chain.push_back(name);
  }
  if (!chain.empty() && is_pci_address(chain.back())) {
    found.pci = chain.back();
    chain.pop_back();
    found.bridges = std::move(chain);
  }
  return found;
}

template <class T>
std::optional<T> number(std::string_view s, int base = 10) {
  if (base == 16 && s.starts_with("0x")) s.remove_prefix(2);
  T value{};
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

// "4: ACTIVE" is ACTIVE.
std::string after_colon(const std::string& s) {
  const size_t colon = s.find(": ");
  return colon == std::string::npos ? s : s.substr(colon + 2);
}

// "Node 0 MemTotal:  24 kB", one of the lines of meminfo.
uint64_t total_memory(const std::string& meminfo) {
  const size_t at = meminfo.find("MemTotal:");
  if (at == std::string::npos) return 0;
  const size_t first = meminfo.find_first_of("0123456789", at);
  if (first == std::string::npos) return 0;
  const size_t last = meminfo.find_first_not_of("0123456789", first);
  return number<uint64_t>(meminfo.substr(first, last - first)).value_or(0) * 1024;
}

// Loopback and tunnels report no carrier: their state is "unknown" while they work.
bool works(const std::optional<std::string>& operstate) {
  return operstate == "up" || operstate == "unknown";
}

// The entries in use: a port has hundreds, nearly all zero.
std::vector<Gid> gids(const Sysfs& sysfs, const std::string& port) {
  std::vector<Gid> out;
  for (const std::string& name : sysfs.names(port + "gids")) {
    const auto index = number<int>(name);
    const std::string value = sysfs.text(port + "gids/" + name).value_or("");
    if (!index || value.find_first_not_of("0:") == std::string::npos) continue;
    out.push_back({.index = *index,
                   .value = value,
                   .type = sysfs.text(port + "gid_attrs/types/" + name).value_or(""),
                   .netdev = sysfs.text(port + "gid_attrs/ndevs/" + name).value_or("")});
  }
  std::sort(out.begin(), out.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return out;
}

}  // namespace

Result<Sysfs> Sysfs::open(const std::string& folder) {
  std::error_code error;
  for (const fs::path& root : {fs::path(folder) / "sys", fs::path(folder)}) {
    if (!fs::is_directory(root / "devices", error)) continue;
    const fs::path canonical = fs::canonical(root, error);
    if (!error) return Sysfs(canonical.string());
  }
  if (!fs::is_directory(folder, error)) {
    return fail(Code::kNotFound, "%s: no such folder: give the folder that holds a recorded sys/",
                folder.c_str());
  }
  return fail(Code::kInvalid,
              "%s: not a recorded sysfs: neither sys/devices nor devices is below it: give the "
              "folder that holds sys/",
              folder.c_str());
}

std::optional<std::string> Sysfs::real_path(const std::string& path) const {
  std::error_code error;
  const std::string real = fs::canonical(fs::path(root_) / path, error).string();
  if (error || !real.starts_with(root_ + "/")) return std::nullopt;
  return real.substr(root_.size() + 1);
}

std::string Sysfs::bytes(const std::string& path) const {
  const auto real = real_path(path);
  std::error_code error;
  if (!real || !fs::is_regular_file(fs::path(root_) / *real, error)) return "";
  // Some attributes of idle devices refuse to be read.
  return io::read_file(root_ + "/" + *real, kFileBytesMax).value_or("");
}

std::optional<std::string> Sysfs::text(const std::string& path) const {
  const auto real = real_path(path);
  std::error_code error;
  if (!real || !fs::is_regular_file(fs::path(root_) / *real, error)) return std::nullopt;
  auto content = io::read_file(root_ + "/" + *real, kFileBytesMax);
  if (!content) return std::nullopt;
  const size_t last = content->find_last_not_of(" \n\t");
  content->resize(last == std::string::npos ? 0 : last + 1);
  return *content;
}

std::vector<std::string> Sysfs::names(const std::string& path) const {
  std::vector<std::string> out;
  const auto real = real_path(path);
  if (!real) return out;
  std::error_code error;
  for (fs::directory_iterator it(fs::path(root_) / *real, error), end; !error && it != end;
       it.increment(error)) {
    if (out.size() == kEntriesMax) break;
    out.push_back(it->path().filename().string());
  }
  std::sort(out.begin(), out.end(), in_natural_order);
  return out;
}

int Sysfs::numa_node(const std::string& device_path) const {
  const auto content = text(device_path + "/numa_node");
  return std::max(content ? number<int>(*content).value_or(kUnknownNode) : kUnknownNode,
                  kUnknownNode);
}

Result<std::vector<NumaNode>> Sysfs::numa_nodes() const {
  std::vector<NumaNode> nodes;
  const std::string folder = "devices/system/node";
  for (const std::string& name : names(folder)) {
    const auto id = name.starts_with("node") ? number<int>(name.substr(4)) : std::nullopt;
    if (!id) continue;
    const std::string base = folder + "/" + name;
    NumaNode node{.id = *id, .cpus = {}, .memory_bytes = 0};
    MC_TRY(node.cpus,
           parse_cpu_list(text(base + "/cpulist").value_or(""), root_ + "/" + base + "/cpulist"));
    node.memory_bytes = total_memory(text(base + "/meminfo").value_or(""));
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) {  // a kernel without NUMA: one node with every CPU
    const std::string online = "devices/system/cpu/online";
    NumaNode node;
    MC_TRY(node.cpus, parse_cpu_list(text(online).value_or(""), root_ + "/" + online));
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

PciFunctions Sysfs::pci_functions() const {
  PciFunctions functions;
  const std::string folder = "bus/pci/devices";
  for (const std::string& address : names(folder)) {
    const std::string base = folder + "/" + address;
    const auto real = real_path(base);
    if (!real || !is_pci_address(address)) continue;
    PciFunction function;
    function.at = location_on_path(*real);
    function.at.pci = address;
    function.at.numa = numa_node(base);
    function.at.link = link(base);
    const auto id = [&](const char* file) {
      return number<uint32_t>(text(base + "/" + file).value_or(""), 16).value_or(0);
    };
    function.class_code = id("class");
    function.vendor = id("vendor");
    function.device = id("device");
    functions.emplace(address, std::move(function));
  }
  return functions;
}

DeviceLocation Sysfs::location(const std::string& class_path, const PciFunctions& functions) const {
  DeviceLocation found = location_on_path(real_path(class_path).value_or(""));
  const auto known = functions.find(found.pci);
  if (known != functions.end()) return known->second.at;
  found.numa = numa_node(class_path + "/device");
  return found;
}

std::vector<RdmaDevice> Sysfs::rdma_devices(const PciFunctions& functions) const {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : names("class/infiniband")) {
    const std::string base = "class/infiniband/" + name;
    RdmaDevice device{
        .name = name, .at = location(base, functions), .ports = {}, .driver = {}, .netdev = {}};
    for (const std::string& port_name : names(base + "/ports")) {
      const auto port_number = number<int>(port_name);
      if (!port_number) continue;
      const std::string port = base + "/ports/" + port_name + "/";
      device.ports.push_back({.number = *port_number,
                              .state = after_colon(text(port + "state").value_or("")),
                              .link_layer = text(port + "link_layer").value_or(""),
                              .rate = text(port + "rate").value_or(""),
                              .gids = gids(*this, port)});
    }
    if (!device.at.pci.empty()) {
      const std::string function = "bus/pci/devices/" + device.at.pci;
      device.driver = driver(function);
      const auto nets = names(function + "/net");
      if (!nets.empty()) device.netdev = nets.front();
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

std::vector<NetDevice> Sysfs::net_devices(const PciFunctions& functions) const {
  std::vector<NetDevice> devices;
  for (const std::string& name : names("class/net")) {
    const std::string base = "class/net/" + name;
    if (names(base).empty()) continue;  // bonding_masters is a file
    const auto speed = number<int64_t>(text(base + "/speed").value_or(""));
    devices.push_back({.name = name,
                       .at = location(base, functions),
                       .addresses = {},
                       .speed_mbit = static_cast<uint64_t>(std::max<int64_t>(speed.value_or(0), 0)),
                       .up = works(text(base + "/operstate")),
                       .mtu = number<uint32_t>(text(base + "/mtu").value_or("")).value_or(0),
                       .driver = driver(base + "/device")});
  }
  return devices;
}

std::vector<Disk> Sysfs::disks(const PciFunctions& functions) const {
  std::vector<Disk> disks;
  for (const std::string& name : names("class/nvme")) {
    const std::string base = "class/nvme/" + name;
    Disk disk{.name = name,
              .at = location(base, functions),
              .model = text(base + "/model").value_or(""),
              .bytes = 0};
    for (const std::string& part : names(base)) {
      if (!part.starts_with("nvme")) continue;  // namespaces: nvme0n1, nvme0c0n1
      const auto sectors = number<uint64_t>(text(base + "/" + part + "/size").value_or(""));
      disk.bytes += sectors.value_or(0) << 9;
    }
    disks.push_back(std::move(disk));
  }
  return disks;
}

std::string Sysfs::driver(const std::string& device_path) const {
  // Only the link's name: the driver's folder may be missing in a recording.
  const auto real = real_path(device_path);
  if (!real) return "";
  std::error_code error;
  return fs::read_symlink(fs::path(root_) / *real / "driver", error).filename().string();
}

PciLink Sysfs::link(const std::string& device_path) const {
  const auto lanes = [&](const char* file) {
    const auto width = number<uint32_t>(text(device_path + file).value_or(""));
    return width && *width <= 32 ? *width : 0;  // the kernel writes 63 or 255 for unknown
  };
  return {.gt_per_s = parse_gt_per_s(text(device_path + "/current_link_speed").value_or("")),
          .gt_per_s_max = parse_gt_per_s(text(device_path + "/max_link_speed").value_or("")),
          .width = lanes("/current_link_width"),
          .width_max = lanes("/max_link_width")};
}

}  // namespace mc::topo
