/* The four calls that a KV cache connector of an inference engine needs of its remote store
 * (exists, put, get, close), over the installed library, and a program that tries them:
 *
 *   connector MASTER    stores a chunk of KV cache scattered over two buffers, and reads it back
 */
#include <mc/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct connector {
  mc_store *store;
} connector;

static int connector_open(connector *c, const char *name, const char *master) {
  mc_options *options;
  if (mc_options_new(&options) != MC_OK) return -1;
  mc_code code = mc_options_set(options, "timeout", "5s");
  if (code == MC_OK) code = mc_store_setup(name, master, options, &c->store);
  mc_options_free(options);
  return code == MC_OK ? 0 : -1;
}

/* 1, 0, or -1: an error. */
static int connector_exists(connector *c, const char *key) {
  int found = 0;
  return mc_store_exists(c->store, key, strlen(key), &found) == MC_OK ? found : -1;
}

/* Keys and values of a chunk lie apart, and are stored as one object. */
static int connector_put(connector *c, const char *key, void *k, void *v, size_t each) {
  mc_buffer halves[2] = {{k, each}, {v, each}};
  mc_item item = {.key = {key, strlen(key)}, .buffers = halves, .buffer_count = 2};
  mc_code code = MC_OK;
  if (mc_store_put_batch(c->store, &item, 1, &code) != MC_OK) return -1;
  return code == MC_OK ? 0 : -1;
}

/* What is stored, which the caller frees; NULL when there is none. */
static void *connector_get(connector *c, const char *key, size_t *bytes) {
  if (mc_store_size(c->store, key, strlen(key), bytes) != MC_OK) return NULL;
  void *data = malloc(*bytes);
  if (data == NULL) return NULL;
  if (mc_store_get(c->store, key, strlen(key), data, *bytes, bytes) == MC_OK) return data;
  free(data);
  return NULL;
}

static void connector_close(connector *c) { mc_store_close(c->store); }

static int failed(const char *what) {
  fprintf(stderr, "connector: %s: %s\n", what, mc_last_error());
  return 1;
}

int main(int argc, char **argv) {
  enum { kEach = 300000 };
  if (argc != 2) {
    fprintf(stderr, "usage: connector MASTER\n");
    return 2;
  }
  connector c;
  if (connector_open(&c, "connector", argv[1]) != 0) return failed("setup");
  const char *key = "model@2@0@chunk-17";
  char *k = malloc(kEach), *v = malloc(kEach);
  if (k == NULL || v == NULL) return 1;
  for (size_t i = 0; i < kEach; ++i) {
    k[i] = (char)(i * 31 + i / 251);
    v[i] = (char)(i * 17 + i / 13);
  }
  const int before = connector_exists(&c, key);
  if (before < 0) return failed("exists");
  if (connector_put(&c, key, k, v, kEach) != 0) return failed("put");
  if (connector_exists(&c, key) != 1) return failed("exists");
  size_t bytes = 0;
  char *back = connector_get(&c, key, &bytes);
  if (back == NULL) return failed("get");
  if (bytes != 2 * kEach || memcmp(back, k, kEach) != 0 || memcmp(back + kEach, v, kEach) != 0) {
    fprintf(stderr, "connector: other bytes came back\n");
    return 1;
  }
  if (connector_get(&c, "no-such-chunk", &bytes) != NULL) return 1;

  /* The run of whole chunks that a prompt finds. */
  mc_key chain[3] = {{key, strlen(key)}, {"no-such-chunk", 13}, {key, strlen(key)}};
  size_t matched = 0;
  if (mc_store_match_prefix(c.store, chain, 3, &matched) != MC_OK) return failed("match");
  printf("%s before, %zu bytes after, a prefix of %zu\n", before ? "there" : "absent", bytes,
         matched);
  free(back);
  free(k);
  free(v);
  connector_close(&c);
  return 0;
}
