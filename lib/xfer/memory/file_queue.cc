#include "xfer/memory/file_queue.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace mc::xfer {
namespace {
constexpr uint64_t kWakeTag = UINT64_MAX;
constexpr Duration kDrainStep = std::chrono::seconds(10);
}  // namespace

FileQueue::FileQueue(const Config& config) : slots_(config.depth) {
  for (size_t i = config.depth; i > 0; --i) free_.push_back(i - 1);
  event_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!config.uring) return;
  auto ring = io::Uring::open({config.depth + 1, config.one_thread});  // one for the event
  if (ring) ring_ = std::move(*ring);
}

FileQueue::~FileQueue() {
  std::vector<Done> done;
  while (under_way() > 0) collect(done, kDrainStep);
  if (listening_) wake();
  ring_.reset();  // waits for that last read
}

bool FileQueue::register_memory(std::span<const iovec> buffers) {
  return ring_ != nullptr && ring_->register_buffers(buffers).has_value();
}

void FileQueue::wake() { ::eventfd_write(event_.get(), 1); }

uint64_t FileQueue::start(Move move) {
  const auto step = move.file->step(move.at, move.memory, move.bytes);
  move.bytes = step.bytes;
  if (ring_ == nullptr) {
    const std::span<std::byte> memory(move.memory, move.bytes);
    done_.push_back({move.tag, move.op == Op::kRead ? move.file->read(move.at, memory)
                                                    : move.file->write(move.at, memory)});
    return step.bytes;
  }
  const size_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = {std::move(move), step};
  prepare(slot);
  return step.bytes;
}

void FileQueue::prepare(size_t slot) {
  const Move& m = slots_[slot].move;
  const auto& step = slots_[slot].step;
  ring_->prepare(
      {m.op == Op::kWrite, step.fd, m.memory, step.bytes, m.at, uint64_t{slot}, m.fixed});
}

void FileQueue::end(std::vector<Done>& done, size_t slot, int32_t result) {
  Move& m = slots_[slot].move;
  auto moved = m.file->judge(m.op, m.at, slots_[slot].step, result);
  if (moved && *moved < m.bytes) {  // short, or to be done again
    m.at += *moved;
    m.memory += *moved;
    m.bytes -= *moved;
    slots_[slot].step = m.file->step(m.at, m.memory, m.bytes);
    prepare(slot);
    return;
  }
  done.push_back({m.tag, moved ? Result<>() : Result<>(fail(moved.error()))});
  m.file.reset();
  free_.push_back(slot);
}

void FileQueue::collect(std::vector<Done>& done, Duration wait) {
  if (ring_ == nullptr) {
    if (done_.empty() && wait.count() > 0) {
      pollfd p{event_.get(), POLLIN, 0};
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
      uint64_t count = 0;
      if (::poll(&p, 1, static_cast<int>(std::min<int64_t>(ms, 10'000))) > 0)
        ::eventfd_read(event_.get(), &count);
    }
    std::move(done_.begin(), done_.end(), std::back_inserter(done));
    done_.clear();
    return;
  }
  if (!listening_ && wait.count() > 0) {
    listening_ = true;
    ring_->prepare({false, event_.get(), reinterpret_cast<std::byte*>(&woken_), sizeof woken_,
                    uint64_t(-1), kWakeTag});
  }
  std::array<io::Uring::End, 64> ends;
  const auto n = ring_->run(ends, wait);
  MC_CHECK(n.has_value());  // memory may be under way in a ring that does not answer any more
  for (size_t i = 0; i < *n; ++i) {
    if (ends[i].tag == kWakeTag)
      listening_ = false;
    else
      end(done, static_cast<size_t>(ends[i].tag), ends[i].result);
  }
}

}  // namespace mc::xfer
