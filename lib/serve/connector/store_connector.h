// Connects a worker to the KV store: fetches and publishes KV blocks.
// It fetches the blocks of a prompt that other workers computed, and publishes those computed here.
// Requests never wait for publishing: it is a bounded queue, whose blocks stay pinned until the put
// ended, and which is shed when room is needed. A pool that fails or is slow costs only the time it
// would have saved.
//
// One object holds one block in the layout of one rank, whatever the worker's ranks are. Its key is
// model@pcp0@dcp0@head_or_tp_rank:0@pp_rank:R@HASH. Each stage of a pipeline puts its layers' part
// under its own R, and under a model name of its own.
//
// Calls to the pool are steps of the caller's trace (base/step_trace.h).
//
// Thread: the loop's. The destructor waits for calls being made (bounded by the client's timeout).
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/step_trace.h"
#include "serve/connector/kv_pool.h"
#include "serve/connector/kv_shape.h"
#include "serve/connector/pool_rates.h"
#include "serve/kvcache/block_manager.h"

namespace mc::serve {

std::string pool_key(const std::string& model, const BlockHash& hash, uint32_t pp_rank = 0);

class StoreConnector {
 public:
  // `blocks` outlives the connector. Errors: those of `open_pool`.
  static Result<std::unique_ptr<StoreConnector>> open(io::Loop& loop, xfer::Engine& engine,
                                                      const store::ClientOptions& options,
                                                      std::string model, BlockManager& blocks,
                                                      Metrics& metrics, const KvShape& shape,
                                                      uint32_t pp_rank = 0,
                                                      const OpenPool& open_pool = open_store_pool);
  ~StoreConnector();
  StoreConnector(const StoreConnector&) = delete;
  StoreConnector& operator=(const StoreConnector&) = delete;

  // `done(n)` on a later turn: the pool has the first n now, and keeps them for a moment.
  void match(const std::vector<BlockHash>& hashes, std::function<void(size_t)> done);

  // The layers of a block that a stage of a pipeline puts: under its rank and its slice's name.
  struct StagePart {
    std::string model;
    uint32_t pp_rank = 0;
  };
  struct Wanted {
    std::vector<BlockHash> hashes;             // the prompt's blocks from the first missing one
    std::vector<std::span<std::byte>> memory;  // where each goes; the caller's until done
    // The number of found blocks to fetch; empty: all. The places are those of the found ones.
    std::function<size_t(std::span<const store::StoredPlace> places)> choose{};
    std::optional<StagePart> part{};  // else: what this worker puts
    // Loads some layers of all blocks after the others, and says each time how many of the first
    // are there. The store's checksums are of whole blocks: they are compared when the last layers
    // are here, before it says so. Until then the others may be wrong.
    std::function<void(uint32_t layers)> layers_arrived{};
  };
  // `done(n)` on a later turn: the first n arrived, whole and as they were put.
  void fetch(Wanted wanted, std::function<void(size_t)> done);
  // How fast the pool's memory is while no fetch was measured; before the first one.
  void assume(double bytes_per_s) { rates_ = PoolRates(bytes_per_s); }
  const PoolRates& rates() const { return rates_; }  // of the fetches so far

  // A hint that these are fetched soon: the store reads blocks that only a disk has into memory.
  void prefetch(const std::vector<BlockHash>& hashes);
  // Queues a put of a block and pins it until the put ended. `done` (may be empty) runs on a later
  // turn and says whether the pool has it now. `as`: how the pool keeps it.
  using PutDone = std::function<void(bool there)>;
  void publish(const BlockHash& hash, BlockId block, std::span<const std::byte> memory,
               PutDone done = {}, store::PutConfig as = {});
  // Drops puts that have not begun. Returns true if that unpinned a block.
  bool shed();
  size_t queued() const { return queue_.size(); }
  size_t putting() const { return putting_; }
  const std::string& last_error() const { return last_error_; }

 private:
  struct Put {
    BlockHash hash;
    BlockId block = 0;
    std::span<const std::byte> memory;
    PutDone done;
    store::PutConfig as;
    std::shared_ptr<StepTrace> trace;  // puts of one call have the same
  };
  StoreConnector(io::Loop& loop, std::string model, BlockManager& blocks, Metrics& metrics,
                 const KvShape& shape, uint32_t pp_rank);
  std::string key(const BlockHash& hash, const std::optional<StagePart>& part = {}) const {
    return part ? pool_key(part->model, hash, part->pp_rank) : pool_key(model_, hash, pp_rank_);
  }
  using Found = std::vector<store::StoredPlace>;
  template <class Answer>
  using Ask =
      std::function<void(std::vector<ObjectKey>, std::function<void(const Result<Answer>&)>)>;
  template <class Answer>
  void ask(const std::vector<BlockHash>& hashes, const std::optional<StagePart>& part,
           const Ask<Answer>& pool, std::function<void(Answer)> done);
  void get(const std::shared_ptr<Wanted>& wanted, Found chosen, std::function<void(size_t)> done);
  // `took`: the calls for the layers before `first`.
  void get_layers(const std::shared_ptr<Wanted>& wanted, Found chosen, uint32_t first,
                  Duration took, std::function<void(size_t)> done);
  void give_up(const PutDone& done);
  void put_next();
  void put_done(const std::vector<Put>& puts, const std::vector<Result<store::PutOutcome>>& ends);
  void note(const Error* error);

  io::Loop& loop_;
  const std::string model_;
  BlockManager& blocks_;
  const KvShape shape_;
  const uint32_t pp_rank_;
  std::unique_ptr<KvPool> store_;
  std::deque<Put> queue_;
  size_t putting_ = 0;  // blocks
  size_t calls_ = 0;    // puts in flight
  PoolRates rates_;
  std::string last_error_;  // while the pool is unreachable
  Time rest_until_{};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers check it
  Counter &fetched_, &stored_, &existed_, &dropped_, &failed_;
};

}  // namespace mc::serve
