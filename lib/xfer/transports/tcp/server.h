// The owner's side of tcp: serves reads and writes of registered memory. It takes connections that
// the acceptor found entitled, checks each frame (generation, range, write right, guard) and moves
// payload directly between the socket and the registered memory. A peer that breaks the protocol
// loses its connection; the process continues. A frame has an absolute limit, so that a peer that
// sends a byte now and then holds no memory.
//
// Thread: the acceptor's and one thread a connection, joined by the destructor.
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "io/address.h"
#include "xfer/core/fence.h"
#include "xfer/memory/registry.h"
#include "xfer/transports/tcp/acceptor.h"
#include "xfer/transports/tcp/answers.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

namespace mc::xfer::tcp {

class Server final : private Acceptor::Owner {
 public:
  struct Config {
    std::vector<std::string> listen;  // "host:port"; port 0: a free one
    std::string secret;
    Duration silence_max;  // within a frame
    // From a frame's first byte to its last, whatever comes in between.
    Duration frame_max = std::chrono::seconds(15);
  };
  static Result<std::unique_ptr<Server>> open(Config config, const Registry& registry,
                                              const Clock& clock, Metrics& metrics);
  ~Server();
  const std::vector<io::Address>& bound() const { return acceptor_.bound(); }  // with the ports
  // Closes the connections with a frame under way into one of these ranges, and clears `done` of
  // the ranges into which one still writes (server_fence.cc). Never waits.
  void fence(std::span<FencedRange> ranges);

 private:
  struct Connection {
    Stream stream;
    Nonce nonce{};
    Frame next;             // of the request behind this one: it came with the payload of this one
    bool has_next = false;  // to be served
    std::vector<Descriptor> many;  // of a frame of several requests
    Answers answers;               // to requests that others follow: they leave together
    Time answer_by{};
    // The range of the segment that it may write to; empty: none.
    std::atomic<uint64_t> writes_from{0}, writes_to{0};
    // Of a frame of several writes: the range of each, begin and end. Others lie between them.
    Mutex parts_mutex;
    std::vector<std::pair<uint64_t, uint64_t>> parts MC_GUARDED_BY(parts_mutex);
    std::thread thread;
    bool done = false;
  };
  // Says where the connection may write, from before the guard is looked at until the last byte.
  class WriteRange {
   public:
    WriteRange(Connection& c, const Descriptor& d);
    // Of several: `covers` all of them.
    WriteRange(Connection& c, const Descriptor& covers, std::span<const Descriptor> all);
    ~WriteRange();
    WriteRange(const WriteRange&) = delete;
    WriteRange& operator=(const WriteRange&) = delete;
    void leave() { c_.writes_to.store(0, std::memory_order_release); }

   private:
    Connection& c_;
  };
  Server(Config config, const Registry& registry, const Clock& clock, Metrics& metrics);
  void take(Acceptor::Proven peer) override;
  void reap() override;
  void serve(Connection& c);
  Result<> serve_one(Connection& c);
  Result<Header> next_request(Connection& c, Descriptor& d, Nonce& nonce);
  Result<> dispatch(Connection& c, const Header& header, const Descriptor& d);
  Result<> retire(const Connection& asker, const Nonce& nonce);
  Result<> read(Connection& c, const Header& header, const Descriptor& d);
  Result<> write(Connection& c, const Header& header, const Descriptor& d);
  // A frame of several requests (server_many.cc).
  static Result<Descriptor> range_of(std::span<const Descriptor> many);
  Result<> receive_bodies(Connection& c, const Header& header, bool first_is_here);
  static bool writes_to(Connection& c, const FencedRange& range);
  Result<> write_many(Connection& c, const Header& header);
  Result<> read_many(Connection& c, const Header& header);
  // The same for buffers behind a backend.
  Result<> read_backed(Stream& stream, const Header& header, const Descriptor& d,
                       const BufferPtr& buffer);
  Result<> write_backed(Stream& stream, const Header& header, const Descriptor& d,
                        const BufferPtr& buffer);
  Result<> raise(const Descriptor& d);
  Result<BufferPtr> admit(const Descriptor& d, bool writing, std::byte** first,
                          const std::byte** guard) const;
  Result<> reply(Stream& stream, uint64_t id, const Result<>& outcome);
  // The same, perhaps later, with the answers to what follows.
  Result<> answer(Connection& c, const Header& asked, const Result<>& outcome);
  Result<> send_answers(Connection& c);
  Stream::GiveUp unless_stopping();
  Stream::GiveUp unless_withdrawn(const BufferPtr& buffer);

  const Config config_;
  const Registry& registry_;
  const Clock& clock_;
  Counter& refused_;
  const size_t connections_max_;
  Mutex mutex_;
  Condition ended_;  // a connection is done
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_ MC_GUARDED_BY(mutex_);
  Acceptor acceptor_;
};

}  // namespace mc::xfer::tcp
