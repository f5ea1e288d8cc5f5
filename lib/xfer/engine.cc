#include "xfer/engine.h"

#include <sys/prctl.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "xfer/copy.h"
#include "xfer/engine_impl.h"
#include "xfer/host.h"

namespace mc::xfer {
namespace {
constexpr size_t kTransportsMax = 8;
constexpr Duration kWaitStep = std::chrono::hours(1);

Duration backstop(Duration budget, const EngineOptions& options) {
  return budget > Duration::max() / 2 ? budget : budget + options.peer_timeout;
}

// Set while this thread is in submit(): the caller may hold a lock that its callback takes.
thread_local bool submitting = false;

// Does another transport stand a chance? Not when the request itself is at fault, its time is over,
// or its bytes have another owner.
bool worth_another(Code code) {
  return code == Code::kUnavailable || code == Code::kDenied || code == Code::kUnsupported ||
         code == Code::kNoSpace || code == Code::kCorrupt;
}
}  // namespace

void EngineOptions::describe(OptionList& v) {
  v("data", data, "addresses that tcp data connections are taken on, one a rail; 0.0.0.0: all");
  v("nics", nics, "network interfaces to use for tcp, such as eth0,eth1; empty: all");
  v("transports", transports, "transports allowed, in order of preference: shm, tcp");
  v("copy-workers", workers, "threads that copy shared memory");
  v("connections", connections, "tcp connections per peer");
  v("slice", slice, "bytes a slice, 64KiB or more");
  v("peer-timeout", peer_timeout, "a peer silent for this long fails a transfer");
  v("max-failover-attempts", max_failover_attempts,
    "transports a slice may move on to after the first one failed it");
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
  net = net_id();
  secret.resize(32);
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return fail(Code::kInternal, "no randomness for the data secret");
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // lets process_vm_readv work under Yama
  const auto allowed = [&](const char* name) {
    return std::count(options.transports.begin(), options.transports.end(), name) > 0;
  };
  if (!allowed("shm"))  // copies inside this process need no permission
    transports.push_back(
        std::make_unique<LocalTransport>(*this, *registry, clock, LocalTransport::Config{}));
  if (options.transports.empty() || options.transports.size() > kTransportsMax)
    return fail(Code::kInvalid, "%zu transports are allowed: name shm, tcp or both",
                options.transports.size());
  for (const std::string& name : options.transports) {
    if (name == "shm") {
      MC_TRY(fd_server, FdServer::open(*registry));
      transports.push_back(std::make_unique<LocalTransport>(
          *this, *registry, clock, LocalTransport::Config{options.workers, true, allowed("tcp")}));
    } else if (name == "tcp") {
      MC_TRY_(serve_tcp());
      transports.push_back(std::make_unique<tcp::TcpTransport>(
          *this, clock,
          tcp::TcpTransport::Config{options.connections, options.peer_timeout, nics}));
    } else {
      return fail(Code::kInvalid, "unknown transport '%s': this build has shm and tcp",
                  name.c_str());
    }
  }
  self_counts = counters_of("self");
  for (const auto& t : transports) counts.push_back(counters_of(t->name()));
  MC_TRY(PeerPtr me, make_peer(describe()));
  {
    Lock lock(mutex);
    segments.push_back({me, "", {}});
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
  for (auto& t : transports) t->stop();  // each may still hand slices to finished()
}

Engine::Impl::Counters Engine::Impl::counters_of(const std::string& transport) {
  const Labels labels{{"transport", transport}};
  return {&metrics.counter("mc_xfer_bytes_total", "payload bytes moved", labels),
          &metrics.counter("mc_xfer_slices_total", "slices tried", labels),
          &metrics.counter("mc_xfer_requests_total", "requests completed", labels),
          &metrics.counter("mc_xfer_failures_total", "slices that failed", labels)};
}

const Engine::Impl::Counters& Engine::Impl::counters_of(const Slice& slice) const {
  return slice.peer->same_process ? self_counts : counts[slice.way];
}

Counter& Engine::Impl::failovers(uint32_t from, uint32_t to) const {
  return metrics.counter("mc_xfer_failovers_total", "slices handed on to the next transport",
                         {{"from", transports[from]->name()}, {"to", transports[to]->name()}});
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
      const auto range = peer->buffer(r.offset, span_of(r.bytes, r.rows, r.remote_stride));
      // A peer whose address is known may offer more by now: dispatch() will ask.
      if (!range && segments[r.segment].control.empty()) return fail(range.error());
      auto task = std::make_shared<Task>();
      task->request = r;
      task->batch = it->second;
      started.emplace_back(std::move(task), std::move(peer));
    }
    for (auto& [task, peer] : started) it->second->tasks.push_back(task);
    it->second->unfinished += started.size();
    if (all_done && it->second->unfinished > 0)
      it->second->all_done.push_back(std::move(all_done));
    else if (all_done)
      errand(std::move(all_done));
  }
  submitting = true;
  for (auto& [task, peer] : started) launch(task, peer);
  submitting = false;
  return {};
}

void Engine::Impl::launch(const TaskPtr& task, const PeerPtr& peer) {
  const Request& r = task->request;
  const auto pieces = plan(r, options.slice);
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
    slice->priority = r.priority;
    slice->streaming = r.bytes * r.rows >= kStreamingBytes;
    slice->peer = peer;
    slice->task = task;
    slice->cancelled = &task->cancelled;
    dispatch(std::move(slice));
  }
}

void Engine::Impl::dispatch(SlicePtr slice) {
  const Piece& p = slice->piece;
  const uint64_t span = span_of(p.bytes, p.rows, p.remote_stride);
  if (const auto range = slice->peer->buffer(p.remote, span); !range) {
    if (!refresh(slice)) settle(std::move(slice), fail(range.error()));
    return;
  }
  if (Transport* way = next_way(*slice)) {
    way->submit(std::move(slice));
    return;
  }
  const std::string node = slice->peer->descriptor.node;
  settle(std::move(slice),
         fail(Code::kUnavailable, "no allowed transport reaches the memory of %s", node.c_str()));
}

void Engine::Impl::finished(SlicePtr slice, Result<> outcome) {
  const Counters& count = counters_of(*slice);
  count.slices->add();
  if (outcome && !slice->raise) count.bytes->add(slice->piece.total());
  if (!outcome) count.failures->add();
  if (!outcome && !slice->task->cancelled.load()) {
    const Error& error = outcome.error();
    if (error.code == Code::kStale && refresh(slice)) return;
    // What was moved stays moved: only this slice goes on, to the next transport that reaches.
    const auto moves = static_cast<uint32_t>(std::popcount(slice->tried)) - 1;
    if (worth_another(error.code) && moves < options.max_failover_attempts && !ending()) {
      const uint32_t from = slice->way;
      if (Transport* next = next_way(*slice)) {
        failovers(from, slice->way).add();
        log_debug("xfer", "%s: on to %s: %s", slice->peer->descriptor.node.c_str(), next->name(),
                  error.what.c_str());
        next->submit(std::move(slice));
        return;
      }
    }
  }
  settle(std::move(slice), outcome);
}

// The slice is done with, for good or ill; the last one ends its task, the last task its batch.
void Engine::Impl::settle(SlicePtr slice, const Result<>& outcome) {
  const TaskPtr task = slice->task;
  const Counters& count = counters_of(*slice);
  const uint64_t bytes = slice->raise ? 0 : slice->piece.total();
  slice.reset();
  std::vector<std::function<void()>> callbacks;
  {
    Lock lock(mutex);
    Status& s = task->status;
    if (outcome) {
      s.bytes_done += bytes;
    } else {
      if (s.error.what.empty()) s.error = outcome.error();
      task->cancelled.store(true);  // its other slices need not move
    }
    if (--task->slices_left > 0) return;
    if (s.error.what.empty()) {
      s.state = State::kCompleted;
      count.requests->add();
    } else if (s.error.code == Code::kTimeout) {
      s.state = State::kTimedOut;
    } else {
      s.state = s.error.code == Code::kUnavailable && task->wanted_cancel ? State::kCancelled
                                                                          : State::kFailed;
    }
    const auto batch = task->batch.lock();
    if (batch == nullptr || --batch->unfinished > 0) return;
    batch->ended.notify_all();
    callbacks.swap(batch->all_done);
    if (submitting && !stopping) {
      for (auto& callback : callbacks) errand(std::move(callback));
      return;
    }
  }
  for (auto& callback : callbacks) callback();
}

bool Engine::Impl::ending() const {
  Lock lock(mutex);
  return stopping;
}

Time Engine::Impl::after(Duration budget) const {
  const Time now = clock.now();
  return budget > Time::max() - now ? Time::max() : now + budget;
}

Result<> Engine::Impl::wait(const std::shared_ptr<Batch>& batch, Duration budget) {
  const Time deadline = after(budget);
  Lock lock(mutex);
  while (batch->unfinished > 0) {
    const Duration left = deadline - clock.now();
    if (left.count() <= 0)
      return fail(Code::kTimeout, "%zu transfers are not done after %s", batch->unfinished,
                  to_text(budget).c_str());
    batch->ended.wait_for(mutex, std::min(left, kWaitStep));
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
  while (batch->unfinished > 0) batch->ended.wait(mutex);
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
  for (const auto& t : impl_->transports)
    if (t->reaches(*peer, offset, Op::kRead)) return t->name();
  return "none";
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
  bounded.deadline = std::min(request.deadline, impl_->after(budget));
  const BatchId batch = allocate_batch();
  Result<> outcome = submit(batch, {&bounded, 1});
  // The deadline ends it; the wait is only a backstop.
  if (outcome) outcome = wait(batch, backstop(budget, impl_->options));
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
    batch->tasks.push_back(task);
    batch->unfinished = 1;
    task->batch = batch;
    task->slices_left = 1;
    task->status.state = State::kPending;
    task->request.segment = segment;
  }
  slice->op = Op::kWrite;
  slice->raise = true;
  slice->priority = Priority::kHigh;  // eight bytes that others wait for
  slice->piece = {0, offset, 8, 1, 0, 0};
  slice->guard = {offset, value};
  slice->deadline = impl_->after(budget);
  slice->task = task;
  slice->cancelled = &task->cancelled;
  impl_->dispatch(std::move(slice));
  return impl_->wait(batch, backstop(budget, impl_->options));
}

}  // namespace mc::xfer
