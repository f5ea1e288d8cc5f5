#include "xfer/memory/file_stream.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "xfer/memory/file_queue.h"

namespace mc::xfer {
namespace {
constexpr Duration kStreamStep = std::chrono::seconds(10);
constexpr size_t kStationSlotBytes = 256 * 1024 + FileStore::kPageBytes;
}  // namespace

struct FileStreamPool::Station {
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  FileQueue queue;
  bool fixed = false;
  std::array<size_t, StagingStream::kSlots> under_way{};
  std::array<Result<>, StagingStream::kSlots> outcomes;
  std::vector<FileQueue::Done> done;
  explicit Station(bool uring)
      : memory(static_cast<std::byte*>(std::aligned_alloc(
                   FileStore::kPageBytes, StagingStream::kSlots * kStationSlotBytes)),
               &std::free),
        queue({.depth = 32, .uring = uring, .one_thread = false}) {
    MC_CHECK(memory != nullptr);
    const iovec all{memory.get(), StagingStream::kSlots * kStationSlotBytes};
    fixed = queue.register_memory({&all, 1});
  }
};

class FileStream final : public StagingStream {
 public:
  FileStream(std::shared_ptr<FileStreamPool> pool, std::unique_ptr<FileStreamPool::Station> station,
             FileStorePtr file)
      : pool_(std::move(pool)), station_(std::move(station)), file_(std::move(file)) {}
  ~FileStream() override {
    for (size_t i = 0; i < kSlots; ++i) (void)finish(i);
    pool_->give(std::move(station_));
  }
  std::span<std::byte> slot(size_t i) override {
    return {station_->memory.get() + i * kStationSlotBytes, kStationSlotBytes};
  }
  void start(size_t i, size_t from, bool write, uint64_t at, size_t bytes) override {
    FileQueue& queue = station_->queue;
    for (std::byte* p = slot(i).data() + from; bytes > 0;) {
      while (queue.full()) collect(kStreamStep);
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
    while (station_->under_way[i] > 0) collect(kStreamStep);
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
  std::shared_ptr<FileStreamPool> pool_;
  std::unique_ptr<FileStreamPool::Station> station_;
  FileStorePtr file_;
};

FileStreamPool::FileStreamPool(bool uring) : uring_(uring) {}
FileStreamPool::~FileStreamPool() = default;

std::unique_ptr<StagingStream> FileStreamPool::take(FileStorePtr file) {
  std::unique_ptr<Station> station;
  {
    Lock lock(mutex_);
    if (!idle_.empty()) {
      station = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (station == nullptr) station = std::make_unique<Station>(uring_);
  return std::make_unique<FileStream>(shared_from_this(), std::move(station), std::move(file));
}

void FileStreamPool::give(std::unique_ptr<Station> station) {
  Lock lock(mutex_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(station));
}

}  // namespace mc::xfer
