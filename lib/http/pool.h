// Keeps the client's connections by host, waiting requests, and answers in progress. It lives on
// the client's event thread; Client posts tasks to it.
//
// It looks up a host's name again once a minute while requests to it come, and a second after its
// server was not there or said nothing in time; meanwhile what is known of it holds. A request that
// finds no server waits 3 s at most for what the name stands for now, and goes there, once. So do
// those that still connect when two answers of the name server lack their address.
//
// Thread: the event thread once started; constructed before and destroyed after it runs.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/units.h"
#include "http/client.h"
#include "http/event_thread.h"
#include "http/name_lookups.h"

namespace mc::http {

// Bytes that were read and not yet taken by the loop. Who reads pauses above a limit; who takes
// tells it to resume.
struct Undelivered {
  std::atomic<size_t> bytes{0};
  std::atomic<bool> paused{false};
  // True: reading has paused, and no more than `left` bytes are left of what was read.
  bool take(size_t n, size_t left) { return (bytes -= n) <= left && paused.exchange(false); }
  // False: all was taken before `paused` could be seen, or the limit is not reached.
  bool pause_above(size_t limit) {
    if (bytes.load() <= limit) return false;
    paused = true;
    return bytes.load() > 0 || !paused.exchange(false);
  }
};

class Pool {
 public:
  struct Callbacks {  // on the event thread; `done` is the last call for an id
    std::function<void(uint64_t id, int status, const std::map<std::string, std::string>&, Time)>
        head;
    std::function<void(uint64_t id, std::shared_ptr<Undelivered>, std::string chunk, Time)> chunk;
    std::function<void(uint64_t id, Result<ClientResponse>)> done;
  };
  Pool(EventThread& thread, uint32_t connections_per_host_max, Callbacks callbacks,
       std::unique_ptr<ClientTls> tls, LookUp look_up);
  ~Pool();
  // `stream`: the body goes to `chunk` and not into the answer.
  void start(uint64_t id, ClientRequest request, bool stream, Time deadline);
  void cancel(uint64_t id);
  void hold(uint64_t id, bool held);  // it is not read: its owner's will
  void resume();
  void resume(uint64_t id);

  // Of bodies. Above the limit the pool reads no connection, and above the limit of one not that,
  // until the loop calls resume().
  static constexpr size_t kUndeliveredMax = 64 * kMiB, kUndeliveredOfOneMax = kMiB;
  Undelivered undelivered;

 private:
  struct Job;
  struct Host;
  struct Conn;
  Result<Host*> host_of(Job& job);
  void look_up_again(Host& host);
  void look_up(Host& host);
  void looked_up(Host& host, Result<SocketAddresses> found);
  void doubt(Host& host);
  void await_lookup(Job& job, Error error);
  void moved(Host& host, bool others);
  void give_up(Host& host);
  void place(Job& job);
  Result<> connect(Job& job);
  void give(Conn& conn, Job& job);
  void read(Conn& conn);
  void read_or_pause(Job& job);
  void ended(Conn& conn, const std::string& why);
  void answered(Conn& conn);
  void late(Job& job);
  void failed(Job& job, Error error);
  void drop(Conn& conn);
  void next(Host& host);

  EventThread& thread_;
  const uint32_t per_host_max_;
  const Callbacks callbacks_;
  const std::unique_ptr<ClientTls> tls_;
  NameLookups names_;
  std::unordered_map<std::string, std::unique_ptr<Host>> hosts_;  // by "host:port", and trust
  std::unordered_map<Conn*, std::unique_ptr<Conn>> conns_;
  std::unordered_map<uint64_t, std::unique_ptr<Job>> jobs_;
  std::vector<uint64_t> unread_;  // ids whose connections are not read for now
};

}  // namespace mc::http
