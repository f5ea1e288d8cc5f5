// A master's /metrics, also under the reference master's names.
#include "store/service/master_metrics.h"

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
  start.replicas = 2;  // but there is space for one only
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

TEST_CASE("metrics: sizes of values and quotas of tenants, under the reference's names") {
  MasterOptions options;
  options.tenant_quotas = "small=8KiB";
  FakeCluster c(options);
  c.add("n", 1 * kMiB);
  REQUIRE(c.put("a", 100, 1) == kDone);
  REQUIRE(c.put("b", 5000, 1) == kDone);
  PutStart start;
  start.tenant = "small";
  start.items = {{"x", 9000}};
  start.wait_ms = 1;
  c.master->handle(start, c.now, [](const Result<PutStarted>& r) {
    REQUIRE(r);
    CHECK(r->items[0].outcome.code == static_cast<uint8_t>(Code::kNoSpace));
  });
  c.run_until(c.now + 10ms);
  Metrics metrics;
  MasterMetrics told(metrics);
  const auto has = [&](const std::string& line) {
    CHECK_MESSAGE(metrics.text().find("\n" + line + "\n") != std::string::npos, line);
  };
  told.update(*c.master, c.now);
  told.update(*c.master, c.now);  // what was told is not told again
  has("master_value_size_bytes_bucket{le=\"4096\"} 1");
  has("master_value_size_bytes_bucket{le=\"65536\"} 2");
  has("master_value_size_bytes_bucket{le=\"+Inf\"} 2");
  has("master_value_size_bytes_sum 5100");
  has("mooncake_tenant_quota_requested_bytes{tenant_id=\"small\"} 8192");
  has("mooncake_tenant_quota_used_bytes{tenant_id=\"small\"} 0");
  has("mooncake_tenant_quota_reject_total{tenant_id=\"small\"} 1");
  has("master_promotion_in_flight 0");
  FakeCluster next;  // another master leads
  next.add("n", 1 * kMiB);
  REQUIRE(next.put("c", 100, 1) == kDone);
  told.update(*next.master, next.now);
  has("master_value_size_bytes_bucket{le=\"4096\"} 2");
}

}  // namespace
}  // namespace mc::store
