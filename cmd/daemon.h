// The parts that all daemons share: cluster key, announcement of endpoints, systemd notification.
//
//   DaemonOptions daemon;                 // --announce, --cluster-key
//   ...
//   MC_TRY_(daemon.load());               // before the first socket
//   io::Loop loop(clock);
//   io::Signals signals(loop, [&](int n) { ... loop.stop(); });
//   ...
//   MC_TRY_(daemon.ready({.name = "p0", .role = "prefill", .control = server->address()}));
//   MC_TRY_(loop.run());
//   daemon.stopping();
//
// Thread: main's.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/result.h"

namespace mc {

struct Endpoints {
  std::string name, role;
  uint64_t epoch = 0;
  std::string control, http, events, replay;  // "host:port"; empty: not served
  std::vector<std::string> data;
};

struct DaemonOptions {
  std::string announce;
  std::string cluster_key;
  void describe(OptionList& v) {
    v("announce", announce, "file to write the endpoints to, as JSON, once ready");
    v("cluster-key", cluster_key,
      "file (mode 0600) with the secret all processes of a cluster share");
  }

  // Reads the cluster key, if any; checks the folder of announce; raises the limit on open files.
  Result<> load() const;
  Result<> ready(const Endpoints& me) const;  // announces, logs, and tells systemd
  void stopping() const;                      // tells systemd and removes the announcement
};

// A file of the configuration that is not there, or that this process or others may not read, is a
// wrong configuration (exit status 2): to start again would not help.
template <class T>
Result<T> configured(Result<T> opened) {
  if (!opened && (opened.error().code == Code::kNotFound || opened.error().code == Code::kDenied))
    opened.error().code = Code::kInvalid;
  return opened;
}

// NAME=VALUE, as this process has it.
std::vector<std::string> process_environment();

// Where the service manager or the login keeps this user's sockets; "": nowhere.
std::string runtime_folder();

}  // namespace mc
