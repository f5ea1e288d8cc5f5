#include "http/listeners.h"

#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "io/address.h"
#include "io/free_port.h"
#include "io/local_socket.h"

namespace mc::http {
namespace {

constexpr int kBacklog = 1024;
constexpr auto kAcceptRest = std::chrono::milliseconds(100);
// Then those that have come are read first: who sent nothing gives way to others, and who sent
// something does not, so that a crowd that nobody has read yet would take all slots.
constexpr size_t kAcceptedTogether = 16;

std::string peer_text(const sockaddr* peer) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const socklen_t size = peer->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(peer, size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "?";
  return io::Address{host, static_cast<uint16_t>(std::atoi(port))}.text();
}

in_port_t& port_of(sockaddr& address) {
  return address.sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

Listeners& of(void* self) { return *static_cast<Listeners*>(self); }

}  // namespace

Listeners::Listeners(EventThread& thread, Accepted accepted)
    : thread_(thread),
      accepted_(std::move(accepted)),
      rested_(event_new(thread.base(), -1, 0, on_rested, this)) {
  MC_CHECK(rested_ != nullptr);
}

Listeners::~Listeners() {
  event_free(rested_);
  close();
}

void Listeners::close() {
  if (tcp_) evconnlistener_free(std::exchange(tcp_, nullptr));
  if (!local_) return;
  evconnlistener_free(std::exchange(local_, nullptr));
  ::unlink(path_.c_str());
}

Result<uint16_t> Listeners::listen(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int rc =
      getaddrinfo(host.empty() || host == "*" ? nullptr : host.c_str(), "0", &hints, &found);
  if (rc != 0)
    return fail(Code::kInvalid, "listen on %s:%u: %s", host.c_str(), unsigned{port},
                gai_strerror(rc));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, freeaddrinfo);
  const auto bind = [&](uint16_t to) {
    port_of(*found->ai_addr) = htons(to);
    tcp_ =
        evconnlistener_new_bind(thread_.base(), on_address, this,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                kBacklog, found->ai_addr, static_cast<int>(found->ai_addrlen));
    return tcp_ != nullptr;
  };
  Random random(fresh_seed());
  const bool listens = port == 0 ? io::listen_on_free_port(random, bind) : bind(port);
  const std::string where = io::Address{host, port}.text();
  if (!listens)
    return fail(Code::kUnavailable, "listen on %s: %s: choose another port, or 0 for a free one",
                where.c_str(), std::strerror(errno));
  evconnlistener_set_error_cb(tcp_, on_error);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(evconnlistener_get_fd(tcp_), reinterpret_cast<sockaddr*>(&bound), &size))
    return fail_errno("read the address of the socket on %s", where.c_str());
  return ntohs(port_of(reinterpret_cast<sockaddr&>(bound)));
}

Result<> Listeners::listen_at(const std::string& path) {
  MC_TRY(io::Fd fd, io::listen_at_path(path, kBacklog));
  local_ = evconnlistener_new(thread_.base(), on_path, this,
                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd.get());
  MC_CHECK(local_ != nullptr);
  (void)fd.release();
  path_ = path;
  evconnlistener_set_error_cb(local_, on_error);
  return {};
}

void Listeners::on_address(evconnlistener*, int fd, sockaddr* peer, int, void* self) {
  of(self).take(fd, peer_text(peer));
}

void Listeners::on_path(evconnlistener*, int fd, sockaddr*, int, void* self) {
  of(self).take(fd, kLocalPeer);
}

void Listeners::take(int fd, const std::string& peer) {
  if (++count_ % kAcceptedTogether == 0) pause(Duration::zero());
  accepted_(fd, peer);
}

// Without a free descriptor a client stays in the queue, and accept() would retry at once for ever.
void Listeners::on_error(evconnlistener*, void* self) {
  const bool files = errno == EMFILE || errno == ENFILE;
  log_warn("http", "accept: %s%s", std::strerror(errno),
           files ? ": raise the limit on open files (ulimit -n), or allow fewer connections" : "");
  of(self).pause(kAcceptRest);
}

void Listeners::pause(Duration rest) {
  for (evconnlistener* const listener : {tcp_, local_})
    if (listener) evconnlistener_disable(listener);
  const timeval tv = to_timeval(rest);
  event_add(rested_, &tv);
}

void Listeners::on_rested(int, short, void* self) {
  for (evconnlistener* const listener : {of(self).tcp_, of(self).local_})
    if (listener) evconnlistener_enable(listener);
}

}  // namespace mc::http
