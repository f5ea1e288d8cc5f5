#include "xfer/relay.h"

#include <algorithm>
#include <cstring>

namespace mc::xfer {

Relay::Relay(Send send, Done done, const Clock& clock, Config config)
    : send_(std::move(send)), done_(std::move(done)), clock_(clock), config_([&] {
        config.chunk = std::max(config.chunk, kSliceBytesMin);
        config.buffers = std::max(config.buffers, 2u);
        config.threads = std::max(config.threads, 1u);
        return config;
      }()) {}

void Relay::start() {
  if (!staging_.empty()) return;
  staging_.resize(config_.chunk * config_.buffers);
  for (uint32_t i = 0; i < config_.buffers; ++i)
    free_.push_back(staging_.data() + i * config_.chunk);
  for (uint32_t i = 0; i < config_.threads; ++i) threads_.emplace_back([this] { run(); });
}

void Relay::submit(SlicePtr slice, BufferPtr local, BufferPtr remote) {
  Result<> admitted;
  if (remote != nullptr && slice->op == Op::kWrite && !remote->writable)
    admitted = fail(Code::kDenied, "this memory is read-only");
  if (remote != nullptr && slice->guard.offset != Guard::kNone)
    admitted = fail(Code::kUnsupported, "guards in device memory are not supported");
  if (admitted) {
    Lock lock(mutex_);
    if (!stopping_) {
      start();
      auto job = std::make_shared<Job>();
      job->chunks = cut(slice->piece, config_.chunk);
      job->slice = std::move(slice);
      job->local = std::move(local);
      job->remote = std::move(remote);
      jobs_.push_back(std::move(job));
      changed_.notify_all();
      return;
    }
    admitted = fail(Code::kUnavailable, "shutting down");
  }
  done_(std::move(slice), admitted);
}

void Relay::run() {
  for (;;) {
    Chunk chunk;
    bool drains = false;
    {
      Lock lock(mutex_);
      while (filled_.empty() && (jobs_.empty() || free_.empty()) && !stopping_)
        changed_.wait(mutex_);
      if (!filled_.empty()) {
        drains = true;
        chunk = std::move(filled_.front());
        filled_.pop_front();
      } else if (!jobs_.empty() && !free_.empty()) {
        const JobPtr& job = jobs_.front();
        chunk = {job, job->chunks[job->next++], free_.back()};
        free_.pop_back();
        ++job->flying;
        if (job->next == job->chunks.size()) jobs_.pop_front();
      } else {
        return;  // stopping; whoever still has a buffer gives back its own job
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

Result<> Relay::over(const Slice& slice) const {
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
    return fail(expired_error(slice));
  return {};
}

void Relay::fill(Chunk chunk) {
  const Job& job = *chunk.job;
  Result<> outcome;
  {
    Lock lock(mutex_);
    outcome = job.outcome;
  }
  if (outcome) outcome = over(*job.slice);
  if (!outcome) {
    ended(chunk, outcome);
    return;
  }
  const bool reading = job.slice->op == Op::kRead;
  if (reading && job.remote == nullptr) {
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

void Relay::drain(Chunk chunk) {
  const Job& job = *chunk.job;
  Result<> outcome = over(*job.slice);
  if (outcome && job.slice->op == Op::kWrite && job.remote == nullptr) {
    send(chunk, [this, chunk](const Result<>& sent) { ended(chunk, sent); });
    return;
  }
  if (outcome)
    outcome = job.slice->op == Op::kRead ? copy_local(chunk, false) : copy_remote(chunk, false);
  ended(chunk, outcome);
}

// The chunk's rows, dense in staging, as a slice of its own.
void Relay::send(const Chunk& chunk, std::function<void(const Result<>&)> settled) {
  const Slice& outer = *chunk.job->slice;
  auto task = std::make_shared<Task>();
  task->segment = outer.task->segment;
  task->slices_left = 1;
  task->instance = outer.peer->instance;
  task->settled = std::move(settled);
  auto slice = std::make_unique<Slice>();
  slice->op = outer.op;
  slice->local = chunk.staging;
  slice->piece = chunk.piece;
  slice->piece.local = 0;
  slice->piece.local_stride = chunk.piece.bytes;
  slice->guard = outer.guard;
  slice->deadline = outer.deadline;
  slice->priority = outer.priority;
  slice->peer = outer.peer;
  slice->cancelled = outer.cancelled;
  slice->task = std::move(task);
  send_(std::move(slice));
}

Result<> Relay::copy_local(const Chunk& chunk, bool into_staging) {
  const Job& job = *chunk.job;
  const Piece& p = chunk.piece;
  for (uint64_t row = 0; row < p.rows; ++row) {
    std::byte* const at = job.slice->local + p.local + row * p.local_stride;
    const std::span<std::byte> host(chunk.staging + row * p.bytes, p.bytes);
    if (job.local == nullptr) {
      std::memcpy(into_staging ? host.data() : at, into_staging ? at : host.data(), p.bytes);
      continue;
    }
    const auto offset = static_cast<uint64_t>(at - job.local->data);
    MC_TRY_(into_staging ? job.local->backing->read(offset, host)
                         : job.local->backing->write(offset, host));
  }
  return {};
}

Result<> Relay::copy_remote(const Chunk& chunk, bool into_staging) {
  const Buffer& to = *chunk.job->remote;
  const Piece& p = chunk.piece;
  for (uint64_t row = 0; row < p.rows; ++row) {
    const uint64_t offset = p.remote - to.offset + row * p.remote_stride;
    const std::span<std::byte> host(chunk.staging + row * p.bytes, p.bytes);
    if (to.backing != nullptr) {
      MC_TRY_(into_staging ? to.backing->read(offset, host) : to.backing->write(offset, host));
      continue;
    }
    std::byte* const at = to.data + offset;
    std::memcpy(into_staging ? host.data() : at, into_staging ? at : host.data(), p.bytes);
  }
  return {};
}

// Its buffer is free; the last chunk of a job, or the last that flies of a failed one, ends it.
void Relay::ended(const Chunk& chunk, const Result<>& outcome) {
  const JobPtr& job = chunk.job;
  {
    Lock lock(mutex_);
    free_.push_back(chunk.staging);
    changed_.notify_one();
    if (!outcome && job->outcome) job->outcome = outcome;
    if (!job->outcome && job->next < job->chunks.size()) {
      job->next = job->chunks.size();
      std::erase(jobs_, job);
    }
    if (--job->flying > 0 || job->next < job->chunks.size()) return;
  }
  done_(std::move(job->slice), job->outcome);
}

void Relay::stop() {
  std::deque<JobPtr> unbegun;
  {
    Lock lock(mutex_);
    stopping_ = true;
    for (const JobPtr& job : jobs_) {
      job->next = job->chunks.size();
      if (job->outcome) job->outcome = fail(Code::kUnavailable, "shutting down");
      if (job->flying == 0) unbegun.push_back(job);
    }
    jobs_.clear();
  }
  changed_.notify_all();
  for (const JobPtr& job : unbegun) done_(std::move(job->slice), job->outcome);
  for (auto& t : threads_) t.join();
  threads_.clear();
}

}  // namespace mc::xfer
