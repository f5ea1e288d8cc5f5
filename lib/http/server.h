// An HTTP/1.1 server for people and standard clients: JSON, plain text and server-sent events.
// libevent runs on its own thread inside. Requests enter the owner's loop through a bounded queue,
// and answers leave the same way in batches.
//
//   MC_TRY(auto server, http::Server::open(loop, "127.0.0.1:8000", {}, [&](http::Exchange x) {
//     if (x.request().path == "/live") x.reply(200, "text/plain", "live\n");
//     else x.reply(404, "text/plain", "no such page\n");
//   }));
//
// ServerOptions has the limits (body, header, connections, queue). The server answers a request
// over one with 413, 431 or 503, and the handler never sees it. Memory is bounded: headers by
// connections_max * header_max, bodies by bodies_max in all, answers by answers_max in the
// connections' buffers: above it the client that left most is closed. A client that
// reads nothing is closed after idle_timeout, or a quarter of it later; so is one whose next head
// is not complete that long after its last answer, and one whose body brings less than
// body_rate_min in any idle_timeout, or who takes less than answer_rate_min of its answers in any
// answer_rate_time in which some wait for it. Clients that never finish a request take no more than
// their slots: the oldest gives way (http/slots.h). /live is answered even when all slots are
// taken.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/options.h"
#include "base/result.h"
#include "io/loop.h"

namespace mc::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;                          // "GET"
  std::string path;                            // decoded, without the query
  std::string target;                          // both, as sent
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string peer;  // "127.0.0.1:40000"; "unix": it came over the local socket
  bool local = false;
  Time received;  // when it was complete, on the loop's clock
};

// One request and its answer; copies share it. Answer once: reply(), or start() + write()... +
// end(). Dropped unanswered, it answers 500. Dropped in mid-stream, it cuts the connection, so that
// the client sees the failure. Writes to a client that is gone are ignored.
class Exchange {
 public:
  struct Impl;
  explicit Exchange(std::shared_ptr<Impl> impl);
  const Request& request() const;
  void reply(int status, std::string_view content_type, std::string body, Headers extra = {}) const;
  // A streamed answer (chunked). Each write is flushed (TCP_NODELAY).
  void start(int status, std::string_view content_type, Headers extra = {}) const;
  void write(std::string chunk) const;
  void end() const;
  // Frees the request's body; for answers that take long.
  void forget_body() const;
  // The same where a copy of the body stays: it counts (bodies_max) as long as the
  // token lives.
  std::shared_ptr<void> hand_over_body() const;
  // The client closed its connection, or took no byte for the idle timeout.
  bool gone() const;
  void on_gone(std::function<void()> callback) const;  // on the loop; at once if it is gone already
  size_t unsent() const;  // bytes written and not yet taken by the kernel: a slow reader
  // Once, on the loop: when no more than so many bytes are unsent.
  void on_taken(size_t left, std::function<void()> callback) const;

 private:
  std::shared_ptr<Impl> impl_;
};

struct Page {
  std::string content_type, body;
};

struct ServerOptions {
  Bytes body_max{32 * kMiB};
  // Of all requests not yet answered, and of what was handed over; over it: 503.
  Bytes bodies_max{1024 * kMiB};
  Bytes answers_max{512 * kMiB};  // that clients have not taken; over it the slowest is closed
  Bytes header_max{64 * kKiB};
  uint32_t connections_max = 4096;
  // Of these, connections that have no complete request yet; and of those, from one address.
  uint32_t unfinished_max = 0;              // 0: seven eighths
  uint32_t unfinished_per_address_max = 0;  // 0: three quarters
  uint32_t queue_max = 4096;                // requests waiting for the loop
  Duration idle_timeout = std::chrono::seconds(60);
  Bytes body_rate_min{10'000};  // a second
  // Also a second, of what a client's system takes. A window that is full opens again in steps, of
  // 64 KiB where packets are so large, so that shorter times would say little.
  Bytes answer_rate_min{240};
  Duration answer_rate_time = std::chrono::minutes(5);
  // A client that ended its sending side may still read: it counts as gone when it took no byte for
  // so long, and none waits for it.
  Duration half_closed_time = std::chrono::milliseconds(250);
  // The rest of a refused body is read and dropped, so that its client sees the answer: as long as
  // no pause is longer than this, all of it takes no longer, and is no more. So is what comes
  // after a head that was refused, or behind a last request. Others close at once with their last
  // answer.
  Duration rest_pause = std::chrono::seconds(5), rest_time = std::chrono::seconds(30);
  Bytes rest_max{256 * kMiB};
  uint32_t lingering_max = 256;  // connections that wait for such a rest; the oldest gives way
  // Whose pages may ask, and by which hosts' names (http/web_check.h). The local socket is free of
  // this: no web page reaches it.
  std::vector<std::string> names{};
  // Other sites whose pages may ask all the same (http/cross_origin.h).
  std::vector<std::string> origins{};
  bool json_only = false;
  // Paths, as sent, whose bodies may be forms all the same. Called on the server's own thread.
  std::function<bool(std::string_view path)> forms{};
  std::string local_socket{};   // a path, in which {port} becomes the port; "": none
  bool local_optional = false;  // serve without it where it cannot be
  // Makes the body of the answer to a request over a limit; without it that is plain text.
  // `target`: of that request, as far as it was read. Called on the server's own thread.
  std::function<Page(int status, const std::string& why, std::string_view target)> refusal;
};

class Server {
 public:
  using Handler = std::function<void(Exchange)>;
  // "host:port"; port 0: a free one. Errors: kUnavailable when the port is in use; kInvalid.
  static Result<std::unique_ptr<Server>> open(io::Loop& loop, const std::string& address,
                                              ServerOptions options, Handler handler);
  ~Server();  // closes all connections
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  const std::string& address() const;       // "host:port", resolved
  const std::string& local_socket() const;  // its path; "": none
  void stop_accepting();                    // open exchanges continue
  size_t unread() const;                    // bytes of answers that clients leave unread, in all
  size_t open_exchanges() const;  // not yet answered to the last byte: what a drain waits for

 private:
  struct Impl;
  explicit Server(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4";

// Serves the pages that every daemon has: /live, /ready, /health and /metrics. `not_ready` is the
// reason, or empty when ready. Returns: true when it answered.
bool serve_common(const Exchange& exchange, const Metrics& metrics, const std::string& not_ready,
                  const std::string& health_json);

}  // namespace mc::http
