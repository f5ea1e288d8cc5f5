/* mc store: a client of the distributed key-value store for KV caches.
 *
 * A value is written once and immutable until removed; its bytes move straight between the memory
 * of the application and the nodes that hold it. A value may lie scattered over many buffers here.
 *
 *   mc_store *store;
 *   if (mc_store_setup("engine-0", "127.0.0.1:5550", NULL, &store) != MC_OK) die(mc_last_error());
 *   mc_store_put(store, "block-1", 7, data, bytes);
 *   mc_store_get(store, "block-1", 7, buffer, sizeof buffer, &bytes);
 *   mc_store_close(store);
 *
 * Keys are 1 to 1024 bytes, any but NUL. Batches are one round trip to the master; their items
 * succeed and fail on their own. Threads: every function may be called from any thread. Errors: as
 * in mc/transfer.h; a function of many items returns MC_OK when it was carried out, and a code for
 * each item. Every call ends within the option "timeout", or that of mc_call_with. */
#pragma once

#include "transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mc_store mc_store;

/* `name` is unique in the cluster; `master` is the control address of mc-master. Options are those
 * of `mc-store get --help` and `put --help`, set with mc_options_set: "timeout", "put-wait",
 * "verify", "replicas", "prefer", "class", "pin", "ttl", and those of the transfer engine. Connects
 * with the first call: a master that is not there fails that one. */
MC_API mc_code mc_store_setup(const char* name, const char* master, const mc_options* options,
                              mc_store** out);
/* Free registered buffers first. NULL is allowed. */
MC_API void mc_store_close(mc_store* store);
/* The engine beneath, for transfers of one's own. It lives as long as the store does. */
MC_API mc_engine* mc_store_engine(mc_store* store);

/* Memory that values will be put from and got into. Not needed, and faster: pages are pinned and
 * mapped once. Peers may not write to it. Undone by mc_memory_free. */
MC_API mc_code mc_store_register_buffer(mc_store* store, void* address, size_t bytes,
                                        mc_memory** out);

typedef struct mc_key {
  const char* data;
  size_t bytes;
} mc_key;

typedef struct mc_buffer {
  void* data;
  size_t bytes;
} mc_buffer;

enum { MC_CLASS_NORMAL = 1, MC_CLASS_EPHEMERAL = 2, MC_CLASS_CONTEXT = 3 };
enum { MC_PIN_NONE = 1, MC_PIN_SOFT = 2, MC_PIN_HARD = 3 };
enum {
  MC_PUT_PREFER_LOCAL = 1, /* on nodes of this host while they have room */
  /* Removes what is stored first. A reader gets the old value, none, or the new one, never a
   * mixture. Of two such writers at once one gets MC_BUSY. */
  MC_PUT_REPLACE = 2
};

/* How one value is put, where it differs from the store's options: zero and NULL mean those. */
typedef struct mc_put_options {
  uint32_t size; /* sizeof(mc_put_options) */
  uint32_t replicas;
  uint32_t cls; /* MC_CLASS_* */
  uint32_t pin; /* MC_PIN_* */
  uint64_t ttl_ms;
  const char *prefer, *group, *tenant; /* prefer: nodes, with commas between */
  uint32_t flags;                      /* MC_PUT_* */
} mc_put_options;

/* A value in several buffers, one after another. For a put, their bytes are the value; for a get,
 * they are at least as large as it is. */
typedef struct mc_item {
  mc_key key;
  const mc_buffer* buffers;
  size_t buffer_count;
  const mc_put_options* options; /* of this put; NULL for a get */
  uint64_t reserved;             /* zero */
} mc_item;

enum { MC_PUT_STORED = 0, MC_PUT_EXISTED = 1, MC_PUT_NOT_ADMITTED = 2 };
typedef struct mc_put_result {
  uint32_t code;
  uint32_t outcome; /* of MC_OK. Not admitted: the pool keeps no objects of its class */
  uint64_t bytes;   /* of the value, when it is stored now */
} mc_put_result;

enum { MC_GET_VERIFIED = 1 }; /* the checksum of the whole value was compared in this call */
typedef struct mc_get_result {
  uint32_t code;
  uint32_t flags; /* MC_GET_* */
  uint64_t bytes; /* of the value */
} mc_get_result;

/* ---- how calls go that this thread begins, on whatever store or queue */

/* About five times a second while values move, and once they have: bytes of the items that move
 * now, 1024 at most. Non-zero ends the call as mc_queue_cancel does. */
typedef int (*mc_each_progress)(void* user, uint64_t done, uint64_t total);
typedef struct mc_call_options {
  uint32_t size;             /* sizeof(mc_call_options) */
  uint32_t timeout_ms;       /* from its begin, on a queue too; 0: the option "timeout" */
  mc_each_progress progress; /* of puts and gets. On this thread, or on one of the queue; or NULL */
  void* user;
} mc_call_options;
/* For all that this thread begins from here on. NULL: as the stores' options say. */
MC_API mc_code mc_call_with(const mc_call_options* options);

/* ---- one value. A key that is already stored is kept as it is: MC_OK. */
MC_API mc_code mc_store_put(mc_store* store, const char* key, size_t key_bytes, const void* data,
                            size_t bytes);
/* MC_NO_SPACE when `capacity` is too small. `bytes` may be NULL. */
MC_API mc_code mc_store_get(mc_store* store, const char* key, size_t key_bytes, void* data,
                            size_t capacity, size_t* bytes);
/* How large a value is, to have room for it; MC_NOT_FOUND when there is none. */
MC_API mc_code mc_store_size(mc_store* store, const char* key, size_t key_bytes, size_t* bytes);
MC_API mc_code mc_store_exists(mc_store* store, const char* key, size_t key_bytes, int* found);
/* MC_BUSY while it is leased to a reader, unless forced. */
MC_API mc_code mc_store_remove(mc_store* store, const char* key, size_t key_bytes, int force);

/* ---- many values. `codes`, `bytes` and `found` have `count` places; `bytes` may be NULL. */
MC_API mc_code mc_store_put_batch(mc_store* store, const mc_item* items, size_t count,
                                  mc_code* codes);
/* Waits up to `wait_ms` for values that are not stored yet. */
MC_API mc_code mc_store_get_batch(mc_store* store, const mc_item* items, size_t count,
                                  unsigned wait_ms, size_t* bytes, mc_code* codes);
MC_API mc_code mc_store_exists_batch(mc_store* store, const mc_key* keys, size_t count,
                                     uint8_t* found);
/* How many of the keys, from the first, are stored without a gap; they are leased for reading. */
MC_API mc_code mc_store_match_prefix(mc_store* store, const mc_key* keys, size_t count,
                                     size_t* matched);
MC_API mc_code mc_store_remove_batch(mc_store* store, const mc_key* keys, size_t count, int force,
                                     mc_code* codes);

/* ---- many values, with options and results for each. `results` may be NULL.
 *
 * Codes of an item: MC_INVALID (key, options), MC_NO_SPACE (the pool is full; a buffer is too
 * small), MC_BUSY (another client writes the key), MC_NOT_FOUND, MC_TIMEOUT, MC_UNAVAILABLE (master
 * or nodes are gone; cancelled), MC_STALE (replaced meanwhile), MC_CORRUPT (its checksum is wrong),
 * MC_DENIED. The call itself is MC_INVALID when its arguments are, MC_BUSY when the queue is full,
 * MC_UNSUPPORTED after fork, else MC_OK. */

/* `defaults`, which may be NULL, are for items without options. */
MC_API mc_code mc_store_put_items(mc_store* store, const mc_item* items, size_t count,
                                  const mc_put_options* defaults, mc_put_result* results);
/* The same on a queue (mc/transfer.h), for the tag to be taken there. */
MC_API mc_code mc_store_put_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                  const mc_item* items, size_t count,
                                  const mc_put_options* defaults, mc_put_result* results);
MC_API mc_code mc_store_get_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                  const mc_item* items, size_t count, unsigned wait_ms,
                                  mc_get_result* results);
/* mc_done.failed counts keys that are not stored. `found` must not be NULL. */
MC_API mc_code mc_store_exists_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                     const mc_key* keys, size_t count, uint8_t* found);

/* ---- keys in flat form: key i ends at ends[i], and begins where the one before ends. Calls take
 * as many as there are; 16384 go to the master at a time. With a queue, `tag` is to be taken there;
 * NULL: the call waits. Codes are those of the items above. */
typedef struct mc_keys {
  const char* bytes;
  const uint32_t* ends;
  size_t count;
} mc_keys;

/* The value of key i is in the buffers up to buffer_ends[i]; NULL: one buffer for each key. */
MC_API mc_code mc_store_put_keys(mc_store* store, const mc_keys* keys, const mc_buffer* buffers,
                                 const uint32_t* buffer_ends, mc_queue* queue, uint64_t tag,
                                 const mc_put_options* options, mc_put_result* results);
MC_API mc_code mc_store_get_keys(mc_store* store, const mc_keys* keys, const mc_buffer* buffers,
                                 const uint32_t* buffer_ends, mc_queue* queue, uint64_t tag,
                                 unsigned wait_ms, mc_get_result* results);
MC_API mc_code mc_store_exists_keys(mc_store* store, const mc_keys* keys, mc_queue* queue,
                                    uint64_t tag, uint8_t* found);
MC_API mc_code mc_store_match_keys(mc_store* store, const mc_keys* keys, size_t* matched);
MC_API mc_code mc_store_remove_keys(mc_store* store, const mc_keys* keys, int force,
                                    mc_code* codes);
MC_API mc_code mc_store_prefetch_keys(mc_store* store, const mc_keys* keys, uint64_t* asked);
/* Short questions on a queue: keys may go at once, what is filled in must stay until the tag is
 * taken. mc_done.code is what the call of that name gives; mc_done.failed counts keys of a removal
 * that are still there. */
MC_API mc_code mc_store_size_async(mc_store* store, mc_queue* queue, uint64_t tag, mc_key key,
                                   uint64_t* bytes);
MC_API mc_code mc_store_match_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                    const mc_keys* keys, size_t* matched);
MC_API mc_code mc_store_remove_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                     const mc_keys* keys, int force, mc_code* codes);
MC_API mc_code mc_store_health_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                     unsigned timeout_ms, uint32_t* nodes, uint64_t* free_bytes);

/* ---- what is stored, and where. Codes: MC_INVALID, MC_TIMEOUT, MC_UNAVAILABLE, MC_UNSUPPORTED. */

/* Calls `each` for the keys with a prefix, in order, until it returns non-zero. The master gives a
 * thousand at a time, each thousand within the option "timeout". */
typedef int (*mc_each)(void* user, const char* key, size_t key_bytes, uint64_t bytes);
MC_API mc_code mc_store_list(mc_store* store, const char* prefix, size_t prefix_bytes, mc_each each,
                             void* user);
/* Removes the keys with a prefix, all of the tenant's with an empty one. MC_BUSY: some are leased
 * or pinned and stay, unless forced. `removed` counts the others; it may be NULL. */
MC_API mc_code mc_store_remove_prefix(mc_store* store, const char* prefix, size_t prefix_bytes,
                                      int force, uint64_t* removed);
/* Both on a queue: the prefix may go at once, `removed` must stay until the tag is taken. `each` is
 * called on a thread of the queue, and never once the tag may be taken. A call that is cancelled
 * ends before its next thousand, as MC_UNAVAILABLE. */
MC_API mc_code mc_store_list_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                   const char* prefix, size_t prefix_bytes, mc_each each,
                                   void* user);
MC_API mc_code mc_store_remove_prefix_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                            const char* prefix, size_t prefix_bytes, int force,
                                            uint64_t* removed);
enum { MC_TIER_MEMORY = 0, MC_TIER_DISK = 1 };
typedef struct mc_place {
  uint32_t size; /* sizeof(mc_place), set in the first of an array */
  uint32_t tier; /* MC_TIER_* */
  char node[64]; /* longer names are cut */
  uint64_t bytes;
} mc_place;
/* Where a value lies: up to `capacity` places; `count` says how many there are. MC_NOT_FOUND. */
MC_API mc_code mc_store_locate(mc_store* store, mc_key key, mc_place* places, size_t capacity,
                               size_t* count);
/* Whether the master answers; the nodes that are ready, and what they have free. Both may be NULL.
 */
MC_API mc_code mc_store_health(mc_store* store, unsigned timeout_ms, uint32_t* nodes,
                               uint64_t* free_bytes);
/* A hint that the keys will be read soon: what only a disk holds is brought to memory. `asked`
 * counts those. */
MC_API mc_code mc_store_prefetch(mc_store* store, const mc_key* keys, size_t count,
                                 uint64_t* asked);

/* ---- memory of this process for the pool: it is a node too, with a name, an engine and threads of
 * its own. What it holds is lost with it, as with any node. With MC_PUT_PREFER_LOCAL the values of
 * this process go there first. */
typedef struct mc_lend_options {
  uint32_t size; /* sizeof(mc_lend_options) */
  uint32_t numa; /* 0: any node, else the node's number + 1 */
  uint64_t bytes;
  mc_memory* memory;         /* NULL: the library allocates; else its first `bytes`, 0: all of it */
  const char *host, *domain; /* as in `mc-store serve --help`; NULL: the option "host", or none */
  uint32_t drain_ms;         /* how long mc_lent_free moves values to other nodes */
} mc_lend_options;
typedef struct mc_lent mc_lent;
/* Takes the memory at once, and joins the master as soon as that answers: MC_OK does not wait for
 * it. Memory of the caller is used in whole pages of 4 KiB; the node keeps one in 513 for itself.
 * Nobody else writes to it, and it is freed after mc_lent_free. MC_NO_SPACE: not enough memory.
 * MC_INVALID: no bytes, less than two pages of the caller's or more than it has, no such
 * NUMA node or one beside `memory`. MC_DENIED: `memory` is not MC_WRITABLE. */
MC_API mc_code mc_store_lend(mc_store* store, const mc_lend_options* options, mc_lent** out);
/* Leaves the pool: within drain_ms and a second. NULL is allowed. Before the store is closed. */
MC_API void mc_lent_free(mc_lent* node);

/* ---- parts of values */

/* `rows` pieces (0: 1) of `bytes`, each to its place: `value_stride` apart in the value from
 * `offset` on, `local_stride` apart from `data` on. */
typedef struct mc_piece {
  void* data;
  uint64_t offset, bytes, rows, local_stride, value_stride;
} mc_piece;
typedef struct mc_range_item {
  mc_key key;
  const mc_piece* pieces;
  size_t piece_count;
} mc_range_item;
/* mc_get_result.bytes counts those of the pieces. The checksum is of a whole value: parts are
 * checked, and MC_GET_VERIFIED set, only with the option "verify" = "always", where values of other
 * hosts are read whole, or where the whole was read anyway. Codes of an item as above; MC_INVALID:
 * a piece ends beyond the value. At most 1048576 rows in all pieces of an item (MC_INVALID for the
 * call). */
MC_API mc_code mc_store_get_ranges(mc_store* store, const mc_range_item* items, size_t count,
                                   unsigned wait_ms, mc_get_result* results);

/* ---- blocks of a KV cache: keys and addresses are made here, however many blocks move
 *
 * A layout says where the blocks lie: in regions, one for each layer, or one for each layer's keys
 * and one for its values. In a region, block b is `rows` pieces (0: 1) of `bytes`, `row_stride`
 * apart, from base + b * block_stride on. A value is the bytes of one block in all regions, one
 * after another. Its key is a prefix and the block's hash in lower-case hex. */
typedef struct mc_kv_region {
  uint32_t size; /* sizeof(mc_kv_region), the same in all of an array */
  uint32_t rows;
  void* base;
  uint64_t block_stride, bytes, row_stride;
} mc_kv_region;
typedef struct mc_kv_layout mc_kv_layout;

/* Registers the memory, which must outlive the layout; regions of one allocation once. Peers may
 * not write to it. MC_INVALID: no regions or blocks, pieces that overlap their neighbours in a
 * region, ranges beyond the address space. */
MC_API mc_code mc_kv_layout_new(mc_store* store, const mc_kv_region* regions, size_t count,
                                uint64_t blocks, mc_kv_layout** out);
/* After the calls on it, and before the store is closed. NULL is allowed. */
MC_API void mc_kv_layout_free(mc_kv_layout* layout);

/* Which blocks: `count` hashes, one after another, and as many numbers of blocks. */
typedef struct mc_kv_blocks {
  uint32_t size;       /* sizeof(mc_kv_blocks) */
  uint32_t hash_bytes; /* of each hash: 1 to 64 */
  const char* prefix;
  size_t prefix_bytes;
  const uint8_t* hashes;
  const uint32_t* blocks;
  const uint8_t* parents; /* as many hashes, of the blocks before; may be NULL. Not used yet */
  size_t count;
  uint32_t first_region, region_count; /* 0, 0: all; else a value is those regions' bytes */
} mc_kv_blocks;

/* How many blocks, from the first, are stored without a gap under each of the prefixes (1 to 256,
 * one for each rank). They are leased for reading. One round trip while prefixes x count is at most
 * 16384. Codes: MC_INVALID, MC_TIMEOUT, MC_UNAVAILABLE, MC_UNSUPPORTED. */
MC_API mc_code mc_store_match_blocks(mc_store* store, const mc_key* prefixes, size_t prefix_count,
                                     const uint8_t* hashes, size_t hash_bytes, size_t count,
                                     size_t* matched);
/* The same for a caller in a hurry: MC_TIMEOUT, or before the first answer MC_UNAVAILABLE, after
 * `timeout_ms` (0: the options' timeout). It may be repeated at once; below 100 ms a master that is
 * silent is not taken for one that is lost. */
MC_API mc_code mc_store_match_blocks_within(mc_store* store, const mc_key* prefixes,
                                            size_t prefix_count, const uint8_t* hashes,
                                            size_t hash_bytes, size_t count, unsigned timeout_ms,
                                            size_t* matched);
/* The same on a queue. Prefixes and hashes may go at once, `matched` must stay. */
MC_API mc_code mc_store_match_blocks_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                           const mc_key* prefixes, size_t prefix_count,
                                           const uint8_t* hashes, size_t hash_bytes, size_t count,
                                           size_t* matched);
/* `queue` may be NULL: then the call waits, and `tag` means nothing. Codes are those of items
 * above; a block outside of the layout is MC_INVALID for its item. */
MC_API mc_code mc_store_put_blocks(mc_store* store, const mc_kv_layout* layout,
                                   const mc_kv_blocks* blocks, mc_queue* queue, uint64_t tag,
                                   const mc_put_options* options, mc_put_result* results);
/* Waits up to `wait_ms` for values that are not stored yet. A value that is not as large as the
 * block is MC_NO_SPACE when larger, MC_CORRUPT when smaller: another layout wrote it. What a failed
 * item left in its block means nothing. */
MC_API mc_code mc_store_get_blocks(mc_store* store, const mc_kv_layout* layout,
                                   const mc_kv_blocks* blocks, mc_queue* queue, uint64_t tag,
                                   unsigned wait_ms, mc_get_result* results);

#ifdef __cplusplus
}
#endif
