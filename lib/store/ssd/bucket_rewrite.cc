// The bucket backend's rewriting of buckets that are less than half in use.
#include "store/ssd/aligned_buffer.h"
#include "store/ssd/bucket_backend.h"

namespace mc::store::ssd {
namespace {

constexpr uint64_t kCopyBytes = 4 * kMiB;  // of a rewritten bucket, in memory at a time

}  // namespace

// The bucket to rewrite next: less than half in use, and there is space for its new file. Null:
// none.
BucketPtr BucketBackend::sparse() const {
  BucketPtr best;
  for (const auto& [id, bucket] : buckets_) {
    if (bucket->stays || 2 * bucket->live_bytes >= bucket->file_bytes) continue;
    const uint64_t need = bucket->live_bytes + align_up(table_bytes(bucket->entries));
    if (usage_.used + need > usage_.capacity || buckets_.contains(id + 1)) continue;
    const auto gain = [](const Bucket& b) { return b.file_bytes - b.live_bytes; };
    if (best == nullptr || gain(*bucket) > gain(*best)) best = bucket;
  }
  return best;
}

void BucketBackend::compact() {
  (void)strike({}, {unclean_.begin(), unclean_.end()});
  if (clock_.now() < compact_at_) return;
  BucketPtr old;
  {
    const Lock lock(mutex_);
    old = sparse();
  }
  if (old == nullptr) return;
  const auto fresh = rewrite(old);
  const uint64_t wrote = old->live_bytes;
  compact_at_ = clock_.now() + std::chrono::milliseconds(
                                   wrote * 1000 / std::max<uint64_t>(options_.compact_rate, 1));
  {
    const Lock lock(mutex_);
    old->stays = !fresh && fresh.error().code != Code::kNoSpace;  // until the next start
    if (!fresh) return;
    // Only this thread changes the index: each entry is still the old bucket's.
    for (uint32_t i = 0; i < (*fresh)->entries.size(); ++i)
      index_[(*fresh)->entries[i].object.key] = At{*fresh, i};
    (*fresh)->last_read = old->last_read;
    buckets_[(*fresh)->id] = *fresh;
    usage_.used += (*fresh)->disk_bytes;
    take(old);
  }
  Result<> first;
  (void)delete_files({old}, first);  // if it fails: a start keeps one of the two
}

// Returns: a durable bucket with the live values of the old one. Its id is the next, so that it is
// evicted as if it were the old one.
Result<BucketPtr> BucketBackend::rewrite(const BucketPtr& old) {
  auto bucket = std::make_shared<Bucket>();
  bucket->id = old->id + 1;
  last_id_ = std::max(last_id_, bucket->id);
  bucket->file_bytes = kPageBytes;
  std::vector<uint64_t> sources;
  for (size_t i = 0; i < old->entries.size(); ++i) {
    if (old->dead[i]) continue;
    sources.push_back(old->entries[i].at);
    bucket->entries.push_back({old->entries[i].object, bucket->file_bytes});
    bucket->file_bytes += align_up(old->entries[i].object.bytes);
  }
  bucket->live = bucket->entries.size();
  bucket->live_bytes = bucket->file_bytes;
  bucket->dead.resize(bucket->live);
  bucket->disk_bytes = align_up(bucket->file_bytes) + align_up(table_bytes(bucket->entries));
  MC_TRY(const Disk::FilePtr source, handle(old));
  MC_TRY(const Disk::FilePtr target,
         disk_->create(bucket->name(kBucketSuffix), bucket->file_bytes));
  AlignedBuffer head(kPageBytes);
  head.put(0, encode_bucket_head(bucket->id, bucket->file_bytes));
  const Disk::Part first{target, 0, head.data(), kPageBytes};
  auto written = disk_->write({&first, 1});
  if (written) written = copy_values(*bucket, sources, source, target);
  MC_TRY_(finish(*bucket, *target, std::move(written)));
  return bucket;
}

// Their checksums go with them: readers verify the copies.
Result<> BucketBackend::copy_values(const Bucket& bucket, const std::vector<uint64_t>& sources,
                                    const Disk::FilePtr& source, const Disk::FilePtr& target) {
  AlignedBuffer memory(kCopyBytes);
  std::vector<Disk::Part> from, to;
  uint64_t filled = 0;
  const auto move = [&]() -> Result<> {
    Result<> outcome;
    disk_->read(from, [&](size_t, const Result<>& r) {
      if (!r) outcome = r;
    });
    if (outcome) outcome = disk_->write(to);
    from.clear();
    to.clear();
    filled = 0;
    return outcome;
  };
  for (size_t i = 0; i < sources.size(); ++i) {
    const uint64_t bytes = align_up(bucket.entries[i].object.bytes);
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t n = std::min(bytes - done, kCopyBytes - filled);
      from.push_back({source, sources[i] + done, memory.data() + filled, n});
      to.push_back({target, bucket.entries[i].at + done, memory.data() + filled, n});
      done += n;
      filled += n;
      if (filled == kCopyBytes) MC_TRY_(move());
    }
  }
  return from.empty() ? Result<>() : move();
}

}  // namespace mc::store::ssd
