#include "xfer/transports/file/file_transport.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "io/thread.h"

namespace mc::xfer {
namespace {

constexpr Duration kNap = std::chrono::seconds(1);
constexpr size_t kPathMax = 4096;

}  // namespace

struct FileTransport::Job {
  // The next bytes of a piece that lie together.
  struct Cursor {
    uint64_t row = 0, done = 0;
    bool at_end(const Piece& p) const { return row >= p.rows; }
    uint64_t left(const Piece& p) const { return p.bytes - done; }
    void advance(const Piece& p, uint64_t n) {
      done += n;
      if (done < p.bytes) return;
      done = 0;
      ++row;
    }
  };

  SlicePtr slice;  // null: idle
  Target target;
  Cursor cursor;
  size_t under_way = 0;
  bool queued = false;  // listed in `ready`
  Result<> outcome;
  bool wants_more() const { return outcome && !cursor.at_end(slice->piece); }
};

FileTransport::FileTransport(Sink& sink, const Registry& registry, const Clock& clock,
                             Config config)
    : sink_(sink), registry_(registry), clock_(clock), config_(config) {}

bool FileTransport::reaches(const Peer& peer, uint64_t offset, Op op) const {
  const auto buffer = peer.buffer(offset, 0);
  if (!buffer || !(*buffer)->is_file()) return false;
  if (peer.same_process) return true;
  if (!config_.peers || !peer.same_host || (*buffer)->alive_addr == 0) return false;
  if (op == Op::kWrite && config_.yields_writes && !peer.descriptor.tcp.empty()) return false;
  Lock lock(attached_mutex_);
  const auto known = attached_.find({&peer, (*buffer)->offset});
  return known == attached_.end() || !known->second.refused;
}

Result<FileTransport::Target> FileTransport::target(const Slice& slice) {
  const Piece& p = slice.piece;
  const char* node = slice.peer->descriptor.node.c_str();
  const auto place = static_cast<unsigned long long>(p.remote);
  if (slice.advances_guard || slice.guard.offset != Guard::kNone)
    return fail(Code::kInvalid, "the bytes at %llu of %s are a file: it has no guard words", place,
                node);
  const uint64_t span = span_of(p.bytes, p.rows, p.remote_stride);
  MC_TRY(const BufferInfo* info, slice.peer->buffer(p.remote, span));
  if (slice.op == Op::kWrite && !info->writable)
    return fail(Code::kDenied, "the file of %s at %llu is read-only", node, place);
  Target t{nullptr, nullptr, info, p.remote - info->offset};
  if (slice.peer->same_process) {
    auto own = registry_.pin(p.remote, span);
    if (!own || (*own)->file == nullptr) return fail(Code::kStale, "this file was withdrawn");
    t.own = std::move(*own);
    t.file = t.own->file;
  } else {
    MC_TRY(t.file, attach(slice.peer, *info));
    MC_TRY_(still_offered(slice, t));
  }
  return t;
}

Result<FileStorePtr> FileTransport::attach(const PeerPtr& peer, const BufferInfo& info) {
  const Key key{peer.get(), info.offset};
  {
    Lock lock(attached_mutex_);
    const auto known = attached_.find(key);
    if (known != attached_.end() && known->second.file != nullptr) return known->second.file;
  }
  Result<FileStorePtr> file = fail(Code::kInvalid, "its path is not absolute");
  if (info.path.size() < kPathMax && info.path.front() == '/')
    file = FileStore::attach(info.path, info.bytes, info.writable, info.dev, info.ino);
  Lock lock(attached_mutex_);
  MC_TRY_(still_open(*peer));  // else forget() ran already, and would not run again to drop it
  if (file) return attached_.emplace(key, Attached{peer, *file}).first->second.file;
  attached_[key] = {peer, nullptr, true};
  // Its owner may still serve it.
  return fail(Code::kUnavailable, "open the file of %s here: %s", peer->descriptor.node.c_str(),
              file.error().what.c_str());
}

// The owner keeps a witness in its memory as long as it offers the file: which file that is, and
// which registration of it. Who only has a descriptor of it cannot forge that.
Result<> FileTransport::still_offered(const Slice& slice, const Target& t) const {
  if (t.own != nullptr) return {};
  const auto pid = static_cast<pid_t>(slice.peer->descriptor.pid);
  uint64_t seen[3] = {};
  const iovec to{seen, sizeof seen};
  const iovec from{reinterpret_cast<void*>(t.info->alive_addr), sizeof seen};
  if (::process_vm_readv(pid, &to, 1, &from, 1, 0) != static_cast<ssize_t>(sizeof seen))
    return fail(Code::kUnavailable, "cannot check that pid %d of %s still offers %s: %s", pid,
                slice.peer->descriptor.node.c_str(), t.file->path().c_str(), std::strerror(errno));
  if (seen[0] != t.info->alive)
    return fail(Code::kStale, "%s withdrew %s", slice.peer->descriptor.node.c_str(),
                t.file->path().c_str());
  if (seen[1] != t.file->dev() || seen[2] != t.file->ino())
    return fail(Code::kUnavailable, "pid %d does not offer %s", pid, t.file->path().c_str());
  return {};
}

Result<> FileTransport::may_go_on(const Slice& slice, const Target& t) const {
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  if (slice.deadline != Time::max() && clock_.now() >= slice.deadline)
    return fail(expired_error(slice));
  if (t.own != nullptr && t.own->withdrawn.load(std::memory_order_acquire))
    return fail(Code::kStale, "%s was withdrawn meanwhile", t.file->path().c_str());
  return still_open(*slice.peer);
}

// ---- by the caller

void FileTransport::submit(SlicePtr slice) {
  if (slice->awaited && slice->piece.rows == 1 && slice->piece.bytes <= kAtOnceBytes)
    move_now(std::move(slice));
  else
    enqueue({&slice, 1});
}

void FileTransport::submit_awaited(std::span<SlicePtr> slices, Time) { enqueue(slices); }

void FileTransport::enqueue(std::span<SlicePtr> slices) {
  Result<> started;
  {
    Lock lock(mutex_);
    started = start();
    if (started) {
      for (SlicePtr& slice : slices) queue_.push_back(std::move(slice));
      if (sleeper_ != nullptr) std::exchange(sleeper_, nullptr)->wake();
      return;
    }
  }
  for (SlicePtr& slice : slices) sink_.finished(std::move(slice), started);
}

Result<> FileTransport::start() {
  if (stopping_) return fail(Code::kUnavailable, "shutting down");
  if (worker_.joinable()) return {};
  MC_TRY(worker_, io::start_thread([this] { work(); }));
  return {};
}

void FileTransport::move_now(SlicePtr slice) {
  const Piece& p = slice->piece;
  auto move = [&]() -> Result<> {
    MC_TRY(const Target t, target(*slice));
    MC_TRY_(may_go_on(*slice, t));
    const std::span<std::byte> local(slice->local, p.bytes);
    MC_TRY_(slice->op == Op::kRead ? t.file->read(t.at, local) : t.file->write(t.at, local));
    return still_offered(*slice, t);
  };
  Result<> outcome = move();
  sink_.finished(std::move(slice), std::move(outcome));
}

// ---- by the worker

void FileTransport::work() {
  FileQueue queue({.depth = config_.depth, .uring = config_.uring});
  std::vector<Job> jobs(config_.depth);
  std::vector<size_t> idle;
  std::deque<size_t> ready;  // want more of the queue, oldest first
  for (size_t i = jobs.size(); i > 0; --i) idle.push_back(i - 1);
  std::vector<FileQueue::Done> done;
  for (;;) {
    const bool going = take(jobs, idle, ready);
    feed(queue, jobs, ready);
    for (size_t i = 0; i < jobs.size(); ++i) {
      Job& job = jobs[i];
      if (job.slice == nullptr || job.under_way > 0 || job.queued) continue;
      finish(job);
      idle.push_back(i);
    }
    const bool busy = idle.size() < jobs.size();
    if (!going && !busy) return;
    // Asleep until an operation ends, or a slice comes that there is room for.
    bool more = false;
    {
      Lock lock(mutex_);
      more = !idle.empty() && (!queue_.empty() || stopping_);
      sleeper_ = more || idle.empty() ? nullptr : &queue;
    }
    queue.collect(done, more ? Duration::zero() : kNap);
    {
      Lock lock(mutex_);
      sleeper_ = nullptr;
    }
    for (auto& d : done) {
      Job& job = jobs[d.tag];
      --job.under_way;
      if (!d.outcome && job.outcome) job.outcome = std::move(d.outcome);
    }
    done.clear();
  }
}

bool FileTransport::take(std::vector<Job>& jobs, std::vector<size_t>& idle,
                         std::deque<size_t>& ready) {
  std::deque<SlicePtr> taken;
  bool stopped = false;
  {
    Lock lock(mutex_);
    stopped = stopping_;
    while (!queue_.empty() && (stopped || taken.size() < idle.size())) {
      taken.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  for (SlicePtr& slice : taken) {
    auto found =
        stopped ? Result<Target>(fail(Code::kUnavailable, "shutting down")) : target(*slice);
    if (!found) {
      sink_.finished(std::move(slice), fail(found.error()));
      continue;
    }
    const size_t i = idle.back();
    idle.pop_back();
    jobs[i] = Job{std::move(slice), std::move(*found), {}, 0, true, {}};
    ready.push_back(i);
  }
  if (stopped)
    for (Job& job : jobs)
      if (job.slice != nullptr && job.wants_more())
        job.outcome = fail(Code::kUnavailable, "shutting down");
  return !stopped;
}

void FileTransport::feed(FileQueue& queue, std::vector<Job>& jobs, std::deque<size_t>& ready) {
  while (!ready.empty()) {
    Job& job = jobs[ready.front()];
    if (job.wants_more()) job.outcome = may_go_on(*job.slice, job.target);
    if (!job.wants_more()) {
      job.queued = false;
      ready.pop_front();
      continue;
    }
    if (queue.full()) return;
    const Piece& p = job.slice->piece;
    const Job::Cursor at = job.cursor;
    const uint64_t n = queue.start(
        {job.target.file, job.slice->op, job.target.at + at.row * p.remote_stride + at.done,
         job.slice->local + at.row * p.local_stride + at.done, at.left(p), ready.front()});
    ++job.under_way;
    job.cursor.advance(p, n);
  }
}

void FileTransport::finish(Job& job) {
  Job over = std::exchange(job, Job{});
  if (over.outcome) over.outcome = still_offered(*over.slice, over.target);
  over.target = {};  // a pin must not outlive the answer: who waits for it may withdraw the file
  sink_.finished(std::move(over.slice), std::move(over.outcome));
}

void FileTransport::forget(const PeerPtr& peer) {
  Lock lock(attached_mutex_);
  std::erase_if(attached_, [&](const auto& a) { return a.first.first == peer.get(); });
}

void FileTransport::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    if (sleeper_ != nullptr) std::exchange(sleeper_, nullptr)->wake();
  }
  if (worker_.joinable()) worker_.join();
}

}  // namespace mc::xfer
