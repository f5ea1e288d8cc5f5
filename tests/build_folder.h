// The folder of the test program: the build puts the libraries that tests load there.
#pragma once
#include <filesystem>
#include <string>

namespace mc {

inline std::string build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

}  // namespace mc
