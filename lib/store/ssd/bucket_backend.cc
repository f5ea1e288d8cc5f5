// The bucket backend. The values of one write share ID.bucket; ID.meta lists their keys. A bucket
// is written once. A removal rewrites its .meta without the key. The bucket is deleted when its
// last key is, or as a whole when it is evicted. One that is less than half in use is rewritten:
// its values are copied to a new bucket, and the old one is deleted.
//
// Order of a write: ID.bucket with its values, fdatasync; ID.meta.tmp, fdatasync, rename to
// ID.meta, fsync of the folder. Of a deletion: ID.meta, fsync of the folder, ID.bucket. So a
// .bucket without a .meta was never acknowledged, or was being deleted: the start removes it.
// Between a rewriting's write and its deletion both have the same objects in the same generations:
// a start then keeps the older bucket, and the new one's entries as removed.
#include <algorithm>
#include <unordered_map>

#include "store/ssd/aligned_buffer.h"
#include "store/ssd/bucket_backend.h"

namespace mc::store::ssd {
namespace {

constexpr size_t kHandlesMax = 64;
constexpr uint64_t kTableBytesMax = 128 * kMiB;

uint64_t live_bytes_of(const std::vector<BucketEntry>& entries) {
  uint64_t n = kPageBytes;
  for (const BucketEntry& e : entries) n += align_up(e.object.bytes);
  return n;
}

// Those whose .meta may still list one of these objects, or an older content of its key.
std::vector<BucketPtr> listing(const std::set<BucketPtr>& unclean,
                               std::span<const Stored> objects) {
  std::vector<BucketPtr> out;
  for (const BucketPtr& bucket : unclean)
    if (std::any_of(bucket->entries.begin(), bucket->entries.end(), [&](const BucketEntry& e) {
          return std::any_of(objects.begin(), objects.end(), [&](const Stored& o) {
            return e.object.key == o.key && e.object.generation <= o.generation;
          });
        }))
      out.push_back(bucket);
  return out;
}

}  // namespace

uint64_t table_bytes(const std::vector<BucketEntry>& entries) {
  uint64_t n = 64;
  for (const BucketEntry& e : entries) n += 56 + e.object.key.size();
  return n;
}

// ---- the scan at the start

Result<BucketPtr> BucketBackend::load(const std::string& meta) {
  MC_TRY(const std::string bytes, read_all(*disk_, meta, kTableBytesMax));
  MC_TRY(BucketTable table, decode_bucket_table(bytes));
  auto bucket = std::make_shared<Bucket>();
  bucket->id = table.id;
  bucket->file_bytes = table.bytes;
  bucket->entries = std::move(table.entries);
  bucket->dead.resize(bucket->entries.size());
  bucket->live = bucket->entries.size();
  bucket->live_bytes = live_bytes_of(bucket->entries);
  bucket->disk_bytes = align_up(table.bytes) + align_up(bytes.size());
  if (bucket->name(kMetaSuffix) != meta)
    return fail(Code::kCorrupt, "its header names bucket %s", bucket->name("").c_str());
  MC_TRY(const Disk::FilePtr file, disk_->open(bucket->name(kBucketSuffix)));
  if (file->bytes() != table.bytes)
    return fail(Code::kCorrupt, "%s has %llu bytes, %llu were written",
                bucket->name(kBucketSuffix).c_str(), static_cast<unsigned long long>(file->bytes()),
                static_cast<unsigned long long>(table.bytes));
  AlignedBuffer head(kPageBytes);
  const Disk::Part part{file, 0, head.data(), kPageBytes};
  Result<> outcome;
  disk_->read({&part, 1}, [&](size_t, const Result<>& r) { outcome = r; });
  MC_TRY_(std::move(outcome));
  MC_TRY_(decode_bucket_head(head.text(0, kPageBytes), table.id, table.bytes));
  return bucket;
}

Result<> BucketBackend::scan(ScanReport& report) {
  MC_TRY(const auto names, disk_->list("."));
  std::vector<At> replaced;
  for (const std::string& name : names) {
    last_id_ = std::max<uint64_t>(last_id_, std::strtoull(name.c_str(), nullptr, 10));
    if (!name.ends_with(kMetaSuffix)) continue;
    auto bucket = load(name);
    if (!bucket) {
      report.add(name + ": " + bucket.error().what);
      const std::string data = name.substr(0, name.size() - 5) + kBucketSuffix;
      if (auto file = disk_->open(data)) {  // it stays, and counts as used
        const Lock lock(mutex_);
        usage_.used += align_up((*file)->bytes());
      }
      continue;
    }
    const auto older = adopt(*bucket);
    replaced.insert(replaced.end(), older.begin(), older.end());
  }
  scan_leftovers(names, report);
  (void)strike(replaced);  // if the write fails, the next start finds them again
  report.objects = usage().objects;
  return {};
}

void BucketBackend::scan_leftovers(const std::vector<std::string>& names, ScanReport& report) {
  for (const std::string& name : names) {
    bool unfinished = name.ends_with(kTemporary);
    if (name.ends_with(kBucketSuffix)) {
      const std::string meta = name.substr(0, name.size() - 7) + kMetaSuffix;
      unfinished = !std::binary_search(names.begin(), names.end(), meta);
    }
    if (!unfinished) continue;
    ++report.unfinished;
    (void)disk_->remove(name);
  }
}

// Returns: the entries to strike: those that it replaces, and its own that are not newer.
std::vector<BucketBackend::At> BucketBackend::adopt(const BucketPtr& bucket) {
  const Lock lock(mutex_);
  std::vector<At> replaced;
  buckets_[bucket->id] = bucket;
  usage_.used += bucket->disk_bytes;
  for (uint32_t i = 0; i < bucket->entries.size(); ++i) {
    const Stored& object = bucket->entries[i].object;
    const auto [it, fresh] = index_.try_emplace(object.key, At{bucket, i});
    if (!fresh) {
      const Stored& other = (*it->second).object;
      if (other.generation >= object.generation) {
        replaced.push_back({bucket, i});
        continue;
      }
      --usage_.objects;
      usage_.object_bytes -= other.bytes;
      replaced.push_back(std::exchange(it->second, At{bucket, i}));
    }
    ++usage_.objects;
    usage_.object_bytes += object.bytes;
  }
  return replaced;
}

// ---- writes

uint64_t BucketBackend::cost(std::span<const Save> items) const {
  uint64_t values = kPageBytes, table = 64;
  for (const Save& s : items) {
    values += align_up(s.object.bytes);
    table += 56 + s.object.key.size();
  }
  return values + align_up(table);
}

Result<> BucketBackend::write_table(const Bucket& bucket) {
  BucketTable table{bucket.id, bucket.file_bytes, {}};
  {
    const Lock lock(mutex_);
    for (size_t i = 0; i < bucket.entries.size(); ++i)
      if (!bucket.dead[i]) table.entries.push_back(bucket.entries[i]);
  }
  return write_all(*disk_, "", bucket.name(kMetaSuffix), encode_bucket_table(table));
}

Result<BucketPtr> BucketBackend::write_bucket(std::span<const Save> items) {
  auto bucket = std::make_shared<Bucket>();
  // From the wall clock, so that people can read it; it only has to grow.
  bucket->id = last_id_ = std::max(last_id_ + 1, static_cast<uint64_t>(wall_now_ns()));
  bucket->file_bytes = kPageBytes;
  for (const Save& s : items) {
    bucket->entries.push_back({s.object, bucket->file_bytes});
    bucket->file_bytes += align_up(s.object.bytes);
  }
  bucket->live = items.size();
  bucket->live_bytes = bucket->file_bytes;
  bucket->dead.resize(items.size());
  bucket->disk_bytes = align_up(bucket->file_bytes) + align_up(table_bytes(bucket->entries));
  MC_TRY(const Disk::FilePtr file, disk_->create(bucket->name(kBucketSuffix), bucket->file_bytes));
  AlignedBuffer head(kPageBytes);
  head.put(0, encode_bucket_head(bucket->id, bucket->file_bytes));
  std::vector<Disk::Part> parts{{file, 0, head.data(), kPageBytes}};
  for (size_t i = 0; i < items.size(); ++i)
    if (const uint64_t n = align_up(items[i].object.bytes); n > 0)
      parts.push_back({file, bucket->entries[i].at, const_cast<std::byte*>(items[i].value), n});
  MC_TRY_(finish(*bucket, *file, disk_->write(parts)));
  return bucket;
}

// Makes a bucket durable whose values were written, or removes it.
Result<> BucketBackend::finish(const Bucket& bucket, Disk::File& file, Result<> written) {
  if (written) written = file.sync();
  if (written) written = write_table(bucket);
  if (!written) unlink(bucket);
  return written;
}

Result<> BucketBackend::write(std::span<const Save> items) {
  const std::vector<Save> fresh = fresh_of(*this, items);
  if (fresh.empty()) return {};
  if (fresh.size() > kBucketKeysMax)
    return fail(Code::kInvalid, "a bucket of %zu keys: %u at most", fresh.size(), kBucketKeysMax);
  const uint64_t need = cost(fresh);
  if (const Usage u = usage(); u.used + need > u.capacity)
    return fail(Code::kNoSpace, "the SSD tier of %s has %s used: no room for %s",
                rounded_bytes_text(u.capacity).c_str(), rounded_bytes_text(u.used).c_str(),
                rounded_bytes_text(need).c_str());
  MC_TRY(const BucketPtr bucket, write_bucket(fresh));
  (void)strike(adopt(bucket));  // compact() tries again what fails
  return {};
}

// ---- removal and eviction

Result<> BucketBackend::remove(std::span<const Stored> objects) {
  std::vector<At> dead;
  {
    const Lock lock(mutex_);
    for (const Stored& o : objects) {
      const auto it = index_.find(o.key);
      if (it == index_.end() || (*it->second).object.generation != o.generation) continue;
      dead.push_back(it->second);
      --usage_.objects;
      usage_.object_bytes -= (*it->second).object.bytes;
      index_.erase(it);
    }
  }
  return strike(dead, listing(unclean_, objects));
}

// Removes entries that left the index from the .meta files; `touched`: further buckets whose file
// is to be written again, or deleted. Returns: the first error; those buckets are unclean then.
Result<> BucketBackend::strike(std::span<const At> dead, std::vector<BucketPtr> touched) {
  {
    const Lock lock(mutex_);
    for (const At& at : dead) {
      if (at.bucket->gone || at.bucket->dead[at.entry]) continue;
      at.bucket->dead[at.entry] = true;
      at.bucket->live_bytes -= align_up((*at).object.bytes);
      touched.push_back(at.bucket);
      if (--at.bucket->live == 0) take(at.bucket);
    }
  }
  std::sort(touched.begin(), touched.end(),
            [](const BucketPtr& a, const BucketPtr& b) { return a->id < b->id; });
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  Result<> first;
  std::vector<BucketPtr> gone;
  for (const BucketPtr& bucket : touched) {
    if (bucket->gone && !bucket->leaves) {
      gone.push_back(bucket);
      continue;
    }
    auto written = bucket->leaves ? Result<>(fail(Code::kBusy, "its bucket is being evicted"))
                                  : write_table(*bucket);
    if (written)
      unclean_.erase(bucket);
    else
      unclean_.insert(bucket);
    if (!written && first) first = std::move(written);
  }
  (void)delete_files(gone, first);
  return first;
}

BucketPtr BucketBackend::victim() const {
  if (buckets_.empty() || options_.evict == Evict::kNone) return nullptr;
  if (options_.evict == Evict::kFifo) return buckets_.begin()->second;
  // Never read buckets come first, by id.
  return std::min_element(
             buckets_.begin(), buckets_.end(),
             [](const auto& a, const auto& b) { return a.second->last_read < b.second->last_read; })
      ->second;
}

void BucketBackend::take(const BucketPtr& bucket) {
  bucket->gone = true;
  buckets_.erase(bucket->id);
  handles_.erase(bucket->id);  // before the file is deleted
  usage_.waiting += bucket->disk_bytes;
}

Backend::Eviction BucketBackend::begin_evict(uint64_t bytes) {
  Eviction eviction;
  auto rest = std::make_shared<std::vector<BucketPtr>>();
  const Lock lock(mutex_);
  uint64_t coming = 0;
  while (usage_.used + bytes > usage_.capacity + coming) {
    const BucketPtr bucket = victim();
    if (bucket == nullptr) {
      eviction.enough = false;
      break;
    }
    coming += bucket->disk_bytes;
    for (uint32_t i = 0; i < bucket->entries.size(); ++i) {
      if (bucket->dead[i]) continue;
      const Stored& object = bucket->entries[i].object;
      const auto it = index_.find(object.key);
      if (it == index_.end() || it->second.bucket != bucket || it->second.entry != i) continue;
      eviction.objects.push_back(object);
      --usage_.objects;
      usage_.object_bytes -= object.bytes;
      index_.erase(it);
    }
    take(bucket);
    bucket->leaves = true;
    unclean_.insert(bucket);
    rest->push_back(bucket);
  }
  eviction.rest = std::move(rest);
  return eviction;
}

void BucketBackend::unlink(const Bucket& bucket) {
  (void)disk_->remove(bucket.name(kMetaSuffix));
  if (disk_->sync_folder(".")) (void)disk_->remove(bucket.name(kBucketSuffix));
}

std::vector<Stored> BucketBackend::commit_evict(Eviction eviction) {
  std::vector<Stored> left;
  if (eviction.rest == nullptr) return left;
  const auto buckets = std::static_pointer_cast<std::vector<BucketPtr>>(eviction.rest);
  for (const BucketPtr& b : *buckets) b->leaves = false;
  Result<> first;
  for (const BucketPtr& b : delete_files(*buckets, first))
    for (size_t i = 0; i < b->entries.size(); ++i)
      if (!b->dead[i]) left.push_back(b->entries[i].object);
  return left;
}

// Returns: those whose .meta may be there at the next start. They are unclean, and take their space
// still.
std::vector<BucketPtr> BucketBackend::delete_files(const std::vector<BucketPtr>& buckets,
                                                   Result<>& first) {
  std::vector<BucketPtr> deleted, left;
  for (const BucketPtr& b : buckets) {
    auto removed = disk_->remove(b->name(kMetaSuffix));
    (removed ? deleted : left).push_back(b);
    if (!removed && first) first = std::move(removed);
  }
  if (!deleted.empty())
    if (auto durable = disk_->sync_folder("."); !durable) {
      left = buckets;
      deleted.clear();
      if (first) first = std::move(durable);
    }
  unclean_.insert(left.begin(), left.end());
  for (const BucketPtr& b : deleted) unclean_.erase(b);
  const Time deadline = clock_.now() + options_.reader_wait;
  for (const BucketPtr& b : deleted) {
    {
      const Lock lock(mutex_);
      for (Time now = clock_.now(); b->readers > 0 && now < deadline; now = clock_.now())
        (void)left_.wait_for(mutex_, deadline - now);
      if (b->readers > 0) {
        b->zombie = true;
        continue;
      }
      usage_.waiting -= b->disk_bytes;
      usage_.used -= b->disk_bytes;
    }
    // The .bucket must survive as long as the .meta may return after a power cut.
    (void)disk_->remove(b->name(kBucketSuffix));
  }
  return left;
}

// ---- reads

Result<Disk::FilePtr> BucketBackend::handle(const BucketPtr& bucket) {
  {
    const Lock lock(mutex_);
    if (const auto it = handles_.find(bucket->id); it != handles_.end()) {
      it->second.used = ++handle_uses_;
      return it->second.file;
    }
  }
  MC_TRY(Disk::FilePtr file, disk_->open(bucket->name(kBucketSuffix)));
  const Lock lock(mutex_);
  if (bucket->gone) return file;
  if (handles_.size() >= kHandlesMax)
    handles_.erase(std::min_element(handles_.begin(), handles_.end(), [](auto& a, auto& b) {
      return a.second.used < b.second.used;
    }));
  handles_[bucket->id] = {file, ++handle_uses_};
  return file;
}

void BucketBackend::read(std::span<Load> loads, const std::function<void(Load&)>& each) {
  std::vector<BucketPtr> guards(loads.size());
  std::vector<uint64_t> offsets(loads.size());
  {
    const Lock lock(mutex_);
    const Time now = clock_.now();
    for (size_t i = 0; i < loads.size(); ++i) {
      Load& l = loads[i];
      const auto it = index_.find(l.key);
      if (it == index_.end() || (l.generation && (*it->second).object.generation != l.generation)) {
        l.outcome = fail(Code::kNotFound, "no key '%s' on this disk", escape(l.key).c_str());
        continue;
      }
      const BucketEntry& e = *it->second;
      if (l.into.size() < align_up(e.object.bytes)) {
        l.outcome = fail(Code::kNoSpace, "value of '%s' has %llu bytes: the buffer has %zu",
                         escape(l.key).c_str(), static_cast<unsigned long long>(e.object.bytes),
                         l.into.size());
        continue;
      }
      l.outcome = e.object;
      guards[i] = it->second.bucket;
      offsets[i] = e.at;
      ++guards[i]->readers;
      guards[i]->last_read = now;
    }
  }
  read_values(
      *disk_, loads,
      [&](size_t i) -> Result<Where> {
        MC_TRY(Disk::FilePtr file, handle(guards[i]));
        return Where{std::move(file), offsets[i]};
      },
      each);
  std::vector<BucketPtr> last;
  {
    const Lock lock(mutex_);
    for (const BucketPtr& b : guards) {
      if (b == nullptr || --b->readers > 0 || !b->gone) continue;
      left_.notify_all();
      if (!b->zombie) continue;
      usage_.waiting -= b->disk_bytes;
      usage_.used -= b->disk_bytes;
      last.push_back(b);
    }
  }
  for (const BucketPtr& b : last) (void)disk_->remove(b->name(kBucketSuffix));
}

// ---- queries

Result<Stored> BucketBackend::find(const ObjectKey& key) const {
  const Lock lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return fail(Code::kNotFound, "no key '%s'", escape(key).c_str());
  return (*it->second).object;
}

std::vector<Stored> BucketBackend::objects() const {
  const Lock lock(mutex_);
  std::vector<Stored> out;
  out.reserve(index_.size());
  for (const auto& [key, at] : index_) out.push_back((*at).object);
  return out;
}

Usage BucketBackend::usage() const {
  const Lock lock(mutex_);
  return usage_;
}

Result<std::unique_ptr<Backend>> open_buckets(std::shared_ptr<Disk> disk,
                                              const BackendOptions& options, const Clock& clock,
                                              ScanReport& report) {
  auto buckets = std::make_unique<BucketBackend>(std::move(disk), options, clock);
  MC_TRY_(buckets->scan(report));
  return buckets;
}

}  // namespace mc::store::ssd
