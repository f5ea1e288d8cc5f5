// Copies a file or a folder tree between two file trees, in checked pieces. Several pieces move at
// a time. Pieces that the target has already are kept if their checksums agree with the source's.
// After an interruption at any point, copying again resumes.
//
// Errors: file_tree.h; kUnavailable when stopped. A piece that fails its checksum is fetched
// again, a few times.
// Thread: run() blocks and runs a few threads; one run at a time.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "p2p/filecopy/file_tree.h"

namespace mc::p2p::filecopy {

struct CopyReport {
  uint64_t files = 0, folders = 0, skipped = 0;  // skipped: links, devices, half-copied files
  uint64_t bytes = 0, kept = 0;                  // kept: bytes that were there already
};

class Copier {
 public:
  struct Config {
    uint32_t attempts = 3;  // of a piece that fails its checksum
    std::function<void(uint64_t done, uint64_t total)> progress;  // now and then, under a lock
  };
  // A thread for each buffer, of kPieceBytes each.
  Copier(FileTree& from, FileTree& to, std::vector<std::span<std::byte>> buffers, Config config);
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // `from` becomes `to`: a folder's contents go into the folder `to`, which is made.
  Result<CopyReport> run(const std::string& from, const std::string& to);

 private:
  struct Item {  // a file, or a folder
    TreeEntry source;
    std::string target;
  };
  struct Job {  // a file whose pieces are under way
    Item item;
    std::unique_ptr<PartialFile> part;
    std::deque<uint64_t> todo;
    uint64_t left = 0;  // pieces not stored yet
  };
  using JobPtr = std::shared_ptr<Job>;
  struct Step {  // what a thread does next: a piece of a job, a new file, or nothing more
    JobPtr job;
    uint64_t piece = 0;
    const Item* file = nullptr;
  };
  Result<> list(const Item& root);
  Result<> work(std::span<std::byte> buffer);
  Step next();
  Result<> start(const Item& file);
  Result<bool> whole(const Item& file);  // is it there already?
  Result<p2p::ShardSet> good_pieces(const Item& file, PartialFile& part);
  Result<> move(Job& job, uint64_t piece, std::span<std::byte> buffer);
  Result<> moved(const JobPtr& job);
  void add(uint64_t moved, uint64_t kept);

  FileTree& from_;
  FileTree& to_;
  const std::vector<std::span<std::byte>> buffers_;
  const Config config_;
  std::vector<Item> files_, folders_;
  Mutex mutex_;
  Condition changed_;
  std::deque<JobPtr> jobs_ MC_GUARDED_BY(mutex_);  // with pieces to move
  size_t next_file_ MC_GUARDED_BY(mutex_) = 0, starting_ MC_GUARDED_BY(mutex_) = 0;
  bool failed_ MC_GUARDED_BY(mutex_) = false;
  uint64_t total_ = 0;
  uint64_t done_ MC_GUARDED_BY(mutex_) = 0, kept_ MC_GUARDED_BY(mutex_) = 0;
  uint64_t skipped_ = 0;
};

}  // namespace mc::p2p::filecopy
