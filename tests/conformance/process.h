// Another process: this program again, running only one test case, which is skipped otherwise. Not
// a mere fork, for a lock that some thread of this one holds would stay locked in the copy for
// ever.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace mc::xfer {

class Process {
 public:
  Process() = default;
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Runs the test case, told `what`; returns what it answered.
  std::string start(const std::string& test_case, const std::string& what) {
    int fds[2];
    REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
    const std::string only = "-tc=" + test_case;
    ::setenv(kTold, (std::to_string(fds[1]) + " " + what).c_str(), 1);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::fcntl(fds[1], F_SETFD, 0);
      ::execl("/proc/self/exe", "conformance", only.c_str(), "-ns", "-ni", nullptr);
      ::_exit(127);
    }
    ::close(fds[1]);  // a process that dies early is then an end of file, not a silence
    std::string text(4096, '\0');
    size_t size = 0;
    for (ssize_t n = 1; n > 0; size += static_cast<size_t>(n > 0 ? n : 0)) {
      if (size == text.size()) text.resize(2 * size);
      n = ::read(fds[0], text.data() + size, text.size() - size);
    }
    ::close(fds[0]);
    text.resize(size);
    REQUIRE_MESSAGE(!text.empty(), test_case);
    return text;
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Alive, but says nothing: as a machine that hangs.
  void stop() {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() { ::kill(pid_, SIGCONT); }
  // Waits until it stopped itself; false when it ended instead.
  bool stopped() {
    int status = 0;
    if (::waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) pid_ = 0;
    return pid_ != 0;
  }
  // Waits for its end. Returns: its exit status; -1: a signal ended it.
  int ended() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // In the test case: the words it was told; none when nobody started it.
  static std::vector<std::string> told() {
    std::vector<std::string> words;
    const char* text = std::getenv(kTold);
    std::istringstream in(text == nullptr ? "" : text);
    in >> answer_to();
    for (std::string word; in >> word;) words.push_back(word);
    return words;
  }
  // And its end: answers, and lives until it is killed.
  [[noreturn]] static void answer(const std::string& text) {
    say(text);
    for (;;) ::pause();
  }
  static void say(const std::string& text) {
    if (::write(answer_to(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      ::_exit(1);
    ::close(answer_to());
  }

 private:
  static constexpr const char* kTold = "MC_TEST_TOLD";
  static int& answer_to() {
    static int fd = -1;
    return fd;
  }
  pid_t pid_ = 0;
};

}  // namespace mc::xfer
