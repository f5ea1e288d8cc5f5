#include "serve/engine/cpu_engine.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "device/named.h"
#include "serve/engine/dummy_engine.h"
#include "serve/engine/gpu_engine.h"
#include "serve/engine/next_token.h"
#include "serve/engine/pool_mapping.h"

namespace mc::serve {
namespace {

constexpr uint32_t kThreadsMax = 1024;

}  // namespace

void CpuOptions::describe(OptionList& v) {
  v("threads", threads, "threads that compute (cpu engine); 0: one for each CPU");
  v("kernels", kernels, "instruction set of the cpu engine; all give the same bits",
    {"auto", "amx", "avx512bf16", "avx512", "avx2", "plain"});
  v("device", device,
    "for the cuda engine: cuda:0, cuda:1, or stand-in, which computes slowly on the host, to try "
    "the engine without a GPU");
  v("gemm", gemm,
    "for the cuda engine: matrix products; auto: cuBLASLt for bf16 activations if it loads and "
    "passes a check, else own kernels",
    {"auto", "own", "cublaslt"});
  v("graphs", graphs,
    "for the cuda engine: launch a decode step whose blocks are all on the device as one graph, "
    "if the driver can (auto), or kernel by kernel (off)",
    {"auto", "off"});
  v("vram", vram,
    "for the cuda engine: device memory for KV blocks that stay there, at most the size of the "
    "pool; auto: three quarters of what the weights leave; 0: none");
  v("tp", tp,
    "tensor-parallel ranks of the block layout: a KV block has one part for each rank, with its "
    "share of the KV heads; transfers to workers with other numbers split heads");
  v("tp-processes", tp_processes,
    "on: each rank of --tp is a process that has its share of heads and weights; this one is the "
    "first and starts the others; off: this process computes all ranks",
    {"off", "on"});
}

namespace {

uint32_t processes_of(const CpuOptions& cpu) { return cpu.tp_processes == "on" ? cpu.tp : 1; }

// Threads of each rank: of this machine's CPUs, its share.
uint32_t threads_of(const CpuOptions& cpu) {
  if (cpu.threads > 0 || processes_of(cpu) == 1) return cpu.threads;
  return std::max(1u, std::thread::hardware_concurrency() / processes_of(cpu));
}

// With one part for each process; latent vectors are in one part, whatever computes.
Result<uint32_t> layout_ranks(const model::ModelConfig& config, const CpuOptions& cpu) {
  if (processes_of(cpu) > 1) {
    MC_TRY_(model::check_tp(config, cpu.tp));
    return config.latent.kv_rank > 0 ? 1 : cpu.tp;
  }
  if (cpu.tp == 0 || config.kv_heads % cpu.tp != 0)
    return fail(Code::kInvalid, "--tp %u: want a number that divides the %u KV heads of %s", cpu.tp,
                config.kv_heads, config.name.c_str());
  return cpu.tp;
}

model::DType products_of(const ComputedModel& opened) {
  return opened.factors == model::DType::kF16 ? model::DType::kF32 : opened.factors;
}

Result<std::unique_ptr<Engine>> open_cpu_engine(const EngineChoice& choice, const CpuOptions& cpu,
                                                uint32_t block_tokens, Slicing slicing = {}) {
  const model::Kernels* const kernels = model::kernels_named(cpu.kernels);
  MC_TRY(ComputedModel opened, open_computed(choice));
  // In the place of a device the products are those of the device.
  opened.files.tensors.dequantized = choice.engine == "cuda";
  const model::ModelFiles& files = opened.files;
  MC_TRY(cost::ModelSpec spec, cost::slice_of(opened.spec, slicing.stage, slicing.stages));
  MC_TRY(const uint32_t parts, layout_ranks(files.config, cpu));
  const uint32_t ranks = processes_of(cpu);
  std::unique_ptr<RankMemory> memory;
  std::shared_ptr<RankProcesses> processes;
  if (ranks > 1) {  // they load their weights while this one does
    MC_TRY(memory, RankMemory::create(files.config, block_tokens, ranks));
    MC_TRY(processes, RankProcesses::start(cpu.command, cpu.environment, ranks, memory->file()));
  }
  auto threads = std::make_unique<model::ThreadPool>(threads_of(cpu));
  const model::LayerRange range{spec.first_layer, spec.first_layer + spec.layers};
  MC_TRY(model::Weights weights, model::load(files, *threads, range, {0, ranks}));
  log_info("engine", "model %s: %llu parameters in %llu bytes, %u threads, %s",
           files.config.name.c_str(), static_cast<unsigned long long>(files.config.parameters()),
           static_cast<unsigned long long>(weights.bytes()), threads->count(), kernels->name);
  std::unique_ptr<RankGroup> group;
  if (ranks > 1) {
    MC_TRY_(processes->wait_ready());
    group = std::make_unique<RankGroup>(
        std::move(memory), [p = processes.get()](int file) { p->send(file); }, processes);
  }
  return std::make_unique<CpuEngine>(std::move(spec), files.config, std::move(weights),
                                     model::KvLayout{opened.kv, block_tokens, range.first, parts},
                                     *kernels, std::move(threads), products_of(opened),
                                     std::move(group));
}

// The CPU engine of the same choice takes over if the device fails.
Result<std::unique_ptr<Engine>> open_gpu_engine(const EngineChoice& choice, const CpuOptions& cpu,
                                                uint32_t block_tokens) {
  static const SteadyClock clock;
  auto device = device::open_named(cpu.device, clock);
  if (!device)
    return fail(device.error().code, "--engine cuda: %s; give --engine cpu to compute on the CPU",
                device.error().what.c_str());
  MC_TRY(ComputedModel opened, open_computed(choice));
  const model::ModelFiles& files = opened.files;
  const gpu::Gemm gemm = cpu.gemm == "own"        ? gpu::Gemm::kOwn
                         : cpu.gemm == "cublaslt" ? gpu::Gemm::kLibrary
                                                  : gpu::Gemm::kAuto;
  uint64_t vram = GpuEngine::kVramAuto;
  if (cpu.vram != "auto") {
    const auto bytes = parse_bytes(cpu.vram);
    if (!bytes)
      return fail(Code::kInvalid, "--vram '%s': want a size as 8GiB, auto, or 0",
                  escape(cpu.vram).c_str());
    vram = *bytes;
  }
  model::ThreadPool threads(cpu.threads);
  MC_TRY(const model::WeightSources sources, model::open_sources(files));
  const model::DType weights = files.all_f16() ? model::DType::kF16 : files.weight_type();
  auto transformer =
      gpu::Transformer::open(*device, files.config, sources, weights, {opened.kv, block_tokens},
                             threads, {opened.factors, gemm, cpu.graphs != "off"});
  if (!transformer)
    return fail(transformer.error().code,
                "--engine cuda: %s (give --engine cpu, or a smaller model)",
                transformer.error().what.c_str());
  log_info("engine", "model %s: %llu parameters in %llu bytes of %s, products by %s",
           files.config.name.c_str(), static_cast<unsigned long long>(files.config.parameters()),
           static_cast<unsigned long long>((*transformer)->weights().bytes),
           (*device)->info().location().c_str(), (*transformer)->gemm().by().c_str());
  const auto fallback = [choice, cpu, block_tokens] {
    return open_cpu_engine(choice, cpu, block_tokens);
  };
  return std::make_unique<GpuEngine>(std::move(opened.spec), std::move(*transformer), fallback,
                                     vram);
}

}  // namespace

Result<std::unique_ptr<Engine>> open_engine(const EngineChoice& choice, const CpuOptions& cpu,
                                            uint32_t block_tokens, Slicing slicing) {
  if (block_tokens == 0) return fail(Code::kInvalid, "blocks of 0 tokens");
  if (cpu.tp != 1 && (!computes(choice) || choice.engine == "cuda" || slicing.stages > 1))
    return fail(Code::kUnsupported,
                "--tp %u: only the cpu engine with all layers of a model lays KV out for several "
                "ranks: give --engine cpu, and neither --stage nor --cpp-group",
                cpu.tp);
  if (processes_of(cpu) > 1 && cpu.command.empty())
    return fail(Code::kUnsupported, "--tp-processes on: this program starts no ranks");
  if (!computes(choice)) {
    MC_TRY(const ModelInfo info, open_model_info(choice));
    MC_TRY(cost::ModelSpec slice, cost::slice_of(info.spec, slicing.stage, slicing.stages));
    return std::make_unique<DummyEngine>(std::move(slice), block_tokens);
  }
  // A GPU needs them too: the CPU takes over if it fails.
  if (model::kernels_named(cpu.kernels) == nullptr)
    return fail(Code::kUnsupported, "this CPU has no '%s': give --kernels auto",
                escape(cpu.kernels).c_str());
  if (cpu.threads > kThreadsMax)
    return fail(Code::kInvalid, "%u threads: want %u or fewer", cpu.threads, kThreadsMax);
  if (choice.engine != "cuda") return open_cpu_engine(choice, cpu, block_tokens, slicing);
  if (slicing.stages > 1)
    return fail(Code::kUnsupported,
                "--engine cuda computes all layers of a model: give --engine cpu in a pipeline");
  return open_gpu_engine(choice, cpu, block_tokens);
}

Result<int> run_rank(const EngineChoice& choice, const CpuOptions& cpu, uint32_t block_tokens,
                     RankSeat seat) {
  struct Opened {
    ComputedModel model;
    std::unique_ptr<RankMemory> memory;
    std::unique_ptr<model::ThreadPool> threads;
    model::Weights weights;
  };
  const auto open = [&]() -> Result<Opened> {
    MC_TRY(ComputedModel opened, open_computed(choice));
    MC_TRY_(model::check_tp(opened.files.config, cpu.tp));
    const model::TpShare share{seat.rank, cpu.tp};
    if (share.rank >= share.ranks)
      return fail(Code::kInvalid, "there is no rank %u of %u", share.rank, share.ranks);
    MC_TRY(auto memory,
           RankMemory::attach(opened.files.config, block_tokens, share, std::move(seat.memory)));
    auto threads = std::make_unique<model::ThreadPool>(threads_of(cpu));
    MC_TRY(model::Weights weights, model::load(opened.files, *threads, {}, share));
    return Opened{std::move(opened), std::move(memory), std::move(threads), std::move(weights)};
  };
  auto opened = open();
  seat.ready(opened ? "" : opened.error().what);
  if (!opened) return fail(opened.error());
  const model::ModelConfig& config = opened->model.files.config;
  const model::TpShare share = opened->memory->share();
  const model::Transformer transformer(model::config_of(config, share), std::move(opened->weights),
                                       {opened->model.kv, block_tokens, 0, 1},
                                       *model::kernels_named(cpu.kernels), *opened->threads,
                                       products_of(opened->model), opened->memory.get());
  const uint64_t block_bytes = opened->model.spec.block_bytes(block_tokens);
  const uint64_t part = config.latent.kv_rank > 0 ? 0 : block_bytes / share.ranks;
  PoolMapping pool;
  follow(transformer, *opened->memory, part, [&](uint64_t bytes) -> std::byte* {
    const io::Fd file = seat.receive();
    if (std::byte* const first = pool.map(file.get(), bytes)) return first;
    log_error("engine", "rank %u maps %s of KV: %s", share.rank, rounded_bytes_text(bytes).c_str(),
              std::strerror(errno));
    return nullptr;
  });
  return 1;
}

CpuEngine::CpuEngine(cost::ModelSpec spec, model::ModelConfig config, model::Weights weights,
                     model::KvLayout kv, const model::Kernels& kernels,
                     std::unique_ptr<model::ThreadPool> threads, model::DType factors,
                     std::unique_ptr<RankGroup> ranks)
    : spec_(std::move(spec)),
      layout_ranks_(kv.ranks),
      threads_(std::move(threads)),
      ranks_(std::move(ranks)),
      transformer_(ranks_ == nullptr ? std::move(config)
                                     : model::config_of(config, ranks_->memory().share()),
                   std::move(weights),
                   {kv.type, kv.block_tokens, kv.first_layer, ranks_ ? 1 : kv.ranks}, kernels,
                   *threads_, factors, ranks_ == nullptr ? nullptr : &ranks_->memory()) {}

Result<io::Fd> CpuEngine::pool_file() const {
  return ranks_ == nullptr ? Result<io::Fd>(io::Fd()) : ranks_->pool_file();
}

void CpuEngine::use_pool(std::span<std::byte> pool) const {
  if (ranks_ != nullptr) ranks_->use_pool(pool);
}

void CpuEngine::compute(RankGroup::Pass pass, size_t rows) const {
  if (ranks_ != nullptr) return ranks_->run(transformer_, pass);
  for (uint32_t layer = pass.first_layer; layer < pass.last_layer; ++layer)
    transformer_.layer(layer, pass.slices, pass.x, pass.kv_only);
  if (pass.logits != nullptr) transformer_.logits(pass.x, rows, pass.logits);
}

bool CpuEngine::ends_answer(int32_t token) const {
  const auto& eos = transformer_.config().eos;
  return std::find(eos.begin(), eos.end(), token) != eos.end();
}

void CpuEngine::prefill_layer(const ChunkView& chunk, uint32_t layer,
                              Activations& activations) const {
  const SequenceView& s = chunk.sequence;
  MC_CHECK(chunk.begin <= chunk.end && chunk.end <= s.tokens.size() && layer < spec_.layers);
  if (chunk.begin == chunk.end) return;
  const uint32_t of_model = spec_.first_layer + layer;
  const size_t wanted = (chunk.end - chunk.begin) * transformer_.config().hidden;
  auto& rows = activations.rows;
  MC_CHECK(of_model == 0 || rows.size() == wanted);
  if (of_model == 0) {
    rows.resize(wanted);
    transformer_.embed(s.tokens.subspan(chunk.begin, chunk.end - chunk.begin), rows.data());
  }
  const model::Slice slice{s.blocks, chunk.begin, chunk.end};
  compute({.first_layer = of_model,
           .last_layer = of_model + 1,
           .slices = {&slice, 1},
           .x = rows.data(),
           .kv_only = of_model + 1 == transformer_.config().layers},
          chunk.end - chunk.begin);
}

std::vector<int32_t> CpuEngine::decode(std::span<const DecodeItem> batch) const {
  std::vector<int32_t> tokens(batch.size());
  generate(batch, [&](size_t item, int32_t token) {
    tokens[item] = token;
    return std::nullopt;
  });
  return tokens;
}

void CpuEngine::generate(std::span<const DecodeItem> batch, const Next& next) const {
  const model::ModelConfig& c = transformer_.config();
  MC_CHECK(spec_.layers == c.layers);  // not a slice
  std::vector<int32_t> tokens;         // a row each
  std::vector<model::Slice> slices;
  for (const DecodeItem& item : batch) {
    const size_t n = item.sequence.tokens.size();
    MC_CHECK(n > 0);
    tokens.push_back(item.sequence.tokens[n - 1]);
    tokens.insert(tokens.end(), item.guesses.begin(), item.guesses.end());
    slices.push_back({item.sequence.blocks, n - 1, n + item.guesses.size()});
  }
  const size_t rows = tokens.size();
  std::vector<float> x(rows * c.hidden), logits(rows * c.vocab);
  transformer_.embed(tokens, x.data());
  compute({.last_layer = c.layers, .slices = slices, .x = x.data(), .logits = logits.data()}, rows);
  std::span<float> left(logits);
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::span<const int32_t> guesses = batch[i].guesses;
    std::optional<DecodeItem> item = batch[i];
    for (size_t at = 0; item && at <= guesses.size(); ++at) {
      const int32_t token = next_token(left.subspan(at * c.vocab, c.vocab), *item, c.eos);
      item = next(i, token);
      if (at < guesses.size() && token != guesses[at]) break;
    }
    left = left.subspan((guesses.size() + 1) * c.vocab);
  }
}

}  // namespace mc::serve
