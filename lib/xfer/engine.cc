#include "xfer/engine.h"

#include <sys/prctl.h>
#include <sys/random.h>

#include <algorithm>

#include "base/log.h"
#include "xfer/copy.h"
#include "xfer/engine_impl.h"
#include "xfer/host.h"

namespace mc::xfer {
namespace {
constexpr uint32_t kFailoversMax = 3;
constexpr Duration kRefreshBudget = std::chrono::seconds(1);

// Does another transport stand a chance? Not when the request itself is at fault, its time is over,
// or its bytes have another owner.
bool worth_another(Code code) {
  return code == Code::kUnavailable || code == Code::kDenied || code == Code::kUnsupported ||
         code == Code::kNoSpace || code == Code::kCorrupt;
}
}  // namespace

void EngineOptions::describe(OptionList& v) {
  v("data", data, "address that tcp data connections are taken on");
  v("transports", transports, "transports allowed, in order of preference: shm, tcp");
  v("copy-workers", workers, "threads that copy shared memory");
  v("connections", connections, "tcp connections per peer");
  v("slice", slice, "bytes a slice, 64KiB or more");
  v("peer-timeout", peer_timeout, "a peer silent for this long fails a transfer");
}

Memory::Memory(std::shared_ptr<Impl> impl)
    : impl_(std::move(impl)),
      bytes_(impl_->buffer->data, impl_->buffer->bytes),
      offset_(impl_->buffer->offset) {}

Engine::Impl::Impl(const Clock& c, EngineOptions o, Metrics& m)
    : clock(c), options(std::move(o)), metrics(m) {}

Result<> Engine::Impl::start() {
  MC_TRY_(check_node_id(options.node));
  // Larger at every start: peers tell a restarted process from its predecessor.
  registry = std::make_shared<Registry>(Generation{static_cast<uint64_t>(wall_now_ns())});
  host = host_id();
  secret.resize(32);
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return fail(Code::kInternal, "no randomness for the data secret");
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // lets process_vm_readv work under Yama
  for (const std::string& name : options.transports) {
    if (name == "shm") {
      MC_TRY(fd_server, FdServer::open(*registry));
      transports.push_back(
          std::make_unique<LocalTransport>(*this, *registry, clock, options.workers));
    } else if (name == "tcp") {
      MC_TRY(tcp_server, tcp::Server::open({options.data, secret, options.peer_timeout}, *registry,
                                           clock, metrics));
      data.push_back(tcp_server->address());
      transports.push_back(std::make_unique<tcp::TcpTransport>(*this, clock, options.connections,
                                                               options.peer_timeout));
    } else {
      return fail(Code::kInvalid, "unknown transport '%s': this build has shm and tcp",
                  name.c_str());
    }
  }
  if (transports.empty()) return fail(Code::kInvalid, "no transport is allowed");
  for (const auto& t : transports) {
    const Labels labels{{"transport", t->name()}};
    counts[t.get()] = {&metrics.counter("mc_xfer_bytes_total", "payload bytes moved", labels),
                       &metrics.counter("mc_xfer_slices_total", "slices moved", labels),
                       &metrics.counter("mc_xfer_failures_total", "slices that failed", labels)};
  }
  failovers = &metrics.counter("mc_xfer_failovers_total", "slices moved on to another transport");
  MC_TRY(PeerPtr me, make_peer(describe()));
  {
    Lock lock(mutex);
    segments.push_back({me, ""});
  }
  caretaker = std::thread([this] { care(); });
  return {};
}

Engine::Impl::~Impl() {
  if (caretaker.joinable()) {
    {
      Lock lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    caretaker.join();
  }
  transports.clear();  // fails what is in flight, joins their threads
}

void Engine::Impl::errand(std::function<void()> job) {
  errands.push_back(std::move(job));
  changed.notify_all();
}

void Engine::Impl::care() {
  for (;;) {
    std::function<void()> job;
    {
      Lock lock(mutex);
      while (errands.empty() && !stopping) changed.wait(mutex);
      if (errands.empty()) return;
      job = std::move(errands.front());
      errands.pop_front();
    }
    job();
  }
}

std::shared_ptr<Batch> Engine::Impl::find(BatchId id) const {
  Lock lock(mutex);
  auto it = batches.find(id);
  return it == batches.end() ? nullptr : it->second;
}

Result<> Engine::Impl::submit(BatchId id, std::span<const Request> requests,
                              std::function<void()> all_done) {
  std::vector<std::pair<TaskPtr, PeerPtr>> started;
  for (const Request& r : requests) MC_TRY_(check(r));
  {
    Lock lock(mutex);
    auto it = batches.find(id);
    if (it == batches.end())
      return fail(Code::kNotFound, "no batch %llu", static_cast<unsigned long long>(id));
    for (const Request& r : requests) {
      MC_TRY(PeerPtr peer, peer_of(r.segment));
      if (r.segment == 0) {  // our own buffers come and go
        MC_TRY(peer, make_peer(describe()));
      }
      MC_TRY_(peer->buffer(r.offset, span_of(r.bytes, r.rows, r.remote_stride)));
      auto task = std::make_shared<Task>();
      task->request = r;
      task->batch = it->second;
      started.emplace_back(std::move(task), std::move(peer));
    }
    for (auto& [task, peer] : started) it->second->tasks.push_back(task);
    it->second->unfinished += started.size();
    if (all_done && !started.empty()) it->second->all_done.push_back(std::move(all_done));
  }
  if (requests.empty() && all_done) all_done();
  for (auto& [task, peer] : started) launch(task, peer);
  return {};
}

void Engine::Impl::launch(const TaskPtr& task, const PeerPtr& peer) {
  const Request& r = task->request;
  const auto pieces = plan(r, options.slice);
  const auto ways = candidates(*peer, r.offset);
  {
    Lock lock(mutex);
    task->slices_left = pieces.size();
    task->status.state = State::kPending;
  }
  for (const Piece& piece : pieces) {
    auto slice = std::make_unique<Slice>();
    slice->op = r.op;
    slice->local = r.local + piece.local;
    slice->piece = piece;
    slice->guard = r.guard;
    slice->deadline = r.deadline;
    slice->streaming = r.bytes * r.rows >= kStreamingBytes;
    slice->peer = peer;
    slice->task = task;
    slice->cancelled = &task->cancelled;
    if (ways.empty())
      settle(task,
             fail(Code::kUnavailable, "no allowed transport reaches %s",
                  peer->descriptor.node.c_str()),
             0);
    else
      ways.front()->submit(std::move(slice));
  }
}

void Engine::Impl::finished(SlicePtr slice, Result<> outcome) {
  const TaskPtr task = slice->task;
  const uint64_t bytes = slice->raise ? 0 : slice->piece.total();
  const auto ways = candidates(*slice->peer, slice->piece.remote);
  if (!ways.empty()) {
    Lock lock(mutex);
    const size_t at = std::min<size_t>(slice->attempt, ways.size() - 1);
    const Counters& c = counts.at(ways[at]);
    c.requests->add();
    if (outcome)
      c.bytes->add(bytes);
    else
      c.failures->add();
  }
  if (!outcome && !task->cancelled.load()) {
    const Error error = outcome.error();
    if (error.code == Code::kStale && refresh(slice)) return;
    if (worth_another(error.code) && try_elsewhere(slice, error)) return;
  }
  slice.reset();
  settle(task, outcome, bytes);
}

// Resubmits on the next transport that reaches. Each slice keeps its own place by the task's count,
// so that what was moved already stays moved.
bool Engine::Impl::try_elsewhere(SlicePtr& slice, const Error& error) {
  const auto ways = candidates(*slice->peer, slice->piece.remote);
  Transport* next = nullptr;
  {
    Lock lock(mutex);
    if (stopping || slice->attempt + 1 >= ways.size() || slice->attempt >= kFailoversMax)
      return false;
    next = ways[++slice->attempt];
  }
  failovers->add();
  log_debug("xfer", "%s: on to %s: %s", slice->peer->descriptor.node.c_str(), next->name(),
            error.what.c_str());
  next->submit(std::move(slice));
  return true;
}

// The segment's generation moved on: fetch the descriptor again, once a task, and go on with it.
// A guard that moved on is not this: the new descriptor has the old generation, and the slice
// fails.
bool Engine::Impl::refresh(SlicePtr& slice) {
  Lock lock(mutex);
  Task& task = *slice->task;
  const SegmentHandle segment = task.request.segment;
  if (stopping || segment == 0 || segment >= segments.size() || segments[segment].control.empty() ||
      slice->refreshed)
    return false;
  slice->refreshed = true;
  const std::string control = segments[segment].control;
  auto shared = std::make_shared<SlicePtr>(std::move(slice));
  errand([this, shared, segment, control] {
    SlicePtr again = std::move(*shared);
    const TaskPtr owner = again->task;
    const Generation before = again->peer->descriptor.generation;
    PeerPtr peer;
    {
      Lock inner(mutex);
      peer = segments[segment].peer;  // another slice may have refreshed it
    }
    if (peer == nullptr || peer->descriptor.generation == before) {
      if (auto d = fetch(control, kRefreshBudget); d && open(*d, control)) {
        Lock inner(mutex);
        peer = segments[segment].peer;
      }
    }
    const auto ways =
        peer == nullptr ? std::vector<Transport*>{} : candidates(*peer, again->piece.remote);
    if (peer == nullptr || peer->descriptor.generation == before || ways.empty()) {
      settle(owner,
             fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                  static_cast<unsigned long long>(again->piece.remote),
                  again->peer->descriptor.node.c_str()),
             0);
      return;
    }
    again->peer = peer;
    again->attempt = 0;
    ways.front()->submit(std::move(again));
  });
  return true;
}

void Engine::Impl::settle(const TaskPtr& task, const Result<>& outcome, uint64_t bytes) {
  std::vector<std::function<void()>> callbacks;
  {
    Lock lock(mutex);
    Status& s = task->status;
    if (outcome) {
      s.bytes_done += bytes;
    } else if (s.state == State::kPending || s.state == State::kWaiting) {
      if (s.error.what.empty()) s.error = outcome.error();
      task->cancelled.store(true);  // its other slices need not move
    }
    if (--task->slices_left > 0) return;
    const bool failed = !s.error.what.empty();
    if (!failed)
      s.state = State::kCompleted;
    else if (s.error.code == Code::kTimeout)
      s.state = State::kTimedOut;
    else
      s.state = s.error.code == Code::kUnavailable && task->wanted_cancel ? State::kCancelled
                                                                          : State::kFailed;
    auto batch = task->batch.lock();
    if (batch != nullptr && --batch->unfinished == 0) callbacks.swap(batch->all_done);
    changed.notify_all();
  }
  for (auto& callback : callbacks) callback();
}

Result<> Engine::Impl::wait(const std::shared_ptr<Batch>& batch, Duration budget) {
  const Time deadline = clock.now() + budget;
  Lock lock(mutex);
  while (batch->unfinished > 0) {
    const Duration left = deadline - clock.now();
    if (left.count() <= 0)
      return fail(Code::kTimeout, "%zu transfers are not done after %s", batch->unfinished,
                  to_text(budget).c_str());
    changed.wait_for(mutex, left);
  }
  for (const TaskPtr& task : batch->tasks)
    if (task->status.state != State::kCompleted) return fail(task->status.error);
  return {};
}

void Engine::Impl::cancel(const std::shared_ptr<Batch>& batch) {
  Lock lock(mutex);
  for (const TaskPtr& task : batch->tasks) {
    if (xfer::finished(task->status.state)) continue;
    task->wanted_cancel = true;
    task->cancelled.store(true);
  }
  // Transports look at the flag before each slice, and several times a second inside one.
  while (batch->unfinished > 0) changed.wait(mutex);
}

// ---- the face

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const Clock& clock, EngineOptions options,
                                             Metrics& metrics) {
  auto impl = std::make_unique<Impl>(clock, std::move(options), metrics);
  MC_TRY_(impl->start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<Memory> Engine::allocate(uint64_t bytes, bool writable, std::string location) {
  MC_TRY(BufferPtr buffer, impl_->registry->allocate(bytes, writable, std::move(location)));
  auto memory = std::make_shared<Memory::Impl>();
  memory->buffer = std::move(buffer);
  memory->registry = impl_->registry;
  return Memory(std::move(memory));
}

Result<Memory> Engine::register_memory(std::span<std::byte> memory, bool writable,
                                       std::string location) {
  MC_TRY(BufferPtr buffer, impl_->registry->add(memory, writable, std::move(location)));
  auto owner = std::make_shared<Memory::Impl>();
  owner->buffer = std::move(buffer);
  owner->registry = impl_->registry;
  return Memory(std::move(owner));
}

SegmentDescriptor Engine::describe() const { return impl_->describe(); }
Generation Engine::generation() const { return impl_->registry->generation(); }
const std::vector<std::string>& Engine::data_addresses() const { return impl_->data; }

Result<SegmentHandle> Engine::open_segment(const std::string& control, Duration budget) {
  return impl_->open_by_address(control, budget);
}
Result<SegmentHandle> Engine::open_segment(const SegmentDescriptor& descriptor,
                                           const std::string& control) {
  return impl_->open(descriptor, control);
}
void Engine::close_segment(SegmentHandle segment) { impl_->close(segment); }
SegmentHandle Engine::self() const { return 0; }

Result<uint64_t> Engine::segment_bytes(SegmentHandle segment) const {
  Lock lock(impl_->mutex);
  MC_TRY(const PeerPtr peer, impl_->peer_of(segment));
  uint64_t end = 0;
  for (const BufferInfo& b : peer->descriptor.buffers) end = std::max(end, b.offset + b.bytes);
  return end;
}

std::string Engine::transport_of(SegmentHandle segment) const {
  PeerPtr peer;
  {
    Lock lock(impl_->mutex);
    auto found = impl_->peer_of(segment);
    if (!found) return "none";
    peer = *found;
  }
  if (peer->same_process) return "self";
  const uint64_t offset =
      peer->descriptor.buffers.empty() ? 0 : peer->descriptor.buffers.front().offset;
  const auto ways = impl_->candidates(*peer, offset);
  return ways.empty() ? "none" : ways.front()->name();
}

BatchId Engine::allocate_batch() {
  Lock lock(impl_->mutex);
  const BatchId id = impl_->next_batch++;
  impl_->batches.emplace(id, std::make_shared<Batch>());
  return id;
}

Result<> Engine::submit(BatchId batch, std::span<const Request> requests,
                        std::function<void()> all_done) {
  return impl_->submit(batch, requests, std::move(all_done));
}

Status Engine::status(BatchId batch, size_t index) const {
  Lock lock(impl_->mutex);
  auto it = impl_->batches.find(batch);
  if (it == impl_->batches.end() || index >= it->second->tasks.size())
    return {State::kFailed, 0, {Code::kNotFound, "no such transfer"}};
  return it->second->tasks[index]->status;
}

Result<> Engine::wait(BatchId id, Duration budget) {
  const auto batch = impl_->find(id);
  if (batch == nullptr)
    return fail(Code::kNotFound, "no batch %llu", static_cast<unsigned long long>(id));
  return impl_->wait(batch, budget);
}

void Engine::cancel(BatchId id) {
  if (const auto batch = impl_->find(id)) impl_->cancel(batch);
}

void Engine::free_batch(BatchId id) {
  const auto batch = impl_->find(id);
  if (batch == nullptr) return;
  impl_->cancel(batch);
  Lock lock(impl_->mutex);
  impl_->batches.erase(id);
}

Result<> Engine::transfer_sync(const Request& request, Duration budget) {
  Request bounded = request;
  bounded.deadline = std::min(request.deadline, impl_->clock.now() + budget);
  const BatchId batch = allocate_batch();
  Result<> outcome = submit(batch, {&bounded, 1});
  // The deadline ends it; the wait is only a backstop.
  if (outcome) outcome = wait(batch, budget + impl_->options.peer_timeout);
  free_batch(batch);
  return outcome;
}

Result<> Engine::raise_guard(SegmentHandle segment, uint64_t offset, uint64_t value,
                             Duration budget) {
  const auto batch = std::make_shared<Batch>();
  auto task = std::make_shared<Task>();
  auto slice = std::make_unique<Slice>();
  if (offset % 8 != 0) return fail(Code::kInvalid, "the guard is not 8-byte aligned");
  {
    Lock lock(impl_->mutex);
    MC_TRY(slice->peer, impl_->peer_of(segment));
    if (segment == 0) {
      MC_TRY(slice->peer, impl_->make_peer(impl_->describe()));
    }
    MC_TRY_(slice->peer->buffer(offset, 8));
    batch->tasks.push_back(task);
    batch->unfinished = 1;
    task->batch = batch;
    task->slices_left = 1;
    task->status.state = State::kPending;
    task->request.segment = segment;
  }
  slice->op = Op::kWrite;
  slice->raise = true;
  slice->piece = {0, offset, 8, 1, 0, 0};
  slice->guard = {offset, value};
  slice->deadline = impl_->clock.now() + budget;
  slice->task = task;
  slice->cancelled = &task->cancelled;
  const auto ways = impl_->candidates(*slice->peer, offset);
  if (ways.empty()) return fail(Code::kUnavailable, "no allowed transport reaches the segment");
  ways.front()->submit(std::move(slice));
  return impl_->wait(batch, budget + impl_->options.peer_timeout);
}

}  // namespace mc::xfer
