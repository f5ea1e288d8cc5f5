// The decode step of gpu::Transformer: kernel by kernel while blocks are uploaded, or as one graph
// when all of them are resident.
#include <algorithm>
#include <bit>

#include "base/log.h"
#include "gpu/kernels.h"
#include "gpu/transformer.h"

namespace mc::gpu {
namespace {
constexpr uint32_t kLeastWidth = 8;  // of a table
constexpr size_t kGraphsMax = 128;
}  // namespace

// Few shapes, so that they recur while contexts grow: a table may be wider, and the splits more,
// than the longest context needs.
Result<std::vector<int32_t>> Transformer::step(std::span<const int32_t> tokens,
                                               std::span<const model::Slice> slices,
                                               std::span<const Choice> choices,
                                               std::span<const Content> contents) {
  MC_CHECK(tokens.size() == slices.size() && choices.size() == slices.size());
  Pass pass;
  pass.slices = {slices.begin(), slices.end()};
  pass.rows = tokens.size();
  size_t longest = 0;
  for (const model::Slice& s : slices) longest = std::max(longest, s.end);
  const auto blocks = static_cast<uint32_t>(over(longest, kv_.block_tokens));
  pass.table_width = std::max(kLeastWidth, std::bit_ceil(blocks));
  if (flash_) pass.splits = std::bit_ceil(static_cast<uint32_t>(over(longest, MC_SPLIT)));
  MC_TRY_(assign_slots(pass, contents));
  const bool resident = is_resident(pass);
  if (resident) pass.buffers = step_buffers_;
  MC_TRY_(reserve(pass));
  fill(pass, tokens, choices);
  MC_TRY_(resident ? resident_step(pass) : streamed_step(pass));
  // Outside of the step's graph: which rows are drawn on the host changes from step to step.
  const uint64_t row = config_.vocab * sizeof(float);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].logits == nullptr) continue;
    choices[i].logits->resize(config_.vocab);
    MC_TRY_(computing_->copy(reinterpret_cast<std::byte*>(choices[i].logits->data()),
                             pass.buffers.out->data() + i * row, row));
  }
  MC_TRY_(finish(*computing_));
  if (pass.claim != nullptr) pass.claim->commit();
  std::vector<int32_t> next(pass.rows);
  std::memcpy(next.data(), pass.buffers.host->data(), pass.tokens_bytes());
  return next;
}

bool Transformer::is_resident(const Pass& pass) const {
  return pass.claim != nullptr && !pass.mixed() && uploads(pass, 0).empty();
}

// While a layer computes, the next layer's blocks are uploaded. Streamed ones go into the other
// half of their slot, after the layer before has used it.
Result<> Transformer::streamed_step(Pass& pass) {
  std::unique_ptr<device::Event> computed[2];
  // A prompt's pass that went no further may compute yet, in slots that are now this one's.
  MC_TRY(const auto before, computing_->record());
  MC_TRY_(loading_->after(*before));
  MC_TRY_(load(pass, 0));
  MC_TRY_(embed(pass));
  for (uint32_t l = 0; l < config_.layers; ++l) {
    MC_TRY(const auto loaded, loading_->record());
    MC_TRY_(computing_->after(*loaded));
    MC_TRY_(compute(pass, l, false));
    MC_TRY_(keep(*computing_, pass, l, l + 1));
    MC_TRY(computed[l % 2], computing_->record());
    if (l + 1 == config_.layers) break;
    if (l > 0) MC_TRY_(loading_->after(*computed[(l + 1) % 2]));
    MC_TRY_(load(pass, l + 1));
  }
  return choose(pass);
}

// Steps of one shape differ only in the content of `host`, so a shape that recurs is captured.
Result<> Transformer::resident_step(Pass& pass) {
  MC_TRY(device::Graph* const graph, graph_for(pass));
  if (graph != nullptr) {
    MC_TRY_(computing_->launch(*graph));
    ++graph_steps_;
  } else {
    MC_TRY_(compute_all(pass));
  }
  if (pass.buffers != step_buffers_) {  // the graphs hold addresses of freed buffers
    graphs_.clear();
    step_buffers_ = pass.buffers;
  }
  if (graphs_.size() == kGraphsMax) graphs_.clear();
  graphs_.try_emplace({pass.rows, pass.table_width, pass.splits});
  return keep(*computing_, pass, 0, config_.layers);
}

// The graph of the pass's shape; null: none.
Result<device::Graph*> Transformer::graph_for(Pass& pass) {
  const auto seen = graphs_.find({pass.rows, pass.table_width, pass.splits});
  if (!graphs_on_ || seen == graphs_.end() || pass.buffers != step_buffers_) return nullptr;
  if (seen->second != nullptr) return seen->second.get();
  const auto captured = capture(pass, seen->second);
  if (!captured && captured.error().code == Code::kUnavailable) return fail(captured.error());
  if (!captured) {
    log_warn("gpu", "steps are launched kernel by kernel, not as graphs: %s",
             captured.error().what.c_str());
    graphs_on_ = false;
  }
  return seen->second.get();
}

Result<> Transformer::capture(Pass& pass, std::unique_ptr<device::Graph>& graph) {
  MC_TRY_(computing_->begin_capture());
  const auto given = compute_all(pass);
  auto captured = computing_->end_capture();
  MC_TRY_(given);
  MC_TRY(graph, std::move(captured));
  return {};
}

// From the inputs in `host` to the tokens in it.
Result<> Transformer::compute_all(Pass& pass) {
  MC_TRY_(embed(pass));
  for (uint32_t l = 0; l < config_.layers; ++l) MC_TRY_(compute(pass, l, false));
  return choose(pass);
}

Result<> Transformer::choose(Pass& pass) {
  MC_TRY_(head(pass));
  std::byte* const logits = pass.buffers.out->data();
  std::byte* const tokens = logits + logits_bytes(pass);
  MC_TRY_(launch(*computing_, MC_SAMPLE, {pass.rows}, floats(logits), row_list(pass.row_list),
                 reinterpret_cast<const mc_draw*>(pass.draws),
                 reinterpret_cast<const int32_t*>(ends_.data()), narrow(config_.eos.size()),
                 reinterpret_cast<int32_t*>(tokens), config_.vocab));
  return computing_->copy(pass.buffers.host->data(), tokens, pass.tokens_bytes());
}

}  // namespace mc::gpu
