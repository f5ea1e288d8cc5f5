// Writes objects from the node's segments to the disk.
#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "store/offload/file_storage_impl.h"
#include "xfer/memory/copy.h"

namespace mc::store {
namespace {
constexpr uint32_t kWriteAttempts = 3;  // per write; each evicts more first
constexpr Duration kTrouble = std::chrono::seconds(10);
constexpr Duration kRemoveAgain = std::chrono::milliseconds(500);

// What the node tells of its disk: the master offloads nothing to it meanwhile.
void note_trouble(std::string& trouble, const char* what, const Error& error) {
  if (trouble != error.what) log_warn("ssd", "%s: %s", what, error.what.c_str());
  trouble = error.what;
}
}  // namespace

Result<> FileStorage::check_job(const TierJob& job) const {
  const Layout& l = node_.layout();
  MC_TRY_(ssd::check_name(job.object.name));
  if (job.kind == static_cast<uint8_t>(TierJobKind::kForget) ||
      job.kind == static_cast<uint8_t>(TierJobKind::kBring))
    return {};
  bool sane = job.kind == static_cast<uint8_t>(TierJobKind::kOffload) && job.object.generation &&
              !job.pieces.empty();
  uint64_t left = job.object.bytes;
  for (const TierPiece& p : job.pieces) {
    sane = sane && p.bytes <= std::min(left, l.total()) &&
           l.holds(p.offset, ssd::align_up(p.bytes)) && p.offset % kPage == 0 &&
           p.guard == l.guard_of(p.offset);
    left -= std::min(left, p.bytes);
  }
  if (sane && left == 0) return {};
  return fail(Code::kInvalid, "job %llu for '%s': not within this segment",
              static_cast<unsigned long long>(job.seq), escape(job.object.name).c_str());
}

// Starts a write if a batch is full or due.
void FileStorage::cut() {
  if (writing_ || gathering_.empty()) return;
  const bool full = gathering_bytes_ >= backend_options_.bucket_bytes ||
                    gathering_.size() >= backend_options_.bucket_keys;
  if (!full && !flushed_ && loop_.now() < gathering_.front().due) return;
  auto batch = std::make_shared<Batch>();
  for (uint64_t bytes = 0; !gathering_.empty() && batch->jobs.size() < backend_options_.bucket_keys;
       gathering_.pop_front()) {
    TierJob& job = gathering_.front().job;
    if (!batch->jobs.empty() && bytes + job.object.bytes > backend_options_.bucket_bytes) break;
    bytes += job.object.bytes;
    gathering_bytes_ -= job.object.bytes;
    batch->jobs.push_back(std::move(job));
  }
  batch->outcomes.resize(batch->jobs.size());
  writing_ = true;
  writer_->post([this, batch] { prepare(batch); });
}

bool FileStorage::guards_hold(const TierJob& job) const {
  return std::all_of(job.pieces.begin(), job.pieces.end(), [&](const TierPiece& p) {
    return xfer::guard_holds(node_.bytes_at(p.guard), job.guard_generation.n);
  });
}

// Runs on the writer. It hashes the values in the segment and skips those whose checksum fails.
void FileStorage::prepare(const std::shared_ptr<Batch>& batch) {
  for (size_t i = 0; i < batch->jobs.size(); ++i) {
    const TierJob& job = batch->jobs[i];
    const std::byte* value = node_.bytes_at(job.pieces[0].offset);
    if (job.pieces.size() > 1) {
      ssd::AlignedBuffer& copy = batch->copies.emplace_back(job.object.bytes);
      uint64_t at = 0;
      for (const TierPiece& p : job.pieces) {
        std::memcpy(copy.data() + at, node_.bytes_at(p.offset), p.bytes);
        at += p.bytes;
      }
      value = copy.data();
    }
    const bool held = guards_hold(job);
    const bool right = xxh3(value, job.object.bytes) == job.object.checksum;
    if (!held || !right || !guards_hold(job)) {
      batch->outcomes[i] = fail(held && guards_hold(job) ? Code::kCorrupt : Code::kStale,
                                "value of '%s' in memory", escape(job.object.name).c_str());
      continue;
    }
    batch->saves.push_back({stored_of(job.object), value});
    batch->which.push_back(i);
  }
  make_room(batch);
}

void FileStorage::make_room(const std::shared_ptr<Batch>& batch) {
  batch->eviction = backend_->begin_evict(backend_->cost(batch->saves) << batch->attempt);
  mail_->post([this, batch] { evicted(batch); });
}

// Between the two phases of eviction: nothing is deleted before the master acknowledged it.
void FileStorage::evicted(const std::shared_ptr<Batch>& batch) {
  const auto go_on = [this, batch] { writer_->post([this, batch] { write(batch); }); };
  const auto& gone = batch->eviction.objects;
  if (gone.empty()) return go_on();
  evicted_.add(gone.size());
  for (size_t i = 0; i < gone.size(); ++i)
    tell({static_cast<uint8_t>(TierEvent::kGone), 0, gone[i].key, gone[i].generation},
         i + 1 == gone.size() ? std::function<void()>(go_on) : nullptr);
  report();
}

void FileStorage::write(const std::shared_ptr<Batch>& batch) {
  auto left = backend_->commit_evict(std::move(batch->eviction));
  batch->left.insert(batch->left.end(), left.begin(), left.end());
  batch->eviction = {};
  auto written = backend_->write(batch->saves);
  if (!written && written.error().code == Code::kNoSpace && ++batch->attempt < kWriteAttempts &&
      backend_options_.evict != ssd::Evict::kNone)
    return make_room(batch);
  std::vector<ssd::Stored> torn;  // their memory was reused meanwhile
  for (size_t n = 0; n < batch->saves.size(); ++n) {
    const size_t i = batch->which[n];
    batch->outcomes[i] = written;
    if (!written || guards_hold(batch->jobs[i])) continue;
    batch->outcomes[i] = fail(Code::kStale, "memory of '%s' was reused while it was written",
                              escape(batch->jobs[i].object.name).c_str());
    torn.push_back(batch->saves[n].object);
  }
  if (!torn.empty()) (void)backend_->remove(torn);
  batch->copies.clear();
  mail_->post([this, batch] { this->written(batch); });
}

void FileStorage::written(const std::shared_ptr<Batch>& batch) {
  writing_ = false;
  // The master, which was told that they were gone, hears of them again when they are. "Stored"
  // could be taken for an offload of the same object that is under way.
  if (!batch->left.empty() && removals_.failed.empty())
    removals_.again_at = loop_.now() + kRemoveAgain;
  removals_.failed.insert(removals_.failed.end(), batch->left.begin(), batch->left.end());
  for (size_t i = 0; i < batch->jobs.size(); ++i) {
    const TierObject& object = batch->jobs[i].object;
    const Result<>& outcome = batch->outcomes[i];
    if (outcome) {
      stored_.add();
      stored_bytes_.add(object.bytes);
      trouble_.clear();
      std::erase_if(removals_.failed, [&](const ssd::Stored& o) {  // it would remove this one
        return o.key == object.name && o.generation == object.generation;
      });
      tell({static_cast<uint8_t>(TierEvent::kStored), 0, object.name, object.generation});
      continue;
    }
    refused_.add();
    const Error& e = outcome.error();
    if (e.code != Code::kStale) {
      note_trouble(trouble_, "not written", e);
      trouble_until_ = loop_.now() + kTrouble;
    }
    tell({static_cast<uint8_t>(TierEvent::kNotStored), static_cast<uint8_t>(e.code), object.name,
          object.generation});
  }
  if (!removals_.later.empty()) forget(std::exchange(removals_.later, {}), false);
  cut();
  report();
  arm();
}

// Cancels a gathered write of a removed object.
void FileStorage::give_up(const TierObject& object) {
  std::erase_if(gathering_, [&](const Offload& o) {
    const bool same =
        o.job.object.name == object.name && o.job.object.generation == object.generation;
    if (same) gathering_bytes_ -= o.job.object.bytes;
    return same;
  });
}

// Nothing is reported gone that the next start might find again. What is removed together is made
// durable together. If that fails, each is tried alone, because one may have failed for all.
void FileStorage::forget(std::vector<ssd::Stored> objects, bool damaged) {
  if (damaged) damaged_.add(objects.size());
  writer_->post([this, objects = std::move(objects)] {
    auto outcome = backend_->remove(objects);
    mail_->post([this, objects, outcome = std::move(outcome)] {
      if (!outcome && objects.size() > 1) {
        for (const ssd::Stored& o : objects) forget({o}, false);
        return;
      }
      const TierEvent event = outcome ? TierEvent::kGone : TierEvent::kNotGone;
      const Code code = outcome ? Code{} : outcome.error().code;
      if (!outcome) {
        if (removals_.failed.empty()) removals_.again_at = loop_.now() + kRemoveAgain;
        removals_.failed.insert(removals_.failed.end(), objects.begin(), objects.end());
        if (code == Code::kBusy) return;  // an eviction is about to remove them
        note_trouble(trouble_, "not removed", outcome.error());
        trouble_until_ = loop_.now() + kTrouble;
      }
      for (const ssd::Stored& o : objects)
        tell({static_cast<uint8_t>(event), static_cast<uint8_t>(code), o.key, o.generation});
      report();
    });
  });
}

}  // namespace mc::store
