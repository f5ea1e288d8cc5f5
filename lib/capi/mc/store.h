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
 * each item. Every call ends within the option "timeout". */
#pragma once

#include "transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mc_store mc_store;

/* `name` is unique in the cluster; `master` is the control address of mc-master. Options are those
 * of `mc-store get --help` and `put --help`, set with mc_options_set: "timeout", "put-wait",
 * "verify", "replicas", "prefer", and those of the transfer engine. Connects with the first call:
 * a master that is not there fails that one. */
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

/* A value in several buffers, one after another. For a put, their bytes are the value; for a get,
 * they are at least as large as it is. */
typedef struct mc_item {
  mc_key key;
  const mc_buffer* buffers;
  size_t buffer_count;
  uint64_t reserved[2]; /* zero */
} mc_item;

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

#ifdef __cplusplus
}
#endif
