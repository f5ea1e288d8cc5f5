/* mc transfer engine: moves bytes between this process's memory and the segments of others.
 *
 * The application says what should be where; the engine chooses the transport, cuts requests into
 * slices and retries. A segment is what one process offers: its registered memory, seen as one
 * range of offsets. The verbs are those of the Mooncake paper, Listing 1.
 *
 *   mc_engine *engine;
 *   mc_memory *memory;
 *   mc_segment peer;
 *   if (mc_engine_open("node-a", NULL, &engine) != MC_OK) die(mc_last_error());
 *   mc_memory_allocate(engine, 1 << 30, MC_WRITABLE, &memory);
 *   mc_segment_open(engine, "10.0.0.2:5600", 3000, &peer);
 *   mc_request r = {.op = MC_READ, .local = mc_memory_data(memory), .segment = peer, .bytes = n};
 *   mc_transfer(engine, &r, 3000);
 *
 * Link with `pkg-config --cflags --libs mc` or find_package(mc) and mc::mc.
 *
 * Threads: every function may be called from any thread; objects must outlive the calls on them.
 * Errors: functions return MC_OK or a code; mc_last_error() says more, for the calling thread. NULL
 * for an object, a list or a place that is not said to allow it is MC_INVALID; where there is no
 * code, nothing is done.
 * Units: bytes, and milliseconds for waits. Structures set to zero mean defaults. One that begins
 * with `size` has its own sizeof there; fields that a caller's version lacks count as zero. Fork:
 * objects belong to the process that opened them. In a child of it every call on them returns
 * MC_UNSUPPORTED, or nothing, and close and free do nothing: open others there. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MC_API __attribute__((visibility("default")))
#else
#define MC_API
#endif

typedef enum mc_code {
  MC_OK = 0,
  MC_INVALID = 1,     /* the request is wrong: do not retry */
  MC_NOT_FOUND = 2,   /* no such segment, batch, key or file */
  MC_EXISTS = 3,      /* already there */
  MC_NO_SPACE = 4,    /* not enough memory */
  MC_BUSY = 5,        /* retry later */
  MC_TIMEOUT = 6,     /* the deadline passed */
  MC_UNAVAILABLE = 7, /* the peer is gone, or the request was cancelled */
  MC_STALE = 8,       /* the bytes have another owner now */
  MC_CORRUPT = 9,     /* the peer sent invalid data */
  MC_DENIED = 10,     /* read-only memory, or a wrong secret */
  MC_UNSUPPORTED = 11,
  MC_INTERNAL = 12 /* a bug */
} mc_code;

typedef struct mc_engine mc_engine;
typedef struct mc_memory mc_memory;
typedef struct mc_options mc_options;
typedef uint32_t mc_segment; /* 0: this process's own */
typedef uint64_t mc_batch;

MC_API const char* mc_version(void);           /* "0.1.0" */
MC_API const char* mc_code_name(mc_code code); /* "not-found" */
MC_API const char* mc_last_error(void);        /* of this thread's last failed call */
/* Of this interface: major << 16 | minor. Minor grows with every addition; major is that of the
 * library's name. */
MC_API uint32_t mc_abi_version(void);
enum {
  MC_FEATURE_ADDRESSES = 1, /* of peers' memory */
  MC_FEATURE_LEND = 2,      /* memory of this process for the pool */
  MC_FEATURE_RANGES = 4,    /* parts of a value */
  MC_FEATURE_QUEUE = 8,
  MC_FEATURE_NOTICES = 16,
  MC_FEATURE_BLOCKS = 32, /* blocks of KV cache */
  MC_FEATURE_CUDA = 64,
  MC_FEATURE_RDMA = 128,
  MC_FEATURE_PARTS = 256, /* values put in parts */
  MC_FEATURE_PREPARED = 512
};
/* What this library has, and this machine can do now. */
MC_API uint64_t mc_features(void);

/* ---- the library's log: lines on standard error, at the option "log-level", or for the program */
enum { MC_LOG_ERROR = 0, MC_LOG_WARN = 1, MC_LOG_INFO = 2, MC_LOG_DEBUG = 3 };
typedef struct mc_log_line { /* lives as long as the callback */
  uint32_t size, level;      /* MC_LOG_* */
  const char *area, *text;   /* "store", ... */
} mc_log_line;
/* While on, lines wait to be taken, 4096 at most, and are not written. Off in a child of fork. */
MC_API void mc_log_keep(int on);
typedef void (*mc_each_line)(void* user, const mc_log_line* line);
/* Waits until there is one, calls `each` on this thread for all, and returns how many; 0 when the
 * time was over, or they are not kept. */
MC_API size_t mc_log_take(unsigned timeout_ms, mc_each_line each, void* user);

/* ---- options: names and values as `mc-xfer serve --help` has them, "transports" = "shm,tcp".
 * Also "listen" (the control address that peers open, default "127.0.0.1:0"), "cluster-key" (a file
 * with the cluster's secret, needed beyond loopback), "addresses" (tell peers where registered
 * memory lies in this process, true or false), "log-level" (error, warn, info, debug) and "devices"
 * (whose memory may be registered: auto, GPUs, whose driver is loaded when one is first named;
 * cuda, the same when the engine opens, so that addresses tell; none; stand-in, for drills). */
MC_API mc_code mc_options_new(mc_options** out);
/* MC_INVALID: no such option, or it has no such value. */
MC_API mc_code mc_options_set(mc_options* options, const char* name, const char* value);
MC_API void mc_options_free(mc_options* options);

/* ---- the engine. `name` is unique in the cluster; `options` may be NULL, and be freed after. */
MC_API mc_code mc_engine_open(const char* name, const mc_options* options, mc_engine** out);
/* Where peers open this process's segment: "host:port". */
MC_API const char* mc_engine_address(const mc_engine* engine);
/* Free memory first. Requests in flight are cancelled. NULL is allowed. */
MC_API void mc_engine_close(mc_engine* engine);

/* ---- memory that peers may reach */
enum { MC_WRITABLE = 1u };
/* Shared memory of the engine, zeroed, all of it there. */
MC_API mc_code mc_memory_allocate(mc_engine* engine, size_t bytes, unsigned flags, mc_memory** out);
/* The same, or memory of a device: `location` is "cuda:1", which is not zeroed, and only the
 * device's copies reach it. NULL: as above. MC_UNSUPPORTED: this engine has no memory of that kind,
 * as one that belongs to a store; MC_NOT_FOUND: no device of that number; MC_NO_SPACE. */
MC_API mc_code mc_memory_allocate_at(mc_engine* engine, size_t bytes, const char* location,
                                     unsigned flags, mc_memory** out);
/* Memory of the application; it must outlive the mc_memory. `location` is "cpu:0", a device's, or
 * NULL: of the device that has the address, if the engine has opened devices, else of the host.
 * Transfers are ordered behind nothing that the application has a device do: it waits for its own
 * work first. MC_UNSUPPORTED: this engine has no memory of that kind, as one that belongs to a
 * store; MC_INVALID: it is not all memory of that device. */
MC_API mc_code mc_memory_register(mc_engine* engine, void* address, size_t bytes,
                                  const char* location, unsigned flags, mc_memory** out);
/* The first `bytes` of a file or a block device, 0 for all of it. With MC_WRITABLE it is made, or
 * made longer. Its mc_memory_data is NULL. MC_INVALID, MC_NOT_FOUND, MC_DENIED, MC_NO_SPACE. */
MC_API mc_code mc_memory_register_file(mc_engine* engine, const char* path, uint64_t bytes,
                                       unsigned flags, mc_memory** out);
typedef struct mc_device {
  uint32_t size;     /* sizeof(mc_device), set in the first of an array */
  char location[32]; /* "cuda:1" */
  char pci[16];      /* "0000:4f:00.0", or nothing */
  uint64_t bytes;    /* of its memory */
} mc_device;
/* The devices that this engine can reach, up to `capacity` of them; loads their driver and opens
 * all of them that the process sees (CUDA_VISIBLE_DEVICES). Returns how many there are. */
MC_API size_t mc_devices(mc_engine* engine, mc_device* out, size_t capacity);
/* Where memory lies: "cpu", or a device's location. Loads the driver. MC_UNAVAILABLE: a device is
 * lost, or does not open. */
MC_API mc_code mc_memory_kind(mc_engine* engine, const void* address, char location[32]);
MC_API void* mc_memory_data(const mc_memory* memory);
MC_API size_t mc_memory_bytes(const mc_memory* memory);
MC_API uint64_t mc_memory_offset(const mc_memory* memory); /* of its first byte in the segment */
/* Withdraws it; requests of peers that still touch it end first. NULL is allowed. */
MC_API void mc_memory_free(mc_memory* memory);

/* ---- peers */
/* MC_UNAVAILABLE: nothing answers there in time. */
MC_API mc_code mc_segment_open(mc_engine* engine, const char* address, unsigned timeout_ms,
                               mc_segment* out);
MC_API mc_code mc_segment_bytes(mc_engine* engine, mc_segment segment, uint64_t* out);
MC_API void mc_segment_close(mc_engine* engine, mc_segment segment);

/* The offset in a segment of a range that its owner has at this address. The owner tells addresses
 * when its option "addresses" is on; they help an attacker, so it is off. Asks the owner once, for
 * up to a second, when it knows of no memory there. MC_NOT_FOUND: none is offered there, or the
 * segment is not open; MC_INVALID: the range ends outside its buffer; MC_UNSUPPORTED: the owner
 * does not tell; MC_UNAVAILABLE: it does not answer. Requests to memory that was withdrawn since
 * fail, also when other memory is offered at that address now. */
MC_API mc_code mc_segment_offset(mc_engine* engine, mc_segment segment, uint64_t address,
                                 uint64_t bytes, uint64_t* offset);

/* ---- transfers */
enum { MC_READ = 0, MC_WRITE = 1 }; /* read: segment to local; write: local to segment */
enum { MC_PRIORITY_MEDIUM = 0, MC_PRIORITY_HIGH = 1, MC_PRIORITY_LOW = 2 };

/* `rows` pieces of `bytes` each (0 means 1), the next ones further by the strides on each side. */
typedef struct mc_request {
  uint32_t op;
  uint32_t priority;
  mc_segment segment;
  uint32_t timeout_ms; /* 0: none. Past it the request fails and its memory is free again. */
  void* local;
  uint64_t offset;
  uint64_t bytes;
  uint64_t rows, local_stride, remote_stride;
  uint64_t reserved[4]; /* zero */
} mc_request;

typedef enum mc_state {
  MC_STATE_WAITING = 0,
  MC_STATE_PENDING = 1,
  MC_STATE_COMPLETED = 2,
  MC_STATE_FAILED = 3,
  MC_STATE_TIMED_OUT = 4,
  MC_STATE_CANCELLED = 5
} mc_state;

typedef struct mc_status {
  uint32_t state; /* mc_state */
  uint32_t code;  /* mc_code of a request that did not complete */
  uint64_t bytes_done;
} mc_status;

/* One request, to its end. */
MC_API mc_code mc_transfer(mc_engine* engine, const mc_request* request, unsigned timeout_ms);

MC_API mc_batch mc_batch_allocate(mc_engine* engine);
/* All of the requests, or none of them, are submitted. May be called again on the same batch. */
MC_API mc_code mc_batch_submit(mc_engine* engine, mc_batch batch, const mc_request* requests,
                               size_t count);
/* Of the request with this index, in the order of submission. */
MC_API mc_code mc_batch_status(mc_engine* engine, mc_batch batch, size_t index, mc_status* out);
/* MC_OK when all completed, MC_TIMEOUT when they are not done yet, else the first failure.
 * MC_NOT_FOUND: no such batch. */
MC_API mc_code mc_batch_wait(mc_engine* engine, mc_batch batch, unsigned timeout_ms);
/* When it returns, no byte of local memory is read or written any more. */
MC_API void mc_batch_cancel(mc_engine* engine, mc_batch batch);
MC_API void mc_batch_free(mc_engine* engine, mc_batch batch); /* cancels what has not finished */

/* ---- notices: messages from peer to peer, in order. At most 255 bytes of name and 64 KiB of data
 * (MC_INVALID). 4096 of them, and 16 MiB, wait at the receiver; more are MC_BUSY at the sender.
 * MC_NOT_FOUND: the segment is not open; MC_UNAVAILABLE, MC_TIMEOUT: the peer is gone, or does not
 * answer; MC_STALE: it was restarted. */
MC_API mc_code mc_notify(mc_engine* engine, mc_segment segment, const char* name, const void* data,
                         size_t bytes, unsigned timeout_ms);
/* As mc_batch_submit; then the peers of the requests get a notice, when all of its bytes are there
 * and only then: none when a request fails or is cancelled. Each delivery is one more request of
 * the batch, behind these, and fails with them. MC_INVALID: no requests. */
MC_API mc_code mc_batch_submit_notify(mc_engine* engine, mc_batch batch, const mc_request* requests,
                                      size_t count, const char* name, const void* data,
                                      size_t bytes);
typedef struct mc_notice { /* lives as long as the callback */
  uint32_t size;
  const char *from, *name;
  const void* data;
  size_t bytes;
} mc_notice;
typedef int (*mc_each_notice)(void* user, const mc_notice* notice);
/* Takes what has arrived, at most `most`, and calls `each` on this thread until it returns
 * non-zero. Returns how many it took. Never waits. */
MC_API size_t mc_notices_take(mc_engine* engine, size_t most, mc_each_notice each, void* user);
/* An eventfd: readable while notices wait to be taken. Only poll it. -1: out of files. */
MC_API int mc_notices_fd(mc_engine* engine);

/* ---- queues: calls that return at once and are done later
 *
 * A call on a queue copies its arrays of items, keys and requests. The memory of values and the
 * array of results belong to it until its tag is taken. The caller chooses tags; several calls may
 * have the same. Text of errors is not kept: results have codes. */
typedef struct mc_queue mc_queue;

typedef struct mc_done {
  uint64_t tag;
  uint32_t code;   /* of the call: MC_OK when it was carried out, MC_UNAVAILABLE when cancelled */
  uint32_t failed; /* items or requests that did not succeed */
  uint64_t bytes;  /* moved */
} mc_done;

/* `threads` carry out calls of the store (0: 2, at most 64); gets that wait for values have as many
 * of their own, which they share, and keep no other call waiting. A call's timeout counts from its
 * begin: one that finds no free thread in time is MC_TIMEOUT. At most `depth` calls (0: 4096) may
 * be not taken yet; one more is MC_BUSY. One process may have several queues. Close them before the
 * engine, and before the stores and layouts of their calls. MC_INVALID: more threads or depth. */
MC_API mc_code mc_queue_open(mc_engine* engine, uint32_t threads, uint32_t depth, mc_queue** out);
/* An eventfd: readable while something is done and not taken. Only poll it. */
MC_API int mc_queue_fd(const mc_queue* queue);
/* What is done, in its order; at most `capacity` of it. Never waits. */
MC_API size_t mc_queue_take(mc_queue* queue, mc_done* out, size_t capacity);
/* Until something is done and not taken. MC_TIMEOUT when nothing was. */
MC_API mc_code mc_queue_wait(mc_queue* queue, unsigned timeout_ms);
/* Ends calls with this tag early: they are done with MC_UNAVAILABLE if they had not begun or wait
 * for values that are not stored, and transfers, gets and puts stop: an item that has not ended is
 * MC_UNAVAILABLE, one of a put not stored; one that waits for room at the master, or prepares its
 * memory, stops after that, within its timeout. With MC_PUT_REPLACE what was stored may be gone.
 * Another call of the store that has begun is carried out. In each case no byte is touched any more
 * once the tag is taken. MC_NOT_FOUND: no call with this tag waits or runs. */
MC_API mc_code mc_queue_cancel(mc_queue* queue, uint64_t tag);
typedef void (*mc_each_done)(void* user, const mc_done* done);
/* Waits as mc_queue_wait, takes, and calls `each` on this thread for all that is done. Returns how
 * many; 0 when the time was over. */
MC_API size_t mc_queue_drive(mc_queue* queue, unsigned timeout_ms, mc_each_done each, void* user);
/* Cancels all calls, as mc_queue_cancel does, and waits for those that run, which end within their
 * timeouts. What is not taken is lost. NULL is allowed. */
MC_API void mc_queue_close(mc_queue* queue);
/* As mc_batch_submit; the tag is done when all requests submitted to the batch so far have
 * finished, and tells of all of them. Its code is that of the first request that failed. */
MC_API mc_code mc_batch_submit_queue(mc_engine* engine, mc_batch batch, const mc_request* requests,
                                     size_t count, mc_queue* queue, uint64_t tag);

/* ---- prepared transfers: requests that are checked and merged once, and carried out many times.
 * They pay off where the same places are read or written again: the rows of a layer, the pages of a
 * buffer. A run reaches nothing that a new submit would not reach: when a peer was restarted or its
 * memory changed, the next run looks at all of them again. Several threads may use one at once.
 * Memory of the engine's own that is freed during a run, by any thread, stays until
 * mc_prepared_free; a run that begins after that is MC_INVALID. */
typedef struct mc_prepared mc_prepared;

/* The array is copied; timeout_ms of its requests is 0 (MC_INVALID). Errors as mc_batch_submit.
 * Free it before the engine, and after the calls on it; what was submitted goes on. */
MC_API mc_code mc_prepared_new(mc_engine* engine, const mc_request* requests, size_t count,
                               mc_prepared** out);
/* All of them, to their end: when it returns, no byte of local memory is read or written any more.
 * The code is that of the first request that failed; MC_TIMEOUT when the time was over. */
MC_API mc_code mc_prepared_run(mc_prepared* prepared, unsigned timeout_ms);
/* As mc_batch_submit (queue NULL) or mc_batch_submit_queue; `timeout_ms` of each request, 0: none.
 * Their indices in the batch are those of the array. */
MC_API mc_code mc_prepared_submit(mc_prepared* prepared, mc_batch batch, unsigned timeout_ms,
                                  mc_queue* queue, uint64_t tag);
MC_API void mc_prepared_free(mc_prepared* prepared); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
