// F7: texts wait by tenant, within bounds, and large ones hold nobody up.
#include "serve/frontend/fair_queue.h"

#include <doctest/doctest.h>

#include <vector>

using namespace mc::serve;
using Verdict = FairQueue::Verdict;

namespace {

std::vector<uint64_t> popped(FairQueue& q, bool large_too) {
  std::vector<uint64_t> ids;
  while (const auto item = q.pop(large_too)) ids.push_back(item->id);
  return ids;
}

}  // namespace

TEST_CASE("owners take turns, and each one's work is done as it came") {
  FairQueue q({});
  for (uint64_t id = 1; id <= 4; ++id) CHECK(q.push(7, id, 10) == Verdict::kTaken);
  CHECK(q.push(8, 5, 10) == Verdict::kTaken);
  CHECK(q.push(0, 6, 10) == Verdict::kTaken);
  CHECK(popped(q, true) == std::vector<uint64_t>{1, 5, 6, 2, 3, 4});
  CHECK(q.size() == 0);
}

TEST_CASE("who takes no large work gets what is behind it") {
  FairQueue q({.large = 100});
  q.push(1, 1, 1000);
  q.push(1, 2, 50);
  q.push(2, 3, 101);
  CHECK(popped(q, false) == std::vector<uint64_t>{2});
  CHECK(popped(q, true) == std::vector<uint64_t>{3, 1});
}

TEST_CASE("an owner's count and bytes are bounded, and so are those of all") {
  FairQueue q({.large = 100, .owner_count = 3, .owner_bytes = 50, .count = 5, .bytes = 80});
  CHECK(q.push(1, 1, 20) == Verdict::kTaken);
  CHECK(q.push(1, 2, 20) == Verdict::kTaken);
  CHECK(q.push(1, 3, 20) == Verdict::kOwnerFull);  // 60 bytes
  CHECK(q.push(1, 3, 10) == Verdict::kTaken);
  CHECK(q.push(1, 4, 0) == Verdict::kOwnerFull);  // its fourth
  CHECK(q.push(2, 5, 40) == Verdict::kFull);      // 90 bytes
  CHECK(q.push(2, 5, 30) == Verdict::kTaken);
  CHECK(q.push(3, 6, 0) == Verdict::kTaken);
  CHECK(q.push(4, 7, 0) == Verdict::kFull);  // the sixth
  CHECK(q.erase(2));
  CHECK_FALSE(q.erase(2));
  CHECK(q.push(4, 7, 20) == Verdict::kTaken);
  CHECK(popped(q, true).size() == 5);
  CHECK(q.push(1, 8, 1000) == Verdict::kTaken);  // alone, whatever its size
}
