// frozen-files read FOLDER: reads what another version of mc wrote there, and prints all of it.
// frozen-files make FOLDER: writes such files. Only needed when a format changes on purpose.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "base/time.h"
#include "cost/model_spec.h"
#include "io/file.h"
#include "store/node/segment_index.h"
#include "store/ssd/aligned_buffer.h"
#include "store/ssd/backend.h"
#include "trace/records/records.h"

namespace mc {
namespace {

constexpr const char* kKinds[] = {"bucket", "file", "offset"};

// The segment's file is not there: these are the facts of it that its index has.
store::SegmentIndex::Segment segment_of(const std::string& folder) {
  return {7, 8, 1 * kMiB, 1 * kMiB, folder + "/segment", "frozen boot", 0};
}
std::string index_of(const std::string& folder) { return folder + "/segment.index"; }

store::IndexEntry record_entry(const std::string& key, uint64_t n) {
  store::IndexEntry e;
  e.kind = store::IndexEntry::kRecord;
  e.record.key = key;
  e.record.offset = n * store::kPage;
  e.record.bytes = 100 + n;
  e.record.checksum = 1000 + n;
  e.record.generation = Generation{10 + n};
  return e;
}

Result<> make_index(const std::string& folder) {
  const auto segment = segment_of(folder);
  store::SegmentIndex::Segment fresh = segment;
  fresh.bytes = 0;
  MC_TRY(auto index, store::SegmentIndex::open(index_of(folder), fresh));
  MC_TRY_(index->begin(segment, {record_entry("plain", 0), record_entry("gone", 1)}));
  store::IndexEntry full = record_entry("full", 2);
  full.record.tenant = "tenant";
  full.record.cls = 2;
  full.record.pin = 1;
  full.record.keep_until_s = 4102444800;
  full.record.group = "group";
  full.record.first_bytes = 50;
  full.record.more = {{4 * store::kPage, 52, 9}};
  index->add(full);
  store::IndexEntry forget = record_entry("gone", 1);
  forget.kind = store::IndexEntry::kForget;
  index->add(forget);
  store::IndexEntry dead;
  dead.kind = store::IndexEntry::kDead;
  dead.hash = 77;
  dead.before = 78;
  index->add(dead);
  return index->flush();
}

Result<> read_index(const std::string& folder) {
  MC_TRY(auto index, store::SegmentIndex::open(index_of(folder), segment_of(folder)));
  if (!index->doubt().empty()) return fail(Code::kCorrupt, "%s", index->doubt().c_str());
  for (const store::ObjectRecord& r : index->records()) {
    std::printf(
        "segment: %s at %llu, %llu bytes, checksum %llu, generation %llu, tenant '%s', "
        "class %u, pin %u, until %llu, group '%s', first %llu",
        r.key.c_str(), static_cast<unsigned long long>(r.offset),
        static_cast<unsigned long long>(r.bytes), static_cast<unsigned long long>(r.checksum),
        static_cast<unsigned long long>(r.generation.n), r.tenant.c_str(), r.cls, r.pin,
        static_cast<unsigned long long>(r.keep_until_s), r.group.c_str(),
        static_cast<unsigned long long>(r.first_bytes));
    for (const store::Extent& e : r.more)
      std::printf(
          ", more at %llu, %llu bytes, guard %llu", static_cast<unsigned long long>(e.offset),
          static_cast<unsigned long long>(e.bytes), static_cast<unsigned long long>(e.guard));
    std::printf("\n");
  }
  store::Inventory dead;
  index->tell_dead(dead);
  for (size_t i = 0; i < dead.dead.size(); ++i)
    std::printf("segment: dead %llu before %llu\n", static_cast<unsigned long long>(dead.dead[i]),
                static_cast<unsigned long long>(dead.before[i]));
  return {};
}

Result<std::unique_ptr<store::ssd::Backend>> open_ssd(const std::string& folder,
                                                      const std::string& kind) {
  static const SteadyClock clock;
  store::ssd::BackendOptions options;
  options.kind = kind;
  options.capacity = 256 * kKiB;
  store::ssd::ScanReport report;
  MC_TRY(auto disk, store::ssd::open_disk(folder + "/ssd-" + kind, {}));
  MC_TRY(auto backend, store::ssd::open_backend(std::move(disk), options, clock, report));
  std::printf("ssd %s: %llu objects found, %llu unfinished, %llu damaged\n", kind.c_str(),
              static_cast<unsigned long long>(report.objects),
              static_cast<unsigned long long>(report.unfinished),
              static_cast<unsigned long long>(report.damaged_count));
  return backend;
}

Result<> make_ssd(const std::string& folder, const std::string& kind) {
  MC_TRY(auto backend, open_ssd(folder, kind));
  const std::string values[] = {"hello", std::string(5000, 'x') + "!", "of a tenant", "gone"};
  const std::string keys[] = {"small", "large", std::string("tenant\0key", 10), "removed"};
  for (size_t i = 0; i < std::size(values); ++i) {
    store::ssd::AlignedBuffer pages(values[i].size());
    pages.put(0, values[i]);
    const store::ssd::Stored object{
        keys[i],           values[i].size(),         xxh3(values[i]),
        Generation{i + 1}, i == 1 ? 4102444800u : 0, static_cast<uint32_t>(i % 3)};
    const store::ssd::Save save{object, pages.data()};
    MC_TRY_(backend->write({&save, 1}));
    if (keys[i] == "removed") MC_TRY_(backend->remove({&object, 1}));
  }
  return {};
}

Result<> read_ssd(const std::string& folder, const std::string& kind) {
  MC_TRY(auto backend, open_ssd(folder, kind));
  std::vector<store::ssd::Stored> objects = backend->objects();
  std::sort(objects.begin(), objects.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  for (const store::ssd::Stored& o : objects) {
    store::ssd::AlignedBuffer into(o.bytes);
    store::ssd::Load load{o.key, {}, {into.data(), into.size()}};
    backend->read({&load, 1});
    if (!load.outcome) return fail(load.outcome.error());
    const std::string value(into.text(0, o.bytes));
    std::printf("ssd %s: %s generation %llu, class %u, until %llu: %llu bytes, checksum %llx, %s\n",
                kind.c_str(), escape(o.key).c_str(),
                static_cast<unsigned long long>(o.generation.n), o.klass,
                static_cast<unsigned long long>(o.keep_until_s),
                static_cast<unsigned long long>(value.size()),
                static_cast<unsigned long long>(xxh3(value)), escape(value).c_str());
  }
  return {};
}

Result<> read_trace(const std::string& folder) {
  MC_TRY(const auto trace, trace::read_trace(folder + "/trace.jsonl", {.strict = true}));
  for (const trace::TraceRequest& r : trace.records)
    std::printf("trace: %s", trace::record_line(r).c_str());
  return {};
}

Result<> read_spec(const std::string& folder) {
  MC_TRY(const auto spec, cost::load_spec(folder + "/model.json"));
  std::printf("model: %s\nmodel: %s\n", spec.fingerprint(512).c_str(),
              dump_json(cost::to_json(spec)).c_str());
  return {};
}

Result<> make(const std::string& folder) {
  std::filesystem::create_directories(folder);
  MC_TRY_(make_index(folder));
  for (const char* kind : kKinds) MC_TRY_(make_ssd(folder, kind));
  trace::TraceRequest kept{100, 513, 0, {0, 18446744073709551615u}, trace::CacheClass::kContext};
  trace::TraceRequest last{250, 1, 20, {7}, trace::CacheClass::kEphemeral};
  MC_TRY_(trace::write_trace(folder + "/trace.jsonl", {{0, 1024, 5, {0, 1}}, kept, last}));
  cost::ModelSpec spec = cost::tiny();
  spec.name = "frozen";
  spec.variant = "v1";
  return io::write_file_atomically(folder + "/model.json",
                                   dump_json(cost::to_json(spec), 2) + "\n");
}

Result<> read(const std::string& folder) {
  MC_TRY_(read_index(folder));
  for (const char* kind : kKinds) MC_TRY_(read_ssd(folder, kind));
  MC_TRY_(read_trace(folder));
  return read_spec(folder);
}

int run(const std::string& verb, const std::string& folder) {
  const auto done = verb == "make" ? make(folder) : read(folder);
  if (!done) std::fprintf(stderr, "frozen-files: %s\n", done.error().what.c_str());
  return done ? 0 : 1;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  if (argc == 3) return mc::run(argv[1], argv[2]);
  std::fprintf(stderr, "usage: frozen-files read|make FOLDER\n");
  return 2;
}
