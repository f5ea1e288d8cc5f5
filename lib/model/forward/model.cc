#include "model/forward/model.h"

#include <algorithm>
#include <filesystem>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "model/files/gguf.h"
#include "model/files/quantized_modules.h"
#include "model/text/gguf_tokenizer.h"

namespace mc::model {
namespace {

constexpr uint64_t kTinySeed = 20240623;

std::string name_of(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();  // "folder/"
  return p.filename().string();
}

Result<ModelFiles> open_folder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  MC_TRY(const Json json, read_json_file(path));
  auto config = parse_config(json);
  if (!config)
    return fail(config.error().code, "%s: %s", path.c_str(), config.error().what.c_str());
  const std::string generation_path = folder + "/generation_config.json";
  const auto generation = read_json_file(generation_path);
  if (!generation && generation.error().code != Code::kNotFound) return fail(generation.error());
  if (generation) {
    auto read = parse_generation_config(*generation, *config);
    if (!read)
      return fail(Code::kInvalid, "%s: %s", generation_path.c_str(), read.error().what.c_str());
  }
  config->name = name_of(folder);
  MC_TRY(Tokenizer tokenizer, Tokenizer::open(folder, config->vocab));
  MC_TRY(TensorSet tensors, open_safetensors(folder));
  tensors.path = folder;
  if (const auto quantized = json.find("quantization_config");
      quantized != json.end() && !quantized->is_null()) {
    const auto joined = join_quantized_modules(*quantized, tensors);
    if (!joined)
      return fail(joined.error().code, "%s: %s", folder.c_str(), joined.error().what.c_str());
  }
  MC_TRY(ChatFormat chat, chat_of_folder(folder));
  return ModelFiles{std::move(*config), std::move(tokenizer), std::move(tensors),
                    Naming::kHuggingFace, std::move(chat)};
}

bool is_gguf(const std::string& name) { return name.ends_with(".gguf"); }

Result<ModelFiles> open_gguf(const std::string& path) {
  MC_TRY(MappedFile opened, MappedFile::open(path));
  auto file = std::make_shared<const MappedFile>(std::move(opened));
  const auto read = [&]() -> Result<ModelFiles> {
    MC_TRY(Gguf g, parse_gguf(file->bytes()));
    MC_TRY(ModelConfig config, gguf_config(g));
    MC_TRY(Tokenizer tokenizer, gguf_tokenizer(g));
    if (tokenizer.vocab() > config.vocab)
      return fail(Code::kInvalid, "the tokenizer has %u tokens, the model %u", tokenizer.vocab(),
                  config.vocab);
    config.name = name_of(path);
    if (const std::string doubt = gguf_doubt(g, config); !doubt.empty())
      log_warn("model", "%s: %s", path.c_str(), doubt.c_str());
    ChatFormat chat = gguf_chat(g);
    return ModelFiles{std::move(config),
                      std::move(tokenizer),
                      {std::move(g.tensors), {file}, false, path},
                      Naming::kGguf,
                      std::move(chat)};
  };
  auto files = read();
  if (!files) return fail(files.error().code, "%s: %s", path.c_str(), files.error().what.c_str());
  return files;
}

}  // namespace

DType ModelFiles::weight_type() const {
  return tensors.tensors.empty() ? DType::kBf16 : memory_type(tensors);
}

bool ModelFiles::all_f16() const {
  return !tensors.tensors.empty() &&
         std::all_of(tensors.tensors.begin(), tensors.tensors.end(), [](const auto& named) {
           return named.second.shape.size() < 2 || named.second.type == DType::kF16;
         });
}

uint64_t ModelFiles::digest() const {
  const ModelConfig& c = config;
  const std::string text = strf(
      "%u %u %u %u %u %u %g %g %d %g %g %g %llu %d", c.vocab, c.hidden, c.intermediate, c.layers,
      c.heads, c.head_dim, c.norm_eps, c.rope.theta, static_cast<int>(c.rope.scaling),
      c.rope.factor, c.rope.low_freq_factor, c.rope.high_freq_factor,
      static_cast<unsigned long long>(c.rope.original_context), c.tied ? 1 : 0);
  uint64_t digest = xxh3(text);
  if (c.rope.scaling == RopeScaling::kYarn || c.rope.scale != 1)
    digest = xxh3(strf("%g %g %g", c.rope.often, c.rope.seldom, c.rope.scale), digest);
  for (const double divisor : c.rope.divisors) digest = xxh3(strf("%.9g", divisor), digest);
  if (const std::string parts = describe_parts(c); !parts.empty()) digest = xxh3(parts, digest);
  for (const auto& [name, t] : tensors.tensors) digest = digest_of(name, t, digest);
  return digest;
}

bool has_weights(const std::string& name) {
  std::error_code ignored;
  return is_gguf(name) || std::filesystem::is_directory(name, ignored);
}

bool has_weight_files(const std::string& name) {
  if (is_gguf(name)) return true;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(name, failed), end; !failed && at != end;
       at.increment(failed))
    if (at->path().extension() == ".safetensors") return true;
  return false;
}

Result<ModelFiles> open_model(const std::string& name) {
  if (name == "tiny") {
    ModelFiles files{tiny_config(), Tokenizer::bytes_only(tiny_config().vocab), {}, {}, {}};
    return files;
  }
  if (name == "bench-1b") {
    const ModelConfig c = bench_config();
    return ModelFiles{c, Tokenizer::bytes_only(c.vocab), {}, {}, {}};
  }
  if (is_gguf(name)) return open_gguf(name);
  if (has_weights(name)) return open_folder(name);
  return fail(Code::kNotFound,
              "model '%s': want 'tiny', a folder with config.json and weights, or a .gguf file",
              name.c_str());
}

Result<WeightSources> open_sources(const ModelFiles& files, LayerRange wanted) {
  if (files.tensors.tensors.empty() && !files.tensors.files.empty())
    return fail(Code::kCorrupt, "%s: there are no tensors in it", files.tensors.path.c_str());
  if (files.tensors.tensors.empty()) return random_sources(files.config, kTinySeed, wanted);
  auto sources = weight_sources(files.tensors, files.config, files.naming, wanted);
  if (!sources)
    return fail(sources.error().code, "%s: %s", files.tensors.path.c_str(),
                sources.error().what.c_str());
  return sources;
}

Result<Weights> load(const ModelFiles& files, ThreadPool& threads, LayerRange wanted,
                     TpShare share) {
  MC_TRY(WeightSources sources, open_sources(files, wanted));
  if (share.ranks > 1) sources = share_of(sources, files.config, share);
  return pack_weights(sources, files.all_f16() ? DType::kF16 : files.weight_type(), threads);
}

}  // namespace mc::model
