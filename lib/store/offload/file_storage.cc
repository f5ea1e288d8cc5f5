#include "store/offload/file_storage.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "store/election/leader_election.h"
#include "store/offload/file_storage_impl.h"
#include "xfer/memory/copy.h"

namespace mc::store {
namespace {
constexpr Duration kTierOverdue = std::chrono::milliseconds(250);
constexpr uint64_t kStagingMin = 1 * kMiB;

uint64_t guards_of(const TierOptions& o) { return ssd::align_up(o.staging.n / kPage * 8); }

Error outdated(uint64_t epoch) {
  return {Code::kStale, strf("refused jobs of a master of epoch %llu: a newer one was seen",
                             static_cast<unsigned long long>(epoch))};
}
}  // namespace

void TierOptions::describe(OptionList& v) {
  v("ssd", folder, "folder of the SSD tier, on the disk to use; empty: no tier");
  v("ssd-size", size, "how much of that disk to use");
  v("ssd-backend", backend, "how objects lie there", {"bucket", "file", "offset"});
  v("ssd-evict", evict, "what makes room there; none: a full tier takes nothing more",
    {"none", "fifo", "lru"});
  v("ssd-bucket", bucket, "objects are written together, up to this much");
  v("ssd-bucket-keys", bucket_keys, "and up to so many");
  v("ssd-flush", flush, "how long an object waits for others to be written with it");
  v("ssd-staging", staging, "memory that readers of the tier fetch from");
  v("ssd-lease", lease, "how long a reader may take to fetch a value");
  v("ssd-uring", uring, "use io_uring if the kernel allows it");
}

Result<ssd::BackendOptions> TierOptions::backend_options() const {
  if (size.n == 0)
    return fail(Code::kInvalid, "ssd %s: say with --ssd-size how much of that disk to use",
                folder.c_str());
  if (bucket.n < kPage || bucket_keys == 0)
    return fail(Code::kInvalid, "ssd-bucket %s of %u keys: want at least a page and a key",
                bytes_text(bucket.n).c_str(), bucket_keys);
  if (staging.n < kStagingMin)
    return fail(Code::kInvalid, "ssd-staging %s: want at least %s", bytes_text(staging.n).c_str(),
                bytes_text(kStagingMin).c_str());
  if (lease < std::chrono::milliseconds(1) || flush < Duration::zero())
    return fail(Code::kInvalid, "ssd-lease %s, ssd-flush %s: want 1ms or more, and 0 or more",
                to_text(lease).c_str(), to_text(flush).c_str());
  ssd::BackendOptions o;
  o.kind = backend;
  o.evict = evict == "none"   ? ssd::Evict::kNone
            : evict == "fifo" ? ssd::Evict::kFifo
                              : ssd::Evict::kLru;
  o.capacity = size.n;
  o.bucket_bytes = std::min(bucket.n, std::max<uint64_t>(size.n / 4, kPage));
  o.bucket_keys = bucket_keys;
  return o;
}

Result<PreparedTier> prepare_tier(xfer::Engine& engine, const NodeOptions& master,
                                  const TierOptions& options, const Clock& clock, HostClock host) {
  PreparedTier out;
  MC_TRY(out.options, options.backend_options());
  MC_TRY(out.masters, find_masters(master.master, clock, kFindMasters));
  const uint64_t capacity = options.staging.n / kPage * kPage, guards = guards_of(options);
  MC_TRY(out.memory, engine.allocate(guards + capacity));
  MC_TRY(const auto disk, ssd::open_disk(options.folder, {options.uring, true}));
  ssd::use_memory(*disk, {out.memory.data() + guards, capacity});
  const Time began = clock.now();
  MC_TRY(out.backend, ssd::open_backend(disk, out.options, clock, out.scan));
  for (const std::string& what : out.scan.damaged)
    log_warn("ssd", "skipped: %s", escape(what).c_str());
  log_info("ssd", "%s: %llu objects, %s of %s used, %llu damaged, %llu unfinished; read in %s ms",
           options.folder.c_str(), static_cast<unsigned long long>(out.scan.objects),
           rounded_bytes_text(out.backend->usage().used).c_str(),
           rounded_bytes_text(options.size.n).c_str(),
           static_cast<unsigned long long>(out.scan.damaged_count),
           static_cast<unsigned long long>(out.scan.unfinished),
           number_text(std::round(to_ms(clock.now() - began))).c_str());
  out.clock.emplace(disk, std::move(host), clock.now());
  return out;
}

Result<std::unique_ptr<FileStorage>> FileStorage::open(io::Loop& loop, xfer::Engine& engine,
                                                       const StoreNode& node,
                                                       const NodeOptions& master,
                                                       const TierOptions& options, Metrics& metrics,
                                                       PreparedTier prepared) {
  if (prepared.backend == nullptr) {
    MC_TRY(prepared, prepare_tier(engine, master, options, loop.clock()));
  }
  MC_TRY(auto client, rpc::Client::connect(loop, prepared.masters));
  auto tier = std::unique_ptr<FileStorage>(new FileStorage(loop, node, master, options, metrics,
                                                           std::move(prepared), std::move(client)));
  tier->writer_ = std::make_unique<ssd::SerialExecutor>();
  for (size_t i = 0; i < kReaders; ++i)
    tier->readers_.push_back(std::make_unique<ssd::SerialExecutor>());
  tier->mount();
  return tier;
}

FileStorage::FileStorage(io::Loop& loop, const StoreNode& node, const NodeOptions& master,
                         const TierOptions& options, Metrics& metrics, PreparedTier prepared,
                         std::unique_ptr<rpc::Client> client)
    : loop_(loop),
      node_(node),
      master_options_(master),
      options_(options),
      memory_(std::move(prepared.memory)),
      guards_(guards_of(options)),
      master_(std::move(client)),
      backend_options_(prepared.options),
      scan_(std::move(prepared.scan)),
      clock_(std::move(*prepared.clock)),
      backend_(std::move(prepared.backend)),
      staging_(options.staging.n, options.lease),
      stored_(metrics.counter("mc_ssd_stored_total", "objects written to the disk")),
      stored_bytes_(metrics.counter("mc_ssd_stored_bytes_total", "bytes of their values")),
      refused_(metrics.counter("mc_ssd_not_stored_total", "objects that could not be written")),
      evicted_(metrics.counter("mc_ssd_evicted_total", "objects evicted from the disk")),
      damaged_(metrics.counter("mc_ssd_damaged_total", "objects found damaged when read")),
      loads_(metrics.counter("mc_ssd_loads_total", "objects read from the disk")),
      load_bytes_(metrics.counter("mc_ssd_load_bytes_total", "bytes of their values")),
      promoted_(metrics.counter("mc_ssd_promotions_total", "objects taken back into memory")),
      used_(metrics.gauge("mc_ssd_used_bytes", "bytes of the disk that are used")),
      objects_(metrics.gauge("mc_ssd_objects", "objects on the disk")),
      mail_(std::make_unique<ssd::CompletionQueue>(loop)) {}

FileStorage::~FileStorage() {
  loop_.cancel(timer_);
  loop_.cancel(flush_timer_);
}

// ---- the master

void FileStorage::mount() {
  mounted_ = false;
  ++mounts_;
  if (!node_.mounted()) return retry({Code::kUnavailable, ""});
  clock_.seconds().mounted(node_.keep_clock().master_s(loop_.now()), loop_.now());
  inventory_ = backend_->objects();
  taken_ = 0;
  send_page(0);
}

void FileStorage::send_page(size_t from) {
  const size_t n = std::min(kTierPageMax, inventory_.size() - from);
  TierMount m{node_.me().name,     node_.me().generation,         options_.size.n,
              from == 0,           from + n == inventory_.size(), {},
              staging_.capacity(), {node_.mounted_by(), mounts_}, from / kTierPageMax};
  for (size_t i = from; i < from + n; ++i) {
    m.objects.push_back(tier_object(inventory_[i]));
    m.objects.back().keep_until_s = keep_clock().there(inventory_[i].keep_until_s);
  }
  master_->call(m, master_options_.call_timeout,
                [this, at = mounts_, next = from + n, last = m.last](const Result<TierAck>& reply) {
                  if (at != mounts_) return;
                  if (!reply) return retry(reply.error());
                  if (reply->status != static_cast<uint8_t>(BeatStatus::kOk))
                    return retry({Code::kStale, "the master does not know this node yet"});
                  if (node_.outdated(reply->epoch)) return retry(outdated(reply->epoch));
                  if (!last) return send_page(next);
                  log_info("ssd", "%zu objects on the disk are known to the master",
                           inventory_.size());
                  inventory_ = {};
                  mounted_ = true;
                  last_error_.clear();
                  report();
                  if (!beating_) beat();
                });
}

void FileStorage::beat() {
  if (!mounted_ || flushed_) return;
  beating_ = true;
  if (loop_.now() >= trouble_until_) trouble_.clear();
  writer_->post([this] { backend_->compact(); });
  if (const auto mark = clock_.stepped(loop_.clock().now()))
    writer_->post([this, mark = *mark] { clock_.leave_mark(mark); });
  if (!writing_ && !removals_.failed.empty() && loop_.now() >= removals_.again_at)
    forget(std::exchange(removals_.failed, {}), false);
  const ssd::Usage u = usage();
  used_.set(static_cast<double>(u.used));
  objects_.set(static_cast<double>(u.objects));
  const auto hold = master_options_.heartbeat / std::chrono::milliseconds(1);
  const Duration budget =
      master_options_.heartbeat + std::min(master_options_.call_timeout, kTierOverdue);
  master_->call(TierHeartbeat{node_.me().name,
                              node_.me().generation,
                              taken_,
                              static_cast<uint32_t>(hold),
                              u.used,
                              u.objects,
                              trouble_,
                              {node_.mounted_by(), mounts_}},
                budget, [this, at = mounts_](const Result<TierWork>& reply) {
                  beating_ = false;
                  if (at != mounts_) return beat();  // a reply to an earlier mount
                  if (!reply) return retry(reply.error());
                  take(*reply);
                });
}

void FileStorage::take(const TierWork& work) {
  if (work.status != static_cast<uint8_t>(BeatStatus::kOk)) return mount();
  if (node_.outdated(work.epoch)) return retry(outdated(work.epoch));
  std::vector<ssd::Stored> removed;
  for (const TierJob& job : work.jobs) {
    if (job.seq <= taken_) continue;
    taken_ = job.seq;
    if (auto sane = check_job(job); !sane) {
      log_error("ssd", "%s", sane.error().what.c_str());
      tell({static_cast<uint8_t>(TierEvent::kNotStored), static_cast<uint8_t>(Code::kInvalid),
            job.object.name, job.object.generation});
    } else if (job.kind == static_cast<uint8_t>(TierJobKind::kForget)) {
      give_up(job.object);
      removed.push_back(stored_of(job.object));
    } else if (job.kind == static_cast<uint8_t>(TierJobKind::kBring)) {
      bringing_.push_back(job.object);
    } else {
      gathering_bytes_ += job.object.bytes;
      gathering_.push_back({job, loop_.now() + options_.flush});
      gathering_.back().job.object.keep_until_s = keep_clock().here(job.object.keep_until_s);
    }
  }
  if (writing_)  // it may write one of them
    removals_.later.insert(removals_.later.end(), removed.begin(), removed.end());
  else if (!removed.empty())
    forget(std::move(removed), false);
  if (work.hurry)
    for (Offload& o : gathering_) o.due = std::min(o.due, loop_.now());
  cut();
  start_bring();
  arm();
  beat();
}

void FileStorage::retry(const Error& error) {
  if (error.code == Code::kStale) master_->skip_server();
  if (!error.what.empty() && last_error_ != error.what) log_warn("ssd", "%s", error.what.c_str());
  last_error_ = error.what;
  retry_at_ = loop_.now() + std::min(master_options_.heartbeat, kTierOverdue);
  arm();
}

void FileStorage::tell(TierResult result, std::function<void()> acknowledged) {
  results_.push_back({std::move(result), std::move(acknowledged)});
}

void FileStorage::report() {
  if (flushed_ && gathering_.empty() && !writing_ && (results_.empty() || !mounted_))
    return end_flush();
  if (reporting_ || !mounted_ || results_.empty()) return;
  reporting_ = true;
  TierReport m{node_.me().name, node_.me().generation, {}, {node_.mounted_by(), mounts_}};
  for (size_t i = 0; i < std::min(results_.size(), kTierJobsMax); ++i)
    m.results.push_back(results_[i].result);
  master_->call(m, master_options_.call_timeout,
                [this, n = m.results.size()](const Result<TierAck>& reply) {
                  reporting_ = false;
                  if (!reply) return retry(reply.error());
                  if (reply->status != static_cast<uint8_t>(BeatStatus::kOk)) return mount();
                  if (node_.outdated(reply->epoch)) return retry(outdated(reply->epoch));
                  std::vector<std::function<void()>> acknowledged;
                  for (size_t i = 0; i < n; ++i) {
                    if (results_.front().acknowledged)
                      acknowledged.push_back(std::move(results_.front().acknowledged));
                    results_.pop_front();
                  }
                  for (const auto& task : acknowledged) task();
                  report();
                });
}

void FileStorage::flush(std::function<void()> done) {
  flushed_ = std::move(done);
  flush_timer_ = loop_.at(loop_.now() + kFlushMax, [this] {
    log_warn("ssd", "%zu objects were not written within %s", gathering_.size(),
             to_text(kFlushMax).c_str());
    end_flush();
  });
  cut();
  report();
}

void FileStorage::end_flush() {
  loop_.cancel(flush_timer_);
  if (const auto done = std::exchange(flushed_, nullptr)) done();
}

void FileStorage::arm() {
  loop_.cancel(timer_);
  Time when = std::min(staging_.deadline(), retry_at_);
  if (!gathering_.empty() && !writing_) when = std::min(when, gathering_.front().due);
  if (!parked_.empty()) when = std::min(when, parked_.front().call.deadline);
  if (when == Time::max()) return;
  timer_ = loop_.at(when, [this] {
    raise(staging_.expire(loop_.now()));
    retry_loads();
    cut();
    if (loop_.now() >= retry_at_) {
      retry_at_ = Time::max();
      if (!mounted_) {
        mount();
      } else {
        report();
        if (!beating_) beat();
      }
    }
    arm();
  });
}

void FileStorage::raise(const std::vector<ssd::StagingSlot>& slots) {
  for (const ssd::StagingSlot& s : slots)
    (void)xfer::raise_guard_word(memory_.data() + s.at / kPage * 8, s.generation.n);
}

}  // namespace mc::store
