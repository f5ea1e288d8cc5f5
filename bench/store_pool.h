// The store that a benchmark puts its load on, and the servers it is compared with: processes of
// their own, in a folder of its own, and end with it.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "bench/child.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "store/client/client.h"

namespace mc::bench {

struct StoreOptions : Options {
  std::string bin;
  void describe(OptionList& v) {
    Options::describe(v);
    v("bin", bin, "folder of mc-master and mc-store; empty: this program's own");
  }
};

// main() of a benchmark with just these options.
inline int store_main(int argc, char** argv, const char* name, const char* what,
                      Result<int> (*run)(const StoreOptions&)) {
  StoreOptions options;
  options.bin = std::filesystem::path(argv[0]).parent_path().string();
  Program program(name, what);
  program.options(options);
  program.run_with([&](Context&) { return run(options); });
  return program.main(argc, argv);
}

class StorePool {
 public:
  using Flags = std::vector<std::string>;
  StorePool(std::string bin, const Clock& clock) : bin_(std::move(bin)), clock_(clock) {}
  StorePool(const StorePool&) = delete;
  StorePool& operator=(const StorePool&) = delete;
  ~StorePool() {
    while (!all_.empty()) all_.pop_back();  // the last started first
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  // The address of a master of that name.
  Result<std::string> master(const std::string& name, const Flags& flags = {}) {
    MC_TRY_(start(bin_ + "/mc-master", name, {}, flags));
    return control_of(folder_ + "/" + name, clock_);
  }
  Result<std::string> node(const std::string& name, const std::string& of, const Flags& flags) {
    MC_TRY_(start(bin_ + "/mc-store", name, {"serve", "--name", name, "--master", of}, flags));
    return control_of(folder_ + "/" + name, clock_);
  }
  // Another process, and the file that it makes when it is ready.
  Result<> run(std::vector<std::string> command, const std::string& ready) {
    MC_TRY_(make_folder());
    MC_TRY(auto child, Child::start(std::move(command), folder_ + "/log"));
    all_.push_back(std::move(child));
    return await_file(ready, clock_);
  }
  // Its unix socket.
  Result<std::string> redis() {
    MC_TRY_(make_folder());
    const std::string socket = folder_ + "/redis.sock";
    MC_TRY_(run({"redis-server", "--port", "0", "--unixsocket", socket, "--save", "",
                 "--appendonly", "no", "--dir", folder_},
                socket));
    return socket;
  }
  Result<std::string> memcached() {
    MC_TRY_(make_folder());
    const std::string socket = folder_ + "/memcached.sock";
    MC_TRY_(run({"memcached", "-s", socket, "-m", "4096", "-I", "64m", "-u", "root"}, socket));
    return socket;
  }
  Result<> make_folder() {
    if (!folder_.empty()) return {};
    char name[] = "/tmp/mc-bench.XXXXXX";
    if (::mkdtemp(name) == nullptr) return fail_errno("make %s", name);
    folder_ = name;
    return {};
  }
  const std::string& folder() const { return folder_; }
  // CPU time of all of these servers so far, in seconds.
  double cpu() const {
    double sum = 0;
    for (const auto& child : all_) sum += child->cpu();
    return sum;
  }

 private:
  Result<> start(const std::string& program, const std::string& name, const Flags& verb,
                 const Flags& flags) {
    MC_TRY_(make_folder());
    const std::string announced = folder_ + "/" + name, any = "127.0.0.1:0";
    std::vector<std::string> command{program};
    command.insert(command.end(), verb.begin(), verb.end());
    for (const char* word : {"--listen", any.c_str(), "--http", any.c_str(), "--announce"})
      command.emplace_back(word);
    command.push_back(announced);
    command.insert(command.end(), flags.begin(), flags.end());
    return run(std::move(command), announced);
  }

  const std::string bin_;
  const Clock& clock_;
  std::string folder_;
  std::vector<std::unique_ptr<Child>> all_;
};

// A client with an engine of its own.
struct StoreClient {
  Metrics metrics;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<store::Client> client;
  static Result<std::unique_ptr<StoreClient>> open(const Clock& clock, const std::string& name,
                                                   store::ClientOptions options,
                                                   xfer::EngineOptions engine = {}) {
    auto out = std::make_unique<StoreClient>();
    engine.node = name;
    MC_TRY(out->engine, xfer::Engine::open(clock, engine, out->metrics));
    MC_TRY(out->client, store::Client::open(*out->engine, clock, std::move(options), out->metrics));
    return out;
  }
};

// Whether a program that is only compared with is not there; said in one line.
inline bool skipped(const char* bench, const Result<std::string>& started, const char* package) {
  if (started) return false;
  std::printf("skipped: %s needs %s: apt-get install %s\n", bench, package, package);
  return true;
}

}  // namespace mc::bench
