#include "http/server.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/log.h"
#include "http/connections.h"
#include "http/cross_origin.h"
#include "http/event_thread.h"
#include "http/head_text.h"
#include "io/address.h"

namespace mc::http {
namespace {
constexpr std::string_view kPort = "{port}";
}

struct Exchange::Impl {
  Request request;
  std::shared_ptr<EventThread::Inbox> inbox;
  Connections* connections = nullptr;  // only tasks use it, and they end with its thread
  std::shared_ptr<Flow> flow;
  uint64_t id = 0;
  Headers cross_origin;  // of its answer
  bool http10 = false, keep_alive = false;
  bool streaming = false, answered = false, gone = false;
  bool no_body = false;  // of the answer that is streamed
  std::function<void()> on_gone, on_taken;

  ~Impl() {
    if (streaming && !answered)
      inbox->post([c = connections, x = id] { c->abort(x); });
    else if (!answered)
      reply(500, "text/plain", "the request was dropped without an answer\n", {});
  }
  void send(std::string bytes, bool last) {
    if (gone) return;
    flow->wrote(bytes.size());
    inbox->post([c = connections, x = id, b = std::move(bytes), last, keep = keep_alive]() mutable {
      c->send(x, std::move(b), last, keep);
    });
  }
  void reply(int status, std::string_view type, std::string body, Headers extra) {
    answered = true;
    on_gone = on_taken = nullptr;
    extra.insert(extra.end(), cross_origin.begin(), cross_origin.end());
    const size_t length = body.size();
    std::string bytes = answer_head(status, type, extra, &length, http10, keep_alive);
    if (request.method != "HEAD" && !bodyless(status)) bytes += body;
    send(std::move(bytes), true);
  }
};

Exchange::Exchange(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
const Request& Exchange::request() const { return impl_->request; }

void Exchange::reply(int status, std::string_view content_type, std::string body,
                     Headers extra) const {
  if (impl_->answered || impl_->streaming) return;
  impl_->reply(status, content_type, std::move(body), std::move(extra));
}

void Exchange::start(int status, std::string_view content_type, Headers extra) const {
  if (impl_->answered || impl_->streaming) return;
  impl_->streaming = true;
  impl_->no_body = impl_->request.method == "HEAD" || bodyless(status);
  extra.emplace_back("Cache-Control", "no-cache");
  extra.insert(extra.end(), impl_->cross_origin.begin(), impl_->cross_origin.end());
  // HTTP/1.0 has no chunks: the end of the connection ends the answer.
  if (impl_->http10) impl_->keep_alive = false;
  impl_->send(answer_head(status, content_type, extra, nullptr, impl_->http10, impl_->keep_alive),
              false);
}

void Exchange::write(std::string chunk) const {
  if (!impl_->streaming || impl_->answered || chunk.empty() || impl_->no_body) return;
  if (impl_->http10) return impl_->send(std::move(chunk), false);
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, chunk.size(), 16).ptr;
  std::string framed;
  framed.reserve(chunk.size() + sizeof size + 4);
  framed.append(size, end).append("\r\n").append(chunk).append("\r\n");
  impl_->send(std::move(framed), false);
}

void Exchange::end() const {
  if (!impl_->streaming || impl_->answered) return;
  impl_->answered = true;
  impl_->on_gone = impl_->on_taken = nullptr;
  const bool chunked = !impl_->http10 && !impl_->no_body;
  impl_->send(chunked ? "0\r\n\r\n" : "", true);
}

void Exchange::forget_body() const {
  if (impl_->request.body.empty()) return;
  std::string().swap(impl_->request.body);
  impl_->flow->release();
}
std::shared_ptr<void> Exchange::hand_over_body() const {
  std::string().swap(impl_->request.body);
  return impl_->flow->hand_over();
}
bool Exchange::gone() const { return impl_->gone; }
void Exchange::on_gone(std::function<void()> callback) const {
  if (impl_->gone) return callback();
  if (!impl_->answered) impl_->on_gone = std::move(callback);
}
size_t Exchange::unsent() const {
  return impl_->gone ? 0 : impl_->flow->queued + impl_->flow->buffered;
}

void Exchange::on_taken(size_t left, std::function<void()> callback) const {
  if (impl_->gone || impl_->answered) return;
  impl_->on_taken = std::move(callback);
  impl_->flow->awaited = left + 1;
  impl_->inbox->post([c = impl_->connections, x = impl_->id] { c->await_taken(x); });
}

struct Server::Impl {
  Handler handler;
  std::string address, local_socket;
  std::vector<std::string> origins;
  EventThread thread;
  std::unique_ptr<Connections> connections;
  std::map<uint64_t, std::weak_ptr<Exchange::Impl>> exchanges;  // the loop's; unanswered
  size_t sweep_at = 64;

  Impl(io::Loop& loop, Handler h) : handler(std::move(h)), thread(loop) {}
  ~Impl() {
    thread.stop();
    connections.reset();
    for (auto& [id, weak] : exchanges) {
      const auto x = weak.lock();
      if (!x) continue;
      x->gone = true;
      x->on_gone = x->on_taken = nullptr;  // they may hold the exchange itself
    }
  }

  void arrived(Arrival a) {
    auto x = std::make_shared<Exchange::Impl>();
    x->request = std::move(a.request);
    x->inbox = thread.inbox();
    x->connections = connections.get();
    x->flow = std::move(a.flow);
    x->id = a.exchange;
    x->http10 = a.http10;
    x->keep_alive = a.keep_alive;
    // Erases answered exchanges in bulk, so that the cost for each stays constant.
    if (exchanges.size() >= sweep_at) {
      std::erase_if(exchanges, [](const auto& e) {
        const auto live = e.second.lock();
        return !live || live->answered;
      });
      sweep_at = std::max<size_t>(64, exchanges.size() * 2);
    }
    exchanges.emplace(x->id, x);
    x->cross_origin = cross_origin_headers(x->request.headers, origins);
    if (auto answer = preflight_answer(x->request.method, x->request.headers, origins))
      return x->reply(200, "", "", std::move(*answer));
    handler(Exchange(std::move(x)));
  }
  void taken(uint64_t id) {
    const auto found = exchanges.find(id);
    const auto x = found == exchanges.end() ? nullptr : found->second.lock();
    if (!x) return;
    if (auto callback = std::exchange(x->on_taken, nullptr)) callback();
  }
  void gone(uint64_t id) {
    auto node = exchanges.extract(id);
    if (node.empty()) return;
    auto x = node.mapped().lock();
    if (!x || x->gone) return;
    x->gone = true;
    x->on_taken = nullptr;
    if (auto callback = std::exchange(x->on_gone, nullptr)) callback();
  }
};

Server::Server(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::open(io::Loop& loop, const std::string& address,
                                             ServerOptions options, Handler handler) {
  MC_TRY(io::Address where, io::parse_address(address));
  MC_TRY_(check_origins(options.origins));
  auto impl = std::make_shared<Impl>(loop, std::move(handler));
  impl->origins = options.origins;
  // Tasks for the loop hold the server weakly: one may destroy it, and the rest must then do
  // nothing.
  const std::weak_ptr<Impl> weak = impl;
  EventThread* thread = &impl->thread;
  Connections::Callbacks callbacks;
  callbacks.arrived = [thread, weak](Arrival a) {
    thread->to_loop([weak, a = std::move(a)]() mutable {
      auto self = weak.lock();
      if (!self) return;
      --self->connections->waiting;
      self->arrived(std::move(a));
    });
  };
  callbacks.gone = [thread, weak](uint64_t id) {
    thread->to_loop([weak, id] {
      if (auto self = weak.lock()) self->gone(id);
    });
  };
  callbacks.taken = [thread, weak](uint64_t id) {
    thread->to_loop([weak, id] {
      if (auto self = weak.lock()) self->taken(id);
    });
  };
  impl->connections = std::make_unique<Connections>(impl->thread, options, std::move(callbacks));
  MC_TRY(where.port, impl->connections->listen(where.host, where.port));
  if (std::string path = options.local_socket; !path.empty()) {
    if (const size_t port = path.find(kPort); port != path.npos)
      path.replace(port, kPort.size(), std::to_string(where.port));
    if (const auto listens = impl->connections->listen_at(path); !listens) {
      if (!options.local_optional) return fail(listens.error());
      log_warn("http", "%s: serving without it", listens.error().what.c_str());
    } else {
      impl->local_socket = path;
    }
  }
  impl->address = where.text();
  impl->thread.start();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

const std::string& Server::address() const { return impl_->address; }
const std::string& Server::local_socket() const { return impl_->local_socket; }
void Server::stop_accepting() {
  impl_->thread.inbox()->post([c = impl_->connections.get()] { c->stop_accepting(); });
}
size_t Server::unread() const { return impl_->connections->totals->unread(); }
size_t Server::open_exchanges() const { return impl_->connections->open(); }

bool serve_common(const Exchange& exchange, const Metrics& metrics, const std::string& not_ready,
                  const std::string& health_json) {
  const std::string& path = exchange.request().path;
  const std::string& method = exchange.request().method;
  const int status = not_ready.empty() ? 200 : 503;
  if (path != "/live" && path != "/ready" && path != "/health" && path != "/metrics") return false;
  if (method != "GET" && method != "HEAD") {
    exchange.reply(405, "text/plain", path + " wants GET, not " + method + "\n");
  } else if (path == "/live") {
    exchange.reply(200, "application/json", "{\"live\":true}\n");
  } else if (path == "/ready") {
    const Json reason = not_ready;
    exchange.reply(status, "application/json",
                   not_ready.empty() ? std::string("{\"ready\":true}\n")
                                     : "{\"ready\":false,\"reason\":" + dump_json(reason) + "}\n");
  } else if (path == "/health") {
    exchange.reply(status, "application/json", health_json);
  } else {
    exchange.reply(200, kMetricsType, metrics.text());
  }
  return true;
}

}  // namespace mc::http
