#include "xfer/memory/file_stream.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "xfer/memory/file_queue.h"

namespace mc::xfer {
namespace {
constexpr Duration kFlowStep = std::chrono::seconds(10);
constexpr size_t kStationSlotBytes = 256 * 1024 + FileStore::kPageBytes;
}  // namespace

struct FlowPool::Station {
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  FileQueue queue;
  bool fixed = false;
  std::array<size_t, Flow::kSlots> under_way{};
  std::array<Result<>, Flow::kSlots> outcomes;
  std::vector<FileQueue::Done> done;
  explicit Station(bool uring)
      : memory(static_cast<std::byte*>(
                   std::aligned_alloc(FileStore::kPageBytes, Flow::kSlots * kStationSlotBytes)),
               &std::free),
        queue({.depth = 32, .uring = uring, .one_thread = false}) {
    MC_CHECK(memory != nullptr);
    const iovec all{memory.get(), Flow::kSlots * kStationSlotBytes};
    fixed = queue.register_memory({&all, 1});
  }
};

class FileFlow final : public Flow {
 public:
  FileFlow(std::shared_ptr<FlowPool> pool, std::unique_ptr<FlowPool::Station> station,
           FileStorePtr file)
      : pool_(std::move(pool)), station_(std::move(station)), file_(std::move(file)) {}
  ~FileFlow() override {
    for (size_t i = 0; i < kSlots; ++i) (void)finish(i);
    pool_->give(std::move(station_));
  }
  std::span<std::byte> slot(size_t i) override {
    return {station_->memory.get() + i * kStationSlotBytes, kStationSlotBytes};
  }
  void start(size_t i, size_t from, bool write, uint64_t at, size_t bytes) override {
    FileQueue& queue = station_->queue;
    for (std::byte* p = slot(i).data() + from; bytes > 0;) {
      while (queue.full()) collect(kFlowStep);
      const uint64_t n = queue.start(
          {file_, write ? Op::kWrite : Op::kRead, at, p, bytes, i, station_->fixed ? 0 : -1});
      ++station_->under_way[i];
      at += n;
      p += n;
      bytes -= n;
    }
    collect(Duration::zero());  // hands it to the kernel now
  }
  Result<> finish(size_t i) override {
    while (station_->under_way[i] > 0) collect(kFlowStep);
    return std::exchange(station_->outcomes[i], Result<>());
  }

 private:
  void collect(Duration wait) {
    station_->queue.collect(station_->done, wait);
    for (auto& d : station_->done) {
      --station_->under_way[d.tag];
      if (!d.outcome && station_->outcomes[d.tag]) station_->outcomes[d.tag] = d.outcome;
    }
    station_->done.clear();
  }
  std::shared_ptr<FlowPool> pool_;
  std::unique_ptr<FlowPool::Station> station_;
  FileStorePtr file_;
};

FlowPool::FlowPool(bool uring) : uring_(uring) {}
FlowPool::~FlowPool() = default;

std::unique_ptr<Flow> FlowPool::take(FileStorePtr file) {
  std::unique_ptr<Station> station;
  {
    Lock lock(mutex_);
    if (!idle_.empty()) {
      station = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (station == nullptr) station = std::make_unique<Station>(uring_);
  return std::make_unique<FileFlow>(shared_from_this(), std::move(station), std::move(file));
}

void FlowPool::give(std::unique_ptr<Station> station) {
  Lock lock(mutex_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(station));
}

}  // namespace mc::xfer
