#include "http/pool.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "http/parser.h"
#include "io/address.h"

namespace mc::http {
namespace {
constexpr size_t kHeaderMax = 64 * 1024;
constexpr size_t kReadMax = 256 * 1024;
constexpr uint32_t kInterimMax = 64;  // heads of 1xx before an answer
constexpr Duration kKnownFor = std::chrono::minutes(1), kDoubtedFor = std::chrono::seconds(1);
constexpr Duration kPatience = std::chrono::seconds(3);  // of who waits for another address

// Without a copy.
void write_shared(evbuffer* to, const std::shared_ptr<const std::string>& bytes) {
  using Held = std::shared_ptr<const std::string>;
  const auto drop = [](const void*, size_t, void* held) { delete static_cast<Held*>(held); };
  auto held = std::make_unique<Held>(bytes);
  MC_CHECK(evbuffer_add_reference(to, bytes->data(), bytes->size(), drop, held.get()) == 0);
  [[maybe_unused]] const auto* const taken = held.release();
}
std::optional<size_t> index_of(const SocketAddresses& all, const SocketAddress& one) {
  const auto found = std::find(all.begin(), all.end(), one);
  if (found == all.end()) return std::nullopt;
  return static_cast<size_t>(found - all.begin());
}
}  // namespace

struct Pool::Host {
  Pool& pool;
  event* relook;  // of `before`
  io::Address address;
  std::string text;  // "host:port"
  bool tls = false;
  std::string ca_file;
  bool named = false;             // not by a number
  SocketAddresses found, before;  // its addresses, and those of the answer before; empty: unknown
  bool looking = false;           // it is being looked up
  Time looked{};                  // when it was
  Duration known_for = kKnownFor;
  size_t preferred = 0;  // index of the last that answered
  uint32_t open = 0;
  std::vector<Conn*> idle;  // most recently used first
  std::deque<uint64_t> waiting;
  bool placing = false;                            // next() or moved() is running
  std::vector<std::pair<uint64_t, Error>> lost{};  // found no server, while it is being looked up

  explicit Host(Pool& p) : pool(p), relook(event_new(p.thread_.base(), -1, 0, on_relook, this)) {
    MC_CHECK(relook != nullptr);
  }
  ~Host() { event_free(relook); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  static void on_relook(int, short, void* self) {
    Host& host = *static_cast<Host*>(self);
    host.pool.look_up(host);
  }
};

struct Pool::Job {
  Pool& pool;
  const uint64_t id;
  ClientRequest request;
  std::shared_ptr<const std::string> body;  // of the request, until its answer begins
  const bool stream;
  const Time deadline;
  event* timer;
  std::string path;
  Host* host = nullptr;
  Conn* conn = nullptr;
  size_t attempts = 0;  // addresses tried, plus one retry after a stale connection
  bool retried = false, relooked = false;
  struct {  // why its connection is not read
    bool held = false, one = false, all = false;
  } paused;
  std::shared_ptr<Undelivered> undelivered = std::make_shared<Undelivered>();
  ClientResponse response;

  Job(Pool& p, uint64_t i, ClientRequest r, bool s, Time until)
      : pool(p),
        id(i),
        request(std::move(r)),
        body(std::make_shared<const std::string>(std::move(request.body))),
        stream(s),
        deadline(until),
        timer(event_new(p.thread_.base(), -1, 0, on_timeout, this)) {
    MC_CHECK(timer != nullptr);
    end_within(Duration::max());
  }
  ~Job() { event_free(timer); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  static void on_timeout(int, short, void* self) {
    Job& job = *static_cast<Job*>(self);
    job.pool.late(job);
  }
  void end_within(Duration most) {  // or at its deadline, if that is sooner
    const Duration left = std::min(deadline - pool.thread_.now(), most);
    const timeval tv = to_timeval(std::max(left, Duration(0)));
    event_add(timer, &tv);
  }
  std::string head() const {
    std::string text = header_safe(request.method) + " " + path +
                       " HTTP/1.1\r\nHost: " + host->text + "\r\nUser-Agent: mc/" MC_VERSION "\r\n";
    for (const auto& [name, value] : request.headers)
      text += header_safe(name) + ": " + header_safe(value) + "\r\n";
    if (!body->empty() || request.method == "POST" || request.method == "PUT")
      text += strf("Content-Length: %zu\r\n", body->size());
    return text + "\r\n";
  }
};

struct Pool::Conn final : Parser::Events {
  Pool& pool;
  Host& host;
  bufferevent* bev;
  Parser parser;
  Job* job = nullptr;
  bool connected = false, used = false;  // used: has answered before
  bool heard = false;                    // bytes of the current answer arrived
  bool interim = false;                  // the last head was a 1xx
  uint32_t interims = 0;                 // such heads of the current answer
  const SocketAddress address;
  std::string pending;  // bytes of the body, not yet passed on
  Time at;              // when the bytes being parsed were read

  bool cut = false;  // TLS: the end was not the server's word

  // Takes the bufferevent.
  Conn(Pool& p, Host& h, bufferevent* made)
      : pool(p),
        host(h),
        bev(made),
        parser(Parser::Role::kResponse, kHeaderMax, *this),
        address(h.found[h.preferred]) {
    MC_CHECK(bev != nullptr);
    bufferevent_setcb(bev, on_read, nullptr, on_event, this);
    bufferevent_set_max_single_read(bev, kReadMax);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
  }
  ~Conn() override { bufferevent_free(bev); }
  Conn(const Conn&) = delete;
  Conn& operator=(const Conn&) = delete;

  bool on_head(const Head& head) override {
    interim = head.status / 100 == 1;
    if (interim) return ++interims <= kInterimMax;
    job->response.status = head.status;
    job->response.headers = head.headers;
    pool.callbacks_.head(job->id, head.status, head.headers, at);
    return true;
  }
  bool on_body(std::string_view piece) override {
    std::string& body = job->stream ? pending : job->response.body;
    if (!job->stream && body.size() + piece.size() > job->request.answer_max.n) return false;
    body.append(piece);
    return true;
  }
  void pass_on() {
    if (pending.empty()) return;
    pool.undelivered.bytes += pending.size();
    job->undelivered->bytes += pending.size();
    pool.callbacks_.chunk(job->id, job->undelivered, std::exchange(pending, {}), at);
  }
  static Conn& of(void* self) { return *static_cast<Conn*>(self); }
  static void on_read(bufferevent*, void* self) { of(self).pool.read(of(self)); }
  static void on_event(bufferevent*, short what, void* self) {
    Conn& c = of(self);
    if ((what & BEV_EVENT_CONNECTED) != 0) {
      c.connected = true;
      if (const auto at = index_of(c.host.found, c.address)) c.host.preferred = *at;
      return;
    }
    const bool closed = (what & BEV_EVENT_EOF) != 0;
    c.cut = c.host.tls && !closed;
    c.pool.ended(c, closed       ? "the server closed the connection"
                    : c.host.tls ? c.pool.tls_->why(c.bev)
                                 : std::strerror(EVUTIL_SOCKET_ERROR()));
  }
};

Pool::Pool(EventThread& thread, uint32_t connections_per_host_max, Callbacks callbacks,
           std::unique_ptr<ClientTls> tls, LookUp look_up)
    : thread_(thread),
      per_host_max_(std::max(1u, connections_per_host_max)),
      callbacks_(std::move(callbacks)),
      tls_(std::move(tls)),
      names_(thread.inbox(), std::move(look_up)) {}
Pool::~Pool() = default;

// The path and the query go to the server as they are: what they may have in them is its to say.
Result<Pool::Host*> Pool::host_of(Job& job) {
  const std::string& url = job.request.url;
  const size_t path_at = std::min(url.find_first_of("/?#", url.find("//") + 2), url.size());
  const std::string server = url.substr(0, path_at);
  const std::unique_ptr<evhttp_uri, decltype(&evhttp_uri_free)> uri(
      evhttp_uri_parse(server.c_str()), evhttp_uri_free);
  const char* scheme = uri ? evhttp_uri_get_scheme(uri.get()) : nullptr;
  const char* name = uri ? evhttp_uri_get_host(uri.get()) : nullptr;
  const bool tls = scheme && std::strcmp(scheme, "https") == 0;
  if (!scheme || (!tls && std::strcmp(scheme, "http") != 0) || !name || *name == '\0')
    return fail(Code::kInvalid, "url '%s': give http://host:port/path", escape(url).c_str());
  if (tls && !tls_)
    return fail(Code::kInvalid, "url '%s': https is not spoken here: give http://host:port/path",
                escape(url).c_str());
  const int port = evhttp_uri_get_port(uri.get());
  io::Address address{name, static_cast<uint16_t>(port >= 0 ? port : tls ? 443 : 80)};
  if (address.host.size() > 2 && address.host.front() == '[')
    address.host = address.host.substr(1, address.host.size() - 2);
  job.path = url.substr(path_at, url.find('#', path_at) - path_at);
  if (!job.path.starts_with('/')) job.path.insert(0, "/");
  const auto breaks = [](char c) { return (c >= 0 && c <= ' ') || c == 0x7f; };
  if (std::any_of(job.path.begin(), job.path.end(), breaks))
    return fail(Code::kInvalid,
                "url '%s': write spaces and control characters as %%20 and the like",
                escape(url).c_str());
  auto& host = hosts_[address.text() + (tls ? "\n" + job.request.ca_file : "")];
  if (!host) {
    host = std::make_unique<Host>(*this);
    host->address = address;
    host->text = address.text();
    host->tls = tls;
    host->ca_file = job.request.ca_file;
    host->found = look_up_number(address);
    host->named = host->found.empty();
  }
  return host.get();
}

void Pool::look_up_again(Host& host) {
  const bool known = !host.found.empty() && thread_.now() - host.looked < host.known_for;
  if (host.named && !known) look_up(host);
}

void Pool::look_up(Host& host) {
  if (std::exchange(host.looking, true)) return;
  names_.begin(host.address,
               [this, &host](Result<SocketAddresses> found) { looked_up(host, std::move(found)); });
}

// A failure changes nothing of what is known.
void Pool::looked_up(Host& host, Result<SocketAddresses> found) {
  host.looking = false;
  host.looked = thread_.now();
  host.known_for = kKnownFor;
  if (!found && host.found.empty()) {
    for (const uint64_t id : std::exchange(host.waiting, {}))
      if (const auto job = jobs_.find(id); job != jobs_.end()) failed(*job->second, found.error());
    return;
  }
  const bool others = found && !std::is_permutation(found->begin(), found->end(),
                                                    host.found.begin(), host.found.end());
  if (found) host.before = host.found;
  if (others) {
    host.found = std::move(*found);
    host.preferred = 0;
  }
  moved(host, others);
  give_up(host);
  next(host);
}

// Connections may lead to what it was before. Nothing was sent on those that are not made yet:
// their requests go elsewhere, before those that wait for a connection. A name server may give some
// of many addresses, others each time: so only once two answers lack theirs.
void Pool::moved(Host& host, bool others) {
  host.placing = true;  // not before all have their place
  std::vector<Conn*> gone;
  bool going = false;
  for (const auto& [conn, owned] : conns_) {
    const bool unmade = conn->job != nullptr && !conn->connected;
    if (&conn->host != &host || (conn->job != nullptr && !unmade)) continue;
    if (index_of(host.found, conn->address)) continue;
    const bool once = unmade && index_of(host.before, conn->address).has_value();
    going = going || once;
    if (!once) gone.push_back(conn);
  }
  std::vector<uint64_t> again;
  if (others)
    for (const auto& [id, error] : std::exchange(host.lost, {})) again.push_back(id);
  for (Conn* const conn : gone) {
    if (conn->job != nullptr) {
      again.push_back(conn->job->id);
      std::exchange(conn->job, nullptr)->conn = nullptr;
    }
    drop(*conn);
  }
  for (const uint64_t id : again)
    if (const auto job = jobs_.find(id); job != jobs_.end()) {
      job->second->attempts = 0;
      job->second->end_within(Duration::max());
    }
  std::sort(again.begin(), again.end());
  host.waiting.insert(host.waiting.begin(), again.begin(), again.end());
  host.placing = false;
  const timeval soon = to_timeval(kDoubtedFor);
  if (going) event_add(host.relook, &soon);
}

// Its server is not found, but may be elsewhere soon.
void Pool::await_lookup(Job& job, Error error) {
  job.relooked = true;
  job.end_within(kPatience);
  job.host->lost.emplace_back(job.id, std::move(error));
}

void Pool::give_up(Host& host) {
  for (auto& [id, error] : std::exchange(host.lost, {}))
    if (const auto job = jobs_.find(id); job != jobs_.end()) failed(*job->second, std::move(error));
}

// Its server may be elsewhere.
void Pool::doubt(Host& host) {
  host.known_for = kDoubtedFor;
  look_up_again(host);
}

void Pool::start(uint64_t id, ClientRequest request, bool stream, Time deadline) {
  auto owned = std::make_unique<Job>(*this, id, std::move(request), stream, deadline);
  Job& job = *owned;
  jobs_.emplace(id, std::move(owned));
  auto host = host_of(job);
  if (!host) return failed(job, std::move(host).error());
  job.host = *host;
  place(job);
}

// Sends the job on an idle or a new connection, or queues it. A job that is tried again needs a new
// one: at the limit an idle one gives way.
void Pool::place(Job& job) {
  Host& host = *job.host;
  look_up_again(host);
  if (job.retried && host.open >= per_host_max_ && !host.idle.empty()) drop(*host.idle.front());
  if (!host.idle.empty() && !job.retried) {
    Conn& conn = *host.idle.back();
    host.idle.pop_back();
    return give(conn, job);
  }
  if (host.found.empty() || host.open >= per_host_max_) {
    host.waiting.push_back(job.id);
    return;
  }
  if (auto made = connect(job); !made) failed(job, std::move(made).error());
}

// An address that cannot be reached from here is as one where nobody listens.
Result<> Pool::connect(Job& job) {
  Host& host = *job.host;
  bufferevent* bev = nullptr;
  if (host.tls) {
    MC_TRY(bev, tls_->connection(thread_.base(), host.address.host, host.ca_file));
  } else {
    bev = bufferevent_socket_new(thread_.base(), -1, BEV_OPT_CLOSE_ON_FREE);
  }
  auto owned = std::make_unique<Conn>(*this, host, bev);
  Conn& conn = *owned;
  const SocketAddress& address = conn.address;
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.at);
  const int fd = ::socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int error = fd < 0 ? errno : 0;
  if (fd < 0 && error != EAFNOSUPPORT) return fail_errno("socket for %s", host.text.c_str());
  ++host.open;
  conns_.emplace(&conn, std::move(owned));
  if (fd >= 0) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bufferevent_setfd(conn.bev, fd);
    if (bufferevent_socket_connect(conn.bev, to, static_cast<int>(address.size)) != 0)
      error = errno;
  }
  if (error == 0) {
    give(conn, job);
    return {};
  }
  conn.job = &job;
  job.conn = &conn;
  ended(conn, std::strerror(error));
  return {};
}

void Pool::give(Conn& conn, Job& job) {
  conn.job = &job;
  job.conn = &conn;
  conn.heard = false;
  conn.interims = 0;
  conn.parser.expect_no_body(job.request.method == "HEAD");
  job.response.sent = thread_.now();
  const std::string head = job.head();
  bufferevent_write(conn.bev, head.data(), head.size());
  if (!job.body->empty()) write_shared(bufferevent_get_output(conn.bev), job.body);
}

void Pool::read(Conn& conn) {
  if (conn.job == nullptr) return drop(conn);  // bytes on an idle connection answer no request
  conn.at = thread_.now();
  if (!conn.heard) conn.job->response.first_byte = conn.at;
  conn.heard = true;
  conn.job->body.reset();  // it is sent nowhere else
  evbuffer* input = bufferevent_get_input(conn.bev);
  while (evbuffer_get_length(input) > 0) {
    evbuffer_iovec piece;
    if (evbuffer_peek(input, -1, nullptr, &piece, 1) < 1) break;
    size_t consumed = 0;
    const auto outcome =
        conn.parser.feed({static_cast<const char*>(piece.iov_base), piece.iov_len}, consumed);
    evbuffer_drain(input, consumed);
    if (outcome == Parser::Outcome::kMore) continue;
    if (outcome == Parser::Outcome::kComplete) {
      if (!conn.interim) return answered(conn);
      continue;
    }
    conn.pass_on();
    const std::string why = outcome == Parser::Outcome::kBad       ? conn.parser.what()
                            : outcome != Parser::Outcome::kStopped ? "its header is over 64 KiB"
                            : conn.interims > kInterimMax
                                ? strf("more than %u interim answers (1xx)", kInterimMax)
                                : "the body is over " + bytes_text(conn.job->request.answer_max.n);
    return failed(*conn.job,
                  {Code::kCorrupt, strf("answer of %s: %s", conn.host.text.c_str(), why.c_str())});
  }
  conn.pass_on();
  Job& job = *conn.job;
  job.paused.one = job.undelivered->pause_above(kUndeliveredOfOneMax);
  if (undelivered.pause_above(kUndeliveredMax) && !std::exchange(job.paused.all, true))
    unread_.push_back(job.id);
  if (job.paused.one || job.paused.all) read_or_pause(job);
}

void Pool::read_or_pause(Job& job) {
  if (job.conn == nullptr) return;
  if (job.paused.held || job.paused.one || job.paused.all)
    bufferevent_disable(job.conn->bev, EV_READ);
  else
    bufferevent_enable(job.conn->bev, EV_READ);
}

void Pool::hold(uint64_t id, bool held) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second->paused.held = held;
  read_or_pause(*job->second);
}

void Pool::resume(uint64_t id) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second->paused.one = false;
  read_or_pause(*job->second);
}

void Pool::resume() {
  for (const uint64_t id : std::exchange(unread_, {})) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    job->second->paused.all = false;
    read_or_pause(*job->second);
  }
}

void Pool::answered(Conn& conn) {
  conn.pass_on();
  Job& job = *conn.job;
  job.response.done = conn.at;
  const bool reuse = conn.parser.head().keep_alive && index_of(conn.host.found, conn.address) &&
                     evbuffer_get_length(bufferevent_get_input(conn.bev)) == 0 &&
                     evbuffer_get_length(bufferevent_get_output(conn.bev)) == 0;
  callbacks_.done(job.id, std::move(job.response));
  Host& host = conn.host;
  conn.job = nullptr;
  conn.used = true;
  jobs_.erase(job.id);
  if (!reuse) return drop(conn);
  host.idle.push_back(&conn);
  next(host);
}

// The connection ended: at the answer's end, before it, in the middle of it, or while idle.
void Pool::ended(Conn& conn, const std::string& why) {
  if (conn.job == nullptr) {
    std::erase(conn.host.idle, &conn);
    return drop(conn);
  }
  Job& job = *conn.job;
  Host& host = conn.host;
  conn.at = thread_.now();
  if (conn.heard && !conn.cut && conn.parser.feed_end() == Parser::Outcome::kComplete)
    return answered(conn);
  const std::string to = host.text;
  if (conn.heard) {
    conn.pass_on();
    return failed(job, {Code::kCorrupt, strf("answer of %s cut off: %s", to.c_str(), why.c_str())});
  }
  doubt(host);
  const bool stale = conn.used && !job.retried;
  const auto at = index_of(host.found, conn.address);
  const bool unmade = !conn.connected && !conn.used;
  const bool moves = unmade && !at && !std::exchange(job.relooked, true);  // it has others now
  if (moves) job.attempts = 0;
  const bool other = moves || (unmade && ++job.attempts < host.found.size());
  Error error{Code::kUnavailable, strf("%s %s: %s", conn.connected ? "request to" : "connect to",
                                       to.c_str(), why.c_str())};
  const bool looks = !stale && !other && !conn.connected && host.looking && !job.relooked;
  if (!stale && !other && !looks) return failed(job, std::move(error));
  if (stale) job.retried = true;  // closed while the request was in flight: one retry on a new one
  if (other && at) host.preferred = (*at + 1) % host.found.size();
  conn.job = nullptr;
  job.conn = nullptr;
  if (looks)
    await_lookup(job, std::move(error));
  else
    host.waiting.push_front(job.id);
  drop(conn);  // it may take its place
}

void Pool::late(Job& job) {
  if (job.host != nullptr)
    for (auto& [id, error] : job.host->lost)  // it waited for another address: say why
      if (id == job.id) return failed(job, Error(error));
  const ClientRequest& r = job.request;
  const bool unknown = job.host != nullptr && job.host->found.empty();
  if (job.conn != nullptr && !job.conn->heard) doubt(*job.host);
  failed(job, {Code::kTimeout, strf("%s %s: no %s within %s", r.method.c_str(), r.url.c_str(),
                                    unknown ? "address found of its host" : "complete answer",
                                    to_text(r.timeout).c_str())});
}

void Pool::failed(Job& job, Error error) {
  const uint64_t id = job.id;
  callbacks_.done(id, fail(std::move(error)));
  cancel(id);
}

void Pool::cancel(uint64_t id) {
  auto node = jobs_.extract(id);
  if (node.empty()) return;
  Job& job = *node.mapped();
  if (job.conn != nullptr) {
    job.conn->job = nullptr;
    drop(*job.conn);
  } else if (job.host != nullptr) {
    std::erase(job.host->waiting, id);
    std::erase_if(job.host->lost, [id](const auto& lost) { return lost.first == id; });
  }
}

void Pool::drop(Conn& conn) {
  Host& host = conn.host;
  std::erase(host.idle, &conn);
  --host.open;
  conns_.erase(&conn);
  next(host);
}

void Pool::next(Host& host) {
  if (host.placing) return;  // a failed placement calls next() again
  host.placing = true;
  while (!host.waiting.empty() && !host.found.empty() &&
         (!host.idle.empty() || host.open < per_host_max_)) {
    const auto job = jobs_.find(host.waiting.front());
    host.waiting.pop_front();
    if (job != jobs_.end()) place(*job->second);
  }
  host.placing = false;
}

}  // namespace mc::http
