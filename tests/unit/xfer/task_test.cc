#include "xfer/core/task.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::xfer;

namespace {

// One task that moves three requests of 10, 20 and 30 bytes.
struct Three {
  Batch batch;
  Task task;
  explicit Three(size_t slices) {
    task.batch = &batch;
    task.count = 3;
    task.slices_left = slices;
    Lock lock(batch.mutex);
    batch.items = {{TransferState::kPending, 10, 0, 0, &task},
                   {TransferState::kPending, 20, 0, 10, &task},
                   {TransferState::kPending, 30, 0, 30, &task}};
  }
  bool ended(uint64_t at, uint64_t bytes, const Result<>& outcome = {}) {
    Lock lock(batch.mutex);
    return batch.slice_ended(task, at, bytes, outcome);
  }
  const Item& item(size_t i) {
    Lock lock(batch.mutex);
    return batch.items[i];
  }
};

}  // namespace

TEST_SUITE("xfer/task") {
  TEST_CASE("a slice's bytes are credited to their requests") {
    Three t(3);
    CHECK_FALSE(t.ended(25, 10));
    CHECK(t.item(0).done == 0);
    CHECK(t.item(1).done == 5);
    CHECK(t.item(2).done == 5);
    CHECK_FALSE(t.ended(0, 25));
    CHECK(t.item(0).state == TransferState::kCompleted);
    CHECK(t.item(1).state == TransferState::kCompleted);
    CHECK(t.item(2).state == TransferState::kPending);
    CHECK(t.ended(35, 25));
    CHECK(t.item(2).state == TransferState::kCompleted);
    CHECK_FALSE(t.batch.failed.load());
  }

  TEST_CASE("a failed slice fails the requests it holds bytes of, once the others came back") {
    Three t(2);
    CHECK_FALSE(t.ended(25, 35, fail(Code::kCorrupt, "torn")));
    CHECK(t.task.cancelled.load());
    CHECK(t.item(2).state == TransferState::kPending);
    CHECK(t.ended(0, 25));
    CHECK(t.item(0).state == TransferState::kCompleted);
    CHECK(t.item(1).state == TransferState::kFailed);
    CHECK(t.item(2).state == TransferState::kFailed);
    CHECK(t.batch.failed.load());
    CHECK(t.task.error.code == Code::kCorrupt);
  }

  TEST_CASE("the first error is reported") {
    Three t(2);
    CHECK_FALSE(t.ended(0, 30, fail(Code::kTimeout, "late")));
    CHECK(t.ended(30, 30, fail(Code::kUnavailable, "cancelled")));
    CHECK(t.item(0).state == TransferState::kTimedOut);
    CHECK(t.task.error.what == "late");
  }
}
