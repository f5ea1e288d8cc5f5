#include "device/stand_in.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/units.h"
#include "device/handle.h"
#include "device/kernels_on_host.h"
#include "device/stand_in_space.h"

namespace mc::device {
namespace {

// A piece of work: addresses resolved to the host's, and the areas that keep them mapped.
struct Work {
  std::function<void()> run;
  std::vector<AreaPtr> keep;
  uint64_t bytes = 0;
};

// A call of a kernel.
struct Call {
  std::string kernel;
  Grid grid;
  std::vector<Argument> arguments;
};

// Shared by a device, its streams and their events.
struct Core {
  Core(const Clock& c, StandIn::Config f) : clock(c), config(f) {}
  const Clock& clock;
  const StandIn::Config config;
  Mutex mutex;
  Condition changed;
  InjectedFaults faults MC_GUARDED_BY(mutex);
  StandIn::Counts counts MC_GUARDED_BY(mutex);
  uint64_t begun MC_GUARDED_BY(mutex) = 0, running MC_GUARDED_BY(mutex) = 0;
  uint64_t used MC_GUARDED_BY(mutex) = 0;
  std::vector<int> reached MC_GUARDED_BY(mutex);

  std::string name() const { return "stand-in:" + std::to_string(config.ordinal); }
  Failure gone() const { return fail(Code::kUnavailable, "%s was lost", name().c_str()); }
  Error no_products() const {
    return {Code::kUnsupported, name() + " has no library of matrix products"};
  }
  Result<> open_for_work() {
    Lock lock(mutex);
    if (faults.lost) return gone();
    if (faults.busy) return fail(Code::kBusy, "%s is held by others", name().c_str());
    return {};
  }
  Result<> alive() {
    Lock lock(mutex);
    if (faults.lost) return gone();
    return {};
  }
  // Waits for the injected duration of the work. Returns: the injected error, if any.
  Result<> suffer(uint64_t bytes) {
    Lock lock(mutex);
    if (faults.lost) return gone();
    if (begun++ >= faults.fails_from)
      return fail(Code::kInternal, "%s failed a copy", name().c_str());
    counts.running_most = std::max(counts.running_most, ++running);
    Duration takes = faults.latency;
    if (faults.bytes_per_s > 0)
      takes += from_seconds(static_cast<double>(bytes) / static_cast<double>(faults.bytes_per_s));
    const Time until = clock.now() + takes;
    for (Time now = clock.now(); takes.count() > 0 && now < until && !faults.lost;
         now = clock.now())
      changed.wait_for(mutex, until - now);
    if (faults.lost) return --running, gone();
    return {};
  }
  void suffered() {
    Lock lock(mutex);
    --running;
  }
  // The host's address of the bytes; `area` keeps them mapped.
  Result<std::byte*> resolve(const std::byte* address, uint64_t bytes, AreaPtr& area) {
    MC_TRY(area, AddressSpace::get().find(address, bytes));
    if (area == nullptr) return const_cast<std::byte*>(address);
    Lock lock(mutex);
    if (area->ordinal != config.ordinal &&
        std::count(reached.begin(), reached.end(), area->ordinal) == 0)
      return fail(Code::kInvalid, "%p is memory of stand-in:%d, not of %s",
                  static_cast<const void*>(address), area->ordinal, name().c_str());
    return area->seen + (address - area->address);
  }
};

Result<Work> work_of(Core& core, const std::vector<Block>& blocks) {
  Work work;
  std::vector<Block> pieces;
  for (const Block& b : blocks) {
    AreaPtr to_area, from_area;
    MC_TRY(std::byte * to, core.resolve(b.to, b.bytes, to_area));
    MC_TRY(const std::byte* from, core.resolve(b.from, b.bytes, from_area));
    pieces.push_back({to, from, b.bytes});
    work.keep.insert(work.keep.end(), {std::move(to_area), std::move(from_area)});
    work.bytes += b.bytes;
  }
  work.run = [pieces = std::move(pieces)] {
    for (const Block& b : pieces) std::memmove(b.to, b.from, b.bytes);
  };
  return work;
}

Result<Work> work_of(Core& core, const Call& call) {
  if (!host_has_kernel(call.kernel))
    return fail(Code::kUnsupported, "%s has no kernel %s", core.name().c_str(),
                call.kernel.c_str());
  Work work;
  std::vector<uint64_t> values;
  for (const Argument& a : call.arguments) {
    values.push_back(a.bits);
    if (!a.address || a.bits == 0) continue;
    AreaPtr area;
    MC_TRY(const std::byte* seen,
           core.resolve(reinterpret_cast<const std::byte*>(a.bits), 0, area));
    values.back() = reinterpret_cast<uint64_t>(seen);
    work.keep.push_back(std::move(area));
  }
  work.run = [kernel = call.kernel, grid = call.grid, values = std::move(values)]() mutable {
    std::vector<void*> arguments;
    for (uint64_t& value : values) arguments.push_back(&value);
    (void)run_kernel_on_host(kernel, grid, arguments.data());
  };
  return work;
}

// Steps as submitted. Addresses are resolved when the graph runs: memory may have been freed by
// then.
struct StandInGraph final : Graph {
  std::vector<std::function<Result<Work>(Core&)>> steps;
};

// Done when the stream has passed it; holds the first error of the work before it.
struct Mark {
  Mutex mutex;
  Condition changed;
  bool done MC_GUARDED_BY(mutex) = false;
  Result<> outcome MC_GUARDED_BY(mutex);
  void set(const Result<>& what) {
    Lock lock(mutex);
    done = true;
    outcome = what;
    changed.notify_all();
  }
  Result<> wait() {
    Lock lock(mutex);
    while (!done) changed.wait(mutex);
    return outcome;
  }
};

class StandInEvent final : public Event {
 public:
  explicit StandInEvent(std::shared_ptr<Mark> mark) : mark_(std::move(mark)) {}
  Result<bool> done() override {
    Lock lock(mark_->mutex);
    if (mark_->done && !mark_->outcome) return fail(mark_->outcome.error());
    return mark_->done;
  }
  Result<> wait() override { return mark_->wait(); }
  const std::shared_ptr<Mark>& mark() const { return mark_; }

 private:
  const std::shared_ptr<Mark> mark_;
};

class StandInStream final : public Stream {
 public:
  explicit StandInStream(std::shared_ptr<Core> core)
      : core_(std::move(core)), thread_([this] { run(); }) {}
  ~StandInStream() override {
    {
      Lock lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Result<> copy(std::byte* to, const std::byte* from, uint64_t bytes) override {
    return submit(std::vector<Block>{{to, from, bytes}}, false);
  }
  Result<> copy_rows(const Rows& r) override {
    if (capturing_ != nullptr) return fail(within_capture());
    std::vector<Block> blocks;
    for (uint64_t i = 0; i < r.rows; ++i)
      blocks.push_back({r.to + i * r.to_stride, r.from + i * r.from_stride, r.bytes});
    return submit(std::move(blocks), true);
  }
  Result<> copy_blocks(std::span<const Block> blocks) override {
    if (capturing_ != nullptr) return fail(within_capture());
    return submit(std::vector(blocks.begin(), blocks.end()), true);
  }
  Result<> launch(const Launch& l) override {
    std::vector<Argument> arguments(l.arguments.begin(), l.arguments.end());
    return submit(Call{l.kernel, {l.x, l.y, l.z}, std::move(arguments)}, true);
  }
  Result<> multiply(const Product&) override { return fail(core_->no_products()); }
  Result<std::unique_ptr<Event>> record() override {
    MC_TRY_(core_->alive());
    if (capturing_ != nullptr) return fail(within_capture());
    auto mark = std::make_shared<Mark>();
    push([this, mark] { mark->set(std::exchange(outcome_, Result<>())); });
    return std::make_unique<StandInEvent>(mark);
  }
  Result<> after(Event& event) override {
    auto* const ours = dynamic_cast<StandInEvent*>(&event);
    if (ours == nullptr) return fail(Code::kInvalid, "an event of another kind of device");
    if (capturing_ != nullptr) return fail(within_capture());
    push([this, mark = ours->mark()] {
      const Result<> before = mark->wait();
      if (outcome_) outcome_ = before;
    });
    return {};
  }

  Result<> begin_capture() override {
    MC_TRY_(core_->alive());
    if (!core_->config.graphs)
      return fail(Code::kUnsupported, "%s has no graphs", core_->name().c_str());
    if (capturing_ != nullptr) return fail(Code::kInvalid, "begin_capture within a capture");
    capturing_ = std::make_unique<StandInGraph>();
    return {};
  }
  Result<std::unique_ptr<Graph>> end_capture() override {
    if (capturing_ == nullptr) return fail(Code::kInvalid, "end_capture without begin_capture");
    std::unique_ptr<Graph> graph = std::move(capturing_);
    MC_TRY_(core_->alive());
    return graph;
  }
  Result<> launch(Graph& graph) override {
    MC_TRY_(core_->alive());
    auto* const ours = dynamic_cast<StandInGraph*>(&graph);
    if (ours == nullptr) return fail(Code::kInvalid, "a graph of another kind of device");
    std::vector<Work> all;
    for (const auto& step : ours->steps) {
      MC_TRY(Work work, step(*core_));
      all.push_back(std::move(work));
    }
    count(true);
    push_work(std::move(all));
    return {};
  }

 private:
  // `what`: blocks to copy, or a call.
  template <class What>
  Result<> submit(What what, bool launch) {
    MC_TRY_(core_->alive());
    MC_TRY(Work work, work_of(*core_, what));
    if (capturing_ != nullptr) {
      capturing_->steps.push_back(
          [what = std::move(what)](Core& core) { return work_of(core, what); });
      return {};
    }
    count(launch);
    std::vector<Work> all;
    all.push_back(std::move(work));
    push_work(std::move(all));
    return {};
  }
  void count(bool launch) {
    Lock lock(core_->mutex);
    ++(launch ? core_->counts.launches : core_->counts.copies);
  }
  void push_work(std::vector<Work> all) {
    push([this, all = std::make_shared<std::vector<Work>>(std::move(all))] {
      if (!outcome_) return;
      uint64_t bytes = 0;
      for (const Work& work : *all) bytes += work.bytes;
      outcome_ = core_->suffer(bytes);
      if (!outcome_) return;
      for (const Work& work : *all) work.run();
      core_->suffered();
    });
  }
  void push(std::function<void()> job) {
    Lock lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        Lock lock(mutex_);
        while (jobs_.empty() && !closing_) changed_.wait(mutex_);
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  const std::shared_ptr<Core> core_;
  std::unique_ptr<StandInGraph> capturing_;  // null: work runs
  Result<> outcome_;                         // of its work since the last event; its thread's
  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> jobs_ MC_GUARDED_BY(mutex_);
  bool closing_ MC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class StandInDevice final : public StandIn {
 public:
  StandInDevice(const Clock& clock, Config config)
      : core_(std::make_shared<Core>(clock, config)),
        info_{"stand-in for a GPU", "stand-in", config.ordinal, config.pci, config.bytes, 0, ""} {}
  const Info& info() const override { return info_; }
  Result<uint64_t> free_bytes() override {
    MC_TRY_(core_->alive());
    Lock lock(core_->mutex);
    return core_->config.bytes - core_->used;
  }
  Result<Memory> allocate(uint64_t bytes) override;
  Result<Memory> allocate_host(uint64_t bytes) override;
  Result<Memory> pin(std::span<std::byte> host) override {
    MC_TRY_(core_->alive());
    Lock lock(core_->mutex);
    ++core_->counts.held;
    return Memory{host, std::shared_ptr<const void>(host.data(), [core = core_](const void*) {
                    Lock within(core->mutex);
                    --core->counts.held;
                  })};
  }
  Result<std::span<std::byte>> query(const std::byte* address) override;
  Result<std::unique_ptr<Stream>> open_stream() override {
    MC_TRY_(core_->open_for_work());
    return std::make_unique<StandInStream>(core_);
  }
  Result<std::string> products() override { return fail(core_->no_products()); }
  Result<> reach(Device& other) override;
  Result<std::string> share(std::span<const std::byte> memory) override;
  Result<Memory> open(std::string_view handle) override;
  Result<DmaBuf> dma_buf(std::span<const std::byte> memory) override;
  Result<> see_nic_writes() override {
    Lock lock(core_->mutex);
    ++core_->counts.nic_writes;
    return core_->faults.lost ? Result<>(core_->gone()) : Result<>();
  }
  void inject(const InjectedFaults& faults) override {
    Lock lock(core_->mutex);
    const bool lost = core_->faults.lost;
    core_->faults = faults;
    core_->faults.lost = lost || faults.lost;
    core_->begun = 0;
    core_->changed.notify_all();
  }
  std::byte* seen_by_device(const std::byte* address) override {
    AreaPtr area;
    const auto seen = core_->resolve(address, 1, area);
    return seen ? *seen : nullptr;
  }
  Counts counts() const override {
    Lock lock(core_->mutex);
    return core_->counts;
  }

 private:
  Memory handed_out(const AreaPtr& area, uint64_t offset, uint64_t bytes) const {
    return {{area->address + offset, bytes},
            std::shared_ptr<const void>(area.get(), [core = core_, area](const void*) {
              AddressSpace::get().free(area);
              Lock lock(core->mutex);
              if (area->own) core->used -= area->mapped;
            })};
  }
  const std::shared_ptr<Core> core_;
  const Info info_;
};

Result<Memory> StandInDevice::allocate(uint64_t bytes) {
  MC_TRY_(core_->open_for_work());
  if (bytes == 0) return fail(Code::kInvalid, "allocate 0 bytes of device memory");
  {
    Lock lock(core_->mutex);
    const uint64_t left = core_->config.bytes - core_->used;
    if (bytes > left || pages(bytes) > left)
      return fail(Code::kNoSpace, "%s of memory on %s: %s is free",
                  rounded_bytes_text(bytes).c_str(), core_->name().c_str(),
                  rounded_bytes_text(left).c_str());
    core_->used += pages(bytes);
  }
  io::Fd fd(::memfd_create("stand-in", MFD_CLOEXEC));
  Result<AreaPtr> area;
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(pages(bytes))) != 0)
    area = fail_errno("memory of a stand-in");
  else
    area = AddressSpace::get().add(core_->config.ordinal, std::move(fd), bytes, true);
  if (area) return handed_out(*area, 0, bytes);
  Lock lock(core_->mutex);
  core_->used -= pages(bytes);
  return fail(area.error());
}

Result<Memory> StandInDevice::allocate_host(uint64_t bytes) {
  MC_TRY_(core_->open_for_work());
  if (bytes == 0) return fail(Code::kInvalid, "allocate 0 bytes of pinned memory");
  {
    Lock lock(core_->mutex);
    ++core_->counts.pinned;
  }
  std::byte* const data = map_memory(pages(bytes), PROT_READ | PROT_WRITE, -1);
  if (data == nullptr) return fail_errno("%s of pinned memory", rounded_bytes_text(bytes).c_str());
  return Memory{{data, bytes}, std::shared_ptr<const void>(data, [bytes](const void* p) {
                  ::munmap(const_cast<void*>(p), pages(bytes));
                })};
}

Result<std::span<std::byte>> StandInDevice::query(const std::byte* address) {
  MC_TRY_(core_->alive());
  MC_TRY(const AreaPtr area, AddressSpace::get().find(address, 0));
  if (area == nullptr)
    return fail(Code::kInvalid, "%p is no memory of a device", static_cast<const void*>(address));
  if (area->ordinal != info_.ordinal)
    return fail(Code::kInvalid, "%p is memory of stand-in:%d, not of %s",
                static_cast<const void*>(address), area->ordinal, core_->name().c_str());
  return std::span(area->address, area->bytes);
}

Result<> StandInDevice::reach(Device& other) {
  if (other.info().kind != info_.kind || !core_->config.peers)
    return fail(Code::kUnsupported, "%s does not reach the memory of %s", core_->name().c_str(),
                other.info().location().c_str());
  Lock lock(core_->mutex);
  core_->reached.push_back(other.info().ordinal);
  return {};
}

Result<std::string> StandInDevice::share(std::span<const std::byte> memory) {
  if (!core_->config.shares)
    return fail(Code::kUnsupported, "%s shares no memory", core_->name().c_str());
  MC_TRY_(query(memory.data()));
  MC_TRY(const AreaPtr area, AddressSpace::get().find(memory.data(), memory.size()));
  if (!area->own) return fail(Code::kInvalid, "this memory is another process's to share");
  MC_TRY(Handle h, own_handle(info_.kind, info_.ordinal));
  h.offset = static_cast<uint64_t>(memory.data() - area->address);
  h.bytes = memory.size();
  const int fd = area->fd.get();
  std::memcpy(h.raw, &fd, sizeof fd);
  std::memcpy(h.raw + sizeof fd, &area->bytes, sizeof area->bytes);
  return encode(h);
}

// The memory's file: no real dma-buf, but it maps the same bytes.
Result<Device::DmaBuf> StandInDevice::dma_buf(std::span<const std::byte> memory) {
  if (!core_->config.dma_bufs)
    return fail(Code::kUnsupported, "%s has no dma-bufs", core_->name().c_str());
  MC_TRY_(query(memory.data()));
  MC_TRY(const AreaPtr area, AddressSpace::get().find(memory.data(), memory.size()));
  DmaBuf out;
  out.fd.reset(::fcntl(area->fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!out.fd) return fail_errno("a descriptor of stand-in memory");
  out.offset = static_cast<uint64_t>(memory.data() - area->address);
  return out;
}

Result<Memory> StandInDevice::open(std::string_view handle) {
  MC_TRY_(core_->open_for_work());
  MC_TRY(const Handle h, decode(handle, info_.kind));
  int number = -1;
  uint64_t bytes = 0;
  std::memcpy(&number, h.raw, sizeof number);
  std::memcpy(&bytes, h.raw + sizeof number, sizeof bytes);
  io::Fd fd(::open(strf("/proc/%d/fd/%d", h.pid, number).c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return fail(Code::kUnavailable, "memory of process %d: %s", h.pid, std::strerror(errno));
  const off_t length = ::lseek(fd.get(), 0, SEEK_END);
  if (bytes == 0 || length < 0 || static_cast<uint64_t>(length) != pages(bytes) ||
      h.offset + h.bytes > bytes)
    return fail(Code::kUnavailable, "process %d does not have that memory any more", h.pid);
  MC_TRY(const AreaPtr area, AddressSpace::get().add(info_.ordinal, std::move(fd), bytes, false));
  return handed_out(area, h.offset, h.bytes);
}

}  // namespace

std::shared_ptr<StandIn> StandIn::make(const Clock& clock, Config config) {
  return std::make_shared<StandInDevice>(clock, config);
}

}  // namespace mc::device
