// Model files made by hand, whole or wrong on purpose.
#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"

namespace mc::test {

class Folder {  // a temporary one, gone with this
 public:
  Folder() {
    std::string path = std::filesystem::temp_directory_path() / "mc-model.XXXXXX";
    REQUIRE(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }

 private:
  std::string path_;
};

// A safetensors file of this header (JSON text) and data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  return out + header + data;
}

}  // namespace mc::test
