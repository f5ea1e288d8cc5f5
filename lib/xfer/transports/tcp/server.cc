#include "xfer/transports/tcp/server.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/log.h"
#include "xfer/core/planner.h"
#include "xfer/memory/copy.h"
#include "xfer/transports/tcp/tsan_ignore_scope.h"

namespace mc::xfer::tcp {
namespace {
constexpr uint64_t kShort = 64 * kKiB;  // after these the next request is expected soon
// How long an answer may wait for others: what is sent together on a slow link is answered one by
// one all the same.
constexpr Duration kAnswerTime = std::chrono::microseconds(500);
constexpr uint64_t kCopied = 8 * kKiB;  // a copy of this costs less than another call
constexpr size_t kRowsTogether = 64;    // of an answer that leaves with others
}  // namespace

Server::Server(Config config, const Registry& registry, const Clock& clock, Metrics& metrics)
    : config_(std::move(config)),
      registry_(registry),
      clock_(clock),
      refused_(metrics.counter("mc_xfer_refused_connections_total",
                               "data connections closed for what they sent")),
      connections_max_(Acceptor::limits().proven),
      acceptor_(config_.secret, clock, refused_, *this) {}

Result<std::unique_ptr<Server>> Server::open(Config config, const Registry& registry,
                                             const Clock& clock, Metrics& metrics) {
  if (config.listen.empty() || config.listen.size() > Acceptor::kListenersMax)
    return fail(Code::kInvalid, "%zu data addresses: want 1 to %zu", config.listen.size(),
                Acceptor::kListenersMax);
  std::unique_ptr<Server> server(new Server(std::move(config), registry, clock, metrics));
  for (const std::string& text : server->config_.listen) MC_TRY_(server->acceptor_.listen_on(text));
  MC_TRY_(server->acceptor_.start());
  return server;
}

Server::~Server() {
  acceptor_.stop();
  std::list<Connection> connections;
  {
    Lock lock(mutex_);
    stopping_ = true;
    for (auto& c : connections_) c.stream.shut_down();
    connections.swap(connections_);
  }
  for (auto& c : connections) c.thread.join();
}

Stream::GiveUp Server::unless_stopping() {
  return [this]() -> Result<> {
    Lock lock(mutex_);
    if (stopping_) return fail(Code::kUnavailable, "shutting down");
    return {};
  };
}

void Server::reap() {
  Lock lock(mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->done) {
      it->thread.join();  // it has left serve(); this waits for its last instructions
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void Server::take(Acceptor::Proven peer) {
  const auto refused = [&](const std::string& why) {
    refused_.add();
    log_warn("xfer", "refused a data connection: %s", why.c_str());
  };
  Lock lock(mutex_);
  if (connections_.size() >= connections_max_) {
    const std::string why = strf("%zu are open", connections_.size());
    answer_hello(peer.fd.get(), peer.id,
                 fail(Code::kUnavailable, "no more data connections: %s", why.c_str()));
    return refused(why);
  }
  answer_hello(peer.fd.get(), peer.id, {});  // at once: peers measure the round trip by it
  try {
    Connection& c = connections_.emplace_back();
    c.nonce = peer.nonce;
    c.stream = Stream(std::move(peer.fd), clock_, config_.silence_max);
    c.stream.tune();
    c.thread = std::thread([this, &c] {
      serve(c);
      Lock done_lock(mutex_);
      c.stream = Stream();  // closed at once, not only when it is joined
      c.done = true;
      ended_.notify_all();
      acceptor_.wake();
    });
  } catch (const std::exception& e) {  // no thread, or no memory
    std::list<Connection> failed;
    if (!connections_.empty() && !connections_.back().thread.joinable())
      failed.splice(failed.begin(), connections_, std::prev(connections_.end()));
    refused(e.what());
  }
}

Stream::GiveUp Server::unless_withdrawn(const BufferPtr& buffer) {
  return [this, buffer = buffer.get()]() -> Result<> {
    MC_TRY_(unless_stopping()());
    if (buffer->withdrawn.load(std::memory_order_acquire))
      return fail(Code::kUnavailable, "the memory was withdrawn meanwhile");
    return {};
  };
}

void Server::serve(Connection& c) {
  Result<> outcome;
  try {
    while (outcome) outcome = serve_one(c);
  } catch (const std::bad_alloc&) {
    outcome = fail(Code::kNoSpace, "out of memory");
  }
  c.answers.forget();
  // A peer that closed between frames is the usual end; anything else was its fault or its death.
  if (outcome.error().code != Code::kUnavailable) {
    refused_.add();
    log_warn("xfer", "data connection closed: %s", outcome.error().what.c_str());
  }
}

Result<> Server::reply(Stream& stream, uint64_t id, const Result<>& outcome) {
  const std::string text = outcome ? "" : outcome.error().what.substr(0, kTextMax);
  Header header = make_header(Kind::kReply, id, text.data(), static_cast<uint32_t>(text.size()),
                              outcome ? uint16_t{0} : static_cast<uint16_t>(outcome.error().code));
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(text.data()), text.size()}};
  return stream.send(parts, unless_stopping());
}

Result<> Server::answer(Connection& c, const Header& asked, const Result<>& outcome) {
  if (!outcome) {  // rare, and it has a text
    MC_TRY_(send_answers(c));
    return reply(c.stream, asked.id, outcome);
  }
  const Header header = make_header(Kind::kReply, asked.id, nullptr, 0);
  const Time now = clock_.now();
  if (c.answers.empty()) c.answer_by = now + kAnswerTime;
  c.answers.add(header);
  if ((asked.flags & kMore) != 0 && now < c.answer_by && c.answers.room_for(0)) return {};
  return send_answers(c);
}

Result<> Server::send_answers(Connection& c) { return c.answers.send(c.stream, unless_stopping()); }

// Its header, with the checked body in one of the two.
Result<Header> Server::next_request(Connection& c, Descriptor& d, Nonce& nonce) {
  if (std::exchange(c.has_next, false)) {
    const Header header = c.next.header;
    MC_TRY_(check_header(header));
    c.stream.receive_by(clock_.now() + config_.frame_max);
    if (is_many(header.kind)) {
      MC_TRY_(receive_bodies(c, header, true));
      return header;
    }
    if (header.kind == Kind::kRetire || header.body_bytes != sizeof d)
      return fail(Code::kCorrupt, "request body of %u bytes", header.body_bytes);
    d = c.next.body;
    if (!check_body(header, &d)) return fail(Code::kCorrupt, "request body fails its check");
    return header;
  }
  MC_TRY(const bool more, c.stream.wait_for_request(unless_stopping()));
  if (!more) return fail(Code::kUnavailable, "closed");
  c.stream.receive_by(clock_.now() + config_.frame_max);
  Header header;
  MC_TRY_(c.stream.receive(&header, sizeof header, unless_stopping()));
  MC_TRY_(check_header(header));
  if (is_many(header.kind)) {
    MC_TRY_(receive_bodies(c, header, false));
    return header;
  }
  const auto body = header.kind == Kind::kRetire ? std::as_writable_bytes(std::span(nonce))
                                                 : std::as_writable_bytes(std::span(&d, 1));
  if (header.body_bytes != body.size())
    return fail(Code::kCorrupt, "request body of %u bytes", header.body_bytes);
  MC_TRY_(c.stream.receive(body.data(), body.size(), unless_stopping()));
  if (!check_body(header, body.data())) return fail(Code::kCorrupt, "request body fails its check");
  return header;
}

Result<> Server::serve_one(Connection& c) {
  Descriptor d;
  Nonce nonce{};
  MC_TRY(const Header header, next_request(c, d, nonce));
  // Answers that hold memory do not wait for payload.
  const bool reads = header.kind == Kind::kRead || header.kind == Kind::kReadMany;
  const bool joins =
      header.kind == Kind::kWrite || header.kind == Kind::kWriteMany || header.kind == Kind::kRaise;
  if (joins ? c.answers.pins() : !reads) MC_TRY_(send_answers(c));
  if (header.kind == Kind::kRetire) return reply(c.stream, header.id, retire(c, nonce));
  if (is_many(header.kind)) {
    c.stream.eager(false);
    c.stream.expect_short(false);
    return reads ? read_many(c, header) : write_many(c, header);
  }
  uint64_t total = 0;
  if (__builtin_mul_overflow(d.bytes, d.rows, &total)) total = UINT64_MAX;
  c.stream.eager(total <= kShort);
  c.stream.expect_short(total <= Stream::kShortRun && header.kind == Kind::kWrite &&
                        (header.flags & kMore) != 0);
  return dispatch(c, header, d);
}

Result<> Server::dispatch(Connection& c, const Header& header, const Descriptor& d) {
  switch (header.kind) {
    case Kind::kRead: return read(c, header, d);
    case Kind::kWrite: return write(c, header, d);
    case Kind::kRaise: return answer(c, header, raise(d));
    case Kind::kWriteMany:
    case Kind::kReadMany:
    case Kind::kHello:
    case Kind::kReply:
    case Kind::kRetire: break;
  }
  return fail(Code::kCorrupt, "unexpected frame of kind %u", static_cast<unsigned>(header.kind));
}

// What lies in that connection's socket is still applied, then its thread ends; a write sent again
// elsewhere must not start before.
Result<> Server::retire(const Connection& asker, const Nonce& nonce) {
  const Time deadline = clock_.now() + config_.silence_max;
  Lock lock(mutex_);
  for (;;) {
    const auto it = std::find_if(connections_.begin(), connections_.end(), [&](const auto& c) {
      return &c != &asker && !c.done && c.nonce == nonce;
    });
    if (it == connections_.end()) return {};
    it->stream.shut_down();
    const Duration left = deadline - clock_.now();
    if (left.count() <= 0) return fail(Code::kBusy, "that connection does not end");
    ended_.wait_for(mutex_, left);
  }
}

Result<BufferPtr> Server::admit(const Descriptor& d, bool writing, std::byte** first,
                                const std::byte** guard) const {
  if (d.bytes == 0 || d.rows == 0 || d.rows > kRowsMax)
    return fail(Code::kInvalid, "%llu rows of %llu bytes: want 1 to %llu rows of at least one byte",
                static_cast<unsigned long long>(d.rows), static_cast<unsigned long long>(d.bytes),
                static_cast<unsigned long long>(kRowsMax));
  const uint64_t span = span_of(d.bytes, d.rows, d.stride);
  if (span == 0) return fail(Code::kInvalid, "the transfer's lengths overflow");
  // Rows on each other would let a frame ask for far more bytes than the memory holds.
  if (d.rows > 1 && d.stride < d.bytes)
    return fail(Code::kInvalid, "rows of %llu bytes every %llu bytes overlap",
                static_cast<unsigned long long>(d.bytes),
                static_cast<unsigned long long>(d.stride));
  auto there = registry_.pin(d.offset, span);
  // Offsets are not given to other memory: what is there is what the peer knows, however old that
  // is.
  if (const Generation now = registry_.generation(); !there && d.generation != now.n)
    return fail(Code::kStale, "segment generation %llu is over: it is %llu now",
                static_cast<unsigned long long>(d.generation),
                static_cast<unsigned long long>(now.n));
  MC_TRY(BufferPtr buffer, std::move(there));
  if (writing && !buffer->writable) return fail(Code::kDenied, "this memory is read-only");
  *guard = nullptr;
  if (buffer->backend != nullptr) {
    if (d.guard_offset == Guard::kNone) return buffer;
    return fail(Code::kInvalid, "%s has no guard words", buffer->location.c_str());
  }
  *first = buffer->data + (d.offset - buffer->offset);
  if (d.guard_offset != Guard::kNone) {
    const uint64_t at = d.guard_offset - buffer->offset;
    if (d.guard_offset < buffer->offset || buffer->bytes < 8 || at > buffer->bytes - 8 ||
        reinterpret_cast<uintptr_t>(buffer->data + at) % 8 != 0)
      return fail(Code::kInvalid, "the guard is not in the buffer it guards");
    *guard = buffer->data + at;
    if (!guard_holds(*guard, d.guard_value))
      return fail(Code::kStale, "the bytes at %llu have another owner now",
                  static_cast<unsigned long long>(d.offset));
  }
  return buffer;
}

// The reply leaves with the payload, and with the next read's if that request is here already. The
// trailer of guarded bytes follows once they have left: it says whether the guard still held.
Result<> Server::read(Connection& c, const Header& header, const Descriptor& d) {
  Stream& stream = c.stream;
  std::byte* first = nullptr;
  const std::byte* guard = nullptr;
  const auto buffer = admit(d, false, &first, &guard);
  if (!buffer || (*buffer)->backend != nullptr) {
    MC_TRY_(send_answers(c));
    if (!buffer) return reply(stream, header.id, fail(buffer.error()));
    return read_backed(stream, header, d, *buffer);
  }
  Trailer trailer;
  const auto judge = [&] {
    if (guard != nullptr && !guard_holds(guard, d.guard_value))
      trailer.code = static_cast<uint64_t>(Code::kStale);
  };
  RowWalk rows(first, d.bytes, d.rows, d.stride);
  const uint64_t in_row = std::min<uint64_t>(d.rows, RowWalk::kParts);
  if (!c.answers.room_for(in_row)) MC_TRY_(send_answers(c));
  c.answers.add(make_header(Kind::kReply, header.id, nullptr, 0));
  std::byte copy[kCopied];
  if (guard != nullptr && d.bytes * d.rows <= kCopied) {  // the whole answer in one call
    iovec whole{copy, 0};
    const TsanIgnoreScope order;
    for (auto parts = rows.next(); !parts.empty(); parts = rows.next())
      for (const iovec& part : parts) {
        std::memcpy(copy + whole.iov_len, part.iov_base, part.iov_len);
        whole.iov_len += part.iov_len;
      }
    judge();
    c.answers.add({&whole, 1}, *buffer);
    c.answers.add(trailer);
    return send_answers(c);
  }
  for (auto parts = rows.next(); !parts.empty(); parts = rows.next()) {
    c.answers.add(parts, *buffer);
    if (guard != nullptr || !rows.done()) MC_TRY_(send_answers(c));
  }
  judge();
  c.answers.add(trailer);
  bool more = stream.ahead() >= sizeof(Frame);
  if (more && (header.flags & kMore) == 0) {  // nothing but a trailer, and that of a read behind it
    Header next;
    more = guard != nullptr && stream.peek(&next, sizeof next) && next.kind == Kind::kRead;
  }
  return more && c.answers.room_for(kRowsTogether) ? Result<>{} : send_answers(c);
}

Result<> Server::write(Connection& c, const Header& header, const Descriptor& d) {
  Stream& stream = c.stream;
  std::byte* first = nullptr;
  const std::byte* guard = nullptr;
  WriteRange range(c, d);
  const auto buffer = admit(d, true, &first, &guard);
  if (!buffer) {  // the payload is under way: read past it, then say why
    range.leave();
    uint64_t left = 0;
    if (__builtin_mul_overflow(d.bytes, d.rows, &left))
      return fail(Code::kCorrupt, "a write whose length overflows");
    std::vector<std::byte> scratch(std::min<uint64_t>(left, 256 * 1024));
    while (left > 0) {
      const auto n = static_cast<size_t>(std::min<uint64_t>(left, scratch.size()));
      MC_TRY_(stream.receive(scratch.data(), n, unless_stopping()));
      left -= n;
    }
    return answer(c, header, fail(buffer.error()));
  }
  if ((*buffer)->backend != nullptr) {
    MC_TRY_(send_answers(c));
    return write_backed(stream, header, d, *buffer);
  }
  const auto give_up = unless_withdrawn(*buffer);
  RowWalk rows(first, d.bytes, d.rows, d.stride);
  {
    const TsanIgnoreScope order;
    for (auto parts = rows.next(); !parts.empty(); parts = rows.next()) {
      c.has_next = rows.done() && (header.flags & kMore) != 0;
      if (c.has_next) parts = rows.with(parts, {&c.next, sizeof c.next});
      MC_TRY_(stream.receive(parts, give_up));
    }
  }
  if (guard != nullptr && !guard_holds(guard, d.guard_value))
    return answer(c, header, fail(Code::kStale, "the bytes changed owner meanwhile"));
  return answer(c, header, {});
}

Result<> Server::raise(const Descriptor& d) {
  std::byte* first = nullptr;
  const std::byte* guard = nullptr;
  Descriptor word = d;
  word.offset = d.guard_offset;
  word.bytes = 8;
  word.rows = 1;
  word.guard_offset = Guard::kNone;
  MC_TRY(const BufferPtr buffer, admit(word, true, &first, &guard));
  if (buffer->backend != nullptr)
    return fail(Code::kInvalid, "%s has no guard words", buffer->location.c_str());
  if (reinterpret_cast<uintptr_t>(first) % 8 != 0)
    return fail(Code::kInvalid, "the guard is not 8-byte aligned in memory");
  if (!raise_guard_word(first, d.guard_value))
    return fail(Code::kStale, "the guard at %llu is newer already",
                static_cast<unsigned long long>(d.guard_offset));
  return {};
}

}  // namespace mc::xfer::tcp
