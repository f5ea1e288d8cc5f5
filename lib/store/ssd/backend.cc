#include "store/ssd/backend.h"

#include <algorithm>
#include <unordered_map>

#include "base/hash.h"

namespace mc::store::ssd {
namespace {
constexpr const char* kFolderFile = "FORMAT";
}

void ScanReport::add(std::string what) {
  ++damaged_count;
  if (damaged.size() < kReportMax) damaged.push_back(std::move(what));
}

Result<> check_value(const Stored& object, const std::byte* value) {
  const uint64_t checksum = xxh3(value, object.bytes);
  if (checksum == object.checksum) return {};
  return fail(Code::kCorrupt, "value of '%s': checksum %016llx, %016llx was written",
              escape(object.key).c_str(), static_cast<unsigned long long>(checksum),
              static_cast<unsigned long long>(object.checksum));
}

void read_values(Disk& disk, std::span<Load> loads,
                 const std::function<Result<Where>(size_t load)>& where,
                 const std::function<void(Load&)>& each) {
  std::vector<Disk::Part> parts;
  std::vector<Load*> reading;
  for (size_t i = 0; i < loads.size(); ++i) {
    Load& l = loads[i];
    if (l.outcome && l.outcome->bytes > 0) {
      if (auto from = where(i); from) {
        parts.push_back({from->file, from->at, l.into.data(), align_up(l.outcome->bytes)});
        reading.push_back(&l);
        continue;
      } else {
        l.outcome = fail(from.error());
      }
    }
    if (each) each(l);
  }
  disk.read(parts, [&](size_t n, const Result<>& outcome) {
    Load& l = *reading[n];
    if (!outcome)
      l.outcome = fail(outcome.error());
    else if (auto same = check_value(*l.outcome, l.into.data()); !same)
      l.outcome = fail(same.error());
    if (each) each(l);
  });
}

std::vector<Save> fresh_of(const Backend& backend, std::span<const Save> items) {
  std::vector<Save> out;
  std::unordered_map<ObjectKey, size_t> at;
  for (const Save& s : items) {
    const auto there = backend.find(s.object.key);
    if (there && there->generation >= s.object.generation) continue;
    const auto [it, first] = at.try_emplace(s.object.key, out.size());
    if (first)
      out.push_back(s);
    else if (out[it->second].object.generation < s.object.generation)
      out[it->second] = s;
  }
  return out;
}

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<Disk> disk,
                                              const BackendOptions& options, const Clock& clock,
                                              ScanReport& report) {
  if (options.capacity < kAlign)
    return fail(Code::kInvalid, "an SSD tier of %s: want at least a page",
                bytes_text(options.capacity).c_str());
  if (options.bucket_keys == 0 || options.bucket_keys > kBucketKeysMax)
    return fail(Code::kInvalid, "buckets of %u keys: want 1 to %u", options.bucket_keys,
                kBucketKeysMax);
  MC_TRY(const auto names, disk->list("."));
  if (std::find(names.begin(), names.end(), kFolderFile) == names.end()) {
    const auto unknown = std::find_if(names.begin(), names.end(), [](const std::string& name) {
      return name != "LOCK" && name != "lost+found/" && !name.ends_with(kTemporary);
    });
    if (unknown != names.end())
      return fail(Code::kInvalid,
                  "the folder of the SSD tier holds '%s' and no %s: give it an empty folder",
                  escape(*unknown).c_str(), kFolderFile);
    MC_TRY_(write_all(*disk, "", kFolderFile, encode_folder(options.kind)));
  } else {
    MC_TRY(const std::string bytes, read_all(*disk, kFolderFile, 4096));
    const auto kind = decode_folder(bytes);
    if (!kind && kind.error().code == Code::kUnsupported) return fail(kind.error());
    if (!kind) {  // a flipped bit there must not lose everything else
      report.add(strf("%s: %s; written anew for backend '%s'", kFolderFile,
                      kind.error().what.c_str(), options.kind.c_str()));
      (void)write_all(*disk, "", kFolderFile, encode_folder(options.kind));
    } else if (*kind != options.kind) {
      return fail(Code::kInvalid, "the folder of the SSD tier belongs to backend '%s', not '%s'",
                  escape(*kind).c_str(), options.kind.c_str());
    }
  }
  if (options.kind == "bucket") return open_buckets(std::move(disk), options, clock, report);
  if (options.kind == "file") return open_files(std::move(disk), options, clock, report);
  if (options.kind == "offset") return open_offsets(std::move(disk), options, clock, report);
  return fail(Code::kInvalid, "backend '%s': want bucket, file or offset", options.kind.c_str());
}

}  // namespace mc::store::ssd
