#include "model/text/gguf_patterns.h"

#include <string>

#include "base/units.h"

namespace mc::model {
namespace {

#define MC_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MC_LINES_AND_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define MC_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define MC_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr std::string_view kSentence = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kDigit = R"(\p{N})";

constexpr std::string_view kGpt2s[] = {kGpt2};
constexpr std::string_view kDigitGpt2[] = {kDigit, kGpt2};
constexpr std::string_view kFalcon[] = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"};
constexpr std::string_view kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)",
                                         "[0-9][0-9][0-9]"};
constexpr std::string_view kLlama3[] = {
    MC_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" MC_LINES_AND_SPACES};
constexpr std::string_view kQwen2[] = {
    MC_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" MC_LINES_AND_SPACES};
constexpr std::string_view kDeepSeekCoder[] = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                               "[一-龥ࠀ-一가-퟿]+", kDigit};
constexpr std::string_view kDeepSeek3[] = {
    R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*)" MC_LINES_AND_SPACES};
constexpr std::string_view kBloom[] = {kSentence};
constexpr std::string_view kViking[] = {kSentence, kDigit};
constexpr std::string_view kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?)" MC_UPPER "*" MC_LOWER R"(+|[^\r\n\p{L}\p{N}]?)" MC_UPPER "+" MC_LOWER
    R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" MC_LINES_AND_SPACES};
constexpr std::string_view kGpt4o[] = {
    R"([^\r\n\p{L}\p{N}]?)" MC_UPPER "*" MC_LOWER "+" MC_CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?)" MC_UPPER "+" MC_LOWER "*" MC_CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" MC_LINES_AND_SPACES};
constexpr std::string_view kSuperBpe[] = {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"};

#undef MC_CONTRACTIONS
#undef MC_LINES_AND_SPACES
#undef MC_UPPER
#undef MC_LOWER

struct NamedPatterns {
  std::string_view names;  // each between two spaces
  GgufPatterns how;
};
constexpr NamedPatterns kByName[] = {
    {" gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de jina-v1-en "
     "jina-v2-es"
     " jina-v2-de jina-v2-code roberta-bpe a.x-4.0 mellum exaone4 ",
     {kGpt2s}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ", {kDigitGpt2}},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", {kLlama3, true, true}},
    {" dbrx smaug-bpe chatglm-bpe glm4 grok-2 ", {kLlama3}},
    {" qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan ", {kQwen2}},
    {" deepseek-coder ", {kDeepSeekCoder}},
    {" deepseek-v3 hunyuan-dense ", {kDeepSeek3}},
    {" falcon ", {kFalcon}},
    {" default ", {kDefault}},
    {" bloom poro-chat gpt3-finnish ", {kBloom}},
    {" viking ", {kViking}},
    {" tekken ", {kTekken, true, true}},
    {" gpt-4o llama4 ", {kGpt4o}},
    {" superbpe ", {kSuperBpe}}};

}  // namespace

Result<GgufPatterns> gguf_patterns(std::string_view pre) {
  const std::string name = " " + std::string(pre) + " ";
  for (const NamedPatterns& k : kByName)
    if (k.names.find(name) != std::string_view::npos && pre.find(' ') == std::string_view::npos &&
        !pre.empty())
      return k.how;
  std::string all;
  for (const NamedPatterns& k : kByName) all += k.names.substr(0, k.names.size() - 1);
  return fail(Code::kUnsupported,
              "'tokenizer.ggml.pre' is '%s', which is not known: want one of%s, or serve a folder "
              "with the model's tokenizer.json",
              escape(pre).c_str(), all.c_str());
}

}  // namespace mc::model
