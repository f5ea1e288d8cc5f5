// Decodes the cache events of an external engine, in the format of vLLM and SGLang.
//
// A message is a MessagePack batch [time, [event...], data_parallel_rank]. An event is an array
// ["BlockStored", ...] or a map {"type": "BlockStored", ...}:
//
//   BlockStored        block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
//                      lora_name, extra_keys; kv_cache_spec_kind, locality, cache_salt
//   BlockRemoved       block_hashes, medium; locality
//   AllBlocksCleared
//
// Maps may also use the names of Mooncake's RFC 1527 (event_type stored, removed, cleared;
// seq_hashes; parent_hash). A hash is an integer or bytes; the last eight bytes count. Events of
// other types are counted and skipped. An event that contradicts itself fails its batch.
//
// `extra_keys` of a block are what enters its hash beside its tokens: the adapter's name,
// [identifier, offset] of each picture, the cache salt of a prompt's first block, a digest of
// embeddings. SGLang has none: it tells the prompt's `cache_salt` with each block, and of
// speculation with EAGLE each token with the one behind it.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace mc::serve {

inline constexpr size_t kEventBytesMax = 4 * kMiB;  // a batch, as rpc/external_socket.h takes

struct ExternalEvent {
  enum class Kind { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  std::vector<uint64_t> hashes;    // the engine's names of the blocks
  std::optional<uint64_t> parent;  // stored: of hashes[0]; none: it is a prompt's first block
  std::vector<int32_t> tokens;     // stored: block_tokens of each block
  uint32_t block_tokens = 0;
  std::string medium;            // "GPU", "CPU", "CPU_PINNED", ...; empty: not told
  bool adapter = false;          // of a LoRA adapter, not of the model itself
  std::string lora;              // its name, where the event has it
  bool full = true;              // of full attention: what a prompt can begin with
  bool here = true;              // in the engine itself, not in a pool
  std::string salt;              // of the prompt, where the event has it beside `extras`
  std::optional<int64_t> group;  // of the engine's kinds of attention
  // What it tells of the blocks beside their tokens; none: nothing. An adapter's name aside.
  struct Extra {
    std::string salt;      // of the prompt; of its first block only
    std::string content;   // of pictures and the like
    bool unknown = false;  // it is not understood
  };
  std::vector<Extra> extras;
};

struct ExternalBatch {
  double time = 0;  // seconds of the engine's clock
  std::vector<ExternalEvent> events;
  std::optional<int64_t> rank;  // data parallel
  size_t skipped = 0;           // events of unknown types
};

// Adds to Extra::content a picture that begins so many tokens behind its block's first one.
void add_picture(std::string& content, std::string_view name, int64_t offset);

// Errors: kInvalid, naming what is wrong.
Result<ExternalBatch> decode_events(std::string_view payload);

}  // namespace mc::serve
