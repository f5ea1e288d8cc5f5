#include "cmd/daemon.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "io/fd.h"
#include "io/file.h"
#include "io/limits.h"
#include "rpc/socket.h"

extern char** environ;

namespace mc {
namespace {

constexpr uint64_t kOpenFiles = 65'536;  // each peer has a few

// Also where handlers behind a pipe take dumps, which the limit on their size does not stop.
void leave_memory_out_of_dumps() {
  constexpr const char* kFilter = "/proc/self/coredump_filter";  // core(5): which mappings
  const io::Fd fd(::open(kFilter, O_WRONLY | O_CLOEXEC));
  if ((!fd && errno == ENOENT) || (fd && ::write(fd.get(), "0", 1) == 1)) return;
  log_warn("daemon", "write %s: %s: a core dump would have keys", kFilter, std::strerror(errno));
}

// The protocol of sd_notify(3): one datagram to the socket that systemd names; '@' means abstract.
void notify_systemd(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const io::Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  if (::sendto(fd.get(), state, std::strlen(state), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), length) < 0)
    log_warn("daemon", "notify systemd of '%s': %s", state, std::strerror(errno));
}

}  // namespace

Result<> DaemonOptions::load() const {
  if (!announce.empty()) {  // report a missing folder now, not once ready
    const auto slash = announce.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : announce.substr(0, slash + 1);
    if (::access(folder.c_str(), W_OK | X_OK) != 0)
      return fail(Code::kInvalid, "--announce %s: its folder %s: %s", escape(announce).c_str(),
                  escape(folder).c_str(), std::strerror(errno));
    struct stat info {};
    if (::stat(announce.c_str(), &info) != 0) {
      if (errno != ENOENT)
        return fail(Code::kInvalid, "--announce %s: %s", escape(announce).c_str(),
                    std::strerror(errno));
    } else if (S_ISDIR(info.st_mode)) {
      return fail(Code::kInvalid, "--announce %s is a directory, want a file", announce.c_str());
    }
  }
  (void)io::raise_open_files(kOpenFiles);
  leave_memory_out_of_dumps();
  return configured(rpc::load_cluster_key(cluster_key));
}

Result<> DaemonOptions::ready(const Endpoints& me) const {
  log_info("daemon", "%s %s ready: control %s%s%s", me.role.c_str(), me.name.c_str(),
           me.control.c_str(), me.http.empty() ? "" : ", http ", me.http.c_str());
  if (!announce.empty()) {
    Json data = Json::array();
    for (const auto& address : me.data) data.push_back(address);
    const Json json = {{"name", me.name},     {"role", me.role},       {"pid", ::getpid()},
                       {"epoch", me.epoch},   {"control", me.control}, {"http", me.http},
                       {"events", me.events}, {"replay", me.replay},   {"data", data}};
    if (auto told = io::write_output(announce, dump_json(json) + "\n"); !told)
      return fail(told.error().code, "--announce: %s", told.error().what.c_str());
  }
  notify_systemd("READY=1");
  return {};
}

void DaemonOptions::stopping() const {
  notify_systemd("STOPPING=1");
  struct stat info {};
  if (announce.empty() || ::stat(announce.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  const auto mine = read_json_file(announce);  // a successor may have written its own already
  if (mine && get_uint(*mine, "pid") == static_cast<uint64_t>(::getpid()))
    ::unlink(announce.c_str());
}

std::vector<std::string> process_environment() {
  std::vector<std::string> all;
  for (char** e = environ; *e != nullptr; ++e) all.emplace_back(*e);
  return all;
}

std::string runtime_folder() {
  for (const char* const name : {"RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"}) {
    const char* const value = std::getenv(name);
    const std::string folders = value == nullptr ? "" : value;
    std::string first = folders.substr(0, folders.find(':'));
    if (!first.empty() && ::access(first.c_str(), W_OK) == 0) return first;
  }
  return {};
}

}  // namespace mc
