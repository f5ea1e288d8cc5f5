#include "store/service/master_metrics.h"

#include <algorithm>

namespace mc::store {
namespace {

// The reference master's metric names of the calls that mean the same. It counts calls of several
// keys apart.
struct Theirs {
  const char *ours, *single, *batch;
};
constexpr Theirs kTheirs[] = {{"put-start", "put_start", "batch_put_start"},
                              {"put-end", "put_end", "batch_put_end"},
                              {"put-revoke", "put_revoke", "batch_put_revoke"},
                              {"get-replicas", "get_replica_list", "batch_get_replica_list"},
                              {"exists", "exist_key", "batch_exist_key"},
                              {"remove", "remove", ""},
                              {"remove-all", "remove_all", ""},
                              {"heartbeat", "ping", ""},
                              {"mount", "mount_segment", ""},
                              {"unmount", "unmount_segment", ""},
                              {"copy", "create_copy_task", ""},
                              {"move", "create_move_task", ""},
                              {"query-task", "query_task", ""},
                              {"task-done", "update_task", ""}};

void raise_to(Counter& counter, uint64_t total) {
  counter.add(total - std::min(total, counter.value()));
}

}  // namespace

CallTally* MasterMetrics::of(std::string_view type) {
  const auto known = std::find_if(std::begin(kTheirs), std::end(kTheirs),
                                  [&](const Theirs& t) { return type == t.ours; });
  return known == std::end(kTheirs) ? nullptr : &calls_[known->ours];
}

void CallTally::add(size_t items, size_t failed) {
  if (items == 1) {
    ++single.calls;
    single.failures += failed;
    return;
  }
  ++batch.calls;
  batch.items += items;
  batch.failed_items += failed;
  if (failed > 0) ++(failed < items ? batch.partial : batch.failures);
}

void MasterMetrics::update(Master& master, Time now) {
  const ClusterStat s = master.handle(Stat{}, now);
  const Master::Totals& t = master.totals();
  const auto gauge = [&](const char* name, const char* help, uint64_t v) {
    metrics_.gauge(name, help).set(static_cast<double>(v));
  };
  gauge("mc_store_objects", "objects stored", s.objects);
  gauge("mc_store_object_bytes", "bytes of their values", s.object_bytes);
  gauge("mc_store_used_bytes", "bytes of segments taken", s.used);
  gauge("mc_store_capacity_bytes", "bytes of segments mounted", s.capacity);
  gauge("mc_store_leased_objects", "objects under a read lease", s.leased);
  gauge("mc_store_writing_objects", "puts in flight", s.writing);
  gauge("mc_store_pinned_bytes", "bytes of segments that eviction cannot free",
        master.tenants().pinned());
  gauge("mc_store_nodes", "nodes mounted", s.nodes.size());
  gauge("mc_store_disk_objects", "objects on the nodes' disks", s.disk_objects);
  gauge("mc_store_disk_bytes", "bytes of their values", s.disk_bytes);
  gauge("mc_store_offloading_bytes", "bytes being written to the nodes' disks", s.offloading);
  gauge("mc_store_epoch", "epoch of this master", s.epoch);
  const auto count = [&](const char* name, const char* help, uint64_t v) {
    raise_to(metrics_.counter(name, help), v);
  };
  count("mc_store_puts_total", "objects published", t.puts);
  count("mc_store_replica_checks_total",
        "replicas that nodes checked, as a reader found them corrupt", t.checks);
  count("mc_store_replicas_corrupt_total", "replicas that were corrupt, and dropped", t.corrupt);
  count("mc_store_put_no_space_total", "puts refused for want of room", t.put_no_space);
  count("mc_store_puts_discarded_total", "puts never finished", t.puts_discarded);
  count("mc_store_hits_total", "keys looked up and found", t.hits);
  count("mc_store_misses_total", "keys looked up and not found", t.misses);
  count("mc_store_removed_total", "objects removed", t.removed);
  count("mc_store_evicted_objects_total", "objects evicted", t.evicted_objects);
  count("mc_store_evicted_bytes_total", "bytes of evicted values", t.evicted_bytes);
  gauge("mc_store_master_bytes", "memory of the master's tables, keys excluded", s.memory);
  count("mc_store_puts_waited_total", "puts that waited for room", t.puts_waited);
  count("mc_store_puts_not_admitted_total", "puts refused for their class", t.not_admitted);
  count("mc_store_copies_total", "replicas made by copying", t.copies_done);
  count("mc_store_copies_failed_total", "copies that failed", t.copies_failed);
  count("mc_store_hot_copies_total", "replicas made of hot objects", t.hot_copies);
  count("mc_store_events_total", "events of objects", master.events().next() - 1);
  count("mc_store_nodes_expired_total", "nodes given up", t.nodes_expired);
  count("mc_store_records_refused_total", "inventory records refused", t.records_refused);
  update_theirs(master, s);
}

void MasterMetrics::update_values(const Master::Totals& t) {
  BucketHistogram& sizes =
      metrics_.histogram("master_value_size_bytes", "bytes of the values published",
                         std::vector<double>(kValueSizes.begin(), kValueSizes.end()));
  if (t.puts < told_values_.puts) told_values_ = {};  // a new lead starts from zero
  for (size_t i = 0; i < t.values.size(); ++i)
    sizes.add(i, t.values[i] - told_values_.values[i],
              static_cast<double>(t.value_bytes[i] - told_values_.value_bytes[i]));
  told_values_ = t;
}

// Tenants with a quota. Quotas are not scaled to the pool, as the reference master does.
void MasterMetrics::update_tenants(const Master& master) {
  for (const auto& tenant : master.tenants().all()) {
    if (tenant->quota == 0) continue;
    const Labels label = {{"tenant_id", tenant->name}};
    const auto gauge = [&](const char* name, const char* help, uint64_t v) {
      metrics_.gauge(name, help, label).set(static_cast<double>(v));
    };
    gauge("mooncake_tenant_quota_requested_bytes", "the tenant's quota", tenant->quota);
    gauge("mooncake_tenant_quota_used_bytes", "bytes of segments it takes", tenant->used);
    raise_to(metrics_.counter("mooncake_tenant_quota_reject_total",
                              "puts refused for want of quota", label),
             tenant->refused);
  }
}

// The reference master's names, where the meaning is the same, so that its dashboards work.
void MasterMetrics::update_theirs(const Master& master, const ClusterStat& s) {
  const Master::Totals& t = master.totals();
  const auto gauge = [&](const char* name, const char* help, uint64_t v) {
    metrics_.gauge(name, help).set(static_cast<double>(v));
  };
  const auto count = [&](const std::string& name, const char* help, uint64_t v) {
    raise_to(metrics_.counter(name, help), v);
  };
  gauge("master_key_count", "objects stored", s.objects);
  gauge("master_soft_pin_key_count", "objects with a soft pin", master.soft_pinned());
  gauge("master_allocated_bytes", "bytes taken", s.used);
  gauge("master_total_capacity_bytes", "bytes mounted", s.capacity);
  gauge("master_active_clients", "nodes mounted", s.nodes.size());
  gauge("master_put_start_discarded_staging_size", "quarantined bytes of unfinished puts",
        master.quarantined_bytes());
  count("master_attempted_evictions_total", "times eviction ran", t.evictions);
  count("master_evicted_key_count", "objects evicted", t.evicted_objects);
  count("master_evicted_size_bytes", "bytes of evicted values", t.evicted_bytes);
  count("master_put_start_alloc_failures_total", "puts refused for want of room", t.put_no_space);
  count("master_put_start_discard_cnt", "puts never finished", t.puts_discarded);
  count("valid_get_nums_", "keys looked up and found", t.hits);
  count("total_get_nums_", "keys looked up", t.hits + t.misses);
  count("mem_cache_hit_nums_", "keys found in memory", t.hits - t.disk_hits);
  count("file_cache_hit_nums_", "keys found on disks only", t.disk_hits);
  count("master_successful_evictions_total", "times eviction freed something", t.made_room);
  count("master_put_start_release_cnt", "quarantined ranges of unfinished puts that were freed",
        t.quarantine_expired);
  count("master_put_start_partial_allocations_total", "puts granted fewer replicas than asked for",
        t.fewer_replicas);
  count("master_promotion_admitted", "promotions off a disk that were given room", t.promotions);
  count("master_promotion_completed", "promotions off a disk that ended well", t.promoted);
  count("master_promotion_failed", "promotions off a disk that did not", t.promotions_failed);
  count("master_promotion_rejected_watermark", "promotions off a disk for which there was no room",
        t.promotions_no_room);
  gauge("master_promotion_in_flight", "promotions off a disk on their way", t.promoting());
  update_values(t);
  update_tenants(master);
  for (const NodeStat& n : s.nodes) {
    const Labels label = {{"segment", n.name}};
    metrics_.gauge("segment_allocated_bytes", "bytes taken of a node's segment", label)
        .set(static_cast<double>(n.used));
    metrics_.gauge("segment_total_capacity_bytes", "bytes of a node's segment", label)
        .set(static_cast<double>(n.capacity));
  }
  for (const Theirs& names : kTheirs) {
    const CallTally& tally = calls_[names.ours];
    const std::string single = std::string("master_") + names.single;
    const bool apart = *names.batch != '\0';
    count(single + "_requests_total", "calls",
          tally.single.calls + (apart ? 0 : tally.batch.calls));
    count(single + "_failures_total", "calls that failed",
          tally.single.failures + (apart ? 0 : tally.batch.failures));
    if (!apart) continue;
    const std::string batch = std::string("master_") + names.batch;
    count(batch + "_requests_total", "calls of several keys", tally.batch.calls);
    count(batch + "_failures_total", "of them, where all keys failed", tally.batch.failures);
    count(batch + "_partial_successes_total", "of them, where some did", tally.batch.partial);
    count(batch + "_items_total", "keys of them", tally.batch.items);
    count(batch + "_failed_items_total", "keys of them that failed", tally.batch.failed_items);
  }
}

}  // namespace mc::store
