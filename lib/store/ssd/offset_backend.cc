// The offset backend. `data` is one preallocated file of records at page-aligned offsets.
// index-N.log is an append-only log of the records, which starts with a checkpoint.
//
// Order of a write: records, fdatasync of data; log entries, fdatasync of the log. Of a removal:
// log entries, fdatasync, and only then is the space reused, so no entry ever names another
// record's space. A checkpoint is a new log under a temporary name, synced and renamed; the highest
// number counts. Sequence numbers only grow, so the remains of a failed append never pass for an
// entry of the next one.
#include <algorithm>
#include <optional>
#include <set>

#include "store/ssd/aligned_buffer.h"
#include "store/ssd/extent_allocator.h"
#include "store/ssd/table.h"

namespace mc::store::ssd {
namespace {

constexpr const char *kData = "data", *kLogPrefix = "index-", *kLogSuffix = ".log";
constexpr uint64_t kLogShare = 64;  // one part of so many of the capacity is left for logs
constexpr uint64_t kLogBytesMax = 4 * kGiB;
constexpr uint64_t kDeadMax = 4096;  // dead log entries beyond the live ones before a checkpoint

std::string log_name(uint64_t number) {
  return strf("%s%08llu%s", kLogPrefix, static_cast<unsigned long long>(number), kLogSuffix);
}

class OffsetBackend final : public Backend {
 public:
  OffsetBackend(std::shared_ptr<Disk> disk, const BackendOptions& options, const Clock& clock)
      : disk_(std::move(disk)),
        options_(options),
        clock_(clock),
        data_bytes_((options.capacity - options.capacity / kLogShare) / kPageBytes * kPageBytes),
        space_(data_bytes_) {}
  Result<> scan(ScanReport& report);

  uint64_t cost(std::span<const Save> items) const override;
  Eviction begin_evict(uint64_t bytes) override;
  std::vector<Stored> commit_evict(Eviction eviction) override;
  void compact() override { (void)forget(std::vector<EntryPtr>(left_.begin(), left_.end())); }
  Result<> write(std::span<const Save> items) override;
  Result<> remove(std::span<const Stored> objects) override;
  void read(std::span<Load> loads, const std::function<void(Load&)>& each) override;
  Result<Stored> find(const ObjectKey& key) const override { return table_.find(key); }
  std::vector<Stored> objects() const override { return table_.objects(); }
  Usage usage() const override;

 private:
  using EntryPtr = Table::EntryPtr;
  static uint64_t span_of(const Stored& o) { return kPageBytes + align_up(o.bytes); }
  Result<> make();
  Result<> replay(const std::string& name, ScanReport& report);
  void adopt(std::vector<LogEntry> entries, ScanReport& report);
  Result<> checkpoint();
  Result<> append(std::span<const Save> added, std::span<const uint64_t> at,
                  std::span<const EntryPtr> gone);
  Result<> forget(std::span<const EntryPtr> gone);
  void free(const EntryPtr& entry);
  Result<std::vector<uint64_t>> allocate(std::span<const Save> items);

  const std::shared_ptr<Disk> disk_;
  const BackendOptions options_;
  const Clock& clock_;
  const uint64_t data_bytes_;
  Table table_;
  std::set<EntryPtr> left_;  // that the log may still have
  Disk::FilePtr data_, log_;
  uint64_t log_number_ = 0, log_bytes_ = 0, log_entries_ = 0, sequence_ = 0;
  std::atomic<uint64_t> waiting_{0}, log_size_{0};
  mutable Mutex mutex_;
  ExtentAllocator space_ MC_GUARDED_BY(mutex_);
};

// ---- the scan at the start

Result<> OffsetBackend::scan(ScanReport& report) {
  MC_TRY(const auto names, disk_->list("."));
  std::vector<std::string> logs;
  for (const std::string& name : names) {
    if (name.ends_with(kTemporary)) {
      ++report.unfinished;
      (void)disk_->remove(name);
    } else if (name.starts_with(kLogPrefix) && name.ends_with(kLogSuffix)) {
      logs.push_back(name);
      log_number_ = std::max<uint64_t>(
          log_number_, std::strtoull(name.c_str() + std::strlen(kLogPrefix), nullptr, 10));
    }
  }
  // Without a log no write was ever acknowledged.
  if (logs.empty()) return make();
  auto data = disk_->open(kData);
  const Code why = data ? Code{} : data.error().code;
  if (!data && why != Code::kNotFound && why != Code::kCorrupt)  // it may be read another time
    return fail(data.error());
  if (!data) {
    report.add(strf("%s: %s: all that was in it is lost", kData, data.error().what.c_str()));
    return make();
  }
  data_ = *data;
  // The highest number counts; a crash may have left an older one.
  for (size_t i = logs.size(); i > 0; --i) {
    const auto replayed = replay(logs[i - 1], report);
    if (replayed) break;
    if (replayed.error().code != Code::kCorrupt) return replayed;
    report.add(logs[i - 1] + ": " + replayed.error().what);
  }
  report.objects = table_.count();
  if (data_->bytes() < data_bytes_)
    report.add(strf("%s: it has %llu bytes, %llu were written", kData,
                    static_cast<unsigned long long>(data_->bytes()),
                    static_cast<unsigned long long>(data_bytes_)));
  // Start a fresh log, because the old one's end may be torn. A read-only disk is served as it is.
  if (auto fresh = checkpoint(); !fresh && fresh.error().code != Code::kDenied) return fresh;
  for (const std::string& log : logs) (void)disk_->remove(log);
  return {};
}

Result<> OffsetBackend::make() {
  MC_TRY_(disk_->remove(kData));
  MC_TRY(data_, disk_->create(kData, data_bytes_));
  MC_TRY_(data_->sync());
  MC_TRY_(disk_->sync_folder("."));
  return checkpoint();
}

// kCorrupt: the log is unusable; the next older one may be valid.
Result<> OffsetBackend::replay(const std::string& name, ScanReport& report) {
  MC_TRY(const std::string bytes, read_all(*disk_, name, kLogBytesMax));
  const auto head = decode_log_head(bytes);
  if (!head && head.error().code == Code::kUnsupported) return fail(head.error());
  if (head && head->capacity != data_bytes_)
    return fail(Code::kInvalid,
                "the folder of the SSD tier was made for %s of values, not for %s: give it the "
                "--ssd-size it had, or an empty folder",
                bytes_text(head->capacity).c_str(), bytes_text(data_bytes_).c_str());
  if (bytes.size() < kLogHeadBytes) return fail(Code::kCorrupt, "index log: too short");
  LogRead log = read_log(std::string_view(bytes).substr(kLogHeadBytes));
  if (!head) report.add(name + ": " + head.error().what + "; its entries are used");
  if (log.bad_bytes > 0)
    report.add(strf("%s: %llu bytes of entries are damaged", name.c_str(),
                    static_cast<unsigned long long>(log.bad_bytes)));
  if (head && log.entries.size() < head->entries)
    report.add(strf("%s: %zu entries are left of a checkpoint of %llu", name.c_str(),
                    log.entries.size(), static_cast<unsigned long long>(head->entries)));
  if (log.torn_tail) ++report.unfinished;
  adopt(std::move(log.entries), report);
  return {};
}

void OffsetBackend::adopt(std::vector<LogEntry> entries, ScanReport& report) {
  std::unordered_map<ObjectKey, const LogEntry*> live;
  for (const LogEntry& e : entries) {
    sequence_ = std::max(sequence_, e.sequence);
    const auto it = live.find(e.object.key);
    if (e.add && (it == live.end() || it->second->object.generation <= e.object.generation))
      live[e.object.key] = &e;
    else if (!e.add && it != live.end() && it->second->at == e.at &&
             it->second->object.generation == e.object.generation)
      live.erase(it);  // else a late removal: the object was written again elsewhere
  }
  // Only damage makes two entries claim one space; the later one counts.
  std::vector<const LogEntry*> latest;
  for (const auto& [key, e] : live) latest.push_back(e);
  std::sort(latest.begin(), latest.end(),
            [](const auto* a, const auto* b) { return a->sequence > b->sequence; });
  const Lock lock(mutex_);
  for (const LogEntry* e : latest) {
    const uint64_t end = e->at + span_of(e->object);
    if (end > data_->bytes() || !space_.take_at(e->at, span_of(e->object)))
      report.add(strf("'%s' at %llu: not within %s, or another is there",
                      escape(e->object.key).c_str(), static_cast<unsigned long long>(e->at),
                      kData));
    else
      (void)table_.insert(e->object, e->at);
  }
}

// ---- the log

Result<> OffsetBackend::checkpoint() {
  const auto entries = table_.entries();
  std::string bytes = encode_log_head({log_number_ + 1, data_bytes_, entries.size()});
  for (const EntryPtr& e : entries)
    bytes += encode_log_entry({++sequence_, true, e->object, e->at});
  MC_TRY_(write_all(*disk_, "", log_name(log_number_ + 1), bytes));
  MC_TRY(log_, disk_->open(log_name(log_number_ + 1)));
  const uint64_t before = log_number_++;
  log_size_ = log_bytes_ = bytes.size();
  log_entries_ = entries.size();
  if (before > 0) (void)disk_->remove(log_name(before));
  return {};
}

Result<> OffsetBackend::append(std::span<const Save> added, std::span<const uint64_t> at,
                               std::span<const EntryPtr> gone) {
  if (log_ == nullptr) return fail(Code::kDenied, "the disk of the SSD tier is read-only");
  if (log_entries_ > 2 * table_.count() + kDeadMax) MC_TRY_(checkpoint());
  std::string bytes;
  for (size_t i = 0; i < added.size(); ++i)
    bytes += encode_log_entry({++sequence_, true, added[i].object, at[i]});
  for (const EntryPtr& e : gone) bytes += encode_log_entry({++sequence_, false, e->object, e->at});
  const Disk::Part part{log_, log_bytes_, reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
  MC_TRY_(disk_->write({&part, 1}));
  MC_TRY_(log_->sync());
  log_size_ = log_bytes_ += bytes.size();
  log_entries_ += added.size() + gone.size();
  return {};
}

void OffsetBackend::free(const EntryPtr& entry) {
  const Lock lock(mutex_);
  space_.give(entry->at, span_of(entry->object));
}

// The entries left the table. Removes them from the log, then frees their space unless a reader
// still uses it. What fails takes its space still.
Result<> OffsetBackend::forget(std::span<const EntryPtr> gone) {
  if (gone.empty()) return {};
  left_.insert(gone.begin(), gone.end());
  MC_TRY_(append({}, {}, gone));
  for (const EntryPtr& e : gone)
    if (left_.erase(e) > 0 && table_.retire(e)) free(e);
  return {};
}

// ---- writes

uint64_t OffsetBackend::cost(std::span<const Save> items) const {
  uint64_t n = 0;
  for (const Save& s : items) n += span_of(s.object);
  return n;
}

Result<std::vector<uint64_t>> OffsetBackend::allocate(std::span<const Save> items) {
  std::vector<uint64_t> at;
  const Lock lock(mutex_);
  for (const Save& s : items) {
    const auto offset = space_.take(span_of(s.object));
    if (!offset) {
      for (size_t i = 0; i < at.size(); ++i) space_.give(at[i], span_of(items[i].object));
      return fail(Code::kNoSpace, "the SSD tier of %s has %s used: no room for %s",
                  rounded_bytes_text(data_bytes_).c_str(),
                  rounded_bytes_text(space_.used()).c_str(),
                  rounded_bytes_text(cost(items)).c_str());
    }
    at.push_back(*offset);
  }
  return at;
}

Result<> OffsetBackend::write(std::span<const Save> items) {
  const std::vector<Save> saves = fresh_of(*this, items);
  if (saves.empty()) return {};
  MC_TRY(const std::vector<uint64_t> at, allocate(saves));
  AlignedBuffer heads(saves.size() * kPageBytes);
  std::vector<Disk::Part> parts;
  for (size_t i = 0; i < saves.size(); ++i) {
    const Stored& o = saves[i].object;
    heads.put(i * kPageBytes, encode_record(o));
    parts.push_back({data_, at[i], heads.data() + i * kPageBytes, kPageBytes});
    if (o.bytes > 0)
      parts.push_back(
          {data_, at[i] + kPageBytes, const_cast<std::byte*>(saves[i].value), align_up(o.bytes)});
  }
  auto written = disk_->write(parts);
  if (written) written = data_->sync();
  if (written) written = append(saves, at, {});
  if (!written) {
    const Lock lock(mutex_);
    for (size_t i = 0; i < at.size(); ++i) space_.give(at[i], span_of(saves[i].object));
    return written;
  }
  std::vector<EntryPtr> replaced;
  for (size_t i = 0; i < saves.size(); ++i)
    if (EntryPtr older = table_.insert(saves[i].object, at[i]))
      replaced.push_back(std::move(older));
  (void)forget(replaced);  // compact() tries again if that fails
  return {};
}

// ---- removal and eviction

Result<> OffsetBackend::remove(std::span<const Stored> objects) {
  std::vector<EntryPtr> gone;
  for (const Stored& o : objects)
    if (EntryPtr entry = table_.take(o.key, o.generation)) gone.push_back(std::move(entry));
  append_older(left_, objects, gone);
  return forget(gone);
}

Backend::Eviction OffsetBackend::begin_evict(uint64_t bytes) {
  uint64_t used = 0;
  {
    const Lock lock(mutex_);
    used = space_.used();
  }
  Eviction eviction = take_victims(table_, options_.evict, used, bytes, data_bytes_, span_of);
  for (const Stored& o : eviction.objects) waiting_ += span_of(o);
  return eviction;
}

std::vector<Stored> OffsetBackend::commit_evict(Eviction eviction) {
  if (eviction.rest == nullptr) return {};
  const auto entries = std::static_pointer_cast<std::vector<EntryPtr>>(eviction.rest);
  for (const EntryPtr& e : *entries) waiting_ -= span_of(e->object);
  (void)forget(*entries);
  return objects_among(left_, *entries);
}

// ---- reads

void OffsetBackend::read(std::span<Load> loads, const std::function<void(Load&)>& each) {
  const auto held = hold_all(table_, loads, clock_.now());
  read_values(
      *disk_, loads,
      [&](size_t i) -> Result<Where> {
        return Where{data_, held[i]->at + kPageBytes};
      },
      each);
  for (const EntryPtr& e : held)
    if (e != nullptr && table_.release(e)) free(e);
}

Usage OffsetBackend::usage() const {
  const Lock lock(mutex_);
  return {options_.capacity, space_.used() + log_size_, waiting_, table_.count(), table_.bytes()};
}

}  // namespace

Result<std::unique_ptr<Backend>> open_offsets(std::shared_ptr<Disk> disk,
                                              const BackendOptions& options, const Clock& clock,
                                              ScanReport& report) {
  if (options.capacity < 64 * kPageBytes)
    return fail(Code::kInvalid, "an SSD tier of %s with backend offset: want at least %s",
                bytes_text(options.capacity).c_str(), bytes_text(64 * kPageBytes).c_str());
  auto offsets = std::make_unique<OffsetBackend>(std::move(disk), options, clock);
  MC_TRY_(offsets->scan(report));
  return offsets;
}

}  // namespace mc::store::ssd
