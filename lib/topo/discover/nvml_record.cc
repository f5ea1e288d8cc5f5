#include "topo/discover/nvml_record.h"

#include <filesystem>

#include "base/json.h"
#include "io/file.h"

namespace mc::topo {
namespace {

constexpr size_t kRecordBytesMax = 16u << 20;
constexpr size_t kRecordGpusMax = 256, kRecordPairsMax = kRecordGpusMax * kRecordGpusMax;
constexpr const char* kRemotes[] = {"gpu", "switch", "other"};

Result<const Json*> list_of(const Json& object, const char* key, size_t most) {
  static const Json kNone = Json::array();
  const Json* const list = member(object, key);
  if (!list) return &kNone;
  if (!list->is_array() || list->size() > most) {
    return fail(Code::kInvalid, "\"%s\" is not a list of at most %zu elements", key, most);
  }
  for (const Json& one : *list) {
    if (!one.is_object())
      return fail(Code::kInvalid, "\"%s\" has an element that is not an object", key);
  }
  return list;
}

Result<NvLink> link_from(const Json& json) {
  NvLink link;
  MC_TRY(link.active, get_bool_or(json, "active", false));
  MC_TRY(link.remote, get_string_or(json, "remote", ""));
  MC_TRY(const std::string to, get_string_or(json, "to", "other"));
  MC_TRY(const uint64_t generation, get_uint_or(json, "generation", 0));
  if (generation > 1000) return fail(Code::kInvalid, "\"generation\" is above 1000");
  link.generation = static_cast<uint32_t>(generation);
  if (to == kRemotes[0]) link.to = NvLink::To::kGpu;
  if (to == kRemotes[1]) link.to = NvLink::To::kSwitch;
  return link;
}

Result<NvmlGpu> nvml_gpu_from(const Json& json) {
  NvmlGpu gpu;
  MC_TRY(gpu.pci, get_string_or(json, "pci", ""));
  MC_TRY(gpu.name, get_string_or(json, "name", ""));
  MC_TRY(gpu.trouble, get_string_or(json, "trouble", ""));
  MC_TRY(const Json* links, list_of(json, "links", kRecordGpusMax));
  for (const Json& one : *links) {
    MC_TRY(NvLink link, link_from(one));
    gpu.links.push_back(std::move(link));
  }
  return gpu;
}

Result<NvmlPair> nvml_pair_from(const Json& json, size_t gpus) {
  NvmlPair pair;
  MC_TRY(const uint64_t a, get_uint_or(json, "a", 0));
  MC_TRY(const uint64_t b, get_uint_or(json, "b", 0));
  if (a >= gpus || b >= gpus) return fail(Code::kInvalid, "a pair names a GPU that is not there");
  pair.a = static_cast<uint32_t>(a);
  pair.b = static_cast<uint32_t>(b);
  MC_TRY(pair.path, get_string_or(json, "path", ""));
  MC_TRY(pair.no_access, get_string_or(json, "no_access", ""));
  if (member(json, "nvlink")) {
    MC_TRY(const bool nvlink, get_bool(json, "nvlink"));
    pair.nvlink = nvlink;
  }
  return pair;
}

Result<NvmlAnswer> answer_from(const Json& json) {
  NvmlAnswer answer;
  MC_TRY(answer.why_none, get_string_or(json, "why_none", ""));
  MC_TRY(answer.installed, get_bool_or(json, "installed", false));
  MC_TRY(answer.library, get_string_or(json, "library", ""));
  MC_TRY(answer.driver, get_string_or(json, "driver", ""));
  MC_TRY(const Json* gpus, list_of(json, "gpus", kRecordGpusMax));
  for (const Json& one : *gpus) {
    MC_TRY(NvmlGpu gpu, nvml_gpu_from(one));
    answer.gpus.push_back(std::move(gpu));
  }
  MC_TRY(const Json* pairs, list_of(json, "pairs", kRecordPairsMax));
  for (const Json& one : *pairs) {
    MC_TRY(NvmlPair pair, nvml_pair_from(one, answer.gpus.size()));
    answer.pairs.push_back(std::move(pair));
  }
  return answer;
}

}  // namespace

std::string nvml_to_text(const NvmlAnswer& answer) {
  Json out = {{"why_none", answer.why_none}, {"installed", answer.installed},
              {"library", answer.library},   {"driver", answer.driver},
              {"gpus", Json::array()},       {"pairs", Json::array()}};
  for (const NvmlGpu& gpu : answer.gpus) {
    Json links = Json::array();
    for (const NvLink& link : gpu.links) {
      links.push_back({{"active", link.active},
                       {"to", kRemotes[static_cast<size_t>(link.to)]},
                       {"remote", link.remote},
                       {"generation", link.generation}});
    }
    out["gpus"].push_back({{"pci", gpu.pci},
                           {"name", gpu.name},
                           {"trouble", gpu.trouble},
                           {"links", std::move(links)}});
  }
  for (const NvmlPair& pair : answer.pairs) {
    Json one = {{"a", pair.a}, {"b", pair.b}, {"path", pair.path}, {"no_access", pair.no_access}};
    if (pair.nvlink) one["nvlink"] = *pair.nvlink;
    out["pairs"].push_back(std::move(one));
  }
  return dump_json(out, 1) + "\n";
}

Result<NvmlAnswer> nvml_from_text(const std::string& text, const std::string& where) {
  const auto json = parse_json(text);
  if (!json) return fail(Code::kInvalid, "%s: %s", where.c_str(), json.error().what.c_str());
  if (!json->is_object()) return fail(Code::kInvalid, "%s: not a JSON object", where.c_str());
  auto answer = answer_from(*json);
  if (!answer) return fail(Code::kInvalid, "%s: %s", where.c_str(), answer.error().what.c_str());
  return answer;
}

std::string nvml_record_of(const std::string& sys_folder) {
  return (std::filesystem::path(sys_folder).parent_path() / "nvml.json").string();
}

Result<std::optional<NvmlAnswer>> recorded_nvml(const std::string& sys_folder) {
  const std::string file = nvml_record_of(sys_folder);
  std::error_code error;
  // A recording is untrusted: a link could lead out of it.
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(file, error))) {
    return std::nullopt;
  }
  MC_TRY(const std::string text, io::read_file(file, kRecordBytesMax));
  MC_TRY(NvmlAnswer answer, nvml_from_text(text, file));
  return std::optional(std::move(answer));
}

}  // namespace mc::topo
