// Looks up the addresses of host names on threads of their own, 16 names at a time: a name server
// that says nothing holds up who waits for a name, and nobody else. Nothing can stop a lookup: the
// destructor waits for those under way, and drops what they find.
//
// Thread: the event thread once started; constructed before and destroyed after it runs. look_up()
// and look_up_number(): any.
#pragma once
#include <sys/socket.h>

#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "base/result.h"
#include "http/event_thread.h"
#include "io/address.h"

namespace mc::http {

struct SocketAddress {
  sockaddr_storage at{};
  socklen_t size = 0;
};
bool operator==(const SocketAddress& a, const SocketAddress& b);
using SocketAddresses = std::vector<SocketAddress>;

// The best first, at least one. Errors: kUnavailable. Called on several threads.
using LookUp = std::function<Result<SocketAddresses>(const io::Address& address)>;
Result<SocketAddresses> look_up(const io::Address& address);  // as the system does it; it may block
SocketAddresses look_up_number(const io::Address& address);   // empty: the host is a name

class NameLookups {
 public:
  using Then = std::function<void(Result<SocketAddresses>)>;
  NameLookups(std::shared_ptr<EventThread::Inbox> inbox, LookUp look_up);
  ~NameLookups();
  NameLookups(const NameLookups&) = delete;
  NameLookups& operator=(const NameLookups&) = delete;
  void begin(io::Address address, Then then);  // `then`: later, on the event thread

 private:
  struct Lookup {
    io::Address address;
    Then then;
    std::thread thread{};
  };
  void next();
  void done(std::list<Lookup>::iterator lookup, Result<SocketAddresses> found);

  const std::shared_ptr<EventThread::Inbox> inbox_;
  const LookUp look_up_;
  std::list<Lookup> waiting_, running_;
};

}  // namespace mc::http
