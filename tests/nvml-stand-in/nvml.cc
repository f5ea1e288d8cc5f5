// A libnvidia-ml.so.1 for tests: the calls that topo/discover/nvml.cc makes, answered from the text
// file that NVML_STAND_IN names. It is read at nvmlInit, so a test may change it before it asks
// again with a library that was not initialised yet.
//
//   versions LIBRARY DRIVER        fail init|count STATUS
//   gpu PCI-ADDRESS NAME           (what follows is of the last gpu)
//   links COUNT GENERATION gpu|switch|other REMOTE-ADDRESS
//   down COUNT                     links that are there and not active
//   fail handle|pci|name|links STATUS
//   pair A B LEVEL READ NVLINK     numbers of nvml.h; pairs not listed are not told
//
// With NVML_STAND_IN_LACKS=1 it knows nothing of links, with 2 not even how many GPUs there are.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kOk = 0, kUninitialised = 1, kInvalid = 2, kNotLoaded = 9;
[[maybe_unused]] constexpr int kNotSupported = 3;  // not in the form without links

struct Link {
  bool active = false;
  unsigned generation = 0, type = 255;
  std::string remote{};
};
struct Pair {
  unsigned level = 0;
  int read = 0, nvlink = 0;
};

}  // namespace

extern "C" {
struct NvmlDeviceTag {
  std::string pci{}, name{};
  std::vector<Link> links{};
  std::map<std::string, int> fails{};
  size_t index = 0;
};
struct NvmlPciTag {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
}

namespace {

using Device = NvmlDeviceTag;
using Pci = NvmlPciTag;

struct World {
  bool initialised = false;
  std::string library{}, driver{};
  std::map<std::string, int> fails{};
  std::vector<Device> gpus{};
  std::map<std::pair<size_t, size_t>, Pair> pairs{};
};
World world;

void read_line(const std::string& line) {
  std::istringstream in(line);
  std::string word, what;
  if (!(in >> word) || word[0] == '#') return;
  Device* const gpu = world.gpus.empty() ? nullptr : &world.gpus.back();
  unsigned count = 0;
  int status = 0;
  if (word == "versions") {
    in >> world.library >> world.driver;
  } else if (word == "fail") {
    in >> what >> status;
    (gpu ? gpu->fails : world.fails)[what] = status;
  } else if (word == "gpu") {
    Device next{.index = world.gpus.size()};
    in >> next.pci;
    std::getline(in >> std::ws, next.name);
    world.gpus.push_back(next);
  } else if (word == "links" && gpu) {
    Link link{.active = true};
    in >> count >> link.generation >> what >> link.remote;
    link.type = what == "gpu" ? 0 : what == "switch" ? 2 : 255;
    gpu->links.insert(gpu->links.end(), count, link);
  } else if (word == "down" && gpu) {
    in >> count;
    gpu->links.insert(gpu->links.end(), count, Link{});
  } else if (word == "pair") {
    size_t a = 0, b = 0;
    Pair pair;
    in >> a >> b >> pair.level >> pair.read >> pair.nvlink;
    world.pairs[{a, b}] = pair;
  } else {
    std::fprintf(stderr, "nvml stand-in: what is '%s'?\n", line.c_str());
    std::abort();
  }
}

int fails(const std::map<std::string, int>& of, const char* what) {
  const auto at = of.find(what);
  return at == of.end() ? kOk : at->second;
}

int text(const std::string& from, char* to, unsigned size) {
  if (from.size() >= size) return kInvalid;
  std::memcpy(to, from.c_str(), from.size() + 1);
  return kOk;
}

[[maybe_unused]] const Pair* pair_of(const Device* a, const Device* b) {
  const auto at = world.pairs.find(std::minmax(a->index, b->index));
  return at == world.pairs.end() ? nullptr : &at->second;
}

int address(const std::string& from, Pci* to) {
  *to = {};
  return text(from, to->address, sizeof to->address);
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* const file = std::getenv("NVML_STAND_IN");
  if (!file) return kNotLoaded;
  world = {};
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) read_line(line);
  const int status = fails(world.fails, "init");
  world.initialised = status == kOk;
  return status;
}

const char* nvmlErrorString(int status) {
  switch (status) {
    case kNotLoaded: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  if (!world.initialised) return kUninitialised;
  if (index >= world.gpus.size()) return kInvalid;
  *device = &world.gpus[index];
  return fails((*device)->fails, "handle");
}

int nvmlDeviceGetPciInfo_v3(Device* device, Pci* pci) {
  if (const int status = fails(device->fails, "pci")) return status;
  return address(device->pci, pci);
}

int nvmlSystemGetNVMLVersion(char* to, unsigned size) { return text(world.library, to, size); }
int nvmlSystemGetDriverVersion(char* to, unsigned size) { return text(world.driver, to, size); }

int nvmlDeviceGetName(Device* device, char* to, unsigned size) {
  if (const int status = fails(device->fails, "name")) return status;
  return text(device->name, to, size);
}

#if NVML_STAND_IN_LACKS < 2
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (!world.initialised) return kUninitialised;
  *count = static_cast<unsigned>(world.gpus.size());
  return fails(world.fails, "count");
}
#endif

#if NVML_STAND_IN_LACKS < 1

int nvmlDeviceGetNvLinkState(Device* device, unsigned link, unsigned* active) {
  if (const int status = fails(device->fails, "links")) return status;
  if (link >= 18) return kInvalid;
  if (link >= device->links.size()) return kNotSupported;
  *active = device->links[link].active;
  return kOk;
}

int nvmlDeviceGetNvLinkVersion(Device* device, unsigned link, unsigned* version) {
  *version = device->links[link].generation;
  return kOk;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device* device, unsigned link, Pci* pci) {
  return address(device->links[link].remote, pci);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device* device, unsigned link, unsigned* type) {
  *type = device->links[link].type;
  return kOk;
}

int nvmlDeviceGetTopologyCommonAncestor(Device* a, Device* b, unsigned* level) {
  const Pair* const pair = pair_of(a, b);
  if (!pair) return kNotSupported;
  *level = pair->level;
  return kOk;
}

int nvmlDeviceGetP2PStatus(Device* a, Device* b, int kind, int* status) {
  const Pair* const pair = pair_of(a, b);
  if (!pair) return kNotSupported;
  *status = kind == 2 ? pair->nvlink : pair->read;
  return kOk;
}

#endif
}
