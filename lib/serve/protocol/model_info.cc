#include "serve/protocol/model_info.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "model/text/text_files.h"

namespace mc::serve {
namespace {

Result<model::KvFormat> kv_format(const EngineChoice& choice, const model::ModelFiles& files) {
  if (choice.kv_type == "auto")
    return model::KvFormat(choice.activations == "f16" ? model::DType::kF16 : files.weight_type());
  const auto named = model::kv_format_named(choice.kv_type);
  if (!named)
    return fail(Code::kInvalid, "kv-type '%s': want auto, f32, f16, bf16 or q8",
                escape(choice.kv_type).c_str());
  if (named->quantized() && choice.engine == "cuda")
    return fail(Code::kUnsupported,
                "--kv-type q8: the cuda engine has no kernels for it: give f32, f16 or bf16, or "
                "--engine cpu");
  return *named;
}

Result<model::DType> factors(const EngineChoice& choice, const model::ModelFiles& files) {
  if (choice.activations == "f32") return model::DType::kF32;
  const model::DType weights = files.weight_type();
  if (choice.activations == "f16") {
    if (choice.engine != "cuda")
      return fail(Code::kUnsupported,
                  "activations of f16 are for --engine cuda alone: give f32, or that engine");
    if (files.all_f16()) return model::DType::kF16;
    return fail(Code::kInvalid, "activations of f16 want weights of f16; these are %s",
                model::name(weights));
  }
  if (choice.activations != "bf16")
    return fail(Code::kInvalid, "activations '%s': want f32, f16 or bf16",
                escape(choice.activations).c_str());
  if (weights != model::DType::kBf16)
    return fail(Code::kInvalid, "activations of bf16 want weights of bf16; these are %s",
                model::name(weights));
  return model::DType::kBf16;
}

cost::ModelSpec spec_of(const EngineChoice& choice, const model::ModelFiles& files,
                        model::KvFormat kv, model::DType factors) {
  cost::ModelSpec spec = model::spec_of(files.config, kv);
  const char* const engine = choice.engine == "cuda" ? "cuda" : "cpu";
  spec.variant = strf("engine=%s kv=%s rope=half weights=%016llx", engine, model::name(kv),
                      static_cast<unsigned long long>(files.digest()));
  if (factors != model::DType::kF32)
    spec.variant += std::string(" activations=") + model::name(factors);
  return spec;
}

// The spec with the times that are to be predicted with.
Result<cost::ModelSpec> timed(cost::ModelSpec spec, const EngineChoice& choice) {
  if (!choice.cost.empty()) {
    auto cost = cost::load_cost(choice.cost, spec);
    if (!cost) return fail(cost.error().code, "--cost: %s", cost.error().what.c_str());
    spec.cost = *cost;
  }
  return spec;
}

// Of a folder that only has the model's texts: its times are about those of 8 billion parameters on
// one GPU, until they are learned.
Result<ModelInfo> text_only(const EngineChoice& choice) {
  MC_TRY(model::TextFiles files, model::open_text_files(choice.model));
  model::ModelConfig like;
  like.name = std::move(files.name);
  like.vocab = files.vocab;
  like.hidden = 4096;
  like.intermediate = 14336;
  like.layers = like.heads = 32;
  like.kv_heads = 8;
  like.head_dim = 128;
  like.context_max = files.context_max;
  cost::ModelSpec spec = model::spec_of(like, model::DType::kBf16);
  spec.cost = {.c0 = 5e-3, .c1 = 1e-4, .c2 = 2e-9, .t0 = 8e-3, .t1 = 1e-4, .t2 = 6.5e-8};
  spec.variant = "texts";
  MC_TRY(spec, timed(std::move(spec), choice));
  return ModelInfo{std::move(spec), std::move(files.tokenizer), std::move(files.chat)};
}

}  // namespace

bool computes(const EngineChoice& choice) {
  return choice.engine == "cpu" || choice.engine == "cuda" ||
         (choice.engine == "auto" && model::has_weights(choice.model));
}

Result<ComputedModel> open_computed(const EngineChoice& choice) {
  MC_TRY(model::ModelFiles files, model::open_model(choice.model));
  MC_TRY(const model::KvFormat kv, kv_format(choice, files));
  MC_TRY(const model::DType by, factors(choice, files));
  MC_TRY(cost::ModelSpec spec, timed(spec_of(choice, files, kv, by), choice));
  return ComputedModel{std::move(files), kv, by, std::move(spec)};
}

void EngineChoice::describe(OptionList& v) {
  v("model", model,
    "'tiny', a model spec (JSON), a folder with config.json and weights, or a .gguf file; a "
    "tokenizer alone will do for a conductor of external engines");
  v("engine", engine,
    "what computes: nothing (dummy), the CPU, a GPU (cuda), or auto: cpu for weights",
    {"auto", "dummy", "cpu", "cuda"});
  v("activations", activations,
    "what weights are multiplied by: f32 is exact; bf16, for weights of bf16 (cpu and cuda "
    "engines), "
    "and f16, for weights of f16 (cuda engine), are faster",
    {"f32", "f16", "bf16"});
  v("kv-type", kv_type,
    "numbers in KV blocks; auto: as the weights, f32 for weights of f16 but with activations of "
    "f16 (cpu and cuda engines); q8: integers of 8 bits with a scale for each 32 (cpu engine)",
    {"auto", "f32", "f16", "bf16", "q8"});
  v("cost", cost,
    "file with the times of this model's work, as mc-prefill --calibrate writes it; empty: those "
    "of the spec, or from its shape");
}

Result<ModelInfo> open_model_info(const EngineChoice& choice) {
  if (!computes(choice) && !model::has_weights(choice.model)) {
    MC_TRY(cost::ModelSpec spec, cost::load_spec(choice.model));
    MC_TRY(spec, timed(std::move(spec), choice));
    const uint32_t vocab = spec.vocab;
    return ModelInfo{std::move(spec), model::Tokenizer::bytes_only(vocab), {}};
  }
  const bool needed = choice.engine == "cpu" || choice.engine == "cuda";
  if (!needed && !model::has_weight_files(choice.model) && model::has_tokenizer(choice.model))
    return text_only(choice);
  auto computed = open_computed(choice);
  if (!computed && !needed && computed.error().code == Code::kUnsupported &&
      model::has_tokenizer(choice.model)) {
    log_warn("model", "%s: only external engines can compute it", computed.error().what.c_str());
    return text_only(choice);
  }
  if (!computed) return fail(computed.error());
  ComputedModel& opened = *computed;
  ModelInfo info{std::move(opened.spec), std::move(opened.files.tokenizer), opened.files.chat};
  if (!computes(choice)) info.spec.variant.clear();
  return info;
}

}  // namespace mc::serve
