// The server's connections on its event thread, with their parsers and buffers. Server and Exchange
// post tasks to it.
//
// Thread: the event thread once started; constructed before and destroyed after it runs.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "http/event_thread.h"
#include "http/lingering.h"
#include "http/listeners.h"
#include "http/server.h"
#include "http/slots.h"
#include "http/web_check.h"

struct event;

namespace mc::http {

// Bytes of all connections.
struct Totals {
  std::atomic<uint64_t> bodies{0};  // held by requests that are read or answered
  std::atomic<size_t> untaken{0};   // of answers in the connections' buffers
  // Of answers, on their way there. No client left these: they count for no client's end.
  std::atomic<size_t> unwritten{0};
  size_t unread() const {
    const size_t coming = unwritten;  // first: what moves on meanwhile counts twice
    return coming + untaken;
  }
};

// Shared by an exchange (loop) and its connection (event thread).
struct Flow {
  explicit Flow(std::shared_ptr<Totals> t) : totals(std::move(t)) {}
  ~Flow() { release(); }
  void release() { totals->bodies -= held.exchange(0); }  // the request's body was freed
  std::shared_ptr<void> hand_over() {                     // it is freed when the token goes
    return {nullptr, [all = totals, n = held.exchange(0)](void*) { all->bodies -= n; }};
  }
  void wrote(size_t n) {
    queued += n;
    totals->unwritten += n;
  }
  std::atomic<size_t> queued{0};    // written, not yet in the connection's buffer
  std::atomic<size_t> buffered{0};  // in that buffer, not yet taken by the kernel
  std::atomic<size_t> awaited{0};   // told once less is unsent; 0: nobody waits for that
  std::atomic<size_t> held{0};      // bytes of the request's body, counted in
  const std::shared_ptr<Totals> totals;
};

// A complete request on its way to the loop.
struct Arrival {
  uint64_t exchange = 0;
  Request request;
  std::shared_ptr<Flow> flow;
  bool http10 = false, keep_alive = false;
};

class Connections {
 public:
  struct Callbacks {  // on the event thread
    std::function<void(Arrival)> arrived;
    std::function<void(uint64_t exchange)> gone;   // the client left before the answer's end
    std::function<void(uint64_t exchange)> taken;  // less is unsent than Flow::awaited
  };
  Connections(EventThread& thread, const ServerOptions& options, Callbacks callbacks);
  ~Connections();
  // Before start. Returns the port. Errors: kUnavailable, kInvalid.
  Result<uint16_t> listen(const std::string& host, uint16_t port);
  Result<> listen_at(const std::string& path);

  // The connection closes behind `last` bytes unless `keep_alive` allows more requests.
  void send(uint64_t exchange, std::string bytes, bool last, bool keep_alive);
  void abort(uint64_t exchange);  // the answer cannot be completed: closes the connection
  void await_taken(uint64_t exchange);
  void stop_accepting();
  size_t open() const { return open_; }  // requests not yet answered and flushed; any thread

  // Arrivals that wait for the loop; the loop counts them down.
  std::atomic<uint32_t> waiting{0};
  const std::shared_ptr<Totals> totals = std::make_shared<Totals>();

 private:
  struct Conn;
  friend struct Conn;
  void accept(int fd, const std::string& peer);
  bool make_room();
  void hold(Conn& conn);
  void pump(Conn& conn);
  void complete(Conn& conn);
  // `rest`: bytes of the request that were not read.
  void refuse(Conn& conn, int status, const std::string& why, uint64_t rest);
  static void on_flush(int, short, void* self);
  void flush(Conn& conn);
  void drop_slowest();
  bool flushed(Conn& conn);
  void look_taken(const Conn& conn);
  void linger(Conn& conn);
  void drop_rest(Conn& conn);
  void drop(Conn& conn);

  EventThread& thread_;
  const ServerOptions options_;
  const Callbacks callbacks_;
  WebRules rules_;
  Listeners listeners_;
  bool stopping_ = false;
  uint64_t next_exchange_ = 1;
  std::atomic<size_t> open_{0};
  ConnectionSlots slots_;
  Lingering lingering_;
  std::unordered_map<Conn*, std::unique_ptr<Conn>> conns_;
  std::unordered_map<uint64_t, Conn*> exchanges_;  // being answered
  // What is sent in one batch of tasks goes out together, at the batch's end.
  std::vector<Conn*> unsent_;  // null: dropped meanwhile
  struct {
    event *flush, *pace;
  } events_;
};

}  // namespace mc::http
