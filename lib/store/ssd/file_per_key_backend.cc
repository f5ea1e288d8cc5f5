// The file-per-key backend: HH/HH/HASH-GENERATION.obj holds one record. It is easy to inspect, and
// not meant for millions of objects. The generation is in the name, so a newer put never overwrites
// an older one.
//
// Order of a write: NAME.tmp with header and value, fdatasync, rename, fsync of the folder.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/hash.h"
#include "store/ssd/aligned_buffer.h"
#include "store/ssd/table.h"

namespace mc::store::ssd {
namespace {

constexpr const char* kSuffix = ".obj";
constexpr size_t kAtOnce = kDepth;  // files open at a time

std::string folder_of(const ObjectKey& key) {
  const uint64_t h = xxh3(key);
  return strf("%02x/%02x/", static_cast<unsigned>(h >> 56), static_cast<unsigned>(h >> 48 & 0xff));
}

std::string path_of(const Stored& o) {
  return folder_of(o.key) + strf("%016llx-%016llx%s", static_cast<unsigned long long>(xxh3(o.key)),
                                 static_cast<unsigned long long>(o.generation.n), kSuffix);
}

uint64_t bytes_of(const Stored& o) { return kPageBytes + align_up(o.bytes); }

class FilePerKeyBackend final : public Backend {
 public:
  FilePerKeyBackend(std::shared_ptr<Disk> disk, const BackendOptions& options, const Clock& clock)
      : disk_(std::move(disk)), options_(options), clock_(clock) {}
  Result<> scan(ScanReport& report);

  uint64_t cost(std::span<const Save> items) const override;
  Eviction begin_evict(uint64_t bytes) override;
  std::vector<Stored> commit_evict(Eviction eviction) override;
  void compact() override { (void)unlink(std::vector<EntryPtr>(left_.begin(), left_.end())); }
  Result<> write(std::span<const Save> items) override;
  Result<> remove(std::span<const Stored> objects) override;
  void read(std::span<Load> loads, const std::function<void(Load&)>& each) override;
  Result<Stored> find(const ObjectKey& key) const override { return table_.find(key); }
  std::vector<Stored> objects() const override { return table_.objects(); }
  Usage usage() const override;

 private:
  using EntryPtr = Table::EntryPtr;
  Result<> scan_folder(const std::string& folder, ScanReport& report,
                       std::vector<EntryPtr>& replaced);
  void scan_files(std::span<const std::string> paths, ScanReport& report,
                  std::vector<EntryPtr>& replaced);
  Result<> make_folders(std::span<const Save> items);
  Result<> write_some(std::span<const Save> items);
  Result<> unlink(std::span<const EntryPtr> entries);

  const std::shared_ptr<Disk> disk_;
  const BackendOptions options_;
  const Clock& clock_;
  Table table_;
  std::set<std::string> folders_;  // that exist on the disk
  std::set<EntryPtr> left_;        // whose files may be there at the next start
  std::atomic<uint64_t> used_{0}, waiting_{0};
};

// ---- the scan at the start

Result<> FilePerKeyBackend::scan(ScanReport& report) {
  std::vector<EntryPtr> replaced;
  MC_TRY(const auto tops, disk_->list("."));
  for (const std::string& top : tops) {
    if (top.ends_with(kTemporary)) (void)disk_->remove(top);
    if (top.size() != 3 || top.back() != '/') continue;
    folders_.insert(top);
    MC_TRY(const auto subs, disk_->list(top));
    for (const std::string& sub : subs) {
      if (sub.back() != '/') continue;
      folders_.insert(top + sub);
      MC_TRY_(scan_folder(top + sub, report, replaced));
    }
  }
  (void)unlink(replaced);
  report.objects = table_.count();
  return {};
}

Result<> FilePerKeyBackend::scan_folder(const std::string& folder, ScanReport& report,
                                        std::vector<EntryPtr>& replaced) {
  MC_TRY(const auto names, disk_->list(folder));
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (name.ends_with(kTemporary)) {
      ++report.unfinished;
      (void)disk_->remove(folder + name);
    } else if (name.ends_with(kSuffix)) {
      paths.push_back(folder + name);
    }
  }
  for (size_t i = 0; i < paths.size(); i += kAtOnce)
    scan_files(std::span(paths).subspan(i, std::min(kAtOnce, paths.size() - i)), report, replaced);
  return {};
}

void FilePerKeyBackend::scan_files(std::span<const std::string> paths, ScanReport& report,
                                   std::vector<EntryPtr>& replaced) {
  AlignedBuffer pages(paths.size() * kPageBytes);
  std::vector<Disk::Part> parts;
  std::vector<size_t> which;
  for (size_t i = 0; i < paths.size(); ++i) {
    auto file = disk_->open(paths[i]);
    if (!file) {
      report.add(paths[i] + ": " + file.error().what);
      continue;
    }
    used_ += align_up((*file)->bytes());
    parts.push_back({*file, 0, pages.data() + i * kPageBytes, kPageBytes});
    which.push_back(i);
  }
  disk_->read(parts, [&](size_t n, const Result<>& read) {
    const std::string& path = paths[which[n]];
    auto object = read ? decode_record(pages.text(which[n] * kPageBytes, kPageBytes))
                       : Result<Stored>(fail(read.error()));
    if (object && (path_of(*object) != path || parts[n].file->bytes() != bytes_of(*object)))
      object = fail(Code::kCorrupt, "it has %llu bytes, or the name of another object",
                    static_cast<unsigned long long>(parts[n].file->bytes()));
    if (!object) return report.add(path + ": " + object.error().what);
    if (EntryPtr older = table_.insert(*object, 0)) replaced.push_back(std::move(older));
  });
}

// ---- writes

uint64_t FilePerKeyBackend::cost(std::span<const Save> items) const {
  uint64_t n = 0;
  for (const Save& s : items) n += bytes_of(s.object);
  return n;
}

Result<> FilePerKeyBackend::make_folders(std::span<const Save> items) {
  std::set<std::string> parents;
  for (const Save& s : items) {
    const std::string folder = folder_of(s.object.key), top = folder.substr(0, 3);
    if (!folders_.contains(top)) parents.insert(".");
    if (!folders_.contains(folder)) parents.insert(top);
    for (const std::string& f : {top, folder})
      if (!folders_.contains(f)) MC_TRY_(disk_->make_folder(f));
  }
  for (const std::string& parent : parents) MC_TRY_(disk_->sync_folder(parent));
  for (const Save& s : items) {  // only now: a folder counts once it is durable
    const std::string folder = folder_of(s.object.key);
    folders_.insert({folder.substr(0, 3), folder});
  }
  return {};
}

Result<> FilePerKeyBackend::write_some(std::span<const Save> items) {
  MC_TRY_(make_folders(items));
  AlignedBuffer heads(items.size() * kPageBytes);
  std::vector<Disk::Part> parts;
  std::set<std::string> folders;
  std::vector<Disk::FilePtr> files;
  for (size_t i = 0; i < items.size(); ++i) {
    const Stored& o = items[i].object;
    const std::string temporary = path_of(o) + kTemporary;
    MC_TRY_(disk_->remove(temporary));
    MC_TRY(const Disk::FilePtr file, disk_->create(temporary, bytes_of(o)));
    heads.put(i * kPageBytes, encode_record(o));
    files.push_back(file);
    parts.push_back({file, 0, heads.data() + i * kPageBytes, kPageBytes});
    if (o.bytes > 0)
      parts.push_back(
          {file, kPageBytes, const_cast<std::byte*>(items[i].value), align_up(o.bytes)});
  }
  MC_TRY_(disk_->write(parts));
  for (const Disk::FilePtr& file : files) MC_TRY_(file->sync());
  for (const Save& s : items) {
    const std::string path = path_of(s.object);
    MC_TRY_(disk_->rename(path + kTemporary, path));
    folders.insert(folder_of(s.object.key));
  }
  for (const std::string& folder : folders) MC_TRY_(disk_->sync_folder(folder));
  return {};
}

Result<> FilePerKeyBackend::write(std::span<const Save> items) {
  const std::vector<Save> saves = fresh_of(*this, items);
  if (const uint64_t need = cost(saves); used_ + need > options_.capacity)
    return fail(Code::kNoSpace, "the SSD tier of %s has %s used: no room for %s",
                rounded_bytes_text(options_.capacity).c_str(), rounded_bytes_text(used_).c_str(),
                rounded_bytes_text(need).c_str());
  Result<> written;
  for (size_t i = 0; i < saves.size() && written; i += kAtOnce)
    written =
        write_some(std::span<const Save>(saves).subspan(i, std::min(kAtOnce, saves.size() - i)));
  if (!written) {
    for (const Save& s : saves) {
      (void)disk_->remove(path_of(s.object) + kTemporary);
      (void)disk_->remove(path_of(s.object));
    }
    return written;
  }
  std::vector<EntryPtr> replaced;
  for (const Save& s : saves) {
    used_ += bytes_of(s.object);
    // A removal of the same object that failed: its file is this one now.
    for (auto it = left_.begin(); it != left_.end();) {
      const Stored& o = (*it)->object;
      const bool same = o.key == s.object.key && o.generation == s.object.generation;
      if (same) used_ -= bytes_of(o);
      it = same ? left_.erase(it) : std::next(it);
    }
    if (EntryPtr older = table_.insert(s.object, 0)) replaced.push_back(std::move(older));
  }
  (void)unlink(replaced);  // compact() tries again what fails
  return {};
}

// ---- removal and eviction

// What fails takes its space still.
Result<> FilePerKeyBackend::unlink(std::span<const EntryPtr> entries) {
  Result<> first;
  std::map<std::string, std::vector<EntryPtr>> folders;
  left_.insert(entries.begin(), entries.end());
  for (const EntryPtr& e : entries) {
    // Readers that opened the file keep its bytes; later ones find it gone.
    auto gone = disk_->remove(path_of(e->object));
    if (gone) folders[folder_of(e->object.key)].push_back(e);
    if (!gone && first) first = std::move(gone);
  }
  for (const auto& [folder, gone] : folders) {
    auto durable = disk_->sync_folder(folder);
    for (const EntryPtr& e : gone)
      if (durable && left_.erase(e) > 0) used_ -= bytes_of(e->object);
    if (!durable && first) first = std::move(durable);
  }
  return first;
}

Result<> FilePerKeyBackend::remove(std::span<const Stored> objects) {
  std::vector<EntryPtr> gone;
  for (const Stored& o : objects)
    if (EntryPtr entry = table_.take(o.key, o.generation)) gone.push_back(std::move(entry));
  append_older(left_, objects, gone);
  return unlink(gone);
}

Backend::Eviction FilePerKeyBackend::begin_evict(uint64_t bytes) {
  Eviction eviction =
      take_victims(table_, options_.evict, used_, bytes, options_.capacity, bytes_of);
  for (const Stored& o : eviction.objects) waiting_ += bytes_of(o);
  return eviction;
}

std::vector<Stored> FilePerKeyBackend::commit_evict(Eviction eviction) {
  if (eviction.rest == nullptr) return {};
  const auto entries = std::static_pointer_cast<std::vector<EntryPtr>>(eviction.rest);
  for (const EntryPtr& e : *entries) waiting_ -= bytes_of(e->object);
  (void)unlink(*entries);
  return objects_among(left_, *entries);
}

// ---- reads

void FilePerKeyBackend::read(std::span<Load> loads, const std::function<void(Load&)>& each) {
  for (size_t from = 0; from < loads.size(); from += kAtOnce) {
    const auto some = loads.subspan(from, std::min(kAtOnce, loads.size() - from));
    const auto held = hold_all(table_, some, clock_.now());
    read_values(
        *disk_, some,
        [&](size_t i) -> Result<Where> {
          MC_TRY(Disk::FilePtr file, disk_->open(path_of(*some[i].outcome)));
          return Where{std::move(file), kPageBytes};
        },
        each);
    for (const EntryPtr& e : held)
      if (e != nullptr) (void)table_.release(e);
  }
}

Usage FilePerKeyBackend::usage() const {
  return {options_.capacity, used_, waiting_, table_.count(), table_.bytes()};
}

}  // namespace

Result<std::unique_ptr<Backend>> open_files(std::shared_ptr<Disk> disk,
                                            const BackendOptions& options, const Clock& clock,
                                            ScanReport& report) {
  auto files = std::make_unique<FilePerKeyBackend>(std::move(disk), options, clock);
  MC_TRY_(files->scan(report));
  return files;
}

}  // namespace mc::store::ssd
