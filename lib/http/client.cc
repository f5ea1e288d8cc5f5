#include "http/client.h"

#include <unordered_map>

#include "http/event_thread.h"
#include "http/pool.h"

namespace mc::http {

struct Client::Impl {
  io::Loop& loop;
  EventThread thread;
  std::unique_ptr<Pool> pool;
  // Shared, because a callback may cancel its own request while it runs.
  std::unordered_map<Id, std::shared_ptr<ClientCallbacks>> flights;
  Id next = 1;

  explicit Impl(io::Loop& l) : loop(l), thread(l) {}
  ~Impl() {
    thread.stop();
    pool.reset();
  }
  void taken(Id id, Undelivered& of_one, size_t bytes) {
    if (of_one.take(bytes, Pool::kUndeliveredOfOneMax / 2))
      thread.inbox()->post([p = pool.get(), id] { p->resume(id); });
    if (pool->undelivered.take(bytes, Pool::kUndeliveredMax / 2))
      thread.inbox()->post([p = pool.get()] { p->resume(); });
  }
  std::shared_ptr<ClientCallbacks> find(Id id) const {
    const auto it = flights.find(id);
    return it == flights.end() ? nullptr : it->second;
  }
};

Client::Client(io::Loop& loop, uint32_t connections_per_host_max, std::unique_ptr<ClientTls> tls,
               LookUp names)
    : impl_(std::make_shared<Impl>(loop)) {
  // Tasks for the loop hold the client weakly: one may destroy it, and the rest must then do
  // nothing.
  const std::weak_ptr<Impl> weak = impl_;
  EventThread* thread = &impl_->thread;
  Pool::Callbacks callbacks;
  callbacks.head = [weak, thread](Id id, int status, const auto& headers, Time at) {
    thread->to_loop([weak, id, status, headers, at] {
      const auto self = weak.lock();
      const auto calls = self ? self->find(id) : nullptr;
      if (calls && calls->on_headers) calls->on_headers(status, headers, at);
    });
  };
  callbacks.chunk = [weak, thread](Id id, std::shared_ptr<Undelivered> of_one, std::string chunk,
                                   Time at) {
    thread->to_loop([weak, id, of_one = std::move(of_one), chunk = std::move(chunk), at] {
      const auto self = weak.lock();
      if (!self) return;
      const auto calls = self->find(id);
      if (calls && calls->on_chunk) calls->on_chunk(chunk, at);
      self->taken(id, *of_one, chunk.size());
    });
  };
  callbacks.done = [weak, thread](Id id, Result<ClientResponse> result) {
    thread->to_loop([weak, id, result = std::move(result)]() mutable {
      const auto self = weak.lock();
      const auto calls = self ? self->find(id) : nullptr;
      if (!calls) return;
      self->flights.erase(id);
      if (calls->on_done) calls->on_done(std::move(result));
    });
  };
  impl_->pool = std::make_unique<Pool>(impl_->thread, connections_per_host_max,
                                       std::move(callbacks), std::move(tls), std::move(names));
  impl_->thread.start();
}
Client::~Client() = default;

Client::Id Client::send(ClientRequest request, ClientCallbacks callbacks) {
  const Id id = impl_->next++;
  const Time deadline = impl_->thread.now() + request.timeout;
  const bool stream = callbacks.on_chunk != nullptr;
  impl_->flights.emplace(id, std::make_shared<ClientCallbacks>(std::move(callbacks)));
  impl_->thread.inbox()->post(
      [pool = impl_->pool.get(), id, r = std::move(request), stream, deadline]() mutable {
        pool->start(id, std::move(r), stream, deadline);
      });
  return id;
}

void Client::cancel(Id id) {
  if (impl_->flights.erase(id) == 0) return;
  impl_->thread.inbox()->post([pool = impl_->pool.get(), id] { pool->cancel(id); });
}

void Client::hold(Id id, bool held) {
  if (!impl_->flights.contains(id)) return;
  impl_->thread.inbox()->post([pool = impl_->pool.get(), id, held] { pool->hold(id, held); });
}

size_t Client::in_flight() const { return impl_->flights.size(); }

}  // namespace mc::http
