#include "topo/model/gpu_links.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/result.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace {

constexpr const char* kNvLinkType = "NVLink";
constexpr size_t kNotHere = SIZE_MAX;

size_t gpu_at(const Machine& machine, const std::string& pci) {
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    if (machine.gpus[i].at.pci == pci) return i;
  }
  return kNotHere;
}

// "Tesla V100" and "NVIDIA H100 80GB HBM3" both begin with the vendor.
std::string full_name(const std::string& name) {
  return name.starts_with("NVIDIA") ? name : "NVIDIA " + name;
}

// Matches the answer's GPUs with the machine's; those that the machine lacks are added, in PCI
// order.
std::vector<size_t> find_gpus(Machine& machine, const NvmlAnswer& answer) {
  for (const NvmlGpu& gpu : answer.gpus) {
    if (gpu.pci.empty() || gpu_at(machine, gpu.pci) != kNotHere) continue;
    const auto after =
        std::find_if(machine.gpus.begin(), machine.gpus.end(),
                     [&](const Gpu& known) { return in_natural_order(gpu.pci, known.at.pci); });
    Gpu added;
    added.name = full_name(gpu.name);
    added.at.pci = gpu.pci;
    machine.gpus.insert(after, std::move(added));
  }
  std::vector<size_t> out;
  for (const NvmlGpu& gpu : answer.gpus) {
    out.push_back(gpu.pci.empty() ? kNotHere : gpu_at(machine, gpu.pci));
  }
  return out;
}

// NVML lost some without a name: they are those of the machine that it does not list.
void add_nameless_trouble(Machine& machine, const NvmlAnswer& answer,
                          const std::vector<size_t>& where) {
  const auto nameless = std::find_if(answer.gpus.begin(), answer.gpus.end(),
                                     [](const NvmlGpu& gpu) { return gpu.pci.empty(); });
  if (nameless == answer.gpus.end()) return;
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    Gpu& gpu = machine.gpus[i];
    const bool listed = std::find(where.begin(), where.end(), i) != where.end();
    if (!listed && gpu.name.starts_with("NVIDIA")) gpu.trouble = nameless->trouble;
  }
}

void add_direct(Gpu& gpu, const NvmlGpu& told, const Machine& machine) {
  std::map<std::string, GpuPeer> peers;
  for (const NvLink& link : told.links) {
    ++gpu.nvlinks;
    gpu.nvlinks_active += link.active ? 1 : 0;
    const bool to_gpu = link.to == NvLink::To::kGpu ||
                        (link.to == NvLink::To::kOther && gpu_at(machine, link.remote) != kNotHere);
    if (!link.active || !to_gpu || link.remote.empty()) continue;
    GpuPeer& peer = peers[link.remote];
    peer.pci = link.remote;
    peer.type = kNvLinkType;
    ++peer.links;
    peer.generation = link.generation;
  }
  for (auto& [pci, peer] : peers) gpu.peers.push_back(std::move(peer));
}

// The switches that a GPU's links end at; "" stands for one that NVML does not name.
std::multiset<std::string> switches_of(const NvmlGpu& gpu) {
  std::multiset<std::string> out;
  for (const NvLink& link : gpu.links) {
    if (link.active && link.to == NvLink::To::kSwitch) out.insert(link.remote);
  }
  return out;
}

void join(Gpu& a, Gpu& b, uint32_t links, uint32_t generation) {
  for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    from->peers.push_back({.pci = to->at.pci,
                           .type = kNvLinkType,
                           .links = links,
                           .generation = generation,
                           .switched = true});
  }
}

uint32_t generation_of(const NvmlGpu& gpu) {
  uint32_t out = 0;
  for (const NvLink& link : gpu.links) out = std::max(out, link.generation);
  return out;
}

// Switches carry what the driver says they carry; where it does not say, those that both share.
void join_through_switches(Machine& machine, const NvmlAnswer& answer,
                           const std::vector<size_t>& where) {
  std::map<std::pair<uint32_t, uint32_t>, bool> told;
  for (const NvmlPair& pair : answer.pairs) {
    if (pair.nvlink) told[std::minmax(pair.a, pair.b)] = *pair.nvlink;
  }
  for (uint32_t a = 0; a < answer.gpus.size(); ++a) {
    for (uint32_t b = a + 1; b < answer.gpus.size(); ++b) {
      if (where[a] == kNotHere || where[b] == kNotHere) continue;
      const auto x = switches_of(answer.gpus[a]), y = switches_of(answer.gpus[b]);
      const bool shared =
          std::any_of(x.begin(), x.end(), [&](const auto& s) { return y.count(s); });
      const auto known = told.find({a, b});
      if (x.empty() || y.empty() || !(known == told.end() ? shared : known->second)) continue;
      join(machine.gpus[where[a]], machine.gpus[where[b]],
           static_cast<uint32_t>(std::min(x.size(), y.size())),
           std::min(generation_of(answer.gpus[a]), generation_of(answer.gpus[b])));
    }
  }
}

// How far apart over PCIe, from the tree alone.
std::string path_in_tree(const DeviceLocation& a, const DeviceLocation& b) {
  if (a.bridges.empty() || b.bridges.empty()) return "?";
  const auto [x, y] =
      std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  const auto shared = x - a.bridges.begin();
  if (shared == 0) {
    if (a.numa == kUnknownNode || b.numa == kUnknownNode) return "?";
    return a.numa == b.numa ? "NODE" : "SYS";
  }
  if (shared == 1 && a.bridges[0].starts_with("pci")) return "PHB";
  // A switch is its upstream port and a downstream port for each device.
  const auto below = std::max(a.bridges.end() - x, b.bridges.end() - y);
  return below <= 1 ? "PIX" : "PXB";
}

std::string cell(const Gpu& from, const Gpu& to) {
  for (const GpuPeer& peer : from.peers) {
    if (peer.pci != to.at.pci || peer.links == 0) continue;
    return strf("%s%u", peer.type == kNvLinkType ? "NV" : peer.type.c_str(), peer.links);
  }
  for (const GpuPath& path : from.paths) {
    if (path.pci == to.at.pci && !path.kind.empty()) return path.kind;
  }
  return path_in_tree(from.at, to.at);
}

}  // namespace

std::map<std::string, size_t> gpu_numbers(const Machine& machine) {
  std::map<std::string, size_t> out;
  for (size_t i = 0; i < machine.gpus.size(); ++i) out.emplace(machine.gpus[i].at.pci, i);
  return out;
}

void add_links(Machine& machine, const NvmlAnswer& answer) {
  machine.nvml = nvml_summary(answer);
  machine.nvml_failed = answer.installed && !answer.why_none.empty();
  const std::vector<size_t> where = find_gpus(machine, answer);
  for (size_t i = 0; i < answer.gpus.size(); ++i) {
    if (where[i] == kNotHere) continue;
    Gpu& gpu = machine.gpus[where[i]];
    if (!answer.gpus[i].name.empty()) gpu.name = full_name(answer.gpus[i].name);
    gpu.trouble = answer.gpus[i].trouble;
    add_direct(gpu, answer.gpus[i], machine);
  }
  add_nameless_trouble(machine, answer, where);
  join_through_switches(machine, answer, where);
  for (const NvmlPair& pair : answer.pairs) {
    if (where[pair.a] == kNotHere || where[pair.b] == kNotHere) continue;
    Gpu &a = machine.gpus[where[pair.a]], &b = machine.gpus[where[pair.b]];
    a.paths.push_back({b.at.pci, pair.path, pair.no_access});
    b.paths.push_back({a.at.pci, pair.path, pair.no_access});
  }
}

void join_switched(Machine& machine, const std::vector<uint32_t>& counts) {
  for (size_t a = 0; a < counts.size(); ++a) {
    for (size_t b = a + 1; b < counts.size(); ++b) {
      if (counts[a] == 0 || counts[b] == 0) continue;
      join(machine.gpus[a], machine.gpus[b], std::min(counts[a], counts[b]), 0);
    }
  }
}

std::vector<std::vector<std::string>> gpu_matrix(const Machine& machine) {
  std::vector<std::vector<std::string>> out;
  if (machine.gpus.size() < 2 || machine.gpus.size() > kMatrixGpusMax) return out;
  for (const Gpu& from : machine.gpus) {
    auto& row = out.emplace_back();
    for (const Gpu& to : machine.gpus) row.push_back(&from == &to ? "X" : cell(from, to));
  }
  return out;
}

const char* gpu_matrix_title(const Machine& machine) {
  const bool linked = std::any_of(machine.gpus.begin(), machine.gpus.end(),
                                  [](const Gpu& gpu) { return !gpu.peers.empty(); });
  return linked || machine.nvml.starts_with("NVML")
             ? "GPU to GPU"
             : "GPU to GPU, over PCIe (other links: not known)";
}

std::string gpu_matrix_text(const Machine& machine) {
  const auto table = gpu_matrix(machine);
  if (table.empty()) return "";
  std::string out = std::string(gpu_matrix_title(machine)) + "\n" + std::string(10, ' ');
  for (size_t i = 0; i < machine.gpus.size(); ++i) out += strf("%6zu", i);
  out += "\n";
  for (size_t i = 0; i < table.size(); ++i) {
    out += strf("%-10zu", i);
    for (const std::string& text : table[i]) out += strf(" %5s", text.c_str());
    out += "\n";
  }
  return out + kGpuMatrixLegend + "\n";
}

}  // namespace mc::topo
