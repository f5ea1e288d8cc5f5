/* Two processes and one transfer each way.
 *
 *   exchange serve            prints the address of its segment, and serves until stdin ends
 *   exchange visit ADDRESS    writes to that segment, reads it back and compares
 */
#include <mc/transfer.h>
#include <stdio.h>
#include <string.h>

enum { kBytes = 1 << 20, kTimeoutMs = 5000 };

static int failed(const char *what) {
  fprintf(stderr, "exchange: %s: %s\n", what, mc_last_error());
  return 1;
}

static int serve(mc_engine *engine) {
  mc_memory *memory;
  if (mc_memory_allocate(engine, kBytes, MC_WRITABLE, &memory) != MC_OK) return failed("allocate");
  printf("%s\n", mc_engine_address(engine));
  fflush(stdout);
  while (getchar() != EOF) {
  }
  mc_memory_free(memory);
  return 0;
}

static int visit(mc_engine *engine, const char *address) {
  mc_segment peer;
  mc_memory *memory;
  if (mc_segment_open(engine, address, kTimeoutMs, &peer) != MC_OK) return failed("open");
  if (mc_memory_allocate(engine, 2 * kBytes, 0, &memory) != MC_OK) return failed("allocate");
  char *sent = mc_memory_data(memory), *received = sent + kBytes;
  for (size_t i = 0; i < kBytes; ++i) sent[i] = (char)(i * 31 + i / 251);

  mc_request write = {.op = MC_WRITE, .segment = peer, .local = sent, .bytes = kBytes};
  if (mc_transfer(engine, &write, kTimeoutMs) != MC_OK) return failed("write");

  /* Reads in one batch: the second half first. */
  mc_request reads[2] = {
      {.op = MC_READ, .segment = peer, .local = received + kBytes / 2, .offset = kBytes / 2,
       .bytes = kBytes / 2},
      {.op = MC_READ, .segment = peer, .local = received, .bytes = kBytes / 2},
  };
  mc_batch batch = mc_batch_allocate(engine);
  if (mc_batch_submit(engine, batch, reads, 2) != MC_OK) return failed("submit");
  if (mc_batch_wait(engine, batch, kTimeoutMs) != MC_OK) return failed("read");
  mc_batch_free(engine, batch);

  if (memcmp(sent, received, kBytes) != 0) {
    fprintf(stderr, "exchange: the bytes that came back differ\n");
    return 1;
  }
  printf("%d bytes there and back\n", kBytes);
  mc_segment_close(engine, peer);
  mc_memory_free(memory);
  return 0;
}

int main(int argc, char **argv) {
  const int serving = argc == 2 && strcmp(argv[1], "serve") == 0;
  if (!serving && !(argc == 3 && strcmp(argv[1], "visit") == 0)) {
    fprintf(stderr, "usage: exchange serve | exchange visit ADDRESS\n");
    return 2;
  }
  mc_engine *engine;
  if (mc_engine_open(serving ? "exchange-server" : "exchange-visitor", NULL, &engine) != MC_OK)
    return failed("engine");
  const int rc = serving ? serve(engine) : visit(engine, argv[2]);
  mc_engine_close(engine);
  return rc;
}
