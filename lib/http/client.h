// An HTTP/1.1 client with streaming answers, for mc-replay and for calls to other servers. libevent
// runs on its own thread inside. Callbacks run on the owner's loop, with the time at which the
// bytes were read, so that a busy loop does not falsify latencies. Thousands of requests may be in
// flight; connections are reused. Of a streamed answer little more than a megabyte waits for a busy
// loop; the rest stays with its server.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "http/name_lookups.h"
#include "http/server.h"
#include "io/loop.h"

struct bufferevent;
struct event_base;

namespace mc::http {

struct ClientRequest {
  std::string method = "GET";
  std::string url;      // http://host:port/path?query, or https:// with ClientTls
  std::string ca_file;  // https: whom to trust, a file (PEM); "": as the system does
  Headers headers;
  std::string body;
  Duration timeout = std::chrono::seconds(600);  // from now to the end of the answer
  Bytes answer_max{16 * kMiB};                   // of a body that is not streamed
};

struct ClientResponse {
  int status = 0;                              // 0: no answer came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // empty when on_chunk received it
  Time sent, first_byte, done;                 // on the loop's clock
};

struct ClientCallbacks {
  std::function<void(int status, const std::map<std::string, std::string>& headers, Time at)>
      on_headers;                                                 // optional
  std::function<void(std::string_view chunk, Time at)> on_chunk;  // optional: stream the body
  // Called once, last. Errors: kUnavailable (no such host, refused, reset), kTimeout, kInvalid
  // (url), kCorrupt (cut off in mid answer, or over answer_max).
  std::function<void(Result<ClientResponse>)> on_done;
};

// Makes connections for https (lib/tls). It sends nothing of a request before it knows that the
// server is the one asked for.
class ClientTls {
 public:
  virtual ~ClientTls() = default;
  // One that is not connected yet; the caller's. Errors: kInvalid, kNotFound for the file.
  virtual Result<bufferevent*> connection(event_base* base, const std::string& host,
                                          const std::string& ca_file) = 0;
  virtual std::string why(bufferevent* connection) const = 0;  // it failed, in words
};

class Client {
 public:
  using Id = uint64_t;
  explicit Client(io::Loop& loop, uint32_t connections_per_host_max = 2048,
                  std::unique_ptr<ClientTls> tls = nullptr, LookUp names = look_up);
  ~Client();  // drops what is in flight without calling back
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Id send(ClientRequest request, ClientCallbacks callbacks);
  void cancel(Id id);  // closes its connection; no callback
  // Reads no more of an answer that is streamed, or goes on. Chunks that were read still come.
  void hold(Id id, bool held);
  size_t in_flight() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Splits a stream of server-sent events into their data fields. Its input is chunks of any size.
class SseParser {
 public:
  // Calls `event` with the data of each event completed by `chunk`. False when an event grows
  // beyond 1 MiB.
  bool feed(std::string_view chunk, const std::function<void(std::string_view data)>& event);

 private:
  std::string pending_;
};

}  // namespace mc::http
