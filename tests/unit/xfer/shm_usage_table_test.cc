#include "xfer/qos/shm_usage_table.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/random.h"
#include "base/units.h"
#include "io/fd.h"
#include "xfer/qos/nic_inflight.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace share_table_test {

namespace {

const Time kNow{1h};
constexpr auto kHigh = Priority::kHigh, kMedium = Priority::kMedium, kLow = Priority::kLow;

struct Folder {
  Folder() {
    std::string name = "/dev/shm/mc-share-test-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

NicDemand medium(Time until, double rate = 0) {
  NicDemand d;
  d.active_until[1] = until;
  d.rate = rate;
  return d;
}

std::unique_ptr<ShmUsageTable> open(const Folder& folder, const std::string& nic = "eth0") {
  auto table = ShmUsageTable::open(folder.path, nic);
  if (!table) FAIL(table.error().what);
  return std::move(*table);
}

// A child that opens the table, tells its demand, says so and waits to be killed.
class Child {
 public:
  Child(const Folder& folder, NicDemand demand) {
    int fds[2];
    REQUIRE(::pipe(fds) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      auto table = ShmUsageTable::open(folder.path, "eth0");
      char ok = table ? 'y' : 'n';
      if (table) (*table)->publish(demand);
      if (::write(fds[1], &ok, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(fds[1]);
    REQUIRE(::read(fds[0], &answer, 1) == 1);
    ::close(fds[0]);
  }
  ~Child() { kill(); }
  Child(Child&& other) noexcept : answer(other.answer), pid_(std::exchange(other.pid_, 0)) {}
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  char answer = 0;

 private:
  pid_t pid_ = 0;
};

void overwrite(const std::string& path, size_t from, uint64_t seed) {
  const io::Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat st {};
  REQUIRE(::fstat(fd.get(), &st) == 0);
  Random random(seed);
  for (size_t at = from; at < static_cast<size_t>(st.st_size); at += 8) {
    const uint64_t word = random.chance(0.2) ? ~0ull : random.next();
    REQUIRE(::pwrite(fd.get(), &word, 8, static_cast<off_t>(at)) == 8);
  }
}

}  // namespace

TEST_SUITE("xfer/share_table") {
  TEST_CASE("a process sees what others tell, until it lapses, and not itself") {
    Folder folder;
    auto a = open(folder), b = open(folder);
    a->publish(medium(kNow + 20ms, 5e6));
    CHECK(b->usage(kNow).active[1] == 1);
    CHECK(b->usage(kNow).active[2] == 0);
    CHECK(b->usage(kNow).rate == 5e6);
    CHECK(b->usage(kNow + 20ms).active[1] == 0);
    CHECK(b->usage(kNow + 20ms).rate == 0);
    CHECK(a->usage(kNow).active[1] == 0);
    NicDemand slow = medium(kNow + 20ms);
    slow.capacity = 9e6;
    slow.round_trip = 300us;
    a->publish(slow);
    CHECK(b->usage(kNow).capacity == 9e6);
    CHECK(b->usage(kNow).round_trip == 300us);
    CHECK(b->usage(kNow + 20ms).capacity == 0);
    NicDemand high;
    high.active_until[0] = kNow + 5ms;
    a->publish(high);
    CHECK(b->usage(kNow + 1s).high_until == kNow + 5ms);
    a.reset();
    CHECK(b->usage(kNow).active[1] == 0);
    CHECK(b->usage(kNow).high_until < kNow - 1h);
  }

  TEST_CASE("NICs have a table each, readable by their user alone, whatever they are called") {
    Folder folder;
    auto a = open(folder, "eth0"), b = open(folder, "../../etc/x y");
    CHECK(a->path() != b->path());
    CHECK(std::filesystem::path(b->path()).parent_path() == folder.path);
    struct stat st {};
    REQUIRE(::stat(a->path().c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0600);
    a->publish(medium(kNow + 1s));
    CHECK(b->usage(kNow).active[1] == 0);
  }

  TEST_CASE("the slot of a killed process lapses, and another takes it") {
    Folder folder;
    auto mine = open(folder);
    std::vector<Child> children;
    for (uint32_t i = 1; i < ShmUsageTable::kSlots; ++i) {
      children.emplace_back(folder, medium(kNow + 1s));
      REQUIRE(children.back().answer == 'y');
    }
    CHECK(mine->usage(kNow).active[1] == ShmUsageTable::kSlots - 1);
    auto full = ShmUsageTable::open(folder.path, "eth0");
    REQUIRE_FALSE(full.has_value());
    CHECK(full.error().code == Code::kBusy);
    children[77].kill();
    auto again = ShmUsageTable::open(folder.path, "eth0");
    REQUIRE(again.has_value());
    CHECK(mine->usage(kNow).active[1] == ShmUsageTable::kSlots - 2);
    CHECK_FALSE(ShmUsageTable::open(folder.path, "eth0").has_value());
    for (Child& c : children) c.kill();
    CHECK(mine->usage(kNow + 1s).active[1] == 0);
    CHECK(ShmUsageTable::open(folder.path, "eth0").has_value());
  }

  TEST_CASE("64 processes that come and go at once all get a slot and leave none behind") {
    Folder folder;
    std::vector<pid_t> pids;
    for (int i = 0; i < 64; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        bool ok = true;
        for (int round = 0; round < 50; ++round) {
          auto table = ShmUsageTable::open(folder.path, "eth0");
          ok = ok && table.has_value();
          if (table) (*table)->publish(medium(kNow + 1s));
          ok = ok && table && (*table)->usage(kNow).active[1] < 64;
        }
        ::_exit(ok ? 0 : 1);
      }
      pids.push_back(pid);
    }
    for (const pid_t pid : pids) {
      int status = 0;
      REQUIRE(::waitpid(pid, &status, 0) == pid);
      CHECK(status == 0);
    }
    CHECK(open(folder)->usage(kNow).active[1] == 0);
  }

  TEST_CASE("garbage in the slots is bounded, and they can be used again") {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      Folder folder;
      auto a = open(folder);
      overwrite(a->path(), 128, seed);
      const NicUsage seen = a->usage(kNow);
      for (const uint32_t n : seen.active) CHECK(n < ShmUsageTable::kSlots);
      CHECK(seen.rate >= 0);
      CHECK(seen.rate < 1e16);
      CHECK(seen.high_until <= kNow + 5s);
      auto b = open(folder);
      b->publish(medium(kNow + 1s));
      CHECK(a->usage(kNow).active[1] >= 1);
      a->publish(medium(kNow + 1s));  // its own slot was written over as well
      CHECK(b->usage(kNow).active[1] >= 1);
      FairShare share;
      share.others(a->usage(kNow));
      CHECK(share.share(kLow, kNow) > 0);
      CHECK(share.window(kLow, kNow) >= 16 * kKiB);
    }
  }

  TEST_CASE("a table of another layout, another size, of others or no file is refused") {
    Folder folder;
    const std::string path = open(folder)->path();
    auto refused = [&](Code code) {
      auto table = ShmUsageTable::open(folder.path, "eth0");
      REQUIRE_FALSE(table.has_value());
      CHECK(table.error().code == code);
      CHECK(table.error().what.find(path) != std::string::npos);
    };
    overwrite(path, 0, 1);
    refused(Code::kCorrupt);
    REQUIRE(::truncate(path.c_str(), 100) == 0);
    refused(Code::kCorrupt);
    REQUIRE(::truncate(path.c_str(), 0) == 0);
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    refused(Code::kDenied);
    std::filesystem::remove(path);
    REQUIRE(::symlink("/dev/null", path.c_str()) == 0);
    refused(Code::kDenied);
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    refused(Code::kDenied);
    CHECK_FALSE(ShmUsageTable::open(folder.path + "/absent", "eth0").has_value());
  }
}

TEST_SUITE("xfer/nic_ledger") {
  NicInflight::Config config(const Folder& folder) {
    NicInflight::Config out;
    out.directory = folder.path;
    return out;
  }

  TEST_CASE("two ledgers halve a NIC while both work, and high work of one guards the other") {
    Folder folder;
    NicInflight a(config(folder)), b(config(folder));
    const NicIndex x = a.nic("eth0"), y = b.nic("eth0");
    CHECK(a.nic("eth0") == x);
    CHECK(a.nic("eth1") != x);
    a.sent(x, kMedium, 1000, kNow);
    CHECK(b.share(y, kMedium, kNow) == doctest::Approx(0.5));
    a.done(x, kMedium, 1000, 1000, kNow + 1ms);
    CHECK(b.share(y, kMedium, kNow + 30ms) == 1);
    CHECK_FALSE(b.view(kNow + 30ms)[0].guarded);
    a.wants(x, kHigh, kNow + 30ms);
    CHECK(b.view(kNow + 32ms)[0].guarded);
    CHECK(b.slice_max(y, kLow, kNow + 32ms) == 32 * kKiB);
    CHECK(b.window(y, kLow, kNow + 32ms) == 64 * kKiB);
  }

  TEST_CASE("a process killed in mid-transfer gives its share back") {
    Folder folder;
    NicInflight mine(config(folder));
    const NicIndex nic = mine.nic("eth0");
    int fds[2];
    REQUIRE(::pipe(fds) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      NicInflight nic_inflight(config(folder));
      nic_inflight.sent(nic_inflight.nic("eth0"), kMedium, 1 * kMiB, kNow);
      if (::write(fds[1], "y", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(fds[1]);
    char ready = 0;
    REQUIRE(::read(fds[0], &ready, 1) == 1);
    ::close(fds[0]);
    CHECK(mine.share(nic, kMedium, kNow + 500ms) == doctest::Approx(0.5));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    CHECK(mine.share(nic, kMedium, kNow + 1001ms) == 1);
    CHECK(mine.window(nic, kMedium, kNow + 1002ms) == FairShare::kNoLimit);
  }

  TEST_CASE("NicInflight works on when its table is overwritten with garbage") {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      Folder folder;
      NicInflight a(config(folder)), b(config(folder));
      const NicIndex x = a.nic("eth0"), y = b.nic("eth0");
      for (const auto& entry : std::filesystem::directory_iterator(folder.path))
        overwrite(entry.path(), 0, seed);
      a.sent(x, kLow, 100 * kKiB, kNow);
      a.done(x, kLow, 100 * kKiB, 100 * kKiB, kNow + 1ms);
      CHECK(a.room(x, kNow + 2ms) == kAllClasses);  // garbage may slow it, never stop it
      b.sent(y, kLow, 1, kNow + 2ms);
      CHECK(a.share(x, kLow, kNow + 4ms) <= 0.5);
      b.done(y, kLow, 1, 1, kNow + 4ms);
    }
  }

  TEST_CASE("a refused class is notified when there may be room again") {
    Folder folder;
    NicInflight nic_inflight(config(folder));
    const NicIndex nic = nic_inflight.nic("eth0");
    auto owner = std::make_shared<int>(0);
    nic_inflight.on_room(nic, owner, [count = owner.get()] { ++*count; });
    nic_inflight.wants(nic, kHigh, kNow);
    for (int i = 0; i < 2; ++i) {
      CHECK((nic_inflight.room(nic, kNow) & mask_of(kLow)) != 0);
      nic_inflight.sent(nic, kLow, 32 * kKiB, kNow);
    }
    CHECK(*owner == 0);
    CHECK(nic_inflight.room(nic, kNow) == (mask_of(kHigh) | mask_of(kMedium)));
    nic_inflight.done(nic, kLow, 32 * kKiB, 32 * kKiB, kNow);
    CHECK(*owner == 1);
    nic_inflight.done(nic, kLow, 32 * kKiB, 32 * kKiB, kNow);  // nobody was refused since
    CHECK(*owner == 1);
    std::weak_ptr<int> watched = owner;
    owner.reset();
    CHECK(watched.expired());
    nic_inflight.sent(nic, kLow, kMiB, kNow);
    CHECK((nic_inflight.room(nic, kNow) & mask_of(kLow)) == 0);
    nic_inflight.done(nic, kLow, kMiB, 0, kNow);
  }

  TEST_CASE("without a table a process goes on alone, and says why") {
    NicInflight::Config c;
    c.directory = "/nonexistent";
    NicInflight nic_inflight(c);
    const NicIndex nic = nic_inflight.nic("eth0");
    CHECK(nic_inflight.share(nic, kMedium, kNow) == 1);
    CHECK(nic_inflight.room(nic, kNow) == kAllClasses);
    CHECK(nic_inflight.view(kNow)[0].problem.find("/nonexistent") != std::string::npos);
  }

  TEST_CASE("threads that share a NicInflight lose no byte") {
    Folder folder;
    NicInflight nic_inflight(config(folder));
    const NicIndex nic = nic_inflight.nic("eth0");
    auto owner = std::make_shared<std::atomic<int>>(0);
    nic_inflight.on_room(nic, owner, [count = owner.get()] { ++*count; });
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const auto p = static_cast<Priority>(t % 3);
        for (int i = 0; i < 2000; ++i) {
          const Time now = kNow + i * 10us;
          nic_inflight.sent(nic, p, 100, now);
          (void)nic_inflight.room(nic, now);
          nic_inflight.done(nic, p, 100, 100, now);
        }
      });
    for (auto& t : threads) t.join();
    const auto view = nic_inflight.view(kNow);
    for (const uint64_t n : view[0].inflight) CHECK(n == 0);
  }
}

}  // namespace share_table_test
