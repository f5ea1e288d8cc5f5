// What a master tells on /metrics, under the reference master's names too.
#include "store/master_metrics.h"

#include <doctest/doctest.h>

#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

TEST_CASE("metrics: calls of several keys count apart, by how their keys did") {
  CallTally t;
  t.add(1, 0);
  t.add(1, 1);
  t.add(4, 0);
  t.add(4, 1);
  t.add(3, 3);
  CHECK(t.single.calls == 2);
  CHECK(t.single.failures == 1);
  CHECK(t.batch.calls == 3);
  CHECK(t.batch.items == 11);
  CHECK(t.batch.failed_items == 4);
  CHECK(t.batch.partial == 1);
  CHECK(t.batch.failures == 1);
}

TEST_CASE("metrics: the reference's names tell what the master did") {
  FakeCluster c;
  c.add("n", 1 * kMiB);
  Metrics metrics;
  MasterMetrics told(metrics);
  told.of("put-start")->add(4, 1);
  told.of("remove")->add(2, 0);  // has no name of its own for several keys
  CHECK(told.of("replay") == nullptr);
  PutStart start;
  start.items = {{"a", 10}};
  start.replicas = 2;  // of which there is room for one
  start.pin = static_cast<uint8_t>(Pin::kSoft);
  c.master->handle(start, c.now, [](const Result<PutStarted>& r) { REQUIRE(r); });
  const auto has = [&](const std::string& line) {
    CHECK_MESSAGE(metrics.text().find("\n" + line + "\n") != std::string::npos, line);
  };
  told.update(*c.master, c.now);
  has("master_batch_put_start_requests_total 1");
  has("master_batch_put_start_items_total 4");
  has("master_batch_put_start_failed_items_total 1");
  has("master_batch_put_start_partial_successes_total 1");
  has("master_put_start_requests_total 0");
  has("master_remove_requests_total 1");
  has("master_put_start_partial_allocations_total 1");
  has("master_soft_pin_key_count 1");
  c.master->tick(c.now += 31s);  // nobody ended it
  told.update(*c.master, c.now);
  has("master_soft_pin_key_count 0");
  has("master_put_start_discard_cnt 1");
  has("master_put_start_discarded_staging_size 10");
}

}  // namespace
}  // namespace mc::store
