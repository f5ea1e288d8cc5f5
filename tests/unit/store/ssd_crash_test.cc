// Crashes at every operation of writing, replacing, removing, evicting and rewriting, for each
// backend and each way a crash can leave the disk: acknowledged values are served, nothing else is.
#include "base/time.h"
#include "model_disk.h"
#include "ssd_values.h"

using namespace mc;
using namespace mc::store;
using namespace mc::store::ssd;

namespace ssd_crash_test {

namespace {

constexpr uint64_t kGone = 0;
constexpr uint64_t kCapacity = 1 * kMiB;

// What a key may read as: its generation, kGone, or either side of a step cut short.
struct World {
  std::map<ObjectKey, std::set<uint64_t>> may;
  void begin(const ObjectKey& key, uint64_t generation) {
    if (may[key].empty()) may[key] = {kGone};
    may[key].insert(generation);
  }
  void end(const ObjectKey& key, uint64_t generation) { may[key] = {generation}; }
};

BackendOptions options_of(const std::string& kind, Evict evict = Evict::kFifo) {
  BackendOptions o;
  o.kind = kind;
  o.evict = evict;
  o.capacity = kCapacity;
  o.reader_wait = {};
  return o;
}

Result<> put(Backend& b, World& w, const std::vector<std::pair<ObjectKey, uint64_t>>& keys,
             uint64_t generation) {
  Saves saves;
  for (const auto& [key, bytes] : keys) {
    saves.add(key, generation, bytes);
    w.begin(key, generation);
  }
  MC_TRY_(b.write(saves.items()));
  for (const auto& [key, bytes] : keys) w.end(key, generation);
  return {};
}

Result<> rm(Backend& b, World& w, const ObjectKey& key) {
  const auto object = b.find(key);
  if (!object) return fail(object.error());
  w.begin(key, kGone);
  const Stored one = *object;
  MC_TRY_(b.remove({&one, 1}));
  w.end(key, kGone);
  return {};
}

Result<> evict(Backend& b, World& w, const ModelDisk& disk) {
  auto eviction = b.begin_evict(kCapacity - b.usage().used + 1);
  for (const Stored& o : eviction.objects) w.begin(o.key, kGone);
  const auto keys = eviction.objects;
  b.commit_evict(std::move(eviction));
  if (disk.crashed()) return fail(Code::kInternal, "crashed");
  for (const Stored& o : keys) w.end(o.key, kGone);
  return {};
}

Result<> script(const std::shared_ptr<ModelDisk>& disk, const std::string& kind, World& w) {
  SteadyClock clock;
  ScanReport report;
  MC_TRY(auto backend, open_backend(disk, options_of(kind), clock, report));
  MC_TRY_(put(*backend, w, {{"a", 0}, {"b", 1}, {"c", 4096}}, 10));
  MC_TRY_(put(*backend, w, {{"d", 5000}, {"e", 20000}}, 11));
  MC_TRY_(rm(*backend, w, "b"));
  MC_TRY_(put(*backend, w, {{"c", 9000}, {"f", 100}}, 12));  // replaces one of the first
  MC_TRY_(evict(*backend, w, *disk));
  MC_TRY_(put(*backend, w, {{"a", 300}, {"b", 8192}}, 13));
  backend.reset();
  MC_TRY(backend, open_backend(disk, options_of(kind), clock, report));
  (void)rm(*backend, w, "d");  // not there when it was evicted
  MC_TRY_(put(*backend, w, {{"g", 4097}}, 14));
  MC_TRY_(put(*backend, w, {{"h", 9000}, {"i", 100}, {"j", 30000}, {"k", 0}}, 15));
  MC_TRY_(rm(*backend, w, "j"));
  backend->compact();  // rewrites the last bucket
  if (disk->crashed()) return fail(Code::kInternal, "crashed");
  MC_TRY_(rm(*backend, w, "h"));
  return disk->crashed() ? Result<>(fail(Code::kInternal, "crashed")) : Result<>();
}

void check(const std::shared_ptr<ModelDisk>& disk, const std::string& kind, const World& w,
           bool clean) {
  SteadyClock clock;
  ScanReport report;
  auto backend = open_backend(disk, options_of(kind), clock, report);
  REQUIRE_MESSAGE(backend.has_value(), backend.error().what);
  if (clean) CHECK_MESSAGE(report.damaged_count == 0, report.damaged[0]);
  for (const Stored& o : (*backend)->objects()) CHECK(w.may.contains(o.key));
  std::map<ObjectKey, uint64_t> is;
  for (const auto& [k, may] : w.may) {
    const ObjectKey& key = k;
    const auto generation = read_one(**backend, key);
    if (!generation) CHECK_MESSAGE(generation.error().code == Code::kNotFound, key);
    is[key] = generation ? *generation : kGone;
    CHECK_MESSAGE(may.contains(is[key]), key << " reads as " << is[key]);
  }
  // It goes on from there, and the next start finds the same.
  World more;
  CHECK(put(**backend, more, {{"later", 6000}}, 99));
  backend->reset();
  ScanReport again;
  auto next = open_backend(disk, options_of(kind), clock, again);
  REQUIRE(next.has_value());
  for (const auto& [key, generation] : is)
    CHECK(read_one(**next, key).value_or(kGone) == generation);
  CHECK(read_one(**next, "later").value_or(kGone) == 99);
}

}  // namespace

TEST_CASE("a crash at any operation loses nothing that was answered and serves nothing torn") {
  for (const std::string kind : {"bucket", "file", "offset"}) {
    CAPTURE(kind);
    uint64_t steps = 0;
    for (uint64_t k = 1;; ++k) {
      World w;
      auto disk = std::make_shared<ModelDisk>();
      disk->crash_at = k;
      const auto ran = script(disk, kind, w);
      CAPTURE(k);
      for (const Crash crash : kCrashes) {
        CAPTURE(static_cast<int>(crash));
        check(disk->after(crash), kind, w, crash != Crash::kMixed);
      }
      if (disk->operations < k) {
        REQUIRE_MESSAGE(ran.has_value(), ran.error().what);
        steps = k;
        break;
      }
    }
    CHECK(steps > 30);  // the script did reach the disk
  }
}

TEST_CASE("a second crash, while the first is being cleaned up, loses nothing either") {
  for (const std::string kind : {"bucket", "file", "offset"}) {
    CAPTURE(kind);
    for (uint64_t k = 1;; ++k) {
      World w;
      auto disk = std::make_shared<ModelDisk>();
      disk->crash_at = k;
      (void)script(disk, kind, w);
      if (disk->operations < k) break;
      for (uint64_t second = 1;; ++second) {
        auto next = disk->after(Crash::kKill);
        next->crash_at = second;
        SteadyClock clock;
        ScanReport report;
        (void)open_backend(next, options_of(kind), clock, report);
        if (next->operations < second) break;
        CAPTURE(k);
        CAPTURE(second);
        check(next->after(Crash::kPowerCut), kind, w, true);
      }
    }
  }
}

}  // namespace ssd_crash_test
