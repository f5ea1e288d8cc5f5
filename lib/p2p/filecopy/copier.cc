#include "p2p/filecopy/copier.h"

#include <algorithm>
#include <climits>
#include <thread>

namespace mc::p2p::filecopy {
namespace {

constexpr size_t kItemsMax = 4'000'000;

std::string below(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder + "/" + name;
}

}  // namespace

Copier::Copier(FileTree& from, FileTree& to, std::vector<std::span<std::byte>> buffers,
               Config config)
    : from_(from), to_(to), buffers_(std::move(buffers)), config_(std::move(config)) {}
Copier::~Copier() = default;

// Folders come before their contents.
Result<> Copier::list(const Item& root) {
  if (!root.source.folder) {
    files_.push_back(root);
    return {};
  }
  folders_.push_back(root);
  for (size_t i = 0; i < folders_.size(); ++i) {
    const Item folder = folders_[i];
    Page page;
    do {
      MC_TRY(page, from_.list(folder.source.path, page.last));
      skipped_ += page.skipped;
      if (page.more && page.entries.empty() && page.skipped == 0)
        return fail(Code::kInvalid, "the source lists '%.200s' without an end",
                    folder.source.path.c_str());
      if (skipped_ > kItemsMax) return fail(Code::kNoSpace, "more than %zu files", kItemsMax);
      for (TreeEntry& e : page.entries) {
        // The list may come from a peer.
        if (!p2p::safe_path(e.path) || e.path.find('/') != std::string::npos)
          return fail(Code::kDenied, "the source lists a file '%.200s'", e.path.c_str());
        if (files_.size() + folders_.size() >= kItemsMax)
          return fail(Code::kNoSpace, "more than %zu files to copy", kItemsMax);
        Item item{e, below(folder.target, e.path)};
        item.source.path = below(folder.source.path, e.path);
        if (item.source.path.size() >= PATH_MAX)
          return fail(Code::kInvalid, "the source lists a path of over %d bytes: '%.200s'...",
                      PATH_MAX, item.source.path.c_str());
        (e.folder ? folders_ : files_).push_back(std::move(item));
      }
    } while (page.more);
  }
  return {};
}

void Copier::add(uint64_t moved, uint64_t kept) {
  Lock lock(mutex_);
  done_ += moved;
  kept_ += kept;
  if (config_.progress) config_.progress(done_ + kept_, total_);
}

Result<bool> Copier::whole(const Item& file) {
  const auto there = to_.look(file.target);
  if (!there && there.error().code != Code::kNotFound) return fail(there.error());
  if (there && there->folder)
    return fail(Code::kInvalid, "'%s' is a folder at the destination, and a file at the source",
                file.target.c_str());
  if (!there || there->bytes != file.source.bytes) return false;
  const uint64_t n = pieces_of(file.source.bytes);
  for (uint64_t i = 0; i < n; i += kSumsMax) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(kSumsMax, n - i));
    MC_TRY(const auto have, to_.sums(*there, i, count));
    MC_TRY(const auto want, from_.sums(file.source, i, count));
    if (have != want) return false;
  }
  MC_TRY_(to_.set_mode(file.target, file.source.mode));
  return true;
}

Result<p2p::ShardSet> Copier::good_pieces(const Item& file, PartialFile& part) {
  const p2p::ShardSet& present = part.present();
  p2p::ShardSet good(present.size());
  for (uint64_t i = 0; i < present.size();) {
    uint32_t count = 0;
    while (count < kSumsMax && i + count < present.size() && present.has(i + count)) ++count;
    if (count == 0) {
      ++i;
      continue;
    }
    MC_TRY(const auto have, part.sums(i, count));
    MC_TRY(const auto want, from_.sums(file.source, i, count));
    for (uint32_t k = 0; k < std::min(have.size(), want.size()); ++k)
      if (have[k] == want[k]) good.add(i + k);
    i += count;
  }
  return good;
}

Result<> Copier::start(const Item& file) {
  MC_TRY(const bool there, whole(file));
  if (there) {
    add(0, file.source.bytes);
    return {};
  }
  auto job = std::make_shared<Job>();
  job->item = file;
  TreeEntry target = file.source;
  target.path = file.target;
  MC_TRY(job->part, to_.begin(target));
  MC_TRY(const p2p::ShardSet good, good_pieces(file, *job->part));
  for (uint64_t i = 0; i < good.size(); ++i) {
    if (good.has(i))
      add(0, piece_bytes(file.source.bytes, i));
    else
      job->todo.push_back(i);
  }
  job->left = job->todo.size();
  if (job->left == 0) return job->part->finish(file.source.mode);
  Lock lock(mutex_);
  jobs_.push_back(std::move(job));
  return {};
}

Result<> Copier::move(Job& job, uint64_t piece, std::span<std::byte> buffer) {
  const TreeEntry& file = job.item.source;
  const uint64_t n = piece_bytes(file.bytes, piece);
  for (uint32_t attempt = 1;; ++attempt) {
    const auto outcome = [&]() -> Result<> {
      MC_TRY(const uint64_t sum, from_.load(file, piece, buffer));
      return job.part->store(piece, buffer, sum);
    }();
    if (outcome) break;
    if (outcome.error().code != Code::kCorrupt || attempt >= config_.attempts) return outcome;
  }
  add(n, 0);
  return {};
}

Result<> Copier::moved(const JobPtr& job) {
  {
    Lock lock(mutex_);
    if (--job->left > 0) return {};
  }
  return job->part->finish(job->item.source.mode);
}

Copier::Step Copier::next() {
  Lock lock(mutex_);
  for (;;) {
    if (failed_) return {};
    if (!jobs_.empty()) {
      const JobPtr job = jobs_.front();
      const uint64_t piece = job->todo.front();
      job->todo.pop_front();
      if (job->todo.empty()) jobs_.pop_front();
      return {job, piece, nullptr};
    }
    if (next_file_ < files_.size()) {
      ++starting_;
      return {nullptr, 0, &files_[next_file_++]};
    }
    if (starting_ == 0) return {};
    changed_.wait(mutex_);
  }
}

Result<> Copier::work(std::span<std::byte> buffer) {
  for (;;) {
    const Step step = next();
    if (step.file == nullptr && step.job == nullptr) return {};
    Result<> outcome;
    if (step.file != nullptr) {
      outcome = start(*step.file);
    } else {
      outcome = move(*step.job, step.piece, buffer);
      if (outcome) outcome = moved(step.job);
    }
    {
      Lock lock(mutex_);
      if (step.file != nullptr) --starting_;
      if (!outcome) failed_ = true;
    }
    changed_.notify_all();
    if (!outcome) return outcome;
  }
}

Result<CopyReport> Copier::run(const std::string& from, const std::string& to) {
  MC_TRY(TreeEntry root, from_.look(from));
  root.path = from;
  MC_TRY_(list({root, to}));
  for (const Item& f : files_) total_ += f.source.bytes;
  bool made_root = true;
  for (const Item& f : folders_) {
    MC_TRY(const bool made, to_.make_folder(f.target, f.source.mode));
    if (&f == &folders_.front()) made_root = made;
  }
  if (const size_t slash = to.rfind('/'); !root.folder && slash != std::string::npos)
    MC_TRY_(to_.make_folder(to.substr(0, slash), 0755));
  std::vector<Result<>> outcomes(buffers_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < buffers_.size(); ++i)
    threads.emplace_back([this, i, &outcomes] { outcomes[i] = work(buffers_[i]); });
  for (auto& t : threads) t.join();
  for (auto& outcome : outcomes) MC_TRY_(std::move(outcome));
  // Last, and the innermost first: a folder may be closed to writing. One that was there before the
  // copy keeps its own when it is the target itself.
  for (size_t i = folders_.size(); i-- > 0;)
    if (i > 0 || made_root) MC_TRY_(to_.set_mode(folders_[i].target, folders_[i].source.mode));
  Lock lock(mutex_);
  return CopyReport{files_.size(), folders_.size(), skipped_, done_ + kept_, kept_};
}

}  // namespace mc::p2p::filecopy
