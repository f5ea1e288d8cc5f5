#include "http/connections.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "http/answer_reader.h"
#include "http/cross_origin.h"
#include "http/head_text.h"
#include "http/pace.h"
#include "http/parser.h"
#include "io/address.h"

namespace mc::http {
namespace {
constexpr uint32_t kRefusalsMax = 64;         // connections above the limit that still get a 503
constexpr size_t kPipelinedMax = 256 * 1024;  // bytes read ahead while a request is answered
constexpr size_t kUnreadMax = 256 * 1024;     // bytes of answers not taken: no further request then
constexpr int kUnsentMax = 128 * 1024;        // bytes that a socket takes beyond what is on its way
constexpr std::string_view kAlways = "/live";  // answered even when all slots are taken
constexpr int kPaceLooks = 20;                 // in each window of an answer's rate

event* event_of(const EventThread& thread, event_callback_fn call, void* self, short kind = 0) {
  event* const made = event_new(thread.base(), -1, kind, call, self);
  MC_CHECK(made != nullptr);
  return made;
}

ConnectionSlots::Limits limits_of(const ServerOptions& o) {
  const uint32_t eighths = o.connections_max - o.connections_max / 8;
  const uint32_t all = std::max(1u, o.unfinished_max > 0 ? o.unfinished_max : eighths);
  const uint32_t one =
      o.unfinished_per_address_max > 0 ? o.unfinished_per_address_max : all - all / 4;
  return {.unfinished = all, .unfinished_per_address = std::max(1u, one)};
}

Lingering::Limits lingering_of(const ServerOptions& o) {
  return {.pause = o.rest_pause,
          .time = o.rest_time,
          .bytes = o.rest_max.n,
          .connections = o.lingering_max};
}

size_t unparsed(bufferevent* bev) { return evbuffer_get_length(bufferevent_get_input(bev)); }

// What may still come of a request with that head.
uint64_t rest_of_body(const Head& head, uint64_t came) {
  if (head.headers.contains("transfer-encoding")) return Lingering::kUnknown;
  return head.content_length.value_or(0) - came;
}

}  // namespace

struct Connections::Conn final : Parser::Events {
  enum class State { kReading, kAnswering, kRefusing, kLingering };
  Connections& owner;
  bufferevent* bev;
  event* timer;
  Parser parser;
  State state = State::kReading;
  std::string peer, body;
  ConnectionSlots::Slot slot{};
  BodyPace pace;
  std::shared_ptr<Flow> flow;           // of the answer being written
  uint64_t exchange = 0;                // being answered; 0: none
  std::string out;                      // sent by the loop, not yet written
  bool flushing = false;                // it is in unsent_
  bool ended = false;                   // `out` completes its answer
  size_t unflushed = 0;                 // answers ended, bytes still in the buffer
  bool refuse_all = false;              // above the limit of connections
  bool in_body = false, heard = false;  // the head of the request is complete; it was read from
  bool close_after = false;
  AnswerReader client;
  struct {                // of the body, in bytes
    size_t held = 0;      // so far
    uint64_t length = 0;  // as its head says; 0: it does not
  } incoming;
  Lingering::Rest rest;  // what was not read when the last answer was written
  struct Refusal {
    int status = 0;  // 0: it is not refused
    std::string why;
    Headers cross_origin;  // what a page of another site needs to read it
  };
  Refusal refusal;  // of the request that is read, by on_head or on_body

  Conn(Connections& o, int fd, const std::string& from)
      : owner(o),
        bev(bufferevent_socket_new(o.thread_.base(), fd, BEV_OPT_CLOSE_ON_FREE)),
        timer(event_new(o.thread_.base(), -1, 0, on_timer, this)),
        parser(Parser::Role::kRequest, o.options_.header_max, *this),
        peer(from),
        pace(static_cast<uint64_t>(o.options_.body_rate_min)),
        client(AnswerPace(o.options_.answer_rate_min.n, o.options_.answer_rate_time)) {
    slot.connection = rest.connection = this;
    owner.slots_.opened(slot, peer.substr(0, peer.rfind(':')));
    MC_CHECK(bev != nullptr && timer != nullptr);
    bufferevent_setcb(bev, on_read, on_written, on_event, this);
    bufferevent_setwatermark(bev, EV_READ, 0, kPipelinedMax);
    bufferevent_set_max_single_read(bev, kPipelinedMax);
    const timeval write_timeout = to_timeval(o.options_.idle_timeout / AnswerReader::kLooks);
    bufferevent_set_timeouts(bev, nullptr, &write_timeout);
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, this);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    wait(o.options_.idle_timeout);
  }
  ~Conn() override {
    release();
    owner.lingering_.ended(rest);
    owner.totals->untaken -= buffered();
    owner.totals->unwritten -= out.size();
    owner.slots_.closed(slot);
    event_free(timer);
    bufferevent_free(bev);
  }
  Conn(const Conn&) = delete;
  Conn& operator=(const Conn&) = delete;

  void wait(Duration limit) {
    const timeval tv = to_timeval(limit);
    event_add(timer, &tv);
    client.took = false;
  }
  void write(std::string_view bytes) { bufferevent_write(bev, bytes.data(), bytes.size()); }
  size_t buffered() const { return evbuffer_get_length(bufferevent_get_output(bev)); }
  size_t output() const { return buffered() + out.size(); }

  void release() {
    owner.totals->bodies -= std::exchange(incoming.held, 0);
    if (flow) flow->release();
  }
  bool stop(int code, std::string reason) {
    refusal.status = code;
    refusal.why = std::move(reason);
    return false;
  }
  bool on_head(const Head& head) override {
    refusal.cross_origin = cross_origin_headers(head.headers, owner.options_.origins);
    if (refuse_all && head.target != kAlways) return stop(503, "too many connections");
    if (auto web = peer == kLocalPeer ? std::nullopt : check_web(head, owner.rules_)) {
      (void)stop(web->status, std::move(web->why));
      // That what frames a body is no HTTP is worse than that the body is no JSON.
      if (refusal.status != 415 || !head.headers.contains("transfer-encoding")) return false;
    }
    if (head.content_length.value_or(0) > owner.options_.body_max)
      return stop(413, "the body is larger than this server accepts");
    incoming.length = head.content_length.value_or(0);
    in_body = true;
    pace.begin(owner.thread_.now());
    wait(owner.options_.idle_timeout);
    const auto expect = head.headers.find("expect");
    if (!head.http10 && expect != head.headers.end() &&
        strcasecmp(expect->second.c_str(), "100-continue") == 0)
      write("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }
  bool on_chunk(uint64_t size) override {
    if (size > owner.options_.body_max.n - body.size())  // without overflow
      return stop(413, "the body is larger than this server accepts");
    return true;
  }
  bool on_body(std::string_view piece) override {
    if (body.size() + piece.size() > owner.options_.body_max)
      return stop(413, "the body is larger than this server accepts");
    if (owner.totals->bodies + piece.size() > owner.options_.bodies_max)
      return stop(503, "this server holds too many large requests already");
    owner.totals->bodies += piece.size();
    incoming.held += piece.size();
    pace.arrived(piece.size());
    // Memory for all of it in few steps, but no more than eight times what came.
    if (const uint64_t size = body.size() + piece.size(); size > body.capacity())
      body.reserve(std::max<uint64_t>(size, std::min<uint64_t>(incoming.length, 8 * size)));
    body.append(piece);
    return true;
  }

  static Conn& of(void* self) { return *static_cast<Conn*>(self); }
  static void on_read(bufferevent*, void* self) { of(self).owner.pump(of(self)); }
  static void on_written(bufferevent*, void* self) {
    Conn& c = of(self);
    if (c.output() == 0 && c.owner.flushed(c)) c.owner.pump(c);  // requests that were left
  }
  static void on_event(bufferevent*, short what, void* self) {
    Conn& c = of(self);
    if ((what & BEV_EVENT_TIMEOUT) != 0 && !c.client.stands_still(bufferevent_getfd(c.bev))) {
      bufferevent_enable(c.bev, EV_WRITE);
      return;
    }
    c.client.ended = true;
    // A client may end its sending side and still read answers to earlier requests.
    if ((what & BEV_EVENT_EOF) != 0 && c.exchange == 0 && c.output() > 0) {
      c.close_after = c.close_after || unparsed(c.bev) == 0;
      return;
    }
    // Nothing but a write tells whether it still reads: what is answered soon reaches it.
    if ((what & BEV_EVENT_EOF) != 0 && c.exchange != 0) {
      c.close_after = c.close_after || unparsed(c.bev) == 0;
      return c.wait(c.owner.options_.half_closed_time);
    }
    c.owner.drop(c);  // end, error, or a client that reads nothing: it is gone
  }
  static void on_timer(int, short, void* self) {
    Conn& c = of(self);
    if (c.state == State::kAnswering && c.exchange == 0) return;  // it is written
    // It takes bytes yet, or the time limit of writes ends it.
    if (c.state == State::kAnswering && (c.output() > 0 || c.client.took))
      return c.wait(c.owner.options_.half_closed_time);
    const bool reading = c.state == State::kReading && c.parser.started();
    // Its answers are not taken yet: the time limit of writes ends it, if it takes nothing.
    if (!reading && c.state != State::kAnswering && c.output() > 0)
      return c.wait(c.owner.options_.idle_timeout);
    if (reading && c.in_body && c.pace.keeps(c.owner.thread_.now()))
      c.wait(c.owner.options_.idle_timeout);
    else if (reading)
      c.owner.refuse(c, 408, "the request did not arrive in time", Lingering::kUnknown);
    else
      c.owner.drop(c);
  }
  // Bytes of a new connection wait in its socket.
  bool unread() const { return !heard && bytes_wait(bufferevent_getfd(bev)); }
  // Closes who takes answers too slowly.
  static void on_pace(int, short, void* self) {
    Connections& all = *static_cast<Connections*>(self);
    const Time now = all.thread_.now();
    std::vector<Conn*> slow;
    for (auto& [conn, owned] : all.conns_)
      if (conn->buffered() > 0 && !conn->client.keeps(bufferevent_getfd(conn->bev), now))
        slow.push_back(conn);
    for (Conn* const conn : slow) {
      log_warn("http", "%s is closed: it took less than %s a second of its answers for %s",
               conn->peer.c_str(), bytes_text(all.options_.answer_rate_min.n).c_str(),
               to_text(all.options_.answer_rate_time).c_str());
      all.drop(*conn);
    }
  }
  static void on_output(evbuffer* buffer, const evbuffer_cb_info* change, void* self) {
    of(self).owner.totals->untaken += change->n_added - change->n_deleted;
    if (change->n_deleted > 0) of(self).client.wrote(change->n_deleted);
    if (evbuffer_get_length(buffer) == 0) of(self).client.pace.caught_up();
    if (!of(self).flow) return;
    of(self).flow->buffered = evbuffer_get_length(buffer) + of(self).out.size();
    of(self).owner.look_taken(of(self));
  }
};

Connections::~Connections() {
  conns_.clear();
  event_free(events_.flush);
  event_free(events_.pace);
}
Connections::Connections(EventThread& thread, const ServerOptions& options, Callbacks callbacks)
    : thread_(thread),
      options_(options),
      callbacks_(std::move(callbacks)),
      listeners_(thread, [this](int fd, const std::string& peer) { accept(fd, peer); }),
      slots_(limits_of(options)),
      lingering_(lingering_of(options)),
      events_{event_of(thread, on_flush, this), event_of(thread, Conn::on_pace, this, EV_PERSIST)} {
  const timeval look = to_timeval(options_.answer_rate_time / kPaceLooks);
  event_add(events_.pace, &look);
}

Result<uint16_t> Connections::listen(const std::string& host, uint16_t port) {
  rules_ = {.loopback = io::is_loopback(host),
            .names = options_.names,
            .origins = options_.origins,
            .json_only = options_.json_only,
            .forms = options_.forms};
  if (rules_.loopback) rules_.names.push_back(host);
  return listeners_.listen(host, port);
}

Result<> Connections::listen_at(const std::string& path) { return listeners_.listen_at(path); }

// All slots are taken: closes a connection that asks for nothing. The slots above the limit are for
// refusals; when they are taken too, their oldest gives way. False: there is no slot.
bool Connections::make_room() {
  const bool full = conns_.size() >= size_t{options_.connections_max} + kRefusalsMax;
  const auto* const slot = slots_.oldest([full](const ConnectionSlots::Slot& s) {
    const Conn& conn = Conn::of(s.connection);
    return (conn.refuse_all && !full) || conn.unread();
  });
  if (slot != nullptr) drop(Conn::of(slot->connection));
  return slot != nullptr || !full;
}

// The connection has a request that is not complete: the oldest such gives way above the limits.
void Connections::hold(Conn& conn) {
  slots_.unfinished(conn.slot);
  const auto* const slot = slots_.over_limit(
      conn.slot, [](const ConnectionSlots::Slot& s) { return Conn::of(s.connection).unread(); });
  if (slot != nullptr) drop(Conn::of(slot->connection));
}

void Connections::accept(int fd, const std::string& peer) {
  if (conns_.size() >= options_.connections_max && !make_room()) {
    evutil_closesocket(fd);
    return;
  }
  const int on = 1;
  if (peer != kLocalPeer) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentMax, sizeof kUnsentMax);
  }
  auto conn = std::make_unique<Conn>(*this, fd, peer);
  conn->refuse_all = conns_.size() >= options_.connections_max;
  Conn* key = conn.get();
  conns_.emplace(key, std::move(conn));
  hold(*key);
}

void Connections::pump(Conn& conn) {
  evbuffer* input = bufferevent_get_input(conn.bev);
  conn.heard = true;
  if (conn.state == Conn::State::kLingering) return drop_rest(conn);
  while (conn.state == Conn::State::kReading && evbuffer_get_length(input) > 0) {
    // Who does not read the answers has no more of them.
    if (!conn.parser.started() && conn.output() > kUnreadMax) return;
    evbuffer_iovec piece;
    if (evbuffer_peek(input, -1, nullptr, &piece, 1) < 1) return;
    size_t consumed = 0;
    const auto outcome =
        conn.parser.feed({static_cast<const char*>(piece.iov_base), piece.iov_len}, consumed);
    evbuffer_drain(input, consumed);
    switch (outcome) {
      case Parser::Outcome::kMore:
        if (conn.parser.started()) hold(conn);
        break;
      case Parser::Outcome::kComplete: complete(conn); break;
      case Parser::Outcome::kStopped:
        refuse(conn, conn.refusal.status, conn.refusal.why,
               rest_of_body(conn.parser.head(), conn.body.size()));
        break;
      case Parser::Outcome::kHeaderTooLarge:
        refuse(conn, 431, "the header is larger than this server accepts", Lingering::kUnknown);
        break;
      case Parser::Outcome::kBad:
        refuse(conn, 400, strf("not an HTTP/1.1 request: %s", conn.parser.what()),
               Lingering::kUnknown);
        break;
    }
  }
  // No more comes of a request that has begun, and no other.
  if (!conn.client.ended || conn.state != Conn::State::kReading) return;
  conn.close_after = true;
  if (conn.output() == 0) drop(conn);
}

void Connections::complete(Conn& conn) {
  if (conn.refusal.status != 0) return refuse(conn, conn.refusal.status, conn.refusal.why, 0);
  const Head& head = conn.parser.head();
  if (waiting.load() >= options_.queue_max && head.target != kAlways)
    return refuse(conn, 503, "too many requests are waiting", 0);
  Arrival a;
  a.exchange = next_exchange_++;
  a.http10 = head.http10;
  a.keep_alive = head.keep_alive && !stopping_ && !conn.refuse_all;
  a.request.method = head.method;
  const size_t mark = head.target.find('?');
  a.request.target = head.target;
  a.request.path = decoded_path(head.target.substr(0, mark));
  if (mark != std::string::npos) a.request.query = decoded_query(head.target.substr(mark + 1));
  a.request.headers = head.headers;
  a.request.body = std::exchange(conn.body, {});
  a.request.peer = conn.peer;
  a.request.local = conn.peer == kLocalPeer;
  a.request.received = thread_.now();
  a.flow = conn.flow = std::make_shared<Flow>(totals);
  conn.flow->held = std::exchange(conn.incoming.held, 0);
  conn.state = Conn::State::kAnswering;
  conn.in_body = false;
  conn.refusal.cross_origin.clear();
  slots_.busy(conn.slot);
  conn.exchange = a.exchange;
  const bool last = conn.client.ended && unparsed(conn.bev) == 0;
  conn.close_after = !a.keep_alive || last;
  if (conn.client.ended)
    conn.wait(options_.half_closed_time);
  else
    event_del(conn.timer);
  exchanges_.emplace(a.exchange, &conn);
  ++open_;
  ++waiting;
  callbacks_.arrived(std::move(a));
}

void Connections::refuse(Conn& conn, int status, const std::string& why, uint64_t rest) {
  const Page page = options_.refusal ? options_.refusal(status, why, conn.parser.head().target)
                                     : Page{"text/plain", why + "\n"};
  const size_t length = page.body.size();
  Headers extra = std::move(conn.refusal.cross_origin);
  if (status == 503) extra.push_back({"Retry-After", "1"});
  conn.write(answer_head(status, page.content_type, extra, &length, false, false) + page.body);
  conn.rest.most = rest;
  std::string().swap(conn.body);
  conn.release();
  conn.state = Conn::State::kRefusing;
  conn.close_after = true;
  conn.wait(options_.idle_timeout);
}

void Connections::send(uint64_t exchange, std::string bytes, bool last, bool keep_alive) {
  const auto it = exchanges_.find(exchange);
  const size_t size = bytes.size();
  if (it == exchanges_.end()) {
    totals->unwritten -= size;
    return;
  }
  Conn& conn = *it->second;
  if (conn.out.empty())
    conn.out = std::move(bytes);
  else
    conn.out += bytes;
  conn.flow->buffered = conn.output();
  conn.flow->queued -= size;
  if (!std::exchange(conn.flushing, true)) {
    if (unsent_.empty()) event_active(events_.flush, 0, 0);
    unsent_.push_back(&conn);
  }
  if (!last) return;
  conn.close_after = conn.close_after || !keep_alive;
  exchanges_.erase(it);
  conn.exchange = 0;
  conn.release();
  ++conn.unflushed;
  conn.ended = true;
}

void Connections::on_flush(int, short, void* self) {
  Connections& c = *static_cast<Connections*>(self);
  for (size_t i = 0; i < c.unsent_.size(); ++i) {
    if (c.unsent_[i] != nullptr) c.flush(*c.unsent_[i]);
    while (c.totals->untaken > c.options_.answers_max.n && !c.conns_.empty()) c.drop_slowest();
  }
  c.unsent_.clear();
}

// The client that has left most unread.
void Connections::drop_slowest() {
  const auto most = std::max_element(
      conns_.begin(), conns_.end(),
      [](const auto& a, const auto& b) { return a.first->buffered() < b.first->buffered(); });
  log_warn("http", "%s is closed: its clients leave %s of answers unread, this one %s",
           most->first->peer.c_str(), rounded_bytes_text(totals->untaken).c_str(),
           rounded_bytes_text(most->first->buffered()).c_str());
  drop(*most->first);
}

// Writes to the socket directly. The buffer gets the rest, and waits until the socket is writable.
void Connections::flush(Conn& conn) {
  conn.flushing = false;
  std::string_view rest = conn.out;
  if (conn.buffered() == 0 && !rest.empty()) {
    const auto n =
        ::send(bufferevent_getfd(conn.bev), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {  // else the buffer reports the error again
      conn.client.wrote(static_cast<size_t>(n));
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }
  const std::string taken = std::exchange(conn.out, {});
  if (!rest.empty()) conn.write(std::string_view(taken).substr(taken.size() - rest.size()));
  totals->unwritten -= taken.size();
  conn.flow->buffered = conn.output();
  if (!std::exchange(conn.ended, false)) return look_taken(conn);
  if (!conn.close_after) {
    conn.state = Conn::State::kReading;
    conn.wait(options_.idle_timeout);  // to the end of the next head, whatever comes before it
  }
  if (conn.output() > 0 || flushed(conn)) pump(conn);  // parses pipelined requests
}

void Connections::await_taken(uint64_t exchange) {
  if (const auto it = exchanges_.find(exchange); it != exchanges_.end()) look_taken(*it->second);
}

// Every way that bytes leave the buffers by ends here.
void Connections::look_taken(const Conn& conn) {
  if (conn.exchange == 0) return;
  Flow& flow = *conn.flow;
  if (flow.queued + flow.buffered >= flow.awaited) return;
  flow.awaited = 0;
  callbacks_.taken(conn.exchange);
}

void Connections::abort(uint64_t exchange) {
  const auto it = exchanges_.find(exchange);
  if (it == exchanges_.end()) return;
  if (it->second->flushing) flush(*it->second);  // earlier writes first
  drop(*it->second);
}

// False: it closed the connection, or began to.
bool Connections::flushed(Conn& conn) {
  if (conn.flushing) return true;  // another flush follows
  open_ -= std::exchange(conn.unflushed, 0);
  const bool ended = conn.exchange == 0 && conn.state != Conn::State::kLingering;
  const bool idle = conn.state == Conn::State::kReading && !conn.parser.started();
  if (ended && conn.close_after) {
    linger(conn);
    return false;
  }
  if (stopping_ && idle) {
    drop(conn);
    return false;
  }
  if (idle) {
    slots_.idle(conn.slot);
    conn.wait(options_.idle_timeout);  // to the end of the next head, from when all was taken
  }
  return true;
}

void Connections::linger(Conn& conn) {
  if (conn.client.ended ||
      !Lingering::is_due(conn.rest, bufferevent_getfd(conn.bev), unparsed(conn.bev)))
    return drop(conn);
  conn.state = Conn::State::kLingering;
  const auto* const oldest =
      lingering_.begin(conn.rest, bufferevent_getfd(conn.bev), thread_.now());
  if (oldest != nullptr) drop(Conn::of(oldest->connection));
  slots_.unfinished(conn.slot);
  drop_rest(conn);
}

void Connections::drop_rest(Conn& conn) {
  const size_t bytes = unparsed(conn.bev);
  evbuffer_drain(bufferevent_get_input(conn.bev), bytes);
  const auto wait =
      lingering_.dropped(conn.rest, bufferevent_getfd(conn.bev), bytes, thread_.now());
  if (!wait) return drop(conn);
  conn.wait(*wait);
}

void Connections::drop(Conn& conn) {
  open_ -= conn.unflushed;
  std::replace(unsent_.begin(), unsent_.end(), &conn, static_cast<Conn*>(nullptr));
  if (conn.exchange != 0) {
    exchanges_.erase(conn.exchange);
    --open_;
    callbacks_.gone(conn.exchange);
  }
  conns_.erase(&conn);
}

void Connections::stop_accepting() {
  stopping_ = true;
  listeners_.close();
  std::vector<Conn*> idle;
  for (auto& [conn, owned] : conns_) {
    if (conn->state != Conn::State::kReading) conn->close_after = true;
    if (conn->state == Conn::State::kReading && !conn->parser.started() && conn->output() == 0)
      idle.push_back(conn);
  }
  for (Conn* conn : idle) drop(*conn);
}

}  // namespace mc::http
