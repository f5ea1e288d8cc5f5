#include "xfer/qos/priority_queue.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>

#include "base/random.h"
#include "base/units.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace priority_queue_test {

namespace {

constexpr Priority kEach[] = {Priority::kHigh, Priority::kMedium, Priority::kLow};
const Time kStart{1h};

struct Item {
  Priority priority = Priority::kMedium;
  uint64_t bytes = 0;
  int number = 0;
};

void push(PriorityQueue<Item>& q, Priority p, uint64_t bytes, Time now, int number = 0) {
  q.push({p, bytes, number}, p, bytes, now);
}

// Bytes by class of `pops` pops with all classes backlogged; each pop takes `each` of time.
std::map<Priority, double> shares(QosConfig config, size_t pops, Duration each, uint64_t low_size) {
  PriorityQueue<Item> q(config);
  Random random(11);
  auto size = [&](Priority p) {  // classes of different sizes, to tell bytes from counts
    return (1 + random.below(4)) * (p == Priority::kLow ? low_size : 64 * kKiB);
  };
  Time now = kStart;
  for (const Priority p : kEach)
    for (int i = 0; i < 4; ++i) push(q, p, size(p), now);
  std::map<Priority, double> bytes;
  double total = 0;
  for (size_t i = 0; i < pops; ++i, now += each) {
    const Item item = *q.pop(now);
    bytes[item.priority] += static_cast<double>(item.bytes);
    total += static_cast<double>(item.bytes);
    push(q, item.priority, size(item.priority), now);
  }
  for (auto& [p, n] : bytes) n /= total;
  return bytes;
}

}  // namespace

TEST_SUITE("xfer/priority_queue") {
  TEST_CASE("under backlog the classes get bytes by weight") {
    for (const std::array<uint32_t, 3> w : {std::array<uint32_t, 3>{16, 4, 1}, {3, 2, 1}}) {
      auto got = shares({w, 1h}, 50'000, 1ms, 256 * kKiB);
      const double sum = w[0] + w[1] + w[2];
      for (size_t i = 0; i < 3; ++i) {
        CAPTURE(i);
        CHECK(got[kEach[i]] == doctest::Approx(w[i] / sum).epsilon(0.02));
      }
    }
  }

  TEST_CASE("where everything waits long, ageing leaves most to the weights") {
    auto got = shares({{16, 4, 1}, 100ms}, 50'000, 500ms, 64 * kKiB);
    CHECK(got[Priority::kHigh] > 0.6);
    CHECK(got[Priority::kLow] < 0.2);
  }

  TEST_CASE("something is popped whenever something that may go waits") {
    Random random(5);
    PriorityQueue<Item> q;
    Time now = kStart;
    for (int i = 0; i < 100'000; ++i, now += Duration(random.below(2'000'000))) {
      if (random.chance(0.5)) push(q, kEach[random.below(3)], 1 + random.below(kMiB), now);
      const auto may = static_cast<ClassMask>(random.below(kAllClasses + 1));
      const bool expected = (q.waiting() & may) != 0;
      const Item* head = q.head(now, may);
      REQUIRE((head != nullptr) == expected);
      if (!expected) continue;
      const uint64_t bytes = head->bytes, before = q.bytes();
      const Item item = *q.pop(now, may);
      REQUIRE(item.bytes == bytes);
      REQUIRE((mask_of(item.priority) & may) != 0);
      REQUIRE(q.bytes() == before - bytes);
    }
  }

  TEST_CASE("a class alone gets all, and pays nobody for it later") {
    PriorityQueue<Item> q({{16, 4, 1}, 1h});
    for (int i = 0; i < 2000; ++i) push(q, Priority::kLow, kMiB, kStart);
    for (int i = 0; i < 1000; ++i) CHECK(q.pop(kStart)->priority == Priority::kLow);
    for (int i = 0; i < 210; ++i) push(q, Priority::kMedium, kMiB, kStart);
    int medium = 0;  // 4 of 5, from now on
    for (int i = 0; i < 100; ++i) medium += q.pop(kStart)->priority == Priority::kMedium;
    CHECK(medium == doctest::Approx(80).epsilon(0.02));
  }

  TEST_CASE("a high request behind a long queue goes next") {
    PriorityQueue<Item> q({{16, 4, 1}, 1h});
    for (int i = 0; i < 100; ++i) push(q, Priority::kLow, kMiB, kStart);
    for (int i = 0; i < 20; ++i) {
      q.pop(kStart);
      push(q, Priority::kHigh, 64 * kKiB, kStart);
      CHECK(q.pop(kStart)->priority == Priority::kHigh);
    }
  }

  TEST_CASE("a head waits no longer than the ageing bound and a few pops") {
    const Duration age = 100ms, each = 7ms;
    PriorityQueue<Item> q({{1000, 1000, 1}, age});
    Time now = kStart;
    for (int i = 0; i < 100; ++i) push(q, Priority::kLow, kMiB, now, i);
    Time last = now;
    int low = 0;
    for (int i = 0; i < 2000; ++i, now += each) {
      while (q.size(Priority::kHigh) < 2) push(q, Priority::kHigh, kMiB, now);
      while (q.size(Priority::kMedium) < 2) push(q, Priority::kMedium, kMiB, now);
      const Item item = *q.pop(now);
      if (item.priority != Priority::kLow) continue;
      CHECK(now - last <= age + each * ClassChooser::kAgedEvery);
      CHECK(item.number == low++);
      last = now;
    }
    CHECK(low >= 80);
  }

  TEST_CASE("a class that might not go has no claim on what it missed") {
    PriorityQueue<Item> q({{1, 1, 1}, 1h});
    for (int i = 0; i < 300; ++i) push(q, Priority::kLow, kMiB, kStart);
    for (int i = 0; i < 300; ++i) push(q, Priority::kMedium, kMiB, kStart);
    const auto no_low = static_cast<ClassMask>(kAllClasses & ~mask_of(Priority::kLow));
    for (int i = 0; i < 100; ++i) CHECK(q.pop(kStart, no_low)->priority == Priority::kMedium);
    int low = 0;
    for (int i = 0; i < 100; ++i) low += q.pop(kStart)->priority == Priority::kLow;
    CHECK(low == 50);
    CHECK(q.pop(kStart, 0) == std::nullopt);
  }

  TEST_CASE("within a class it is first come first served, and a retry goes first") {
    PriorityQueue<std::unique_ptr<int>> q;
    for (int i = 0; i < 3; ++i) q.push(std::make_unique<int>(i), Priority::kMedium, 10, kStart);
    auto first = *q.pop(kStart);
    CHECK(*first == 0);
    q.push_front(std::move(first), Priority::kMedium, 10, kStart);
    for (int i = 0; i < 3; ++i) CHECK(**q.pop(kStart) == i);
    CHECK(q.empty());
    CHECK_FALSE(q.pop(kStart).has_value());
  }

  TEST_CASE("what is taken out counts no more, and the rest keeps its order") {
    PriorityQueue<Item> q;
    for (int i = 0; i < 30; ++i) push(q, kEach[i % 3], 100, kStart, i);
    const auto gone = q.remove_if([](const Item& item) { return item.number % 2 == 0; });
    CHECK(gone.size() == 15);
    CHECK(q.size() == 15);
    CHECK(q.bytes() == 1500);
    std::map<Priority, int> last;
    while (auto item = q.pop(kStart)) {
      CHECK(item->number % 2 == 1);
      CHECK(item->number > last[item->priority]);
      last[item->priority] = item->number;
    }
    push(q, Priority::kLow, 7, kStart);
    CHECK(q.remove_if([](const Item&) { return true; }).size() == 1);
    CHECK(q.waiting() == 0);
    CHECK(q.bytes() == 0);
  }

  TEST_CASE("weights are three numbers, and anything else is named") {
    CHECK(*parse_weights("16:4:1") == std::array<uint32_t, 3>{16, 4, 1});
    CHECK(*parse_weights("1000:1:1000") == std::array<uint32_t, 3>{1000, 1, 1000});
    for (const char* bad : {"", "1", "1:2", "1:2:", "1:2:3:", "1:2:3:4", "0:1:1", "1001:1:1",
                            "a:b:c", "1:-2:3", " 1:2:3", "1:2:99999999999", "1::3"}) {
      CAPTURE(bad);
      const auto weights = parse_weights(bad);
      REQUIRE_FALSE(weights.has_value());
      CHECK(weights.error().what.find(bad) != std::string::npos);
    }
  }

  TEST_CASE("a class has a name for people") {
    CHECK(std::string(name(Priority::kHigh)) == "high");
    CHECK(std::string(name(Priority::kLow)) == "low");
  }
}

}  // namespace priority_queue_test
