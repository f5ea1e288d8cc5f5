#include "model/files/gguf.h"

#include <limits>

#include "files.h"
#include "model/forward/model.h"
#include "model/text/gguf_tokenizer.h"
#include "shared.h"

using namespace mc;
using namespace mc::model;

namespace {

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}
std::string fixed(uint64_t n, size_t bytes) {
  std::string out(bytes, '\0');
  std::memcpy(out.data(), &n, bytes);
  return out;
}
std::string text(const std::string& s) { return fixed(s.size(), 8) + s; }
std::string key(const std::string& name, uint32_t kind, const std::string& value) {
  return text(name) + fixed(kind, 4) + value;
}
// One tensor of two floats, three keys.
std::string small_file(uint64_t rows = 2, uint64_t offset = 0, const std::string& more = "",
                       uint64_t type = 0, size_t bytes = 8) {
  std::string f = "GGUF" + fixed(3, 4) + fixed(1, 8) + fixed(more.empty() ? 3 : 4, 8);
  f += key("general.architecture", 8, text("llama")) + key("a.number", 4, fixed(7, 4));
  f += key("a.list", 9, fixed(8, 4) + fixed(2, 8) + text("x") + text("yz")) + more;
  f += text("w") + fixed(1, 4) + fixed(rows, 8) + fixed(type, 4) + fixed(offset, 8);
  f.resize((f.size() + 31) / 32 * 32);
  return f + std::string(bytes, 'z');
}

}  // namespace

TEST_CASE("gguf: metadata and tensors are where the file says") {
  const std::string file = small_file();
  const auto g = parse_gguf(bytes_of(file));
  REQUIRE_MESSAGE(g.has_value(), g.error().what);
  CHECK(std::get<int64_t>(g->metadata.at("a.number")) == 7);
  CHECK(std::get<std::vector<std::string>>(g->metadata.at("a.list"))[1] == "yz");
  CHECK(g->tensors.at("w").bytes.size() == 8);
}

TEST_CASE("gguf: a file that is cut anywhere, or lies, is refused") {
  const std::string file = small_file();
  for (size_t n = 0; n < file.size(); ++n)
    CHECK_FALSE(parse_gguf(bytes_of(file.substr(0, n))).has_value());
  for (const std::string& bad :
       {small_file(3), small_file(2, 4), small_file(2, UINT64_MAX), small_file(UINT64_MAX),
        small_file(2, 0, key("l", 9, fixed(8, 4) + fixed(UINT64_MAX, 8))),
        small_file(2, 0, key("l", 9, fixed(9, 4) + fixed(1, 8))),
        small_file(2, 0, key("l", 8, fixed(UINT64_MAX, 8))),
        small_file(2, 0, key("general.alignment", 4, fixed(0, 4))),
        small_file(2, 0, key("l", 99, "")),
        std::string("GGUF") + fixed(1, 4) + fixed(0, 8) + fixed(0, 8)})
    CHECK_FALSE(parse_gguf(bytes_of(bad)).has_value());
}

TEST_CASE("gguf: what is named twice, and tensors that share bytes, are refused by name") {
  const auto two = [](const std::string& second, uint64_t offset) {
    std::string f = "GGUF" + fixed(3, 4) + fixed(2, 8) + fixed(0, 8);
    for (const auto& [name, at] : {std::pair<std::string, uint64_t>{"w", 0}, {second, offset}})
      f += text(name) + fixed(1, 4) + fixed(12, 8) + fixed(0, 4) + fixed(at, 8);
    f.resize((f.size() + 31) / 32 * 32);
    f += std::string(128, 'z');
    const auto g = parse_gguf(bytes_of(f));
    return g ? std::string("fine") : g.error().what;
  };
  CHECK(two("v", 64) == "fine");
  CHECK(two("v", 32) == "tensors 'w' and 'v' overlap");
  CHECK(two("v", 0).ends_with("overlap"));
  CHECK(two("w", 64) == "there are two tensors 'w'");
  const auto twice = parse_gguf(bytes_of(small_file(2, 0, key("a.number", 4, fixed(8, 4)))));
  REQUIRE_FALSE(twice);
  CHECK(twice.error().what == "'a.number' is there twice");
}

TEST_CASE("files without tensors are no model: no weights are invented for them") {
  auto files = open_model("tiny");
  REQUIRE(files);
  CHECK(open_sources(*files));
  const test::Folder folder;
  folder.write("empty", "x");
  auto file = MappedFile::open(folder.path() + "/empty");
  REQUIRE(file);
  files->tensors.files.push_back(std::make_shared<const MappedFile>(std::move(*file)));
  files->tensors.path = folder.path();
  const auto none = open_sources(*files);
  REQUIRE_FALSE(none);
  CHECK(none.error().what == folder.path() + ": there are no tensors in it");
}

TEST_CASE("gguf: blocks take the bytes that their format says, and rows have whole ones") {
  const auto read = [](uint64_t elements, uint64_t type, size_t bytes, uint64_t offset = 0) {
    const std::string file = small_file(elements, offset, "", type, bytes);
    const auto g = parse_gguf(bytes_of(file));
    return g ? std::to_string(g->tensors.at("w").bytes.size()) : g.error().what;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  for (const BlockFormat& f : block_formats()) {
    CAPTURE(f.name);
    CHECK(read(2 * f.elements, f.ggml, 2 * f.bytes) == std::to_string(2 * f.bytes));
    CHECK(has(read(2 * f.elements, f.ggml, 2 * f.bytes - 1), "cut off?"));
    CHECK(has(read(f.elements + 1, f.ggml, 2 * f.bytes), "no whole blocks"));
    CHECK(has(read(UINT64_MAX / f.elements * f.elements, f.ggml, 64), "too large"));
  }
  CHECK(has(read(2, 0, 16, 8), "alignment 32"));
  // What is not read here has no bytes, and is refused by its name when it is wanted.
  for (const auto& [type, name] :
       {std::pair{16u, "IQ2_XXS"}, {34u, "TQ1_0"}, {99u, "ggml type 99"}}) {
    const std::string file = small_file(256, 0, "", type, 100);
    auto g = parse_gguf(bytes_of(file));
    REQUIRE(g);
    TensorSet set;
    set.tensors = std::move(g->tensors);
    const auto found = set.find("w", std::array<uint64_t, 1>{256});
    REQUIRE_FALSE(found.has_value());
    CHECK(has(found.error().what, name));
    CHECK(has(found.error().what, "Q4_1"));
  }
}

TEST_CASE("gguf: what a file makes a reader hold in memory has limits") {
  const auto why = [](const std::string& file) { return parse_gguf(bytes_of(file)).error().what; };
  const auto start = [](uint64_t tensors, uint64_t keys) {
    return "GGUF" + fixed(3, 4) + fixed(tensors, 8) + fixed(keys, 8);
  };
  const std::string zeros(32 << 20, '\0');  // tensors of no name, keys of no name and a byte
  CHECK(why(start(1 << 20, 0) + zeros).find("want at most 262144") != std::string::npos);
  CHECK(why(start(0, 1 << 20) + zeros).find("want at most") != std::string::npos);
  const std::string list =
      fixed(0, 4) + fixed(5'000'000, 8);  // of bytes, eight times as large here
  CHECK(why(start(0, 2) + key("a", 9, list + zeros.substr(0, 5'000'000)) +
            key("b", 9, list + zeros.substr(0, 5'000'000)))
            .find("all arrays have 8388608 at most") != std::string::npos);
}

TEST_CASE("gguf: a tokenizer of many pieces is opened in linear time") {
  constexpr size_t kPieces = 100'000;  // of one length: comparing each with all takes a minute
  const auto list = [](uint32_t kind, const auto& element) {
    std::string out = fixed(kind, 4) + fixed(kPieces, 8);
    for (size_t i = 0; i < kPieces; ++i) out += element(i);
    return out;
  };
  std::string file = "GGUF" + fixed(3, 4) + fixed(0, 8) + fixed(5, 8);
  file += key("tokenizer.ggml.model", 8, text("gpt2"));
  file += key("tokenizer.ggml.pre", 8, text("gpt-2"));
  file += key("tokenizer.ggml.merges", 9, fixed(8, 4) + fixed(0, 8));
  file += key("tokenizer.ggml.tokens", 9,
              list(8, [](size_t i) { return text(std::to_string(1'000'000 + i)); }));
  file += key("tokenizer.ggml.token_type", 9, list(0, [](size_t) { return fixed(1, 1); }));
  const auto g = parse_gguf(bytes_of(file));
  REQUIRE_MESSAGE(g.has_value(), g.error().what);
  const auto t = gguf_tokenizer(*g);
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  CHECK(t->vocab() == kPieces);
}

TEST_CASE("gguf: a file with more tokens than rows of the embedding is refused") {
  const auto opened = [](uint32_t vocab) {
    const std::pair<const char*, uint32_t> sizes[] = {
        {"vocab_size", vocab}, {"embedding_length", 4},     {"feed_forward_length", 4},
        {"block_count", 1},    {"attention.head_count", 2}, {"context_length", 16}};
    std::string file = "GGUF" + fixed(3, 4) + fixed(0, 8) + fixed(6 + std::size(sizes), 8);
    file += key("general.architecture", 8, text("llama"));
    for (const auto& [name, n] : sizes) file += key(std::string("llama.") + name, 4, fixed(n, 4));
    file += key("tokenizer.ggml.model", 8, text("gpt2"));
    file += key("tokenizer.ggml.pre", 8, text("gpt-2"));
    file += key("tokenizer.ggml.merges", 9, fixed(8, 4) + fixed(0, 8));
    file += key("tokenizer.ggml.tokens", 9,
                fixed(8, 4) + fixed(3, 8) + text("a") + text("b") + text("c"));
    file += key("tokenizer.ggml.token_type", 9, fixed(0, 4) + fixed(3, 8) + "\1\1\1");
    const test::Folder folder;
    folder.write("a.gguf", file);
    const auto files = open_model(folder.path() + "/a.gguf");
    return files ? "" : files.error().what;
  };
  CHECK(opened(3) == "");
  CHECK(opened(4) == "");
  CHECK(opened(2).find("the tokenizer has 3 tokens, the model 2") != std::string::npos);
}

TEST_CASE("gguf: the small model's files are its HF folder's model") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  ThreadPool threads(1);
  const auto hf = open_model(shared + "/stories260K/hf-f32");
  REQUIRE(hf);
  const auto want = load(*hf, threads);
  REQUIRE(want);
  for (const char* type : {"f32", "f16", "bf16"}) {
    CAPTURE(type);
    const auto files = open_model(shared + "/stories260K/gguf/stories260K-" + type + ".gguf");
    REQUIRE_MESSAGE(files.has_value(), files.error().what);
    CHECK(files->config.tied);
    CHECK(files->config.context_max == 512);
    CHECK(files->config.eos == std::vector<int32_t>{2});
    const auto got = load(*files, threads);
    REQUIRE_MESSAGE(got.has_value(), got.error().what);
    const double within = std::string(type) == "f32" ? 0 : std::string(type) == "f16" ? 1e-3 : 1e-2;
    for (const uint32_t row : {0u, 1u, 5u, 8u, 63u, 64u, 70u, 100u, 127u}) {
      std::vector<float> a(64), b(64);
      want->layers[2].qkv.row(row, a.data());
      got->layers[2].qkv.row(row, b.data());
      for (size_t i = 0; i < 64; ++i)
        if (!(std::abs(a[i] - b[i]) <= within * (1 + std::abs(a[i])))) FAIL(row);
    }
    const Json cases = test::json_at(shared + "/oracle/stories260K/tokenizer_cases.json");
    for (const Json& c : cases["cases"])
      CHECK(files->tokenizer.encode(c["text"].get<std::string>()) ==
            c["ids"].get<std::vector<int32_t>>());
  }
}

// The vectors that Qwen2 adds, in the names and the order of either kind of file.
TEST_CASE("biases of queries, keys and values are read where the family has them") {
  ModelConfig c;
  c.name = "small";
  c.vocab = 10, c.hidden = 4, c.intermediate = 6, c.layers = 1;
  c.heads = 2, c.kv_heads = 1, c.head_dim = 2, c.context_max = 16;
  c.tied = true;
  c.family = Family::kQwen2;
  std::vector<float> numbers(100);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  TensorSet set;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape, size_t first) {
    size_t n = 1;
    for (const uint64_t side : shape) n *= side;
    set.tensors[name] = {DType::kF32, "F32", std::move(shape),
                         std::as_bytes(std::span(numbers).subspan(first, n))};
  };
  struct Name {
    const char *hf, *gguf;
    std::vector<uint64_t> shape;
    size_t first;
  };
  const std::vector<Name> in_layer = {
      {"self_attn.q_proj.weight", "attn_q.weight", {4, 4}, 0},
      {"self_attn.k_proj.weight", "attn_k.weight", {2, 4}, 16},
      {"self_attn.v_proj.weight", "attn_v.weight", {2, 4}, 24},
      {"self_attn.o_proj.weight", "attn_output.weight", {4, 4}, 0},
      {"mlp.gate_proj.weight", "ffn_gate.weight", {6, 4}, 0},
      {"mlp.up_proj.weight", "ffn_up.weight", {6, 4}, 0},
      {"mlp.down_proj.weight", "ffn_down.weight", {4, 6}, 0},
      {"input_layernorm.weight", "attn_norm.weight", {4}, 0},
      {"post_attention_layernorm.weight", "ffn_norm.weight", {4}, 0},
      {"self_attn.q_proj.bias", "attn_q.bias", {4}, 50},
      {"self_attn.k_proj.bias", "attn_k.bias", {2}, 60},
      {"self_attn.v_proj.bias", "attn_v.bias", {2}, 70}};
  for (const Name& n : in_layer) {
    add(std::string("model.layers.0.") + n.hf, n.shape, n.first);
    add(std::string("blk.0.") + n.gguf, n.shape, n.first);
  }
  for (const char* name : {"model.embed_tokens.weight", "token_embd.weight"}) add(name, {10, 4}, 0);
  for (const char* name : {"model.norm.weight", "output_norm.weight"}) add(name, {4}, 0);
  for (const Naming naming : {Naming::kHuggingFace, Naming::kGguf}) {
    const auto sources = weight_sources(set, c, naming);
    REQUIRE_MESSAGE(sources.has_value(), sources.error().what);
    const LayerSources& l = sources->layers[0];
    CHECK(l.qkv_bias == std::vector<float>{50, 51, 52, 53, 60, 61, 70, 71});
    std::vector<float> row(4);
    l.qkv.read(5, row.data());  // the keys' second: rows are in their own order in both
    CHECK(row == std::vector<float>{20, 21, 22, 23});
  }
  set.tensors.erase("blk.0.attn_k.bias");
  const auto missing = weight_sources(set, c, Naming::kGguf);
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().what.find("attn_k.bias") != std::string::npos);
  c.family = Family::kLlama;  // adds none
  for (const char* name : {"blk.0.attn_q.bias", "blk.0.attn_v.bias"}) {
    const auto refused = weight_sources(set, c, Naming::kGguf);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kUnsupported);
    CHECK(refused.error().what.find(name) != std::string::npos);
    set.tensors.erase(name);
  }
  CHECK(weight_sources(set, c, Naming::kGguf)->layers[0].qkv_bias.empty());
  for (const char* name :
       {"blk.0.attn_output.bias", "blk.0.ffn_up.bias", "output_norm.bias", "output.bias"}) {
    add(name, {4}, 0);
    for (const Family family : {Family::kLlama, Family::kQwen2}) {
      if (family == Family::kQwen2)
        for (const char* of : {"q", "k", "v"})
          add(std::string("blk.0.attn_") + of + ".bias", {of[0] == 'q' ? 4u : 2u}, 0);
      c.family = family;
      const auto refused = weight_sources(set, c, Naming::kGguf);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().what.find(std::string("'") + name) != std::string::npos);
      for (const char* of : {"q", "k", "v"})
        set.tensors.erase(std::string("blk.0.attn_") + of + ".bias");
    }
    set.tensors.erase(name);
  }
}

TEST_CASE("gguf: a qwen2 file's configuration is under its own name") {
  Gguf g;
  g.metadata["general.architecture"] = std::string("qwen2");
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"vocab_size", 100},
                                                              {"embedding_length", 64},
                                                              {"feed_forward_length", 96},
                                                              {"block_count", 3},
                                                              {"attention.head_count", 4},
                                                              {"attention.head_count_kv", 2},
                                                              {"context_length", 512}})
    g.metadata[std::string("qwen2.") + name] = value;
  g.metadata["qwen2.rope.freq_base"] = 1e6;
  const auto c = gguf_config(g);
  REQUIRE_MESSAGE(c.has_value(), c.error().what);
  CHECK(c->family == Family::kQwen2);
  CHECK(c->kv_heads == 2);
  CHECK(c->rope.theta == 1e6);
  for (const char* name : {"qwen2.rope.freq_base", "qwen2.attention.layer_norm_rms_epsilon"}) {
    Gguf endless = g;
    endless.metadata[name] = std::numeric_limits<double>::infinity();
    const auto refused = gguf_config(endless);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().what.find("below 1e+12") != std::string::npos);
  }
  // What is not computed is refused by name, unless it says nothing.
  g.metadata["qwen2.rope.scaling.type"] = std::string("yarn");
  g.metadata["qwen2.rope.scaling.factor"] = 4.0;
  g.metadata["qwen2.rope.scaling.original_context_length"] = int64_t{128};
  struct Only {
    const char* name;
    double same, other;
  };
  for (const Only& o : {Only{"qwen2.attention.temperature_scale", 0, 0.1},
                        Only{"qwen2.rope.scaling.attn_factor", 1, 1.5},
                        Only{"qwen2.rope.scaling.yarn_attn_factor", 1, 0.8},
                        Only{"qwen2.rope.scaling.yarn_ext_factor", 1, 0}}) {
    CAPTURE(o.name);
    Gguf one = g;
    one.metadata[o.name] = o.same;
    CHECK(gguf_config(one));
    one.metadata[o.name] = o.other;
    const auto refused = gguf_config(one);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kUnsupported);
    CHECK(refused.error().what.find(o.name) != std::string::npos);
  }
  CHECK(gguf_config(g)->rope.often == 32);
  g.metadata["qwen2.rope.scaling.yarn_beta_fast"] = 16.0;
  g.metadata["qwen2.rope.scaling.yarn_beta_slow"] = 2.0;
  CHECK(gguf_config(g)->rope.often == 16);
  CHECK(gguf_config(g)->rope.seldom == 2);
  g.metadata["qwen2.rope.scaling.yarn_beta_slow"] = 16.0;
  CHECK(gguf_config(g).error().what.find("yarn_beta_slow") != std::string::npos);
  g.metadata["general.architecture"] = std::string("mamba");
  CHECK(gguf_config(g).error().what.find("'mamba'") != std::string::npos);
}
