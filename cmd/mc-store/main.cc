// mc-store: a node of the KV store, and its command-line client. The work is in lib/store.
#include "cmd/mc-store/verbs.h"

int main(int argc, char** argv) {
  mc::Program program("mc-store", "a node of the KV store, and its client");
  mc::store::add_serve(program);
  mc::store::add_put(program);
  mc::store::add_get(program);
  mc::store::add_exists(program);
  mc::store::add_match(program);
  mc::store::add_ls(program);
  mc::store::add_stat(program);
  mc::store::add_df(program);
  mc::store::add_top(program);
  mc::store::add_rm(program);
  mc::store::add_pin(program);
  mc::store::add_unpin(program);
  mc::store::add_why(program);
  mc::store::add_cp(program);
  mc::store::add_mv(program);
  mc::store::add_replicas(program);
  mc::store::add_drain(program);
  mc::store::add_verify(program);
  mc::store::add_doctor(program);
  mc::store::add_bench(program);
  return program.main(argc, argv);
}
