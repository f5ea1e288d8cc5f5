#include "cmd/mc-replay/files.h"

#include <filesystem>

#include "base/units.h"

namespace mc::replay {

namespace fs = std::filesystem;

Result<std::string> find_config(const std::string& what, const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".json")) return name;
  const std::string folder = what + "s";
  std::error_code ignored;
  const fs::path bin = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path folders[] = {fs::path("configs") / folder, bin / "../share/mc/configs" / folder,
                              bin / "../../configs" / folder};
  for (const fs::path& at : folders) {
    const fs::path file = at / (name + ".json");
    if (fs::exists(file, ignored)) return file.string();
  }
  return fail(Code::kNotFound, "no %s '%s' in configs/%s, %s or %s; give a JSON file", what.c_str(),
              escape(name).c_str(), folder.c_str(), folders[1].lexically_normal().c_str(),
              folders[2].lexically_normal().c_str());
}

Result<cost::ModelSpec> model_of(const std::string& name) {
  if (name == "tiny") return cost::tiny();
  MC_TRY(const std::string path, find_config("model", name));
  return cost::load_spec(path);
}

}  // namespace mc::replay
