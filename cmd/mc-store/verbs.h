// The verbs of mc-store: each registers itself with the program.
#pragma once
#include <cstdio>
#include <memory>
#include <string>

#include "cmd/command.h"
#include "cmd/daemon.h"
#include "store/client/client.h"

namespace mc::store {

// What all client verbs take, and the client they make of it.
struct ClientVerb {
  ClientOptions client;
  std::string cluster_key;
  std::vector<std::string> transports;  // empty: all
  void describe(OptionList& v);
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const ClientVerb& options, bool progress = false);
  Client& client() { return *client_; }
  Metrics& metrics() { return metrics_; }

 private:
  SteadyClock clock_;
  Metrics metrics_;
  std::unique_ptr<xfer::Engine> engine_;
  std::unique_ptr<Client> client_;
};

inline void put(const std::string& text) { std::fputs(text.c_str(), stdout); }

void add_serve(Program& program);
void add_put(Program& program);
void add_get(Program& program);
void add_exists(Program& program);
void add_match(Program& program);
void add_bench(Program& program);
void add_ls(Program& program);
void add_stat(Program& program);
void add_df(Program& program);
void add_top(Program& program);
void add_rm(Program& program);
void add_pin(Program& program);
void add_unpin(Program& program);
void add_why(Program& program);
void add_cp(Program& program);
void add_mv(Program& program);
void add_replicas(Program& program);
void add_drain(Program& program);
void add_verify(Program& program);
void add_doctor(Program& program);

}  // namespace mc::store
