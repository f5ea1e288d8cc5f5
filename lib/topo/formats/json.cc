#include "topo/formats/json.h"

#include "base/json.h"
#include "topo/model/gpu_links.h"
#include "topo/model/limits.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace {

constexpr size_t kDevicesMax = 65536;
constexpr size_t kBridgesMax = 255;  // PCI has that many buses

Json location_json(const DeviceLocation& at) {
  Json out;
  out["pci"] = at.pci.empty() ? Json(nullptr) : Json(at.pci);
  out["numa"] = at.numa == kUnknownNode ? Json(nullptr) : Json(at.numa);
  return out;
}

Json or_null(double value) { return value == 0 ? Json(nullptr) : Json(value); }
Json or_null(uint64_t value) { return value == 0 ? Json(nullptr) : Json(value); }
Json or_null(uint32_t value) { return value == 0 ? Json(nullptr) : Json(value); }

Json whole_location_json(const DeviceLocation& at) {
  Json out = location_json(at);
  out["bridges"] = at.bridges;
  out["link"] = {{"gt_per_s", or_null(at.link.gt_per_s)},
                 {"gt_per_s_max", or_null(at.link.gt_per_s_max)},
                 {"width", or_null(at.link.width)},
                 {"width_max", or_null(at.link.width_max)}};
  return out;
}

Json port_json(const Port& port) {
  Json gids = Json::array();
  for (const Gid& gid : port.gids) {
    gids.push_back(
        {{"index", gid.index}, {"gid", gid.value}, {"type", gid.type}, {"netdev", gid.netdev}});
  }
  return {{"port", port.number},
          {"state", port.state},
          {"link_layer", port.link_layer},
          {"rate", port.rate},
          {"gids", std::move(gids)}};
}

Json peers_json(const Gpu& gpu) {
  Json out = Json::array();
  for (const GpuPeer& peer : gpu.peers) {
    out.push_back({{"pci", peer.pci},
                   {"type", peer.type},
                   {"links", peer.links},
                   {"generation", or_null(peer.generation)},
                   {"switched", peer.switched}});
  }
  return out;
}

Json gpu_json(const Gpu& gpu, size_t index) {
  Json row = {{"index", index}, {"name", gpu.name}};
  row.update(whole_location_json(gpu.at));
  row["driver"] = gpu.driver;
  row["peers"] = peers_json(gpu);
  row["paths"] = Json::array();
  for (const GpuPath& path : gpu.paths) {
    row["paths"].push_back({{"pci", path.pci}, {"kind", path.kind}, {"no_access", path.no_access}});
  }
  row["nvlinks"] = gpu.nvlinks;
  row["nvlinks_active"] = gpu.nvlinks_active;
  row["trouble"] = gpu.trouble;
  return row;
}

// ---- reading back: the JSON is untrusted, so every member is checked

class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  Result<std::string> text(const char* key) const {
    const Json* v = find(key);
    if (!v) return std::string();
    if (!v->is_string()) return wrong(key, "a text");
    return v->get<std::string>();
  }
  Result<uint64_t> count(const char* key, uint64_t most = UINT64_MAX) const {
    const Json* v = find(key);
    if (!v) return uint64_t{0};
    if (!v->is_number_integer() || (!v->is_number_unsigned() && v->get<int64_t>() < 0) ||
        v->get<uint64_t>() > most) {
      return wrong(key, "a whole number in range");
    }
    return v->get<uint64_t>();
  }
  Result<double> number(const char* key) const {
    const Json* v = find(key);
    if (!v) return 0.0;
    if (!v->is_number()) return wrong(key, "a number");
    return v->get<double>();
  }
  Result<bool> flag(const char* key) const {
    const Json* v = find(key);
    if (!v) return false;
    if (!v->is_boolean()) return wrong(key, "true or false");
    return v->get<bool>();
  }
  Result<int> node(const char* key) const {  // null: unknown
    if (!find(key)) return kUnknownNode;
    MC_TRY(const uint64_t id, count(key, kNumbersMax));
    return static_cast<int>(id);
  }
  Result<std::vector<std::string>> texts(const char* key) const {
    std::vector<std::string> out;
    MC_TRY(const Json* list, array(key));
    for (size_t i = 0; list && i < list->size(); ++i) {
      if (!(*list)[i].is_string()) return wrong(key, "a list of texts");
      out.push_back((*list)[i].get<std::string>());
    }
    return out;
  }
  // Calls `read` with a Reader of each element.
  template <class Read>
  Result<> each(const char* key, const Read& read) const {
    MC_TRY(const Json* list, array(key));
    for (size_t i = 0; list && i < list->size(); ++i) {
      const std::string at = where_ + strf(" %s[%zu]", key, i);
      if (!(*list)[i].is_object()) return fail(Code::kInvalid, "%s is no object", at.c_str());
      MC_TRY_(read(Reader((*list)[i], at)));
    }
    return {};
  }
  Result<Reader> object(const char* key) const {
    static const Json kEmpty = Json::object();
    const Json* v = find(key);
    if (v && !v->is_object()) return wrong(key, "an object");
    return Reader(v ? *v : kEmpty, where_ + " " + key);
  }
  Failure wrong(const char* key, const char* what) const {
    return fail(Code::kInvalid, "%s: \"%s\" is not %s", where_.c_str(), key, what);
  }

 private:
  const Json* find(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  Result<const Json*> array(const char* key) const {
    const Json* v = find(key);
    if (v && (!v->is_array() || v->size() > kDevicesMax))
      return wrong(key, "a list within the limits");
    return v;
  }

  const Json& json_;
  std::string where_;
};

Result<DeviceLocation> location_from(const Reader& r) {
  DeviceLocation at;
  MC_TRY(at.pci, r.text("pci"));
  MC_TRY(at.numa, r.node("numa"));
  MC_TRY(at.bridges, r.texts("bridges"));
  if (at.bridges.size() > kBridgesMax) return r.wrong("bridges", "a path in a PCI tree");
  MC_TRY(const Reader link, r.object("link"));
  MC_TRY(at.link.gt_per_s, link.number("gt_per_s"));
  MC_TRY(at.link.gt_per_s_max, link.number("gt_per_s_max"));
  MC_TRY(const uint64_t width, link.count("width", 64));
  MC_TRY(const uint64_t width_max, link.count("width_max", 64));
  at.link.width = static_cast<uint32_t>(width);
  at.link.width_max = static_cast<uint32_t>(width_max);
  return at;
}

Result<NumaNode> node_from(const Reader& r) {
  NumaNode node;
  MC_TRY(node.id, r.node("numa"));
  MC_TRY(node.memory_bytes, r.count("memory_bytes"));
  MC_TRY(const std::string cpus, r.text("cpu_list"));
  MC_TRY(node.cpus, parse_cpu_list(cpus, "cpu_list"));
  return node;
}

Result<Gpu> gpu_from(const Reader& r) {
  Gpu gpu;
  MC_TRY(gpu.name, r.text("name"));
  MC_TRY(gpu.at, location_from(r));
  MC_TRY(gpu.driver, r.text("driver"));
  MC_TRY_(r.each("peers", [&](const Reader& p) -> Result<> {
    GpuPeer peer;
    MC_TRY(peer.pci, p.text("pci"));
    MC_TRY(peer.type, p.text("type"));
    MC_TRY(const uint64_t links, p.count("links", 1024));
    peer.links = static_cast<uint32_t>(links);
    MC_TRY(const uint64_t generation, p.count("generation", 1000));
    peer.generation = static_cast<uint32_t>(generation);
    MC_TRY(peer.switched, p.flag("switched"));
    gpu.peers.push_back(std::move(peer));
    return {};
  }));
  MC_TRY_(r.each("paths", [&](const Reader& p) -> Result<> {
    GpuPath path;
    MC_TRY(path.pci, p.text("pci"));
    MC_TRY(path.kind, p.text("kind"));
    MC_TRY(path.no_access, p.text("no_access"));
    gpu.paths.push_back(std::move(path));
    return {};
  }));
  MC_TRY(const uint64_t nvlinks, r.count("nvlinks", 1024));
  MC_TRY(const uint64_t active, r.count("nvlinks_active", 1024));
  gpu.nvlinks = static_cast<uint32_t>(nvlinks);
  gpu.nvlinks_active = static_cast<uint32_t>(active);
  MC_TRY(gpu.trouble, r.text("trouble"));
  return gpu;
}

Result<Port> port_from(const Reader& r) {
  Port port;
  MC_TRY(const uint64_t number, r.count("port", 255));
  port.number = static_cast<int>(number);
  MC_TRY(port.state, r.text("state"));
  MC_TRY(port.link_layer, r.text("link_layer"));
  MC_TRY(port.rate, r.text("rate"));
  MC_TRY_(r.each("gids", [&](const Reader& g) -> Result<> {
    Gid gid;
    MC_TRY(const uint64_t index, g.count("index", kNumbersMax));
    gid.index = static_cast<int>(index);
    MC_TRY(gid.value, g.text("gid"));
    MC_TRY(gid.type, g.text("type"));
    MC_TRY(gid.netdev, g.text("netdev"));
    port.gids.push_back(std::move(gid));
    return {};
  }));
  return port;
}

Result<RdmaDevice> rdma_from(const Reader& r) {
  RdmaDevice device;
  MC_TRY(device.name, r.text("name"));
  MC_TRY(device.at, location_from(r));
  MC_TRY(device.driver, r.text("driver"));
  MC_TRY(device.netdev, r.text("netdev"));
  MC_TRY_(r.each("ports", [&](const Reader& p) -> Result<> {
    MC_TRY(Port port, port_from(p));
    device.ports.push_back(std::move(port));
    return {};
  }));
  return device;
}

Result<NetDevice> net_from(const Reader& r) {
  NetDevice device;
  MC_TRY(device.name, r.text("name"));
  MC_TRY(device.at, location_from(r));
  MC_TRY(device.addresses, r.texts("addresses"));
  MC_TRY(device.speed_mbit, r.count("speed_mbit"));
  MC_TRY(device.up, r.flag("up"));
  MC_TRY(const uint64_t mtu, r.count("mtu", UINT32_MAX));
  device.mtu = static_cast<uint32_t>(mtu);
  MC_TRY(device.driver, r.text("driver"));
  return device;
}

Result<Disk> disk_from(const Reader& r) {
  Disk disk;
  MC_TRY(disk.name, r.text("name"));
  MC_TRY(disk.at, location_from(r));
  MC_TRY(disk.model, r.text("model"));
  MC_TRY(disk.bytes, r.count("bytes"));
  return disk;
}

}  // namespace

Json machine_json(const Machine& machine) {
  Json out;
  out["source"] = machine.source;
  out["numa_nodes"] = Json::array();
  for (const NumaNode& node : machine.nodes) {
    out["numa_nodes"].push_back({{"numa", node.id},
                                 {"cpus", node.cpus},
                                 {"cpu_list", ranges(node.cpus)},
                                 {"memory_bytes", node.memory_bytes}});
  }
  out["gpus"] = Json::array();
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    out["gpus"].push_back(gpu_json(machine.gpus[i], i));
  }
  out["rdma"] = Json::array();
  for (const RdmaDevice& device : machine.rdma) {
    Json row = {{"name", device.name}};
    row.update(whole_location_json(device.at));
    row["driver"] = device.driver;
    row["netdev"] = device.netdev;
    row["ports"] = Json::array();
    for (const Port& port : device.ports) row["ports"].push_back(port_json(port));
    out["rdma"].push_back(std::move(row));
  }
  out["nets"] = Json::array();
  for (const NetDevice& device : machine.nets) {
    Json row = {{"name", device.name}};
    row.update(whole_location_json(device.at));
    row["addresses"] = device.addresses;
    row["speed_mbit"] = or_null(device.speed_mbit);
    row["up"] = device.up;
    row["mtu"] = or_null(device.mtu);
    row["driver"] = device.driver;
    out["nets"].push_back(std::move(row));
  }
  out["disks"] = Json::array();
  for (const Disk& disk : machine.disks) {
    Json row = {{"name", disk.name}};
    row.update(whole_location_json(disk.at));
    row["model"] = disk.model;
    row["bytes"] = or_null(disk.bytes);
    out["disks"].push_back(std::move(row));
  }
  out["nvml"] = machine.nvml;
  out["nvml_failed"] = machine.nvml_failed;
  out["gpu_links"] = gpu_matrix(machine);
  return out;
}

Result<Machine> machine_from_json(const Json& json, const std::string& where) {
  if (!json.is_object() || !json.contains("numa_nodes")) {
    return fail(Code::kInvalid, "%s: not a machine: give what 'mc-topo show --output json' prints",
                where.c_str());
  }
  const Reader r(json, where);
  Machine machine;
  machine.source = where;
  const auto fill = [&r](const char* key, auto& list, const auto& read) {
    return r.each(key, [&](const Reader& element) -> Result<> {
      MC_TRY(auto one, read(element));
      list.push_back(std::move(one));
      return {};
    });
  };
  MC_TRY_(fill("numa_nodes", machine.nodes, node_from));
  MC_TRY_(fill("gpus", machine.gpus, gpu_from));
  MC_TRY_(fill("rdma", machine.rdma, rdma_from));
  MC_TRY_(fill("nets", machine.nets, net_from));
  MC_TRY_(fill("disks", machine.disks, disk_from));
  MC_TRY(machine.nvml, r.text("nvml"));
  MC_TRY(machine.nvml_failed, r.flag("nvml_failed"));
  MC_TRY_(check_limits(machine, where));
  return machine;
}

Json tiers_json(const Machine& machine, const TierTable& table) {
  Json out;
  out["nics"] = Json::array();
  for (const RdmaDevice& device : machine.rdma) {
    Json row = {{"name", device.name}};
    row.update(location_json(device.at));
    out["nics"].push_back(std::move(row));
  }
  out["gpus"] = Json::array();
  for (const GpuTiers& gpu : table.gpus) {
    Json row = {{"index", gpu.gpu}};
    row.update(location_json(machine.gpus[gpu.gpu].at));
    row["tiers"] = gpu.tiers;
    row["shared_bridge"] = !gpu.bridge.empty();
    out["gpus"].push_back(std::move(row));
  }
  out["hosts"] = Json::array();
  for (const NodeTiers& node : table.nodes) {
    out["hosts"].push_back({{"numa", node.node}, {"tiers", node.tiers}});
  }
  out["memory_only_numa_nodes"] = table.memory_only_nodes;
  out["left_out"] = Json::array();
  for (const LeftOut& device : table.left_out) {
    out["left_out"].push_back({{"name", device.name}, {"why", device.why}});
  }
  return out;
}

Json matrix_json(const Machine& machine, const TierTable& table) {
  Json locations = Json::object();
  for (const NodeTiers& row : table.nodes) {
    locations["cpu:" + std::to_string(row.node)] = {{"numa", row.node}, {"tiers", row.tiers}};
  }
  for (const GpuTiers& row : table.gpus) {
    Json entry = location_json(machine.gpus[row.gpu].at);
    entry["tiers"] = row.tiers;
    entry["shared_bridge"] = row.bridge.empty() ? Json(nullptr) : Json(row.bridge);
    locations["cuda:" + std::to_string(row.gpu)] = std::move(entry);
  }
  Json nics = Json::object();
  for (const RdmaDevice& device : machine.rdma) nics[device.name] = location_json(device.at);
  Json left_out = Json::object();
  for (const LeftOut& device : table.left_out) left_out[device.name] = device.why;
  return {{"locations", std::move(locations)},
          {"nics", std::move(nics)},
          {"left_out", std::move(left_out)},
          {"gpu_links", gpu_matrix(machine)}};
}

Json reference_matrix_json(const TierTable& table) {
  Json out = Json::object();
  const auto row = [](const Tiers& tiers) {
    std::vector<std::string> available = tiers[1];
    available.insert(available.end(), tiers[2].begin(), tiers[2].end());
    return Json::array({tiers[0], std::move(available)});
  };
  for (const NodeTiers& node : table.nodes) {
    out["cpu:" + std::to_string(node.node)] = row(node.tiers);
  }
  for (const GpuTiers& gpu : table.gpus) {
    out["cuda:" + std::to_string(gpu.gpu)] = row(gpu.tiers);
  }
  return out;
}

}  // namespace mc::topo
