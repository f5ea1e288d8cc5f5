// Follows one publisher of cache events, as vLLM runs it.
//
// A PUB socket sends three frames: topic, number as 8 bytes big-endian, MessagePack batch. A ROUTER
// socket replays the batches after a number: an empty frame, the topic (older ones: none), number,
// batch. EventOrder finds gaps; external_events.h decodes the batches. A batch that does not decode
// clears the cache (on_clear); the stream then goes on.
//
// Thread: the loop's. Callbacks must not destroy the stream.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/loop.h"
#include "rpc/external_socket.h"
#include "serve/external/event_order.h"
#include "serve/external/external_events.h"

namespace mc::serve {

struct EventStreamOptions {
  std::string name;    // for logs
  std::string events;  // "tcp://host:port" or "host:port"
  std::string replay;  // the same; empty: gaps cannot be filled
  EventOrderOptions order;
};

class EventStream {
 public:
  // Connects when the publisher is there. Errors: kInvalid for an address.
  static Result<std::unique_ptr<EventStream>> open(io::Loop& loop,
                                                   const EventStreamOptions& options);
  ~EventStream();
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  std::function<void(const ExternalBatch&)> on_batch;
  std::function<void()> on_clear;

  // For an engine that was away: calls on_clear, and asks for all batches again.
  void reset() { take(order_.reset(loop_.clock().now())); }

  const EventOrder& order() const { return order_; }
  uint64_t batches() const { return batches_; }
  uint64_t faults() const { return faults_; }  // frames and batches that made no sense

 private:
  EventStream(io::Loop& loop, EventStreamOptions options, rpc::ExternalSocket events,
              std::optional<rpc::ExternalSocket> replay);
  void read_events();
  void read_replay();
  void take(const EventOrder::Steps& steps);
  void ask(uint64_t from);
  void fault(const std::string& what);

  io::Loop& loop_;
  const EventStreamOptions options_;
  rpc::ExternalSocket events_;
  std::optional<rpc::ExternalSocket> replay_;
  bool asked_ = false;  // and not answered to the end
  EventOrder order_;
  io::Loop::Handle watches_[2] = {0, 0}, timer_ = 0;
  uint64_t batches_ = 0, faults_ = 0;
};

// "tcp://host:port" or "host:port" as the latter. Errors: kInvalid, naming the text.
Result<std::string> event_address(const std::string& text);

}  // namespace mc::serve
