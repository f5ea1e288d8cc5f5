#include "serve/external/event_stream.h"

#include "base/log.h"
#include "io/address.h"

namespace mc::serve {
namespace {

constexpr Duration kStreamTick = std::chrono::milliseconds(100);
constexpr size_t kTurnMax = 256;  // messages read before others have their turn

std::optional<uint64_t> sequence_number(const std::string& frame) {
  if (frame.size() != 8) return std::nullopt;
  uint64_t n = 0;
  for (const char c : frame) n = n << 8 | static_cast<uint8_t>(c);
  return n;
}

std::string eight_bytes(uint64_t n) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(n >> (56 - 8 * i));
  return out;
}

}  // namespace

Result<std::string> event_address(const std::string& text) {
  const std::string scheme = "tcp://";
  const std::string rest = text.starts_with(scheme) ? text.substr(scheme.size()) : text;
  auto address = io::parse_address(rest);
  if (!address || address->port == 0 || address->host.empty() || address->host == "*")
    return fail(Code::kInvalid, "'%s' is no address of a publisher: want tcp://host:port",
                escape(text).c_str());
  return address->text();
}

Result<std::unique_ptr<EventStream>> EventStream::open(io::Loop& loop,
                                                       const EventStreamOptions& options) {
  MC_TRY(const std::string events, event_address(options.events));
  MC_TRY(rpc::ExternalSocket sub,
         rpc::ExternalSocket::connect(rpc::ExternalSocket::Kind::kSub, events));
  std::optional<rpc::ExternalSocket> replay;
  if (!options.replay.empty()) {
    MC_TRY(const std::string address, event_address(options.replay));
    MC_TRY(rpc::ExternalSocket dealer,
           rpc::ExternalSocket::connect(rpc::ExternalSocket::Kind::kDealer, address));
    replay = std::move(dealer);
  }
  EventStreamOptions o = options;
  o.order.can_ask = replay.has_value();
  return std::unique_ptr<EventStream>(
      new EventStream(loop, std::move(o), std::move(sub), std::move(replay)));
}

EventStream::EventStream(io::Loop& loop, EventStreamOptions options, rpc::ExternalSocket events,
                         std::optional<rpc::ExternalSocket> replay)
    : loop_(loop),
      options_(std::move(options)),
      events_(std::move(events)),
      replay_(std::move(replay)),
      order_(options_.order, loop.clock().now()) {
  watches_[0] = loop_.watch_socket(events_.handle(), [this] { read_events(); });
  if (replay_) watches_[1] = loop_.watch_socket(replay_->handle(), [this] { read_replay(); });
  timer_ = loop_.every(kStreamTick, [this] { take(order_.tick(loop_.now())); });
  take({});
}

EventStream::~EventStream() {
  loop_.cancel(timer_);
  for (const auto watch : watches_)
    if (watch != 0) loop_.unwatch(watch);
}

void EventStream::fault(const std::string& what) {
  if (++faults_ == 1 || faults_ % 1000 == 0)
    log_warn("conductor", "events of %s: %s (%llu faults so far)", escape(options_.name).c_str(),
             what.c_str(), static_cast<unsigned long long>(faults_));
}

void EventStream::read_events() {
  for (size_t i = 0; i < kTurnMax; ++i) {
    std::vector<std::string> frames = events_.receive();
    if (frames.empty()) return;
    const auto seq = frames.size() == 3 ? sequence_number(frames[1]) : std::nullopt;
    if (seq)
      take(order_.live(*seq, std::move(frames[2]), loop_.now()));
    else
      fault(strf("a message of %zu frames: want topic, 8 bytes of number, batch", frames.size()));
  }
}

// Older publishers leave the topic out.
void EventStream::read_replay() {
  for (size_t i = 0; i < kTurnMax; ++i) {
    std::vector<std::string> frames = replay_->receive();
    if (frames.empty()) return;
    const size_t n = frames.size();
    const auto seq =
        (n == 3 || n == 4) && frames[0].empty() ? sequence_number(frames[n - 2]) : std::nullopt;
    asked_ = asked_ && seq != EventOrder::kEnd;
    if (seq)
      take(order_.replayed(*seq, std::move(frames[n - 1]), loop_.now()));
    else
      fault(strf("a replay of %zu frames: want '', a topic or none, 8 bytes of number, batch", n));
  }
}

void EventStream::take(const EventOrder::Steps& steps) {
  for (const EventOrder::Step& step : steps) {
    if (step.clear) {
      if (on_clear) on_clear();
      continue;
    }
    auto batch = decode_events(step.payload);
    if (!batch) {
      fault(batch.error().what);
      if (on_clear) on_clear();
      continue;
    }
    ++batches_;
    if (on_batch) on_batch(*batch);
  }
  if (const auto from = order_.ask(); from && replay_) ask(*from);
}

// Uses a new connection while an earlier replay is unanswered, so that no frame of it mixes in. A
// request that cannot be sent now runs into its timeout.
void EventStream::ask(uint64_t from) {
  if (asked_) {
    auto fresh = event_address(options_.replay).and_then([](const std::string& address) {
      return rpc::ExternalSocket::connect(rpc::ExternalSocket::Kind::kDealer, address);
    });
    if (!fresh) return fault(fresh.error().what);
    loop_.unwatch(watches_[1]);
    *replay_ = std::move(*fresh);
    watches_[1] = loop_.watch_socket(replay_->handle(), [this] { read_replay(); });
  }
  asked_ = replay_->send({"", eight_bytes(from)});
}

}  // namespace mc::serve
