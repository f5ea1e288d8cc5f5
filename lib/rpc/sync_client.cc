// SyncClient, the client that blocks its caller.
#include <algorithm>

#include "base/step_trace.h"
#include "base/text.h"
#include "io/address.h"
#include "rpc/client.h"
#include "rpc/client_impl.h"
#include "rpc/probe.h"

namespace mc::rpc {
namespace {

constexpr Duration kGreet = std::chrono::milliseconds(200);
// A server that does not answer for so long hangs. Calls with less time are given up before that is
// known, and leave the shared memory as it is: no other server will ever read it.
constexpr Duration kHangs = std::chrono::milliseconds(100);
// A server that answered so lately is taken to live: to ask the socket is a system call.
constexpr Duration kFresh = std::chrono::milliseconds(1);
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr size_t kBytesPerPoll = 1500;  // of a call: it polls once more as long for each so many
constexpr size_t kLongerMax = 4;        // at most
// A connection that has not begun by then is made anew: its name may have an address now. Twice as
// long each time: names may be found slowly.
constexpr Duration kBegins = std::chrono::seconds(2);
constexpr int kBeginsDoubled = 5;

// Of "host:port": the host is a name, which has to be looked up.
bool by_name(const std::string& address) {
  const auto parsed = io::parse_address(address);
  return parsed && parsed->host.find(':') == std::string::npos &&
         parsed->host.find_first_not_of("0123456789.") != std::string::npos;
}

int ms_until(Time when, Time now) { return static_cast<int>((when - now).count() / 1'000'000 + 1); }

}  // namespace

Result<std::unique_ptr<SyncClient>> SyncClient::connect(const std::string& addresses,
                                                        const Clock& clock, Channel channel) {
  MC_TRY(ServerList servers, ServerList::parse(addresses));
  auto client = std::unique_ptr<SyncClient>(new SyncClient(std::move(servers), clock, channel));
  return client;
}

SyncClient::SyncClient(ServerList servers, const Clock& clock, Channel channel)
    : clock_(clock),
      channel_(channel),
      address_(servers.text()),
      servers_(std::move(servers)),
      spin_(kSpin) {}

// Chooses the first of several servers that listens; keeps the current one if none does.
void SyncClient::choose_listening(Time deadline) {
  constexpr Duration kListenFor = std::chrono::milliseconds(250);
  if (socket_ || shm_ || servers_.size() < 2) return;
  std::vector<std::string> turn;
  for (size_t i = 0; i < servers_.size(); ++i)
    turn.push_back(servers_.address((servers_.current() + i) % servers_.size()));
  const size_t first = first_listening(turn, std::min(kListenFor, deadline - clock_.now()), clock_);
  if (first < turn.size()) servers_.choose((servers_.current() + first) % servers_.size());
}

Result<> SyncClient::connect() {
  const std::string& to = servers_.address(servers_.current());
  if (socket_ && connected_ == to) return {};
  const ClusterKeys keys = cluster_keys();
  MC_TRY(socket_,
         Socket::connect(Socket::Kind::kDealer, to, keys.has(key_) ? key_ : keys.first, true));
  connected_ = to;
  return {};
}

// Between calls: nothing is in flight. What ended is dropped before a server is chosen. The next
// call makes its connection anew, by the first key.
void SyncClient::drop_ended() {
  const Time now = clock_.now();
  reload_cluster_key(now);
  const ClusterKeys keys = cluster_keys();
  if (shm_ && now - shm_heard_ > kFresh) shm_->woken();
  if (shm_ && shm_->broken()) shm_.reset();  // its server ended since the last call
  if (shm_ && shm_->key() != keys.first) {
    shm_.reset();
    shm_tried_ = Time::min();
  }
  if (!socket_) return;
  const Socket::Fate fate = socket_->fate();
  const bool gone = fate == Socket::Fate::kRefused || fate == Socket::Fate::kEnded;
  const bool good = socket_->key() == keys.first;
  const bool retry = !good && (!keys.has(socket_->key()) || now >= key_tried_ + detail::kKeyRetry);
  if (retry) {
    key_ = keys.first;
    key_tried_ = now;
  }
  if (gone || retry) socket_.reset();
}

void SyncClient::skip_server() {
  Lock lock(mutex_);
  servers_.skip(servers_.current());
}

std::optional<detail::Answered> SyncClient::wait(uint64_t id, Time deadline) {
  for (;;) {
    const Time now = clock_.now();
    if (now >= deadline) return std::nullopt;
    // Asked before the answers are read: what came before the end is read all the same.
    const bool over = socket_->fate() == Socket::Fate::kEnded;
    if (!over && !socket_->wait_readable(ms_until(deadline, now))) continue;
    for (auto frames = socket_->receive(); !frames.empty(); frames = socket_->receive()) {
      auto answer = detail::answer_of(frames);
      if (answer.id == id) return answer;                 // others answer calls that were given up
      if (clock_.now() >= deadline) return std::nullopt;  // and may come without end
    }
    if (over) return std::nullopt;
  }
}

// Tries the current server. Without one on this host that costs a failed connect().
void SyncClient::try_shm(Time deadline) {
  if (channel_ != Channel::kShm) return;
  const std::string& to = servers_.address(servers_.current());
  const Time now = clock_.now();
  if (shm_to_ == to && (shm_ || now < shm_tried_ + detail::kShmRetry)) return;
  shm_.reset();
  shm_to_ = to;
  shm_tried_ = now;
  auto end = connect_shm(to, std::min(kGreet, deadline - now), clock_);
  if (end) shm_ = std::move(*end);
}

// Polls before it waits, longer for a larger call: the server needs more time for it.
std::optional<detail::Answered> SyncClient::wait_shm(uint64_t id, size_t bytes, Time deadline) {
  const auto next = [&, &shm = *shm_]() -> std::optional<detail::Answered> {
    while (const auto message = shm.receive()) {
      auto answer = detail::answer_of(message->envelope, message->body);
      if (answer.id == id) return answer;  // others answer calls that were given up
      if (clock_.now() >= deadline) break;
    }
    return std::nullopt;
  };
  const auto times = static_cast<int>(1 + std::min(bytes / kBytesPerPoll, kLongerMax));
  Time now = clock_.now(), spun = now + backoff_.begin(spin_.begin() * times, now);
  for (; now < spun && !shm_->broken(); now = clock_.now()) {
    for (int i = 0; i < 16 && !shm_->has_input(); ++i) pause_cpu();
    if (auto answer = next()) {
      spin_.hit();
      return answer;
    }
    spun += backoff_.yield(clock_);  // time of other threads does not count
  }
  spin_.missed();
  for (;;) {
    if (auto answer = next()) return answer;
    const Duration left = deadline - clock_.now();
    if (shm_->broken() || left.count() <= 0) return std::nullopt;
    shm_->await_input(left);
  }
}

// Returns: the answer; nothing when none came in time.
Result<std::optional<detail::Answered>> SyncClient::exchange(const char* type,
                                                             const std::string& body,
                                                             const std::string& trace_id,
                                                             Time deadline) {
  const uint64_t id = next_id_++;
  const Duration budget = deadline - clock_.now();
  try_shm(deadline);
  const std::string envelope = detail::envelope_of(type, id, deadline - clock_.now(), trace_id);
  if (shm_ && shm_->send(envelope, body)) {
    auto answer = wait_shm(id, body.size(), deadline);
    if (answer) shm_heard_ = clock_.now();
    const bool broken = shm_->broken();
    if (!answer && budget >= kHangs) shm_.reset();  // it does not read, either
    if (!answer && broken) return fail(detail::gone(shm_to_, type));
    return answer;
  }
  shm_.reset();
  return exchange_zeromq(type, envelope, body, id, deadline);
}

bool SyncClient::proven(int refusals, Time deadline) {
  const Duration patience = kBegins * (1 << std::min(refusals, kBeginsDoubled));
  const Time begins = std::min(clock_.now() + patience, deadline);
  for (;;) {
    const Socket::Fate fate = socket_->fate();
    if (fate != Socket::Fate::kOpen) return fate == Socket::Fate::kProven;
    const Time until = socket_->begun() ? deadline : begins, now = clock_.now();
    if (now >= until) return false;
    (void)socket_->wait_readable(ms_until(until, now));
  }
}

// Where the server does not know the key nothing has been sent yet, and the other key is tried. The
// file may have another one meanwhile.
Result<std::optional<detail::Answered>> SyncClient::exchange_zeromq(const char* type,
                                                                    const std::string& envelope,
                                                                    const std::string& body,
                                                                    uint64_t id, Time deadline) {
  const Duration budget = deadline - clock_.now();
  bool begun = answered_;
  for (int refusals = 0;; ++refusals) {
    MC_TRY_(connect());
    if (proven(refusals, deadline)) {
      const auto sent = socket_->send({envelope, body});
      if (sent) {
        auto answer = wait(id, deadline);
        if (answer) key_ = socket_->key();
        if (!answer && socket_->known_fate() == Socket::Fate::kEnded && clock_.now() < deadline)
          return fail(detail::gone(connected_, type));
        return answer;
      }
      if (socket_->fate() != Socket::Fate::kEnded) return fail(sent.error());
    }
    begun = begun || socket_->begun() || socket_->known_fate() != Socket::Fate::kOpen;
    reload_cluster_key(clock_.now());
    key_ = cluster_keys().other(socket_->key());
    const Time again = std::min(clock_.now() + detail::pause_after(refusals), deadline);
    for (Time now = clock_.now(); now < again; now = clock_.now()) {
      (void)socket_->fate();  // what it has to say does not cut the pause
      (void)socket_->wait_readable(ms_until(again, now));
    }
    socket_.reset();
    if (clock_.now() < deadline) continue;
    if (!begun && servers_.size() == 1 && by_name(connected_))
      return fail(detail::nameless(connected_, type, budget));
    return std::nullopt;
  }
}

bool SyncClient::take_turn(Time deadline) {
  Lock lock(turn_mutex_);
  while (calling_) {
    const Duration left = deadline - clock_.now();
    if (left.count() <= 0) return false;
    turn_ended_.wait_for(turn_mutex_, left);
  }
  calling_ = true;
  return true;
}

void SyncClient::end_turn() {
  Lock lock(turn_mutex_);
  calling_ = false;
  turn_ended_.notify_one();
}

Result<std::string> SyncClient::call_raw(const char* type, const std::string& body,
                                         Duration budget) {
  Step step(type, StepKind::kCall);
  auto reply = call_in_turn(type, body, budget, step.wire());
  if (step) {
    step.facts.where = address_;
    if (!reply) step.facts.error = reply.error().what;
  }
  return reply;
}

Result<std::string> SyncClient::call_in_turn(const char* type, const std::string& body,
                                             Duration budget, const std::string& trace_id) {
  const Time deadline = clock_.now() + budget;
  if (body.size() > wire::kMessageBytesMax)
    return fail(Code::kInvalid, "%s: message of %zu bytes is over the limit", type, body.size());
  if (!take_turn(deadline))
    return fail(Code::kTimeout, "%s to %s: other calls of this client took all of %s", type,
                address_.c_str(), rounded_text(budget).c_str());
  struct Turn {
    SyncClient& client;
    ~Turn() { client.end_turn(); }
  } turn{*this};
  return call_now(type, body, trace_id, budget, deadline);
}

Result<std::string> SyncClient::call_now(const char* type, const std::string& body,
                                         const std::string& trace_id, Duration budget,
                                         Time deadline) {
  Lock lock(mutex_);
  for (int hop = 0;; ++hop) {
    drop_ended();
    choose_listening(deadline);
    const size_t at = servers_.current();
    auto exchanged = exchange(type, body, trace_id, deadline);
    if (!exchanged) {
      servers_.skip(at);
      return fail(exchanged.error());
    }
    std::optional<detail::Answered>& answer = *exchanged;
    if (!answer) {
      socket_.reset();  // a new one drops what is queued, as in Client::expire
      const std::string silent = servers_.address(at);
      servers_.skip(at);
      const bool any = servers_.size() > 1 && !answered_;
      return fail(detail::no_answer(any ? "any of " + address_ : silent, type, budget, answered_));
    }
    answered_ = true;
    const bool again = answer->elsewhere && servers_.refused(at, answer->instead);
    if (!again || hop == detail::kHopsMax) return std::move(answer->body);
  }
}

}  // namespace mc::rpc
