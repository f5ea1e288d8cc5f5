// Servers that a benchmark starts, talks to and ends: processes of their own, in a folder of its
// own.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/time.h"
#include "io/file.h"

namespace mc::bench {

// A child process that ends with this one.
class Child {
 public:
  static Result<std::unique_ptr<Child>> start(std::vector<std::string> command,
                                              const std::string& log) {
    std::vector<char*> argv;
    for (auto& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = 0;
    const int rc = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), ::environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
      return fail(Code::kNotFound, "start %s: %s", command[0].c_str(), std::strerror(rc));
    return std::unique_ptr<Child>(new Child(pid));
  }
  ~Child() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // User and system time so far, in seconds.
  double cpu() const {
    clockid_t clock = 0;
    timespec used{};
    if (::clock_getcpuclockid(pid_, &clock) == 0) ::clock_gettime(clock, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
  }

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

inline Result<> await_file(const std::string& path, const Clock& clock) {
  const Time deadline = clock.now() + std::chrono::seconds(20);
  while (::access(path.c_str(), F_OK) != 0) {
    if (clock.now() > deadline)
      return fail(Code::kTimeout, "%s did not appear within 20 s", path.c_str());
    ::poll(nullptr, 0, 20);
  }
  return {};
}

inline Result<std::string> control_of(const std::string& announcement, const Clock& clock) {
  MC_TRY_(await_file(announcement, clock));
  MC_TRY(const Json json, read_json_file(announcement));
  return get_string(json, "control");
}

}  // namespace mc::bench
