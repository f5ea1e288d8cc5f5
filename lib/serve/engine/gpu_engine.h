// The engine that computes a real model on a device: a GPU through CUDA, or a stand-in of one. KV
// blocks lie in host memory, as everything that moves them expects; the engine takes what it needs
// of them to the device, keeps what fits there, and brings what is new back at once
// (gpu/transformer.h, gpu/vram_block_cache.h). With f32 activations it says bit for bit what
// the CPU engine says.
//
// A device that fails (full, busy, lost) is told once in the log and given up; from then on the CPU
// computes, what was begun as well, so that no request is lost with it.
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
  // What computes when the device cannot: the same model over blocks of the same layout.
  using Fallback = std::function<Result<std::unique_ptr<Engine>>()>;

  static constexpr uint64_t kVramAuto = UINT64_MAX;  // three quarters of what is free
  // `vram`: bytes of the device for KV blocks that stay there, of which the pool's size is used.
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
  uint64_t verify(const SequenceView&) const override { return 0; }  // it cannot tell
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
