#include "rpc/local.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include <utility>

#include "rpc/zmq_context.h"
#include "wire/codec.h"

namespace mc::rpc {
namespace {

constexpr int kQuestionsPerTurn = 64;
constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;

void* local_context() {
  static ZmqContext context;
  return context.get();
}

Result<void*> local_socket(int type) {
  void* const socket = zmq_socket(local_context(), type);
  if (socket == nullptr) return fail_errno("new ZeroMQ socket");
  const int zero = 0;
  const int64_t bytes_max = wire::kMessageBytesMax;
  zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
  zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
  return socket;
}

// ZeroMQ removes whatever is at the path before it binds.
Result<> check_path(const std::string& path) {
  if (path.empty() || path.size() > kPathMax)
    return fail(Code::kInvalid, "a socket path of %zu bytes: want 1 to %zu", path.size(), kPathMax);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode))
    return fail(Code::kInvalid, "%s exists and is not a socket: give another path", path.c_str());
  return {};
}

// Receives one frame; false: there is none, or the message has no more.
bool receive_frame(void* socket, std::string& frame, bool& more) {
  zmq_msg_t message;
  zmq_msg_init(&message);
  const bool got = zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) >= 0;
  if (got) {
    frame.assign(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
  }
  zmq_msg_close(&message);
  return got;
}

}  // namespace

Result<std::unique_ptr<LocalServer>> LocalServer::open(io::Loop& loop, const std::string& path,
                                                       size_t frames_max, Handler handler) {
  MC_TRY_(check_path(path));
  MC_TRY(void* const socket, local_socket(ZMQ_ROUTER));
  const mode_t before = ::umask(0177);
  const int bound = zmq_bind(socket, ("ipc://" + path).c_str());
  const int error = zmq_errno();
  ::umask(before);
  if (bound != 0) {
    zmq_close(socket);
    return fail(Code::kUnavailable, "listen on %s: %s", path.c_str(), zmq_strerror(error));
  }
  return std::unique_ptr<LocalServer>(
      new LocalServer(loop, path, frames_max, std::move(handler), socket));
}

LocalServer::LocalServer(io::Loop& loop, std::string path, size_t frames_max, Handler handler,
                         void* socket)
    : loop_(loop),
      path_(std::move(path)),
      frames_max_(frames_max),
      handler_(std::move(handler)),
      socket_(socket),
      self_(std::make_shared<void*>(socket)) {
  watch_ = loop_.watch_socket(socket_, [this] { receive(); });
}

LocalServer::~LocalServer() {
  self_.reset();
  loop_.unwatch(watch_);
  zmq_close(socket_);
  ::unlink(path_.c_str());
}

void LocalServer::receive() {
  for (int i = 0; i < kQuestionsPerTurn; ++i)
    if (!next()) return;
  loop_.post([this, alive = std::weak_ptr(self_)] {
    if (!alive.expired()) receive();
  });
}

// A REQ peer's message is its identity, an empty frame, and the question.
bool LocalServer::next() {
  Frames frames;
  std::string frame, peer;
  size_t n = 0, bytes = 0;
  for (bool more = true; more; ++n) {
    if (!receive_frame(socket_, frame, more)) return false;
    bytes += frame.size();
    if (n == 0)
      peer = frame;
    else if (n > 1 && n < frames_max_ + 2)
      frames.push_back(std::move(frame));
    else if (n == 1 && !frame.empty())
      bytes = SIZE_MAX / 2;  // no REQ peer
  }
  const Answer answer = [peer, alive = std::weak_ptr(self_)](const std::string& text) {
    const auto socket = alive.lock();
    if (socket == nullptr) return;
    if (zmq_send(*socket, peer.data(), peer.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
        zmq_send(*socket, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0)
      zmq_send(*socket, text.data(), text.size(), ZMQ_DONTWAIT);
  };
  if (n < 3 || n > frames_max_ + 2 || bytes > wire::kMessageBytesMax)
    answer({});
  else
    handler_(frames, answer);
  return true;
}

Result<std::string> ask_local(const std::string& path, const std::vector<std::string>& question,
                              Duration budget) {
  MC_TRY(void* const socket, local_socket(ZMQ_REQ));
  std::string reply;
  bool answered = false;
  if (zmq_connect(socket, ("ipc://" + path).c_str()) == 0) {
    for (size_t i = 0; i < question.size(); ++i)
      zmq_send(socket, question[i].data(), question[i].size(),
               i + 1 < question.size() ? ZMQ_SNDMORE : 0);
    zmq_pollitem_t item{socket, 0, ZMQ_POLLIN, 0};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(budget).count();
    bool more = false;
    answered = zmq_poll(&item, 1, ms) > 0 && receive_frame(socket, reply, more);
  }
  zmq_close(socket);
  if (!answered) return fail(Code::kTimeout, "%s: no answer in time", path.c_str());
  return reply;
}

}  // namespace mc::rpc
