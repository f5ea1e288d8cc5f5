// A disk in memory that knows what is durable. It counts every operation that changes something,
// can crash at any of them, and shows what a kill or a power cut leaves.
#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/hash.h"
#include "store/ssd/disk.h"

namespace mc::store::ssd {

enum class Crash {
  kKill,        // the process: all that was done stays
  kPowerCut,    // what was not synced is gone
  kNamesAhead,  // names are there, their data is not
  kDataAhead,   // data is there, names are not
  kTorn,        // unsynced data is half there
  kMixed,       // of the unsynced names, some are there
};
inline constexpr Crash kCrashes[] = {Crash::kKill,      Crash::kPowerCut, Crash::kNamesAhead,
                                     Crash::kDataAhead, Crash::kTorn,     Crash::kMixed};

class ModelDisk final : public Disk {
 public:
  struct Inode {
    std::string now, durable;
  };
  using InodePtr = std::shared_ptr<Inode>;
  struct ModelFile final : File {
    InodePtr inode;
    ModelDisk* disk = nullptr;
    uint64_t size = 0;
    uint64_t bytes() const override { return size; }
    Result<> sync() override {
      MC_TRY_(disk->change("sync"));
      inode->durable = inode->now;
      return {};
    }
  };

  uint64_t operations = 0, crash_at = UINT64_MAX;  // the one that does not happen, or half
  bool read_only = false;
  std::set<std::string> unreadable;  // at present
  uint64_t bytes_max = UINT64_MAX;
  std::map<std::string, InodePtr> names, durable_names;
  std::set<std::string> folders, durable_folders;

  Result<> change(const char* what) {
    if (crashed()) return fail(Code::kInternal, "crashed");
    if (read_only) return fail(Code::kDenied, "%s: Read-only file system", what);
    if (++operations == crash_at) return fail(Code::kInternal, "crashed at %s", what);
    return {};
  }
  bool crashed() const { return operations >= crash_at; }
  uint64_t bytes() const {
    uint64_t n = 0;
    for (const auto& [name, inode] : names) n += inode->now.size();
    return n;
  }

  Result<FilePtr> open(const std::string& path) override {
    if (crashed()) return fail(Code::kInternal, "crashed");
    const auto it = names.find(path);
    if (it == names.end()) return fail(Code::kNotFound, "open %s: no such file", path.c_str());
    if (unreadable.contains(path)) return fail(Code::kInternal, "open %s", path.c_str());
    if (it->second->now.empty()) return fail(Code::kCorrupt, "%s is empty", path.c_str());
    return file(it->second);
  }
  Result<FilePtr> create(const std::string& path, uint64_t n) override {
    MC_TRY_(change("create"));
    if (names.contains(path)) return fail(Code::kExists, "%s is there", path.c_str());
    if (!parent_there(path)) return fail(Code::kNotFound, "create %s: no folder", path.c_str());
    if (bytes() + n > bytes_max) return fail(Code::kNoSpace, "%s: disk full", path.c_str());
    names[path] = std::make_shared<Inode>();
    names[path]->now.resize(n);
    return file(names[path]);
  }
  void read(std::span<const Part> parts, const Ended& ended) override {
    for (size_t i = parts.size(); i > 0; --i) {  // in another order than asked
      const Part& p = parts[i - 1];
      const std::string& content = static_cast<ModelFile&>(*p.file).inode->now;
      if (crashed() || p.at + p.bytes > content.size()) {
        ended(i - 1, fail(Code::kCorrupt, "the file ends early"));
        continue;
      }
      std::memcpy(p.data, content.data() + p.at, p.bytes);
      ended(i - 1, {});
    }
  }
  Result<> write(std::span<const Part> parts) override {
    for (const Part& p : parts) {
      const auto changed = change("write");
      if (!changed && (read_only || operations != crash_at)) return changed;
      std::string& content = static_cast<ModelFile&>(*p.file).inode->now;
      const uint64_t n = changed ? p.bytes : p.bytes / 2;
      if (content.size() < p.at + n) content.resize(p.at + n);
      std::memcpy(content.data() + p.at, p.data, n);
      if (!changed) {
        ++operations;
        return changed;
      }
    }
    return {};
  }
  Result<> rename(const std::string& from, const std::string& to) override {
    MC_TRY_(change("rename"));
    const auto it = names.find(from);
    if (it == names.end()) return fail(Code::kNotFound, "rename %s", from.c_str());
    names[to] = it->second;
    names.erase(from);
    return {};
  }
  Result<> remove(const std::string& path) override {
    if (!names.contains(path)) return {};
    MC_TRY_(change("remove"));
    names.erase(path);
    return {};
  }
  Result<> make_folder(const std::string& path) override {
    if (folders.contains(path)) return {};
    MC_TRY_(change("make folder"));
    folders.insert(path);
    return {};
  }
  Result<> sync_folder(const std::string& path) override {
    MC_TRY_(change("sync folder"));
    const std::string prefix = path == "." ? "" : path;
    std::erase_if(durable_names, [&](const auto& n) { return parent(n.first) == prefix; });
    for (const auto& [name, inode] : names)
      if (parent(name) == prefix) durable_names[name] = inode;
    for (const std::string& f : folders)
      if (parent(f.substr(0, f.size() - 1)) == prefix) durable_folders.insert(f);
    return {};
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    const std::string prefix = path == "." ? "" : path;
    std::set<std::string> out;
    for (const auto& [name, inode] : names)
      if (parent(name) == prefix) out.insert(name.substr(prefix.size()));
    for (const std::string& f : folders)
      if (parent(f.substr(0, f.size() - 1)) == prefix) out.insert(f.substr(prefix.size()));
    return std::vector<std::string>(out.begin(), out.end());
  }

  // The disk as the next start finds it.
  std::shared_ptr<ModelDisk> after(Crash crash) const {
    auto next = std::make_shared<ModelDisk>();
    const bool durable_only = crash == Crash::kPowerCut || crash == Crash::kDataAhead;
    auto kept = durable_only ? durable_names : names;
    if (crash == Crash::kMixed) {
      for (const auto& [name, inode] : durable_names)
        if (xxh3(name) % 2 == 0) kept[name] = inode;
      std::erase_if(kept, [&](const auto& n) {
        return xxh3(n.first) % 3 == 0 && !durable_names.contains(n.first);
      });
    }
    next->folders = durable_only ? durable_folders : folders;
    for (const auto& [name, inode] : kept) {
      if (!next->parent_there(name)) continue;
      auto copy = std::make_shared<Inode>();
      std::string& content = copy->now;
      content =
          crash == Crash::kPowerCut || crash == Crash::kNamesAhead ? inode->durable : inode->now;
      if (crash == Crash::kTorn && inode->now != inode->durable)
        content = inode->now.substr(0, inode->now.size() / 2) +
                  (inode->durable.size() > inode->now.size() / 2
                       ? inode->durable.substr(inode->now.size() / 2)
                       : "");
      copy->durable = content;
      next->names[name] = copy;
    }
    next->durable_names = next->names;
    next->durable_folders = next->folders;
    return next;
  }

 private:
  static std::string parent(const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash + 1);
  }
  bool parent_there(const std::string& path) const {
    return parent(path).empty() || folders.contains(parent(path));
  }
  FilePtr file(const InodePtr& inode) {
    auto f = std::make_shared<ModelFile>();
    f->inode = inode;
    f->disk = this;
    f->size = inode->now.size();
    return f;
  }
};

}  // namespace mc::store::ssd
