#include "gpu/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu/kernels.h"

namespace mc::gpu {
namespace {

// Where the next part of a buffer begins: products want it (device::Product).
constexpr uint64_t kAlign = 256;
uint64_t aligned(uint64_t bytes) { return over(bytes, kAlign) * kAlign; }

const uint64_t* table(const std::byte* at) { return reinterpret_cast<const uint64_t*>(at); }

}  // namespace

Transformer::Transformer(device::DevicePtr device, const model::ModelConfig& config,
                         model::KvLayout kv)
    : device_(std::move(device)), config_(config), kv_(kv), rope_(config_), pool_(device_) {}

Result<std::unique_ptr<Transformer>> Transformer::open(device::DevicePtr device,
                                                       const model::ModelConfig& config,
                                                       const model::WeightSources& sources,
                                                       model::DType weights, model::KvLayout kv,
                                                       model::ThreadPool& threads,
                                                       const TransformerOptions& options) {
  MC_CHECK(kv.block_tokens > 0 && config.head_dim <= MC_HEAD_DIM_MAX);
  if (const std::string more = model::parts_beyond_llama(config); !more.empty())
    return fail(Code::kUnsupported, "model %s has %s: its layers are not computed on devices",
                config.name.c_str(), more.c_str());
  if (kv.type.quantized())
    return fail(Code::kUnsupported, "KV of %s is not computed on devices: want f32, f16 or bf16",
                model::name(kv.type));
  const model::DType factors = options.factors, numbers = kv.type.type();
  const bool tensor = factors != model::DType::kF32;
  if (tensor && factors != weights)
    return fail(Code::kUnsupported, "activations of %s want weights of %s", model::name(factors),
                model::name(factors));
  if (tensor &&
      (config.hidden % 8 != 0 || config.q_rows() % 8 != 0 || config.intermediate % 8 != 0))
    return fail(Code::kUnsupported,
                "model %s: the tensor cores want sizes in eights; hidden %u, heads %u, inner %u: "
                "give activations of f32",
                config.name.c_str(), config.hidden, config.q_rows(), config.intermediate);
  std::unique_ptr<Transformer> t(new Transformer(std::move(device), config, kv));
  MC_TRY(t->computing_, t->device_->open_stream());
  MC_TRY(t->loading_, t->device_->open_stream());
  MC_TRY(t->keeping_, t->device_->open_stream());
  MC_TRY(t->weights_, upload(*t->device_, sources, weights, threads));
  const uint64_t bytes = config.eos.size() * sizeof(int32_t);
  if (bytes > 0) {
    MC_TRY(t->ends_, t->device_->allocate(bytes));
    MC_TRY_(t->computing_->copy(t->ends_.data(),
                                reinterpret_cast<const std::byte*>(config.eos.data()), bytes));
    MC_TRY_(t->finish(*t->computing_));
  }
  t->tensor_ = tensor;
  t->graphs_on_ = options.graphs;
  t->flash_ = tensor && numbers != model::DType::kF32 &&
              config.heads / config.kv_heads <= MC_TENSOR_HEADS &&
              config.head_dim % MC_TENSOR_DIM_STEP == 0 && config.head_dim <= MC_TENSOR_DIM_MAX;
  t->names_ = {named(MC_EMBED, weights),  named(MC_NORMALIZE, factors), named(MC_STORE, numbers),
               named(MC_ATTEND, numbers), named(MC_FLASH, numbers),     named(MC_PROMPT, numbers),
               named(MC_ROUND, factors),  named(MC_GATE, factors)};
  MC_TRY_(t->choose_gemm(options));
  return t;
}

// All layers have one shape, so the samples are the first layer's matrices and the head.
Result<> Transformer::choose_gemm(const TransformerOptions& options) {
  const LayerWeights& l = weights_.layers.front();
  const Matrix& head = weights_.head.rows > 0 ? weights_.head : weights_.embedding;
  MC_TRY(gemm_,
         GemmDispatcher::open(*device_, pool_, *computing_, options.gemm, weights_.type,
                              options.factors, {&l.qkv, &l.output, &l.gate_up, &l.down, &head}));
  return {};
}

Result<> Transformer::finish(device::Stream& stream) {
  MC_TRY(const auto event, stream.record());
  return event->wait();
}

void Transformer::drain() {
  (void)finish(*loading_);
  (void)finish(*computing_);
  (void)finish(*keeping_);
}

Result<> Transformer::pin(std::span<std::byte> pool) {
  MC_TRY(auto memory, device_->pin(pool));
  pinned_.push_back(std::move(memory));
  return {};
}

bool Transformer::is_pinned(const std::byte* at, uint64_t bytes) const {
  return std::any_of(pinned_.begin(), pinned_.end(), [&](const device::Memory& m) {
    return at >= m.data() && at + bytes <= m.data() + m.size();
  });
}

Result<uint64_t> Transformer::keep_blocks(uint64_t bytes) {
  const uint64_t slots = config_.layers < 2 ? 0 : bytes / block_bytes();
  if (slots == 0) return slots;
  MC_TRY(auto memory, device_->allocate(slots * block_bytes()));
  graphs_.clear();
  cache_ = std::make_shared<VramBlockCache>(
      std::move(memory), VramBlockCache::Shape{layer_bytes(), config_.layers, kv_.block_tokens});
  return slots;
}

KvTraffic Transformer::traffic() const {
  return {cache_ == nullptr ? VramBlockCache::Counts{} : cache_->counts(), bytes_in_, bytes_out_,
          graph_steps_};
}

// Slots of the cache, or, two layers of each block at a time, of a buffer of the pass.
Result<> Transformer::assign_slots(Pass& pass, std::span<const Content> contents) {
  uint64_t blocks = 0;
  for (const model::Slice& s : pass.slices) {
    MC_CHECK(s.begin < s.end && s.end <= config_.context_max);
    const size_t here = over(s.end, kv_.block_tokens);
    MC_CHECK(s.blocks.size() >= here);
    pass.table_width = std::max(pass.table_width, narrow(here));
    blocks += here;
  }
  pass.table_bytes = pass.slices.size() * pass.table_width * sizeof(uint64_t);
  pass.cache = cache_;
  if (cache_ != nullptr) pass.claim = cache_->claim(pass.slices, contents);
  if (pass.claim != nullptr) {
    pass.kv = cache_->data();
    pass.block_slots = pass.claim->block_slots();
    return {};
  }
  MC_TRY(pass.staged, pool_.take(2 * blocks * layer_bytes()));
  pass.kv = pass.staged->data();
  for (uint64_t b = 0; b < blocks; ++b)
    pass.block_slots.push_back({2 * b * layer_bytes(), true, false});
  return {};
}

// A kernel adds a layer's offset to all entries of a table. In mixed passes the offset differs by
// block, so the tables include it.
void Transformer::fill_tables(const Pass& pass, uint64_t* to) const {
  for (uint32_t layer = 0; layer < (pass.mixed() ? config_.layers : 1); ++layer) {
    size_t block = 0;
    for (size_t i = 0; i < pass.slices.size(); ++i)
      for (size_t b = 0; b < over(pass.slices[i].end, kv_.block_tokens); ++b, ++block) {
        const VramBlockCache::BlockSlot& p = pass.block_slots[block];
        const uint64_t within = p.streamed ? layer % 2 : layer;
        to[i * pass.table_width + b] = p.at + (pass.mixed() ? within * layer_bytes() : 0);
      }
    to += pass.slices.size() * pass.table_width;
  }
}

uint64_t Transformer::layer_offset(const Pass& pass, uint32_t layer) const {
  if (pass.mixed()) return 0;
  return (pass.claim == nullptr ? layer % 2 : layer) * layer_bytes();
}

const uint64_t* Transformer::table_of(const Pass& pass, uint32_t layer) const {
  return table(pass.table + (pass.mixed() ? layer * pass.table_bytes : 0));
}

// Ensures the pass's buffers, except the head's.
Result<> Transformer::reserve(Pass& pass) {
  const auto ensure = [&](DeviceBufferPool::Buffer& has, uint64_t bytes,
                          bool host = false) -> Result<> {
    if (has != nullptr && has->size() >= bytes) return {};
    MC_TRY(has, pool_.take(bytes, host));
    return {};
  };
  const uint64_t tables = pass.table_bytes * (pass.mixed() ? config_.layers : 1);
  const uint64_t row_floats = config_.q_rows() + 2 * config_.kv_rows();
  const uint64_t wide =
      std::max<uint64_t>(row_floats + 2 * config_.q_rows(), 3 * config_.intermediate);
  const uint64_t part = (config_.head_dim + 2) * sizeof(float);
  const uint64_t draws = pass.rows * sizeof(mc_draw), rows = pass.rows * sizeof(mc_row);
  Buffers& b = pass.buffers;
  pass.input_bytes = tables + draws + rows + pass.rows * config_.head_dim * sizeof(float);
  MC_TRY_(ensure(b.host, std::max(pass.input_bytes, pass.tokens_bytes()), true));
  MC_TRY_(ensure(b.input, pass.input_bytes));
  MC_TRY_(ensure(b.x, pass.rows * config_.hidden * sizeof(float)));
  MC_TRY_(ensure(b.scratch, pass.rows * (config_.hidden + wide) * sizeof(float) + 3 * kAlign));
  if (pass.splits > 1) MC_TRY_(ensure(b.parts, pass.rows * config_.heads * pass.splits * part));
  // First the parts that need alignment to 8.
  pass.table = b.input->data();
  pass.draws = pass.table + tables;
  pass.row_list = pass.draws + draws;
  pass.rotations = pass.row_list + rows;
  return {};
}

// Writes the pass's inputs into pinned memory.
void Transformer::fill(Pass& pass, std::span<const int32_t> tokens,
                       std::span<const Choice> choices) const {
  std::byte* const host = pass.buffers.host->data();
  const auto at = [&](const std::byte* input) { return host + (input - pass.table); };
  fill_tables(pass, reinterpret_cast<uint64_t*>(host));
  auto* const draws = reinterpret_cast<mc_draw*>(at(pass.draws));
  auto* const rows = reinterpret_cast<mc_row*>(at(pass.row_list));
  auto* const rotations = reinterpret_cast<std::complex<float>*>(at(pass.rotations));
  size_t row = 0;
  for (size_t i = 0; i < pass.slices.size(); ++i)
    for (size_t p = pass.slices[i].begin; p < pass.slices[i].end; ++p, ++row) {
      MC_CHECK(row < tokens.size() && tokens[row] >= 0 &&
               static_cast<uint32_t>(tokens[row]) < config_.vocab);
      const Choice choice = choices.empty() ? Choice{} : choices[i];
      const model::Draw& d = choice.draw;
      draws[row] = {d.greedy() ? 0 : d.temperature, d.top_p, d.bits(), d.top_k, 0};
      rows[row] = {tokens[row], narrow(p), narrow(i), choice.masked ? 1u : 0u};
      rope_.at(p, rotations + row * rope_.pairs());
    }
  MC_CHECK(row == pass.rows);
}

Result<> Transformer::embed(Pass& pass) {
  const Buffers& b = pass.buffers;
  MC_TRY_(computing_->copy(b.input->data(), b.host->data(), pass.input_bytes));
  return launch(*computing_, names_.embed, {pass.rows}, weights_.embedding.memory.data(),
                row_list(pass.row_list), floats(b.x->data()), config_.hidden);
}

Result<Pass> Transformer::begin(std::span<const int32_t> tokens,
                                std::span<const model::Slice> slices,
                                std::span<const Content> contents) {
  Pass pass;
  pass.slices = {slices.begin(), slices.end()};
  pass.rows = tokens.size();
  MC_TRY_(assign_slots(pass, contents));
  MC_TRY_(reserve(pass));
  fill(pass, tokens, {});
  MC_TRY_(embed(pass));
  MC_TRY_(finish(*computing_));
  return pass;
}

// Copies of a layer's KV before the rows, from blocks that are not resident into their slots.
std::vector<device::Block> Transformer::uploads(const Pass& pass, uint32_t layer) const {
  std::vector<device::Block> list;
  auto slot = pass.block_slots.begin();
  for (const model::Slice& s : pass.slices)
    for (size_t b = 0; b < over(s.end, kv_.block_tokens); ++b, ++slot) {
      if (slot->there || b * kv_.block_tokens >= s.begin) continue;
      const uint64_t within = slot->streamed ? layer % 2 : layer;
      list.push_back({pass.kv + slot->at + within * layer_bytes(),
                      s.blocks[b] + layer * layer_bytes(), layer_bytes()});
    }
  return list;
}

Result<> Transformer::load(const Pass& pass, uint32_t layer) {
  const std::vector<device::Block> list = uploads(pass, layer);
  bytes_in_ += list.size() * layer_bytes();
  if (std::all_of(list.begin(), list.end(),
                  [&](const device::Block& b) { return is_pinned(b.from, b.bytes); }))
    return loading_->copy_blocks(list);
  for (const device::Block& b : list) MC_TRY_(loading_->copy(b.to, b.from, b.bytes));
  return {};
}

// Copies the rows' KV of some layers back into the host blocks: whole blocks, and of others a run
// of positions for each head.
Result<> Transformer::keep(device::Stream& stream, const Pass& pass, uint32_t first_layer,
                           uint32_t end_layer) {
  const uint64_t tokens = kv_.block_tokens, stride = tokens * head_bytes();
  std::vector<device::Block> list;
  bool pinned = true;
  size_t first = 0;
  for (const model::Slice& s : pass.slices) {
    for (size_t p = s.begin; p < s.end;) {
      const size_t in_block = p % tokens, n = std::min(s.end - p, tokens - in_block);
      const VramBlockCache::BlockSlot& slot = pass.block_slots[first + p / tokens];
      std::byte* const block = s.blocks[p / tokens];
      const uint64_t at = in_block * head_bytes();
      for (uint32_t layer = first_layer; layer < end_layer; ++layer) {
        const uint64_t within = slot.streamed ? layer % 2 : layer;
        std::byte* const to = block + layer * layer_bytes() + at;
        const std::byte* const from = pass.kv + slot.at + within * layer_bytes() + at;
        if (n == tokens) list.push_back({to, from, layer_bytes()});
        for (uint64_t i = 0; n < tokens && i < 2 * config_.kv_heads; ++i)
          list.push_back({to + i * stride, from + i * stride, n * head_bytes()});
      }
      pinned = pinned && is_pinned(block + first_layer * layer_bytes(),
                                   (end_layer - first_layer) * layer_bytes());
      p += n;
    }
    first += over(s.end, tokens);
  }
  for (const device::Block& b : list) bytes_out_ += b.bytes;
  if (pinned) return stream.copy_blocks(list);
  for (const device::Block& b : list) MC_TRY_(stream.copy(b.to, b.from, b.bytes));
  return {};
}

Result<> Transformer::normalize(const std::byte* x, const device::Memory& weight, std::byte* out,
                                size_t rows) {
  return launch(*computing_, names_.normalize, {rows}, floats(x), floats(weight.data()), out,
                config_.hidden, config_.norm_eps);
}

Result<> Transformer::attend(Pass& pass, uint32_t layer, const std::byte* qkv, std::byte* out) {
  if (flash_) return flash(pass, layer, qkv, out);
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  return launch(*computing_, names_.attend, {pass.rows, config_.heads}, floats(qkv), floats(out),
                row_list(pass.row_list), pass.kv, table_of(pass, layer), pass.table_width,
                layer_offset(pass, layer), config_.heads, config_.kv_heads, config_.head_dim,
                kv_.block_tokens, scale);
}

// A step's splits are computed in parallel, a prompt's by the group of its rows.
Result<> Transformer::flash(Pass& pass, uint32_t layer, const std::byte* qkv, std::byte* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  const uint32_t per_kv = config_.heads / config_.kv_heads;
  if (pass.slices.size() == 1 && pass.splits == 1 && pass.rows * per_kv > MC_TENSOR_HEADS) {
    const uint32_t rows = MC_PROMPT_QUERIES / per_kv;
    return launch(*computing_, names_.prompt, {over(pass.rows, rows), config_.kv_heads},
                  floats(qkv), floats(out), row_list(pass.row_list), pass.kv, table_of(pass, layer),
                  pass.table_width, layer_offset(pass, layer), config_.heads, config_.kv_heads,
                  config_.head_dim, kv_.block_tokens, scale, narrow(pass.rows), rows);
  }
  const uint32_t together = pass.slices.size() > 1 ? 1 : MC_TENSOR_HEADS / per_kv;
  const bool split = pass.splits > 1;
  float* const parts = split ? floats(pass.buffers.parts->data()) : nullptr;
  MC_TRY_(launch(*computing_, names_.flash,
                 {over(pass.rows, together), config_.kv_heads, pass.splits}, floats(qkv),
                 floats(out), parts, row_list(pass.row_list), pass.kv, table_of(pass, layer),
                 pass.table_width, layer_offset(pass, layer), config_.heads, config_.kv_heads,
                 config_.head_dim, kv_.block_tokens, scale, narrow(pass.rows), together));
  if (!split) return {};
  return launch(*computing_, MC_COMBINE, {pass.rows, config_.heads},
                static_cast<const float*>(parts), floats(out), row_list(pass.row_list),
                config_.head_dim, pass.splits);
}

Result<> Transformer::compute(Pass& pass, uint32_t layer, bool kv_only) {
  const LayerWeights& w = weights_.layers[layer];
  const size_t rows = pass.rows, inner = config_.intermediate;
  const uint64_t row_floats = config_.q_rows() + 2 * config_.kv_rows();
  std::byte* const x = pass.buffers.x->data();
  std::byte* const normed = pass.buffers.scratch->data();
  std::byte* const qkv = normed + aligned(rows * config_.hidden * sizeof(float));
  std::byte* const attended = qkv + aligned(rows * row_floats * sizeof(float));
  std::byte* const rounded = attended + aligned(rows * config_.q_rows() * sizeof(float));
  std::byte* const gate_up = qkv;
  std::byte* const gated = gate_up + aligned(rows * 2 * inner * sizeof(float));
  MC_TRY_(normalize(x, w.attention_norm, normed, rows));
  MC_TRY_(multiply(w.qkv, normed, qkv, rows, false));
  MC_TRY_(launch(*computing_, names_.store, {rows}, floats(qkv),
                 static_cast<const float*>(floats(w.qkv_bias.data())), row_list(pass.row_list),
                 floats(pass.rotations), pass.kv, table_of(pass, layer), pass.table_width,
                 layer_offset(pass, layer), config_.heads, config_.kv_heads, config_.head_dim,
                 kv_.block_tokens, 0u));
  if (kv_only) return {};
  MC_TRY_(attend(pass, layer, qkv, attended));
  const std::byte* values = attended;
  if (tensor_) {
    const uint64_t n = rows * config_.q_rows();
    MC_TRY_(
        launch(*computing_, names_.round, {over(n, MC_ROUND_PART)}, floats(attended), rounded, n));
    values = rounded;
  }
  MC_TRY_(multiply(w.output, values, x, rows, true));
  MC_TRY_(normalize(x, w.mlp_norm, normed, rows));
  MC_TRY_(multiply(w.gate_up, normed, gate_up, rows, false));
  MC_TRY_(launch(*computing_, names_.gate, {rows, over(inner, MC_GATE_PART)}, floats(gate_up),
                 gated, narrow(inner)));
  return multiply(w.down, gated, x, rows, true);
}

Result<> Transformer::start(Pass& pass, uint32_t layer, bool kv_only) {
  MC_TRY_(load(pass, layer));
  MC_TRY(const auto loaded, loading_->record());
  MC_TRY_(computing_->after(*loaded));
  MC_TRY_(compute(pass, layer, kv_only));
  MC_TRY(pass.computed, computing_->record());
  pass.launched = layer + 1;
  return {};
}

// While a layer's KV is copied back, the next layer computes: not the last one, whose call says
// what it wants, and none that reads blocks of the host, which may arrive layer by layer.
Result<> Transformer::layer(Pass& pass, uint32_t layer, bool kv_only) {
  MC_CHECK(layer < config_.layers && layer <= pass.launched && pass.launched <= layer + 1);
  if (pass.launched == layer) MC_TRY_(start(pass, layer, kv_only));
  const std::unique_ptr<device::Event> computed = std::move(pass.computed);
  if (layer + 2 < config_.layers && uploads(pass, layer + 1).empty())
    MC_TRY_(start(pass, layer + 1, false));
  MC_TRY_(keeping_->after(*computed));
  MC_TRY_(keep(*keeping_, pass, layer, layer + 1));
  MC_TRY_(finish(*keeping_));
  if (layer + 1 == config_.layers && pass.claim != nullptr) pass.claim->commit();
  return {};
}

// Logits, then the tokens, then the rows that are multiplied.
Result<> Transformer::head(Pass& pass) {
  const Matrix& m = weights_.head.rows > 0 ? weights_.head : weights_.embedding;
  const uint64_t normed = aligned(logits_bytes(pass) + pass.tokens_bytes());
  const uint64_t bytes = normed + pass.rows * config_.hidden * sizeof(float);
  DeviceBufferPool::Buffer& out = pass.buffers.out;
  if (out == nullptr || out->size() < bytes) {
    MC_TRY(out, pool_.take(bytes));
  }
  MC_TRY_(normalize(pass.buffers.x->data(), weights_.norm, out->data() + normed, pass.rows));
  return multiply(m, out->data() + normed, out->data(), pass.rows, false);
}

Result<std::vector<float>> Transformer::logits(Pass& pass) {
  MC_TRY_(head(pass));
  std::vector<float> values(pass.rows * config_.vocab);
  MC_TRY_(computing_->copy(reinterpret_cast<std::byte*>(values.data()), pass.buffers.out->data(),
                           logits_bytes(pass)));
  MC_TRY_(finish(*computing_));
  return values;
}

}  // namespace mc::gpu
