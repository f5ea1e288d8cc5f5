#include "gpu/weights.h"

#include <algorithm>

#include "model/files/dtype.h"

namespace mc::gpu {
namespace {

constexpr uint64_t kPartBytes = 8u << 20;  // converted and copied at a time

class Upload {
 public:
  Upload(device::Device& device, model::DType type, model::ThreadPool& threads)
      : device_(device), type_(type), threads_(threads) {}

  Result<> start() {
    MC_TRY(stream_, device_.open_stream());
    return {};
  }
  Result<Matrix> matrix(const model::Source& s) {
    Matrix m{{}, s.rows, s.columns, s.segments};
    if (s.rows == 0) return m;
    const uint64_t row = uint64_t{s.columns} * size_of(type_);
    MC_TRY(m.memory, device_.allocate(row * s.rows));
    bytes_ += row * s.rows;
    const auto at_once = static_cast<uint32_t>(std::clamp<uint64_t>(kPartBytes / row, 1, s.rows));
    if (host_.size() < at_once * row) {
      MC_TRY(host_, device_.allocate_host(at_once * row));
    }
    for (uint32_t begin = 0; begin < s.rows; begin += at_once) {
      const uint32_t n = std::min(at_once, s.rows - begin);
      threads_.run(n, [&](size_t i) {
        std::vector<float> values(s.columns);
        s.read(begin + static_cast<uint32_t>(i), values.data());
        model::from_floats(type_, values.data(), host_.data() + i * row, values.size());
      });
      MC_TRY_(put(m.memory.data() + begin * row, host_.data(), n * row));
    }
    return m;
  }
  Result<device::Memory> vector(const std::vector<float>& values) {
    const uint64_t bytes = values.size() * sizeof(float);
    MC_TRY(device::Memory memory, device_.allocate(bytes));
    MC_TRY_(put(memory.data(), reinterpret_cast<const std::byte*>(values.data()), bytes));
    bytes_ += bytes;
    return memory;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  Result<> put(std::byte* to, const std::byte* from, uint64_t bytes) {
    MC_TRY_(stream_->copy(to, from, bytes));
    MC_TRY(const auto event, stream_->record());
    return event->wait();
  }
  device::Device& device_;
  const model::DType type_;
  model::ThreadPool& threads_;
  std::unique_ptr<device::Stream> stream_;
  device::Memory host_{};
  uint64_t bytes_ = 0;
};

}  // namespace

Result<Weights> upload(device::Device& device, const model::WeightSources& sources,
                       model::DType type, model::ThreadPool& threads) {
  Upload up(device, type, threads);
  MC_TRY_(up.start());
  Weights w;
  w.type = type;
  MC_TRY(w.embedding, up.matrix(sources.embedding));
  MC_TRY(w.head, up.matrix(sources.head));
  MC_TRY(w.norm, up.vector(sources.norm));
  for (const model::LayerSources& l : sources.layers) {
    LayerWeights to;
    MC_TRY(to.qkv, up.matrix(l.qkv));
    MC_TRY(to.output, up.matrix(l.output));
    MC_TRY(to.gate_up, up.matrix(l.gate_up));
    MC_TRY(to.down, up.matrix(l.down));
    MC_TRY(to.attention_norm, up.vector(l.attention_norm));
    MC_TRY(to.mlp_norm, up.vector(l.mlp_norm));
    if (!l.qkv_bias.empty()) {
      MC_TRY(to.qkv_bias, up.vector(l.qkv_bias));
    }
    w.layers.push_back(std::move(to));
  }
  w.bytes = up.bytes();
  return w;
}

}  // namespace mc::gpu
