// Computes a real model on a device: a GPU through CUDA, or its stand-in.
// KV blocks are in host memory, where transfers expect them. The engine copies the blocks it needs
// to the device, keeps what fits there, and copies new KV back at once (gpu/transformer.h,
// gpu/vram_block_cache.h). With f32 activations its output equals the CPU engine's bit for bit.
//
// If the device fails (full, busy, lost), the engine logs that once and stops using it. The CPU
// computes from then on, also the requests that had begun, so none is lost.
//
// Thread: const calls, any; they share the device in turns.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "gpu/transformer.h"
#include "serve/engine/engine.h"

namespace mc::serve {

class GpuEngine final : public Engine {
 public:
  // Makes the engine that takes over from a failed device: same model, same block layout.
  using Fallback = std::function<Result<std::unique_ptr<Engine>>()>;

  static constexpr uint64_t kVramAuto = UINT64_MAX;  // three quarters of what is free
  // `vram`: device bytes for KV blocks that stay there, at most the pool's size.
  GpuEngine(cost::ModelSpec spec, std::unique_ptr<gpu::Transformer> transformer, Fallback fallback,
            uint64_t vram = 0);
  ~GpuEngine() override;

  const cost::ModelSpec& spec() const override { return spec_; }
  uint32_t block_tokens() const override { return transformer_->kv().block_tokens; }
  bool ends_answer(int32_t token) const override;
  bool modelled_time() const override { return false; }
  void use_pool(std::span<std::byte> pool) const override;
  std::optional<DeviceKv> device_kv() const override;
  void prefill_layer(const ChunkView& chunk, uint32_t layer,
                     Activations& activations) const override;
  uint64_t verify(const SequenceView&) const override { return 0; }  // cannot verify
  std::vector<int32_t> decode(std::span<const DecodeItem> batch) const override;

  bool given_up() const;  // the device: the CPU computes

 private:
  Result<> on_device(const ChunkView& chunk, uint32_t layer, Activations& activations) const
      MC_REQUIRES(mutex_);
  Result<std::vector<int32_t>> on_device(std::span<const DecodeItem> batch) const
      MC_REQUIRES(mutex_);
  const Engine& give_up(const Error& why) const MC_REQUIRES(mutex_);

  const cost::ModelSpec spec_;
  const std::unique_ptr<gpu::Transformer> transformer_;
  const Fallback fallback_;
  const uint64_t vram_;
  mutable Mutex mutex_;
  mutable std::unique_ptr<Engine> cpu_ MC_GUARDED_BY(mutex_);  // null: the device computes
};

}  // namespace mc::serve
