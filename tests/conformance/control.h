// Peers as they are met in the field: by their control address, which another thread or another
// process answers.
#pragma once
#include <sstream>
#include <string>
#include <thread>

#include "io/loop.h"
#include "rpc/server.h"
#include "tests/conformance/pair.h"
#include "tests/conformance/process.h"

namespace mc::xfer {

// Answers for an engine on a thread of its own.
class Control {
 public:
  explicit Control(Engine& engine, const std::string& listen = "127.0.0.1:0") {
    auto server = rpc::Server::open(loop_, listen, metrics_);
    REQUIRE_MESSAGE(server.has_value(), (server ? "" : server.error().what));
    server_ = std::move(*server);
    serve(engine, *server_);
    thread_ = std::thread([this] { CHECK(loop_.run().has_value()); });
  }
  ~Control() {
    loop_.stop();
    thread_.join();
  }
  const std::string& address() const { return server_->address(); }

 private:
  io::Loop loop_{kClock};
  Metrics metrics_;
  std::unique_ptr<rpc::Server> server_;
  std::thread thread_;
};

// Other words everywhere.
inline void describe_served(std::span<std::byte> bytes) {
  auto* words = reinterpret_cast<uint64_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size() / 8; ++i) words[i] = mix64(i);
}

// A process that offers the memory of describe_served() until it is killed, by the test case "serve
// until killed" of hang_test.cc.
class Served : public Process {
 public:
  static constexpr uint64_t kBytes = 16 * kMiB;
  // `transport`: its name, or "rdma:NIC"
  explicit Served(const std::string& transport) : transport_(transport) { begin(); }
  const std::string& control() const { return control_; }
  void restart() {  // another process at the same addresses
    kill();
    begin();
  }

 private:
  void begin() {
    std::istringstream in(start("serve until killed", transport_ + " " + control_ + " " + data_));
    in >> control_ >> data_;
  }
  const std::string transport_;
  std::string control_ = "127.0.0.1:0", data_ = "127.0.0.1:0";
};

}  // namespace mc::xfer
