// Divides a model among tensor-parallel ranks. Each computes some heads, and some outputs of every
// matrix.
//
// Rank r of n has the heads, the intermediate numbers, the outputs and the tokens of the vocabulary
// [total x r / n, total x (r + 1) / n). A rank computes whole sums: before a product all ranks
// gather the numbers that it goes over, so each sum is added in the order of one process. An
// all-reduce of the ranks' sums would change that order, and with it the bits.
//
// Of latent attention the heads of queries are divided. All ranks compute the latent vectors, and
// the first rank alone writes them into KV.
//
// Thread: values; RankExchange: one thread of each rank.
// Source: Megatron-LM (Shoeybi et al. 2019), without its sums over ranks.
#pragma once
#include <cstddef>
#include <cstdint>

#include "model/forward/weights.h"

namespace mc::model {

struct TpShare {
  uint32_t rank = 0, ranks = 1;
  size_t begin(size_t total) const { return total * rank / ranks; }
  size_t end(size_t total) const { return total * (rank + 1) / ranks; }
};

// What ranks exchange while they compute a layer. All make the same calls in the same order.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  virtual TpShare share() const = 0;
  // Returns [rows][total] with the columns of every rank; `own` is [rows][columns of this one].
  // Valid until the next call but one.
  virtual const float* gather(const float* own, size_t rows, size_t total) = 0;
  virtual void wait() = 0;  // until all ranks are here
};

// Errors: kInvalid for a number of ranks that does not divide the heads.
Result<> check_tp(const ModelConfig& config, uint32_t ranks);
// The model as a rank has it: its heads, and a head matrix apart from the embedding.
ModelConfig config_of(const ModelConfig& config, TpShare share);
// Its rows of the matrices. The first rank has the embedding, the others have none.
WeightSources share_of(const WeightSources& whole, const ModelConfig& config, TpShare share);

}  // namespace mc::model
