// Peers as they are met in the field: by their control address, which another thread or another
// process answers.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "io/loop.h"
#include "rpc/server.h"
#include "tests/conformance/pair.h"

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

// Another process: this program again, running only the test case "serve until killed"
// (hang_test.cc), which offers the memory of describe_served().
class Served {
 public:
  static constexpr uint64_t kBytes = 16 * kMiB;
  static constexpr const char* kWhat = "MC_TEST_SERVE";  // fd,transport,control,data
  explicit Served(const std::string& transport) : transport_(transport) { start(); }
  ~Served() { kill(); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  const std::string& control() const { return control_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void stop() {  // alive, but says nothing: as a machine that hangs
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() { ::kill(pid_, SIGCONT); }
  void restart() {  // another process at the same addresses
    kill();
    start();
  }

 private:
  void start() {
    int fds[2];
    REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
    const std::string what =
        std::to_string(fds[1]) + "," + transport_ + "," + control_ + "," + data_;
    ::setenv(kWhat, what.c_str(), 1);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::fcntl(fds[1], F_SETFD, 0);
      ::execl("/proc/self/exe", "served", "-tc=serve until killed", "-ns", "-ni", nullptr);
      ::_exit(127);
    }
    ::close(fds[1]);
    std::string text;
    char c = 0;
    while (::read(fds[0], &c, 1) == 1 && c != '\n') text += c;
    ::close(fds[0]);
    const size_t comma = text.find(',');
    REQUIRE_MESSAGE(comma != std::string::npos, text);
    control_ = text.substr(0, comma);
    data_ = text.substr(comma + 1);
  }
  const std::string transport_;
  std::string control_ = "127.0.0.1:0", data_ = "127.0.0.1:0";
  pid_t pid_ = 0;
};

}  // namespace mc::xfer
