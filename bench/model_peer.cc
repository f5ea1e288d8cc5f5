// mc's CPU engine as a worker of bench/run peers: it opens a model file, and times prompts and
// decoding, by the wall clock (seconds) and in CPU time of all threads (cpu). A line of its input
// is a JSON list, a method and its arguments; a line of its output is {"is": ...} or
// {"failed": text}, as those of bench/peers/worker.py.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/time.h"
#include "model/forward/model.h"
#include "model/forward/sampler.h"
#include "model/forward/transformer.h"

namespace mc {
namespace {

constexpr uint32_t kBlock = 64;
constexpr size_t kLongest = 40'000;  // positions
constexpr size_t kChunk = 512;       // tokens through the layers at a time, as llama.cpp's n_batch

class Peer {
 public:
  Result<Json> call(const std::string& method, const Json& given) {
    if (method == "open") return open(given);
    if (model_ == nullptr) return fail(Code::kInvalid, "%s before open", method.c_str());
    if (method == "prefill") return prefill(given);
    if (method == "decode") return decode(given);
    if (method == "chunk") return chunk(given);
    return fail(Code::kInvalid, "no method '%s'", method.c_str());
  }

 private:
  struct Model {
    Model(const model::ModelConfig& config, model::Weights weights, model::KvFormat kv,
          const model::Kernels& kernels, model::ThreadPool& threads)
        : transformer(config, std::move(weights), {kv, kBlock}, kernels, threads) {}
    model::Transformer transformer;
  };

  Result<Json> open(const Json& given) {
    MC_TRY(const std::string file, get_string(given, "file"));
    MC_TRY(const uint64_t threads, get_uint(given, "threads"));
    const Json* named = member(given, "kv");
    const auto kv = named == nullptr || !named->is_string()
                        ? model::KvFormat(model::DType::kBf16)
                        : model::kv_format_named(named->get<std::string>());
    if (!kv) return fail(Code::kInvalid, "kv: want f32, f16, bf16 or q8");
    const Json* set = member(given, "kernels");
    const model::Kernels* const kernels = model::kernels_named(
        set == nullptr || !set->is_string() ? "auto" : set->get<std::string>());
    if (kernels == nullptr) return fail(Code::kUnsupported, "kernels: this CPU has none of these");
    MC_TRY(model::ModelFiles files, model::open_model(file));
    // Longer texts than the model learned with have no sense, but their time.
    files.config.context_max = std::max<uint64_t>(files.config.context_max, kLongest);
    threads_ = std::make_unique<model::ThreadPool>(static_cast<unsigned>(threads));
    MC_TRY(model::Weights weights, model::load(files, *threads_));
    const double megabytes = static_cast<double>(weights.bytes()) / 1e6;
    memory_.clear();
    model_ = std::make_unique<Model>(files.config, std::move(weights), *kv, *kernels, *threads_);
    return Json{{"megabytes", megabytes}, {"vocab", files.config.vocab}};
  }

  // Room for so many positions of a sequence.
  std::vector<std::byte*> blocks(size_t sequence, size_t tokens) {
    const model::ModelConfig& c = model_->transformer.config();
    const size_t bytes = size_t{c.layers} * 2 * c.kv_heads * kBlock *
                         model_->transformer.kv().type.row_bytes(c.head_dim);
    if (memory_.size() <= sequence) memory_.resize(sequence + 1);
    auto& memory = memory_[sequence];
    while (memory.size() * kBlock < tokens) memory.push_back(std::make_unique<std::byte[]>(bytes));
    std::vector<std::byte*> all;
    for (const auto& block : memory) all.push_back(block.get());
    return all;
  }
  // Computes `tokens` of slices of equal length, and returns the likeliest token behind each.
  std::vector<int32_t> compute(std::span<const model::Slice> slices,
                               std::span<const int32_t> tokens) {
    const model::Transformer& t = model_->transformer;
    const model::ModelConfig& c = t.config();
    const size_t each = tokens.size() / slices.size();
    x_.resize(tokens.size() * c.hidden);
    last_.resize(slices.size() * c.hidden);
    logits_.resize(slices.size() * c.vocab);
    t.embed(tokens, x_.data());
    for (uint32_t l = 0; l < c.layers; ++l) t.layer(l, slices, x_.data());
    for (size_t i = 0; i < slices.size(); ++i)
      std::copy_n(x_.data() + ((i + 1) * each - 1) * c.hidden, c.hidden,
                  last_.data() + i * c.hidden);
    t.logits(last_.data(), slices.size(), logits_.data());
    std::vector<int32_t> next;
    for (size_t i = 0; i < slices.size(); ++i) {
      next.push_back(model::sample(std::span(logits_).subspan(i * c.vocab, c.vocab), {}));
    }
    return next;
  }
  int32_t prompt(const std::vector<std::byte*>& room, const std::vector<int32_t>& tokens) {
    int32_t next = 0;
    for (size_t at = 0; at < tokens.size(); at += kChunk) {
      const auto chunk = std::span(tokens).subspan(at, std::min(kChunk, tokens.size() - at));
      const model::Slice slice{room, at, at + chunk.size()};
      next = compute({&slice, 1}, chunk)[0];
    }
    return next;
  }

  Result<std::vector<int32_t>> tokens_of(const Json& given) {
    const Json* list = member(given, "tokens");
    std::vector<int32_t> tokens;
    if (list == nullptr || !list->is_array()) return fail(Code::kInvalid, "no tokens");
    for (const Json& token : *list) {
      if (!token.is_number_unsigned() ||
          token.get<uint64_t>() >= model_->transformer.config().vocab)
        return fail(Code::kInvalid, "a token that the model does not have");
      tokens.push_back(token.get<int32_t>());
    }
    if (tokens.empty()) return fail(Code::kInvalid, "no tokens");
    return tokens;
  }
  struct Start {
    Time wall;
    std::clock_t cpu;
  };
  Start now() const { return {clock_.now(), std::clock()}; }
  Json since(const Start& start, size_t parts, Json said) const {
    const double n = static_cast<double>(parts);
    const auto cpu = static_cast<double>(std::clock() - start.cpu) / CLOCKS_PER_SEC;
    return Json{{"seconds", to_seconds(clock_.now() - start.wall) / n},
                {"cpu", cpu / n},
                {"next", std::move(said)}};
  }

  // Seconds for a whole prompt, and the token behind it.
  Result<Json> prefill(const Json& given) {
    MC_TRY(const std::vector<int32_t> tokens, tokens_of(given));
    const std::vector<std::byte*> room = blocks(0, tokens.size());
    const Start start = now();
    const int32_t next = prompt(room, tokens);
    return since(start, 1, Json{next});
  }
  // Seconds for a chunk behind `behind` positions, which are not computed: their KV is zeros.
  Result<Json> chunk(const Json& given) {
    MC_TRY(const std::vector<int32_t> tokens, tokens_of(given));
    MC_TRY(const uint64_t behind, get_uint(given, "behind"));
    if (behind + tokens.size() > kLongest) return fail(Code::kInvalid, "behind: too long a text");
    const std::vector<std::byte*> room = blocks(0, behind + tokens.size());
    const model::Slice slice{room, behind, behind + tokens.size()};
    const Start start = now();
    const int32_t next = compute({&slice, 1}, tokens)[0];
    return since(start, 1, Json{next});
  }
  // Seconds for each of `count` steps behind a prompt, which `batch` sequences have in common, and
  // the tokens of the first.
  Result<Json> decode(const Json& given) {
    MC_TRY(const std::vector<int32_t> tokens, tokens_of(given));
    MC_TRY(const uint64_t count, get_uint(given, "count"));
    const Json* some = member(given, "batch");
    const size_t batch = some == nullptr || !some->is_number_unsigned() ? 1 : some->get<size_t>();
    if (count == 0 || count > 4096) return fail(Code::kInvalid, "count: want 1 to 4096");
    if (batch == 0 || batch > 64) return fail(Code::kInvalid, "batch: want 1 to 64");
    std::vector<std::vector<std::byte*>> rooms;
    std::vector<int32_t> next;
    for (size_t i = 0; i < batch; ++i) {
      rooms.push_back(blocks(i, tokens.size() + count));
      next.push_back(prompt(rooms.back(), tokens));
    }
    Json said = Json::array();
    const Start start = now();
    for (size_t at = tokens.size(); at < tokens.size() + count; ++at) {
      said.push_back(next[0]);
      std::vector<model::Slice> slices;
      for (const auto& room : rooms) slices.push_back({room, at, at + 1});
      next = compute(slices, next);
    }
    return since(start, count, std::move(said));
  }

  SteadyClock clock_;
  std::unique_ptr<model::ThreadPool> threads_;
  std::unique_ptr<Model> model_;
  std::vector<std::vector<std::unique_ptr<std::byte[]>>> memory_;  // of each sequence
  std::vector<float> x_, last_, logits_;
};

Result<Json> answer(Peer& peer, const std::string& line) {
  MC_TRY(const Json call, parse_json(line));
  if (!call.is_array() || call.size() != 2 || !call[0].is_string())
    return fail(Code::kInvalid, "want [method, {arguments}]");
  return peer.call(call[0].get<std::string>(), call[1]);
}

}  // namespace
}  // namespace mc

int main() {
  mc::Peer peer;
  for (std::string line; std::getline(std::cin, line);) {
    const auto found = mc::answer(peer, line);
    const mc::Json said =
        found ? mc::Json{{"is", *found}} : mc::Json{{"failed", found.error().what}};
    std::cout << mc::dump_json(said) << std::endl;
  }
  return 0;
}
