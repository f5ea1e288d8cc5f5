// A recorded sysfs made of a few files, removed at the end.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace mc::topo {

class Recorded {
 public:
  explicit Recorded(const char* name)
      : root_(std::filesystem::temp_directory_path() /
              (std::string(name) + "." + std::to_string(getpid()))) {
    std::filesystem::create_directories(root_ / "sys/devices");
  }
  ~Recorded() {
    std::error_code error;
    std::filesystem::remove_all(root_, error);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  void file(const std::string& path, const std::string& text) { outside("sys/" + path, text); }
  void outside(const std::string& path, const std::string& text) {  // "proc/cmdline"
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void link(const std::string& path, const std::string& target) {
    std::filesystem::create_directories((root_ / "sys" / path).parent_path());
    std::filesystem::create_symlink(target, root_ / "sys" / path);
  }
  void function(const std::string& bridges, const std::string& address, const std::string& numa,
                const std::string& class_code, const std::string& vendor = "0x15b3") {
    const std::string device = "devices/" + bridges + "/" + address;
    file(device + "/class", class_code);
    file(device + "/vendor", vendor);
    file(device + "/device", "0x1021");
    file(device + "/numa_node", numa);
    link("bus/pci/devices/" + address, "../../../" + device);
  }
  void rdma(const std::string& device, const std::string& name, const std::string& state) {
    file("devices/" + device + "/infiniband/" + name + "/ports/1/state", state);
    link("class/infiniband/" + name, "../../devices/" + device + "/infiniband/" + name);
  }
  std::string path() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

}  // namespace mc::topo
