// What clients wait on: completion channels and the async event queue. Both are pipes, so that
// their descriptors can be polled and set non-blocking.
#include <fcntl.h>
#include <unistd.h>

#include "events.h"
#include "objects.h"

namespace mc::emu {

void notify_channel(Cq& cq) {
  if (cq.cq.channel == nullptr) return;
  // A full pipe has events enough to wake the threads that wait.
  [[maybe_unused]] ssize_t n = write(of(cq.cq.channel)->write_fd, &cq.ref, sizeof cq.ref);
}

bool open_pipe(int* read_fd, int* write_fd) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return false;
  fcntl(fds[1], F_SETFL, O_NONBLOCK);
  *read_fd = fds[0];
  *write_fd = fds[1];
  return true;
}

void write_event(const Context& context, const EventRecord& record) {
  [[maybe_unused]] ssize_t n = write(context.async_write, &record, sizeof record);
}

namespace {

bool read_whole(int fd, void* to, size_t bytes) {
  ssize_t n;
  do n = read(fd, to, bytes);
  while (n < 0 && errno == EINTR);
  return n == ssize_t(bytes);
}

// Counts an event as handed out, so that destroying its object waits for the acknowledgement.
// False: the object is gone, and with it its events.
bool resolve(Context& context, const EventRecord& record, ibv_async_event& event) {
  event.event_type = ibv_event_type(record.type);
  std::lock_guard lock(context.mutex);
  if (record.kind == EventKind::kPort) {
    event.element.port_num = 1;
    return true;
  }
  if (record.kind == EventKind::kQp) {
    auto found = context.qps.find(record.id);
    if (found == context.qps.end()) return false;
    Qp& qp = *found->second;
    event.element.qp = &qp.head.ex.qp_base;
    pthread_mutex_lock(&event.element.qp->mutex);
    ++qp.async_events;
    pthread_mutex_unlock(&event.element.qp->mutex);
    return true;
  }
  if (record.kind == EventKind::kCq) {
    auto found = context.cqs.find(record.id);
    if (found == context.cqs.end() || found->second->ref.generation != record.generation)
      return false;
    event.element.cq = &found->second->cq;
    pthread_mutex_lock(&event.element.cq->mutex);
    ++found->second->async_events;
    pthread_mutex_unlock(&event.element.cq->mutex);
    return true;
  }
  auto found = context.srqs.find(record.id);
  if (found == context.srqs.end() || found->second->ref.generation != record.generation)
    return false;
  event.element.srq = &found->second->srq;
  pthread_mutex_lock(&event.element.srq->mutex);
  ++found->second->async_events;
  pthread_mutex_unlock(&event.element.srq->mutex);
  return true;
}

}  // namespace
}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* ibcontext) {
  Context& context = *of(ibcontext);
  if (context.dead()) return none(EIO);
  auto channel = std::make_unique<Channel>();
  if (!open_pipe(&channel->channel.fd, &channel->write_fd)) return nullptr;
  channel->channel.context = ibcontext;
  channel->context = &context;
  std::lock_guard lock(context.mutex);
  context.channels.insert(channel.get());
  return &channel.release()->channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* ibchannel) {
  Channel* channel = of(ibchannel);
  {
    std::lock_guard lock(channel->context->mutex);
    if (ibchannel->refcnt != 0) return EBUSY;
    channel->context->channels.erase(channel);
  }
  close(ibchannel->fd);
  close(channel->write_fd);
  delete channel;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* ibchannel, ibv_cq** cq, void** user) {
  Context& context = *of(ibchannel)->context;
  for (Ref ref; read_whole(ibchannel->fd, &ref, sizeof ref);) {
    std::lock_guard lock(context.mutex);
    auto found = context.cqs.find(ref.slot);
    if (found == context.cqs.end() || found->second->ref.generation != ref.generation) continue;
    *cq = &found->second->cq;
    *user = (*cq)->cq_context;
    pthread_mutex_lock(&(*cq)->mutex);
    ++found->second->comp_events;
    pthread_mutex_unlock(&(*cq)->mutex);
    return 0;
  }
  return -1;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}

int ibv_get_async_event(ibv_context* ibcontext, ibv_async_event* event) {
  Context& context = *of(ibcontext);
  for (EventRecord record; read_whole(ibcontext->async_fd, &record, sizeof record);)
    if (resolve(context, record, *event)) return 0;
  return -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  auto acknowledge = [](auto* object, uint32_t& completed) {
    pthread_mutex_lock(&object->mutex);
    ++completed;
    pthread_cond_signal(&object->cond);
    pthread_mutex_unlock(&object->mutex);
  };
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      return acknowledge(event->element.cq, event->element.cq->async_events_completed);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return acknowledge(event->element.srq, event->element.srq->events_completed);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return acknowledge(event->element.qp, event->element.qp->events_completed);
    default: return;  // of a port or the device: nothing to wait for
  }
}

}  // extern "C"
