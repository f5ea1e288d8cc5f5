#include "xfer/staging/staging_engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log.h"

namespace mc::xfer {

StagingEngine::StagingEngine(Send send, Done done, const Clock& clock, Config config)
    : send_(std::move(send)), done_(std::move(done)), clock_(clock), config_([&] {
        config.chunk = std::max(config.chunk, kSliceBytesMin);
        config.buffers = std::max(config.buffers, 2u);
        config.threads = std::max(config.threads, 1u);
        return config;
      }()) {}

void StagingEngine::allocate() {
  if (!staging_.empty()) return;
  staging_.resize(config_.chunk * config_.buffers);
  for (uint32_t i = 0; i < config_.buffers; ++i)
    free_.push_back(staging_.data() + i * config_.chunk);
}

void StagingEngine::start() {
  allocate();
  if (!threads_.empty()) return;
  for (uint32_t i = 0; i < config_.threads; ++i) threads_.emplace_back([this] { run(); });
}

void StagingEngine::stage_for(MemoryKind& kind) {
  Lock lock(mutex_);
  allocate();
  auto pinned = kind.pin(staging_);
  if (pinned)
    pins_.push_back(std::move(*pinned));
  else if (pinned.error().code != Code::kUnsupported)
    log_warn("xfer", "staging memory is not pinned: %s", pinned.error().what.c_str());
}

StagingEngine::HostEnd StagingEngine::host_end(const Job& job) {
  const Piece& p = job.slice->piece;
  const bool device_there = job.remote != nullptr && job.remote->backend != nullptr;
  if (job.local != nullptr && device_there) return kNoHost;
  if (job.local == nullptr && !device_there) return kUnpinned;  // its owner's, and ours
  BufferBackend& device = *(device_there ? job.remote : job.local)->backend;
  if (device_there) return device.pinned(job.slice->local + p.local, p.bytes) ? kPinned : kUnpinned;
  if (job.remote == nullptr || job.remote->data == nullptr) return kUnpinned;
  const std::byte* const there = job.remote->data + (p.remote - job.remote->offset);
  return device.pinned(there, p.bytes) ? kPinned : kUnpinned;
}

PathCostModel& StagingEngine::costs_of(const Job& job) {
  return costs_[job.slice->op == Op::kWrite][job.local != nullptr][job.owned][job.host];
}

void StagingEngine::enqueue(const JobPtr& job) {
  job->weighed = std::popcount(job->usable) > 1;
  job->path = static_cast<CopyPath>(costs_of(*job).choose(job->slice->piece.total(), job->usable));
  job->usable &= ~(1u << job->path);
  const bool staged = job->path == kStaged || (job->path == kOwner && job->local != nullptr);
  // Device copies and NICs gain nothing from small pieces. Local offsets count from the slice's.
  const Piece& whole = job->slice->piece;
  const bool at_once = job->path == kDirect || job->path == kNic;
  const uint64_t bytes_max = at_once ? std::max(whole.total(), uint64_t{1}) : config_.chunk;
  job->chunks = cut(whole, bytes_max);
  job->next = 0;
  job->outcome = {};
  job->begun = clock_.now();
  if (counters_[job->path] != nullptr) counters_[job->path]->add();
  (staged ? jobs_ : unstaged_).push_back(job);
  changed_.notify_all();
}

void StagingEngine::submit(SlicePtr slice, Ends ends) {
  auto& [local, remote, owned, taken] = ends;
  Result<> admitted;
  if (remote != nullptr && slice->op == Op::kWrite && !remote->writable)
    admitted = fail(Code::kDenied, "this memory is read-only");
  if (remote != nullptr && slice->guard.offset != Guard::kNone) {
    if (owned)
      remote = nullptr;  // its owner checks the guard
    else
      admitted = fail(Code::kUnsupported, "guards in device memory are not supported");
  }
  if (admitted) {
    Lock lock(mutex_);
    if (!stopping_) {
      start();
      auto job = std::make_shared<Job>();
      const auto moves = [](const BufferPtr& b) {
        return b != nullptr && b->backend != nullptr && b->data != nullptr && b->backend->moves();
      };
      const bool addressable = remote != nullptr && remote->data != nullptr;
      if (addressable && (moves(local) || moves(remote))) job->usable |= 1u << kDirect;
      if (remote != nullptr) job->usable |= 1u << kStaged;
      if (remote == nullptr || owned) job->usable |= 1u << kOwner;
      if (taken && (remote == nullptr || owned)) job->usable |= 1u << kNic;
      job->slice = std::move(slice);
      job->local = std::move(local);
      job->remote = std::move(remote);
      job->owned = owned;
      job->host = host_end(*job);
      enqueue(job);
      return;
    }
    admitted = fail(Code::kUnavailable, "shutting down");
  }
  done_(std::move(slice), admitted);
}

// Takes the next chunk for a thread that has nothing to drain. False: none, or no staging is free.
bool StagingEngine::begin(Chunk& chunk) {
  const bool staged = unstaged_.empty();
  auto& from = staged ? jobs_ : unstaged_;
  if (from.empty() || (staged && free_.empty())) return false;
  const JobPtr job = from.front();
  chunk = {job, job->chunks[job->next++], staged ? free_.back() : nullptr};
  if (staged) free_.pop_back();
  ++job->in_flight;
  if (job->next == job->chunks.size()) from.pop_front();
  return true;
}

void StagingEngine::run() {
  for (;;) {
    Chunk chunk;
    bool drains = false;
    {
      Lock lock(mutex_);
      for (;;) {
        drains = !filled_.empty();
        if (drains) {
          chunk = std::move(filled_.front());
          filled_.pop_front();
        }
        if (drains || begin(chunk)) break;
        if (stopping_) return;  // a thread that holds a chunk completes its job
        changed_.wait(mutex_);
      }
      if (stopping_ && chunk.job->outcome)
        chunk.job->outcome = fail(Code::kUnavailable, "shutting down");
    }
    if (drains)
      drain(std::move(chunk));
    else
      fill(std::move(chunk));
  }
}

Result<> StagingEngine::cancelled_or_expired(const Slice& slice) const {
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
    return fail(expired_error(slice));
  return {};
}

void StagingEngine::fill(Chunk chunk) {
  const Job& job = *chunk.job;
  Result<> outcome;
  {
    Lock lock(mutex_);
    outcome = job.outcome;
  }
  if (outcome) outcome = cancelled_or_expired(*job.slice);
  if (!outcome) {
    ended(chunk, outcome);
    return;
  }
  if (job.path == kDirect) {
    ended(chunk, copy_direct(chunk));
    return;
  }
  if (chunk.staging == nullptr) {  // a transport reaches both ends
    send(chunk, [this, chunk](const Result<>& completed) {
      const Job& of = *chunk.job;
      // The NIC says that it wrote; the device may not see it yet.
      const bool arrived = completed && of.path == kNic && of.slice->op == Op::kRead;
      ended(chunk, arrived ? of.local->backend->see_nic_writes() : completed);
    });
    return;
  }
  const bool reading = job.slice->op == Op::kRead;
  if (reading && job.path == kOwner) {
    send(chunk, [this, chunk](const Result<>& arrived) {
      if (!arrived) {
        ended(chunk, arrived);
        return;
      }
      Lock lock(mutex_);
      filled_.push_back(chunk);
      changed_.notify_one();
    });
    return;
  }
  outcome = reading ? copy_remote(chunk, true) : copy_local(chunk, true);
  if (outcome)
    drain(std::move(chunk));
  else
    ended(chunk, outcome);
}

void StagingEngine::drain(Chunk chunk) {
  const Job& job = *chunk.job;
  Result<> outcome = cancelled_or_expired(*job.slice);
  if (outcome && job.slice->op == Op::kWrite && job.path == kOwner) {
    send(chunk, [this, chunk](const Result<>& sent) { ended(chunk, sent); });
    return;
  }
  if (outcome)
    outcome = job.slice->op == Op::kRead ? copy_local(chunk, false) : copy_remote(chunk, false);
  ended(chunk, outcome);
}

// The chunk's rows, dense in staging, as a slice of its own.
void StagingEngine::send(const Chunk& chunk, std::function<void(const Result<>&)> completed) {
  const Slice& outer = *chunk.job->slice;
  auto task = std::make_shared<Task>();
  task->segment = outer.task->segment;
  task->slices_left = 1;
  task->instance = outer.peer->instance;
  task->completed = std::move(completed);
  auto slice = std::make_unique<Slice>();
  slice->op = outer.op;
  slice->piece = chunk.piece;
  slice->piece.local = 0;
  if (chunk.staging != nullptr) {
    slice->local = chunk.staging;
    slice->piece.local_stride = chunk.piece.bytes;
  } else {
    slice->local = outer.local + chunk.piece.local;
    slice->memory = outer.memory;
    if (chunk.job->path == kNic) slice->device = chunk.job->local;
  }
  slice->guard = outer.guard;
  slice->deadline = outer.deadline;
  slice->priority = outer.priority;
  slice->peer = outer.peer;
  slice->cancelled = outer.cancelled;
  slice->task = std::move(task);
  send_(std::move(slice));
}

Result<> StagingEngine::copy_direct(const Chunk& chunk) {
  const Job& job = *chunk.job;
  const Piece& p = chunk.piece;
  std::byte* const here = job.slice->local + p.local;
  std::byte* const there = job.remote->data + (p.remote - job.remote->offset);
  const bool device_here = job.local != nullptr, device_there = job.remote->backend != nullptr;
  BufferBackend& mover = *(device_there ? job.remote : job.local)->backend;
  if (job.slice->op == Op::kWrite)
    return mover.move({{there, here, p.remote_stride, p.local_stride, p.bytes, p.rows},
                       device_there,
                       device_here});
  return mover.move(
      {{here, there, p.local_stride, p.remote_stride, p.bytes, p.rows}, device_here, device_there});
}

namespace {

// Rows between staging, where they are dense, and a buffer (null: the host's memory).
Result<> rows_between(BufferBackend* backend, std::byte* at, uint64_t offset, uint64_t stride,
                      std::byte* staging, const Piece& p, bool into_staging) {
  if (backend != nullptr && at != nullptr && p.rows > 1 && backend->moves())
    return into_staging
               ? backend->move({{staging, at, p.bytes, stride, p.bytes, p.rows}, false, true})
               : backend->move({{at, staging, stride, p.bytes, p.bytes, p.rows}, true, false});
  for (uint64_t row = 0; row < p.rows; ++row) {
    const std::span<std::byte> host(staging + row * p.bytes, p.bytes);
    std::byte* const there = at + row * stride;
    if (backend != nullptr) {
      const uint64_t place = offset + row * stride;
      MC_TRY_(into_staging ? backend->read(place, host) : backend->write(place, host));
    } else {
      std::memcpy(into_staging ? host.data() : there, into_staging ? there : host.data(), p.bytes);
    }
  }
  return {};
}

}  // namespace

Result<> StagingEngine::copy_local(const Chunk& chunk, bool into_staging) {
  const Job& job = *chunk.job;
  const Piece& p = chunk.piece;
  std::byte* const at = job.slice->local + p.local;
  BufferBackend* const backend = job.local != nullptr ? job.local->backend.get() : nullptr;
  const uint64_t offset = backend == nullptr ? 0 : static_cast<uint64_t>(at - job.local->data);
  return rows_between(backend, at, offset, p.local_stride, chunk.staging, p, into_staging);
}

Result<> StagingEngine::copy_remote(const Chunk& chunk, bool into_staging) {
  const Buffer& to = *chunk.job->remote;
  const Piece& p = chunk.piece;
  const uint64_t offset = p.remote - to.offset;
  std::byte* const at = to.data == nullptr ? nullptr : to.data + offset;
  return rows_between(to.backend.get(), at, offset, p.remote_stride, chunk.staging, p,
                      into_staging);
}

// False if the request itself is at fault, its deadline passed, or no path is left.
bool StagingEngine::try_another_path(const JobPtr& job, const Result<>& why) {
  const Code code = why.error().code;
  const bool other = code == Code::kUnsupported || code == Code::kUnavailable ||
                     code == Code::kNoSpace || code == Code::kBusy || code == Code::kInternal ||
                     code == Code::kStale;
  if (code == Code::kUnsupported) costs_of(*job).exclude(job->path);
  if (!other || job->usable == 0 || stopping_ || job->slice->cancelled->load()) return false;
  log_debug("xfer", "copy path failed, trying another: %s", why.error().what.c_str());
  enqueue(job);
  return true;
}

// Frees the chunk's buffer. The last chunk of a job, or the last in flight of a failed one, ends
// it.
void StagingEngine::ended(const Chunk& chunk, const Result<>& outcome) {
  const JobPtr& job = chunk.job;
  {
    Lock lock(mutex_);
    if (chunk.staging != nullptr) free_.push_back(chunk.staging);
    changed_.notify_one();
    if (!outcome && job->outcome) job->outcome = outcome;
    if (!job->outcome && job->next < job->chunks.size()) {
      job->next = job->chunks.size();
      std::erase(jobs_, job);
      std::erase(unstaged_, job);
    }
    if (--job->in_flight > 0 || job->next < job->chunks.size()) return;
    if (!job->outcome && try_another_path(job, Result<>(job->outcome))) return;
    if (job->outcome && job->weighed)
      costs_of(*job).record(job->path, job->slice->piece.total(), clock_.now() - job->begun);
  }
  done_(std::move(job->slice), job->outcome);
}

void StagingEngine::stop() {
  std::deque<JobPtr> unbegun;
  {
    Lock lock(mutex_);
    stopping_ = true;
    for (auto* jobs : {&jobs_, &unstaged_}) {
      for (const JobPtr& job : *jobs) {
        job->next = job->chunks.size();
        if (job->outcome) job->outcome = fail(Code::kUnavailable, "shutting down");
        if (job->in_flight == 0) unbegun.push_back(job);
      }
      jobs->clear();
    }
  }
  changed_.notify_all();
  for (const JobPtr& job : unbegun) done_(std::move(job->slice), job->outcome);
  for (auto& t : threads_) t.join();
  threads_.clear();
}

}  // namespace mc::xfer
