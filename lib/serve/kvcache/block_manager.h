// A worker's pool of KV blocks: allocation, prefix reuse, eviction and events.
// It knows which blocks are free, cached or used, and what each holds. Blocks are numbers from 0;
// the worker knows where their memory is.
//
//   allocate -> [start (rematch) -> computed ... -> await_commit] -> commit
//                               at any time -> abort, or the lease runs out (tick)
//
// A transaction holds a reference on every block it was given. Its leading full blocks that were
// cached are *hits*: shared, read-only. The rest are its own until computed() says that their
// content is valid; full ones may then be shared with other requests of this node at once. commit
// and abort release all blocks: those with valid content become cached (and are reported as
// stored), the others free.
//
// When room is needed, the least recently used cached block is evicted. A transaction touches its
// blocks from last to first, so leaves go before their prefixes. Blocks of an ephemeral transaction
// go before all others. Blocks of a context are kept for a time after each use: up to half of the
// pool, they go only when no other cached block is left.
//
// A prompt is never a hit as a whole: its last token must be computed to have logits for the first
// answer token, so at most (tokens - 1) / block_tokens blocks count (the same as in
// trace::predict_hits). A fully cached prompt computes its last block in a block of its own, which
// commit frees because the key is taken.
//
// Events: a key is *stored* or *removed*, numbered from 1; the last `events_max` are kept. Only
// published keys have events: those of committed or aborted transactions.
//
// Errors: kInvalid a request that can never fit; kNoSpace it does not fit now, nothing changed;
// kNotFound no such transaction.
// Thread: one owner (the loop's). Pure: no clock, no I/O. Units: blocks.
// Source: Mooncake paper sections 4 and 5.3; PagedAttention (SOSP 2023) section 4.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "base/time.h"
#include "serve/kvcache/block_table.h"
#include "serve/protocol/messages.h"

namespace mc::serve {

using TxId = uint64_t;  // never 0; differs from those of earlier processes

enum class TxState : uint8_t {
  kAllocated,  // waits for start, under its lease
  kRunning,    // no lease: the worker will end it
  kAwaiting,   // done, waits for commit, under its lease
};

struct BlockRequest {
  std::string request;            // id, for the worker's own use
  std::vector<BlockHash> hashes;  // of the prompt's full blocks; a block without one is not cached
  uint64_t prompt_tokens = 0;
  uint64_t blocks = 0;  // total: at least those of the prompt
  Duration lease{};
  uint64_t context_blocks = 0;  // leading ones that are kept
  Duration keep{};              // for so long after each use
  bool ephemeral = false;       // the others are evicted first
  uint64_t spare = 0;           // blocks that stay free or cached, for answers that grow
};

struct Tx {
  std::string request;
  std::vector<BlockId> blocks;    // in order of the sequence
  std::vector<BlockHash> hashes;  // of its leading full blocks
  uint64_t prompt_tokens = 0;
  size_t hit = 0;    // leading blocks that are reused
  size_t valid = 0;  // leading blocks whose content is valid: hits, then computed ones
  TxState state = TxState::kAllocated;
  Duration lease{};
  Time deadline{};  // of the lease; not in kRunning
  uint64_t context_blocks = 0;
  Duration keep{};
  bool ephemeral = false;
};

struct BlockCounts {
  uint64_t free = 0, cached = 0, used = 0;  // they sum to the pool
  uint64_t kept = 0;                        // cached blocks of contexts within their time
};

struct ExpiredTx {
  TxId tx;
  std::string request;
};

// Leading full blocks of a prompt that may count as reused.
inline uint64_t reusable_blocks(uint64_t prompt_tokens, uint64_t block_tokens) {
  return prompt_tokens == 0 ? 0 : (prompt_tokens - 1) / block_tokens;
}

// Of a prompt the first `here` blocks are here, and `most` may be reused: whether KV that comes for
// another prompt has its next one.
inline bool brings_next(const std::vector<BlockHash>& other, const std::vector<BlockHash>& hashes,
                        size_t here, size_t most) {
  return here < std::min({most, other.size(), hashes.size()}) && other[here] == hashes[here];
}

class BlockManager {
 public:
  // `seed` makes transaction ids differ from those of other processes.
  BlockManager(uint32_t blocks, uint32_t block_tokens, uint64_t seed, size_t events_max = 1 << 16);

  // Locks the leading cached blocks and takes free ones for the rest; evicts cached ones if needed.
  Result<TxId> allocate(BlockRequest request, Time now);
  // Locks the leading blocks that are cached, and no others: for a reader on another worker. The
  // `coming` blocks behind them are locked by rematch() once they are computed.
  // Errors: kNotFound if none is cached, and none comes.
  Result<TxId> pin_for_peer(std::string request, std::vector<BlockHash> hashes, Duration lease,
                            Time now, size_t coming = 0);
  const Tx* find(TxId tx) const;  // nullptr: unknown or ended; valid until the next change

  // Replaces blocks not yet computed by those that others computed meanwhile, and releases them:
  // nothing may be writing to them. Returns the valid blocks now. Of a pin: locks the blocks that
  // were computed since, and renews its lease.
  size_t rematch(TxId tx);
  // Takes one more block, as its sequence grows. kNoSpace: none is free or cached.
  Result<BlockId> extend(TxId tx);
  // Execution begins: the lease no longer applies; rematches. kNotFound: it expired.
  Result<size_t> start(TxId tx);
  // The first `upto_block` blocks hold valid KV. Full ones may be reused by others from now on.
  void computed(TxId tx, size_t upto_block);
  // All is delivered: a lease of the same length waits for the commit.
  void await_commit(TxId tx, Time now);

  // Publishes the computed full blocks and releases all. Errors: kNotFound: ended or expired.
  Result<> commit(TxId tx);
  // Publishes the valid blocks, frees the others. An unknown transaction is no error. Requires: no
  // reader or writer of the blocks, unless they are pinned.
  void abort(TxId tx);

  // Keeps a block unchanged after its transactions ended: while a put or a push reads it.
  void pin(BlockId block);
  void unpin(BlockId block);

  // Gives a block in use, whose content is valid, the key of that content, and publishes it: it is
  // cached when its last user releases it. False: the key is another block's, or it has one.
  bool cache(BlockId block, const BlockHash& key);

  // Drops all cached content.
  void forget();

  std::vector<ExpiredTx> tick(Time now);  // aborts those whose lease ran out
  std::optional<Time> deadline() const;   // when tick() has something to do

  uint64_t events_last() const { return events_last_; }  // number of the newest event; 0: none
  uint64_t digest() const { return digest_; }            // after it, as in Heartbeat
  // Events after number `seen`, at most `max`. nullopt: they are no longer kept, or `seen` is not
  // ours; ask for a snapshot.
  std::optional<std::vector<KvEvent>> events_since(uint64_t seen, size_t max) const;
  // Published keys, from cursor `from` (0 at first); `next` 0 means complete. A reader of several
  // pages applies the events after the *first* page's seq. The worker sets `epoch`.
  KvSnapshot snapshot(uint64_t from, size_t max) const;

  BlockCounts counts() const;
  size_t transactions() const { return txs_.size(); }
  uint32_t block_tokens() const { return block_tokens_; }
  // The cached or used block of a key whose content is valid.
  std::optional<BlockId> lookup(const BlockHash& key) const;
  // Leading blocks of a prompt that are here, without locking them.
  size_t match(const std::vector<BlockHash>& hashes, uint64_t prompt_tokens) const;
  void check() const;  // aborts the process when an invariant is broken; walks everything

 private:
  struct Block {
    uint32_t refs = 0;
    bool keyed = false;      // in index_: valid and shareable
    bool published = false;  // its key was reported as stored
    BlockHash key;
    uint64_t touched = 0;  // position in the LRU order; 0: first to go
    Duration keep{};       // a context, for so long after each use
    Time kept_until{};
    BlockId older = kNoBlock, younger = kNoBlock;  // neighbours in that order, while listed
  };
  BlockId find(const BlockHash& key) const;
  std::pair<BlockId, bool> own(const BlockHash& key, BlockId id);
  size_t free_blocks() const { return free_.size() + (pool_ - blocks_.size()); }
  void enlist(BlockId id);
  void delist(BlockId id);
  size_t cached_blocks() const { return listed_ + kept_.size(); }
  void lock(BlockId id);
  void unlock(BlockId id);
  void evict(BlockId id);
  BlockId take();  // a free block, or the least recently used cached one; locked
  void publish(Block& block);
  void emit(bool stored, const BlockHash& key);
  void used(BlockId id, const Tx& tx, size_t place, bool fresh);
  void to_cache(BlockId id);    // at its last unlock
  void from_cache(BlockId id);  // at its first lock
  TxId add(Tx tx, Time now);
  void release(Tx& tx);
  void set_lease(TxId id, Tx& tx, Time now);

  const uint32_t pool_, block_tokens_;
  const uint64_t seed_;
  const size_t events_max_;
  uint64_t txs_made_ = 0, touches_ = 0, events_last_ = 0, digest_ = 0, listed_ = 0;
  std::vector<Block> blocks_;  // used at least once: a large, idle pool costs nothing
  std::vector<BlockId> free_;  // of these
  // Cached blocks by last touch, a list of listed_ through the blocks, but for those that are kept.
  BlockId oldest_ = kNoBlock, youngest_ = kNoBlock;
  std::set<std::pair<Time, BlockId>> kept_;  // by how long
  Time now_{};                               // the latest time passed in
  BlockTable index_;
  std::unordered_map<TxId, Tx> txs_;
  std::set<std::pair<Time, TxId>> leases_;
  std::deque<KvEvent> events_;  // the newest has number events_last_
};

}  // namespace mc::serve
