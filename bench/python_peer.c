/* What bench/python_cost.py measures Python against: the same calls in C.
 *
 *   python_peer MASTER KEYS    for each line of its input: the median of 200 calls of exists for so
 *                              many keys, in nanoseconds, from an array of strings each time */
#include <mc/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kCalls = 200, kKeyBytes = 128 };

static char (*names)[kKeyBytes];
static char *joined;
static uint32_t *ends;
static uint8_t *found;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int exists(mc_store *store, size_t count) {
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t bytes = strlen(names[i]);
    memcpy(joined + at, names[i], bytes);
    at += bytes;
    ends[i] = (uint32_t)at;
  }
  const mc_keys keys = {joined, ends, count};
  return mc_store_exists_keys(store, &keys, NULL, 0, found) == MC_OK ? 0 : -1;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const size_t count = strtoul(argv[2], NULL, 10);
  names = malloc(count * kKeyBytes);
  joined = malloc(count * kKeyBytes);
  ends = malloc(count * sizeof *ends);
  found = malloc(count);
  mc_store *store;
  if (names == NULL || joined == NULL || ends == NULL || found == NULL) return 1;
  if (mc_store_setup("python-peer", argv[1], NULL, &store) != MC_OK) return 1;
  for (size_t i = 0; i < count; ++i) snprintf(names[i], kKeyBytes, "vllm:0123456789abcdef@%064zx", i);
  double times[kCalls];
  char line[16];
  while (fgets(line, sizeof line, stdin) != NULL) {
    for (int i = 0; i < kCalls; ++i) {
      const double begin = now();
      if (exists(store, count) != 0) return 1;
      times[i] = now() - begin;
    }
    qsort(times, kCalls, sizeof *times, by_value);
    printf("%.0f\n", times[kCalls / 2]);
    fflush(stdout);
  }
  mc_store_close(store);
  return 0;
}
