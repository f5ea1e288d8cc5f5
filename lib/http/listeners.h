// The sockets on which a server takes connections: one for addresses, one for a path.
//
// Thread: the event thread's once it runs; constructed before and destroyed after.
#pragma once
#include <functional>
#include <string>

#include "http/event_thread.h"

struct evconnlistener;
struct event;
struct sockaddr;

namespace mc::http {

inline constexpr const char* kLocalPeer = "unix";  // who came over the path

class Listeners {
 public:
  using Accepted = std::function<void(int fd, const std::string& peer)>;
  Listeners(EventThread& thread, Accepted accepted);
  ~Listeners();
  Listeners(const Listeners&) = delete;
  Listeners& operator=(const Listeners&) = delete;

  // Returns the port. Errors: kUnavailable, kInvalid.
  Result<uint16_t> listen(const std::string& host, uint16_t port);
  Result<> listen_at(const std::string& path);
  void close();

 private:
  static void on_address(evconnlistener*, int fd, sockaddr* peer, int, void* self);
  static void on_path(evconnlistener*, int fd, sockaddr*, int, void* self);
  static void on_error(evconnlistener*, void* self);
  static void on_rested(int, short, void* self);
  void take(int fd, const std::string& peer);
  void pause(Duration rest);

  EventThread& thread_;
  const Accepted accepted_;
  evconnlistener *tcp_ = nullptr, *local_ = nullptr;
  std::string path_{};  // of the local one
  event* rested_;       // it resumes
  size_t count_ = 0;
};

}  // namespace mc::http
