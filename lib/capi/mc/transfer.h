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
 * Errors: functions return MC_OK or a code; mc_last_error() says more, for the calling thread.
 * Units: bytes, and milliseconds for waits. Structures set to zero mean defaults. */
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
  MC_NOT_FOUND = 2,   /* no such segment, batch or option */
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

/* ---- options: names and values as `mc-xfer serve --help` has them, "transports" = "shm,tcp".
 * Also "listen" (the control address that peers open, default "127.0.0.1:0"), "cluster-key" (a file
 * with the cluster's secret, needed beyond loopback) and "log-level" (error, warn, info, debug). */
MC_API mc_code mc_options_new(mc_options** out);
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
/* Memory of the application; it must outlive the mc_memory. `location` is "cpu:0", "cuda:1", or
 * NULL to leave it open. */
MC_API mc_code mc_memory_register(mc_engine* engine, void* address, size_t bytes,
                                  const char* location, unsigned flags, mc_memory** out);
MC_API void* mc_memory_data(const mc_memory* memory);
MC_API size_t mc_memory_bytes(const mc_memory* memory);
MC_API uint64_t mc_memory_offset(const mc_memory* memory); /* of its first byte in the segment */
/* Withdraws it; requests of peers that still touch it end first. NULL is allowed. */
MC_API void mc_memory_free(mc_memory* memory);

/* ---- peers */
MC_API mc_code mc_segment_open(mc_engine* engine, const char* address, unsigned timeout_ms,
                               mc_segment* out);
MC_API mc_code mc_segment_bytes(mc_engine* engine, mc_segment segment, uint64_t* out);
MC_API void mc_segment_close(mc_engine* engine, mc_segment segment);

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
/* MC_OK when all completed, MC_TIMEOUT when they are not done yet, else the first failure. */
MC_API mc_code mc_batch_wait(mc_engine* engine, mc_batch batch, unsigned timeout_ms);
/* When it returns, no byte of local memory is read or written any more. */
MC_API void mc_batch_cancel(mc_engine* engine, mc_batch batch);
MC_API void mc_batch_free(mc_engine* engine, mc_batch batch); /* cancels what has not finished */

#ifdef __cplusplus
}
#endif
