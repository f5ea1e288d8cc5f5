#include "topo/discover/capture.h"

#include <array>
#include <filesystem>
#include <set>

#include "io/file.h"
#include "topo/discover/nvml_record.h"
#include "topo/discover/sysfs.h"

namespace mc::topo {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kBytesMax = 256u << 20;

constexpr std::array kFunctionFiles = {"class",
                                       "vendor",
                                       "device",
                                       "subsystem_vendor",
                                       "subsystem_device",
                                       "numa_node",
                                       "local_cpus",
                                       "local_cpulist",
                                       "config",
                                       "current_link_speed",
                                       "current_link_width",
                                       "max_link_speed",
                                       "max_link_width"};
constexpr std::array kNetFiles = {"operstate", "speed", "mtu", "type"};
constexpr std::array kPortFiles = {"state", "phys_state", "link_layer", "rate", "lid"};
constexpr std::array kProcFiles = {"cmdline", "self/limits", "sys/kernel/osrelease"};

class Recorder {
 public:
  Recorder(const Sysfs& sysfs, std::string folder)
      : sysfs_(sysfs), out_(std::move(folder) + "/sys") {}

  Result<Captured> all() {
    MC_TRY_(functions());
    MC_TRY_(rdma());
    MC_TRY_(nets());
    MC_TRY_(disks());
    MC_TRY_(processors());
    MC_TRY_(modules());
    return done_;
  }
  Result<> write(const std::string& path, const std::string& content) {
    done_.bytes += content.size();
    if (done_.bytes > kBytesMax) {
      return fail(Code::kNoSpace, "%s: more than 256 MiB to record: is %s a sysfs?", out_.c_str(),
                  sysfs_.root().c_str());
    }
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error) return fail(Code::kDenied, "%s: %s", path.c_str(), error.message().c_str());
    ++done_.files;
    return io::write_file_atomically(path, content);
  }

 private:
  // `path` may go through links; the file lands where it really is.
  Result<> file(const std::string& path) {
    const auto real = sysfs_.real_path(path);
    if (!real || !taken_.insert(*real).second) return {};
    const std::string content = sysfs_.bytes(*real);
    if (content.empty() && !sysfs_.text(*real)) return {};
    return write(out_ + "/" + *real, content);
  }
  // An entry of a class or bus: a link to where the device really is.
  Result<std::string> entry(const std::string& path) {
    const auto real = sysfs_.real_path(path);
    if (!real) return std::string();
    const fs::path link = fs::path(out_) / path;
    if (*real != path && taken_.insert(path).second) {
      std::error_code error;
      fs::create_directories(link.parent_path(), error);
      fs::create_directories(fs::path(out_) / *real, error);
      fs::create_symlink(fs::path(*real).lexically_relative(fs::path(path).parent_path()), link,
                         error);
      if (error) return fail(Code::kDenied, "%s: %s", link.c_str(), error.message().c_str());
      ++done_.links;
    }
    return *real;
  }
  Result<> empty_folder(const std::string& path) {
    std::error_code error;
    fs::create_directories(out_ + "/" + path, error);
    if (error) return fail(Code::kDenied, "%s: %s", path.c_str(), error.message().c_str());
    return {};
  }

  Result<> driver(const std::string& real) {
    const std::string name = sysfs_.driver(real);
    const fs::path link = fs::path(out_) / real / "driver";
    if (name.empty() || !taken_.insert(real + "/driver").second) return {};
    std::error_code error;
    fs::create_directories(link.parent_path(), error);
    const std::string target = "bus/pci/drivers/" + name;
    fs::create_symlink(fs::path(target).lexically_relative(real), link, error);
    if (error) return fail(Code::kDenied, "%s: %s", link.c_str(), error.message().c_str());
    ++done_.links;
    return {};
  }

  Result<> functions() {
    for (const std::string& address : sysfs_.names("bus/pci/devices")) {
      MC_TRY(const std::string real, entry("bus/pci/devices/" + address));
      if (real.empty()) continue;
      for (const char* name : kFunctionFiles) MC_TRY_(file(real + "/" + name));
      MC_TRY_(driver(real));
    }
    return {};
  }

  Result<> rdma() {
    for (const std::string& name : sysfs_.names("class/infiniband")) {
      MC_TRY(const std::string real, entry("class/infiniband/" + name));
      if (real.empty()) continue;
      MC_TRY_(file(real + "/node_type"));
      for (const std::string& port : sysfs_.names(real + "/ports")) {
        const std::string base = real + "/ports/" + port + "/";
        for (const char* f : kPortFiles) MC_TRY_(file(base + f));
        for (const std::string& gid : sysfs_.names(base + "gids")) {
          const std::string value = sysfs_.text(base + "gids/" + gid).value_or("");
          if (value.find_first_not_of("0:") == std::string::npos) continue;
          MC_TRY_(file(base + "gids/" + gid));
          MC_TRY_(file(base + "gid_attrs/types/" + gid));
          MC_TRY_(file(base + "gid_attrs/ndevs/" + gid));
        }
      }
    }
    for (const std::string& name : sysfs_.names("class/infiniband_verbs")) {
      MC_TRY(const std::string real, entry("class/infiniband_verbs/" + name));
      if (!real.empty()) MC_TRY_(file(real + "/ibdev"));
    }
    return {};
  }

  Result<> nets() {
    for (const std::string& name : sysfs_.names("class/net")) {
      MC_TRY(const std::string real, entry("class/net/" + name));
      if (real.empty()) continue;
      for (const char* f : kNetFiles) MC_TRY_(file(real + "/" + f));
    }
    return {};
  }

  Result<> disks() {
    for (const std::string& name : sysfs_.names("class/nvme")) {
      MC_TRY(const std::string real, entry("class/nvme/" + name));
      if (real.empty()) continue;
      MC_TRY_(file(real + "/model"));
      for (const std::string& part : sysfs_.names(real)) {
        if (part.starts_with("nvme")) MC_TRY_(file(real + "/" + part + "/size"));
      }
    }
    return {};
  }

  Result<> processors() {
    for (const std::string& name : sysfs_.names("devices/system/node")) {
      if (!name.starts_with("node")) continue;
      for (const char* f : {"cpulist", "meminfo", "distance"}) {
        MC_TRY_(file("devices/system/node/" + name + "/" + f));
      }
    }
    for (const char* f : {"online", "possible"}) {
      MC_TRY_(file(std::string("devices/system/cpu/") + f));
    }
    for (const std::string& size : sysfs_.names("kernel/mm/hugepages")) {
      for (const char* f : {"nr_hugepages", "free_hugepages"}) {
        MC_TRY_(file("kernel/mm/hugepages/" + size + "/" + f));
      }
    }
    return {};
  }

  Result<> modules() {
    for (const char* folder : {"module", "kernel/iommu_groups"}) {
      if (sysfs_.real_path(folder)) MC_TRY_(empty_folder(folder));
      for (const std::string& name : sysfs_.names(folder)) {
        MC_TRY_(empty_folder(std::string(folder) + "/" + name));
      }
    }
    return {};
  }

  const Sysfs& sysfs_;
  std::string out_;
  std::set<std::string> taken_;
  Captured done_;
};

}  // namespace

Result<Captured> capture(const std::string& from, const std::string& folder) {
  std::error_code error;
  if (folder.empty()) return fail(Code::kInvalid, "the folder has no name: give a new one");
  if (fs::exists(folder, error) && !fs::is_empty(folder, error)) {
    return fail(Code::kExists, "%s exists and is not empty: give a new folder", folder.c_str());
  }
  MC_TRY(const Sysfs sysfs, Sysfs::open(from));
  fs::create_directories(fs::path(folder) / "sys/devices", error);
  if (error) return fail(Code::kDenied, "%s: %s", folder.c_str(), error.message().c_str());
  Recorder recorder(sysfs, folder);
  const std::string proc = (fs::path(sysfs.root()).parent_path() / "proc").string();
  for (const char* name : kProcFiles) {
    if (!fs::exists(proc + "/" + name, error)) continue;
    const auto content = io::read_file(proc + "/" + name, 1u << 20);
    if (content) MC_TRY_(recorder.write(folder + "/proc/" + name, *content));
  }
  std::optional<NvmlAnswer> nvml;
  if (sysfs.root() == "/sys") {
    nvml = ask_nvml();
  } else {
    MC_TRY(nvml, recorded_nvml(sysfs.root()));
  }
  if (nvml) {
    MC_TRY_(
        recorder.write(nvml_record_of((fs::path(folder) / "sys").string()), nvml_to_text(*nvml)));
  }
  return recorder.all();
}

}  // namespace mc::topo
