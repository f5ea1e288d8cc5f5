// mc-prefill: the prefill worker. The program is cmd/worker.h, the work in lib/serve.
#include "cmd/worker.h"

int main(int argc, char** argv) {
  return mc::worker_main(argc, argv, "mc-prefill",
                         "prefill worker: computes the KV of prompts and sends it on",
                         {"prefill", "127.0.0.1:5580", "127.0.0.1:5581"});
}
