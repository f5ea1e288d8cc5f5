// mc-decode: the decode worker. The program is cmd/worker.h, the work in lib/serve.
#include "cmd/worker.h"

int main(int argc, char** argv) {
  return mc::worker_main(argc, argv, "mc-decode",
                         "decode worker: generates tokens from KV that prefill workers send",
                         {"decode", "127.0.0.1:5590", "127.0.0.1:5591"});
}
