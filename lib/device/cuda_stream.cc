#include <algorithm>
#include <array>
#include <vector>

#include "device/cuda_core.h"
#include "device/kernels/copy_kernels.h"
#include "device/kernels/model_kernels.h"

namespace mc::device {
namespace {

using namespace driver;

constexpr size_t kListBlocks = 4096;  // of a launch
constexpr size_t kLists = 4;          // launches under way before the next list is written
constexpr uint64_t kTilesMax = 65535;

Pointer pointer(const std::byte* p) { return reinterpret_cast<Pointer>(p); }
unsigned tiles(uint64_t bytes) {
  return static_cast<unsigned>((bytes + MC_COPY_TILE - 1) / MC_COPY_TILE);
}

class CudaEvent final : public Event {
 public:
  CudaEvent(CorePtr core, EventHandle handle) : core_(std::move(core)), handle_(handle) {}
  ~CudaEvent() override {
    if (const auto in = core_->enter()) (void)core_->d.event_destroy(handle_);
  }
  static Result<std::unique_ptr<CudaEvent>> make(const CorePtr& core) {
    EventHandle handle = nullptr;
    MC_TRY(const Entered in, core->enter());
    MC_TRY_(core->ok(core->d.event_create(&handle, kDisableTiming), "cuEventCreate"));
    return std::make_unique<CudaEvent>(core, handle);
  }
  Result<> record(StreamHandle stream) {
    MC_TRY(const Entered in, core_->enter());
    return core_->ok(core_->d.event_record(handle_, stream), "cuEventRecord");
  }
  Result<bool> done() override {
    MC_TRY(const Entered in, core_->enter());
    const Status s = core_->d.event_query(handle_);
    if (s == kNotReady) return false;
    MC_TRY_(core_->ok(s, "cuEventQuery"));
    return true;
  }
  Result<> wait() override {
    MC_TRY(const Entered in, core_->enter());
    return core_->ok(core_->d.event_synchronize(handle_), "cuEventSynchronize");
  }
  EventHandle handle() const { return handle_; }

 private:
  const CorePtr core_;
  const EventHandle handle_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(CorePtr core, GraphExec handle) : core_(std::move(core)), handle_(handle) {}
  ~CudaGraph() override {
    if (const auto in = core_->enter()) (void)core_->d.graph_exec_destroy(handle_);
  }
  GraphExec handle() const { return handle_; }

 private:
  const CorePtr core_;
  const GraphExec handle_;
};

// A list of blocks for the copy kernel: pinned memory, and the device's copy of it.
struct BlockList {
  void* host = nullptr;
  Pointer device = 0;
  std::unique_ptr<CudaEvent> used;  // the launch before
};

class CudaStream final : public Stream {
 public:
  CudaStream(CorePtr core, StreamHandle handle) : core_(std::move(core)), handle_(handle) {}
  ~CudaStream() override {
    const auto in = core_->enter();
    if (!in) return;
    if (capturing_) (void)CudaStream::end_capture();
    // The driver destroys a stream at once and lets its work go on, in memory that is given back.
    (void)core_->d.stream_synchronize(handle_);
    for (BlockList& list : lists_) {
      if (list.host != nullptr) (void)core_->d.host_free(list.host);
      if (list.device != 0) (void)core_->d.memory_free(list.device);
    }
    (void)core_->d.stream_destroy(handle_);
  }
  Result<> copy(std::byte* to, const std::byte* from, uint64_t bytes) override {
    if (bytes == 0) return {};
    MC_TRY(const Entered in, core_->enter());
    return core_->ok(core_->d.copy_async(pointer(to), pointer(from), bytes, handle_),
                     "cuMemcpyAsync");
  }
  Result<> copy_rows(const Rows& rows) override;
  Result<> copy_blocks(std::span<const Block> blocks) override;
  Result<> launch(const Launch& launch) override;
  Result<> multiply(const Product& product) override {
    MC_TRY(const Entered in, core_->enter());
    MC_TRY(cublaslt::CublasLt* const products, core_->products());
    return products->multiply(product, handle_);
  }
  Result<std::unique_ptr<Event>> record() override {
    if (capturing_) return fail(within_capture());
    MC_TRY(auto event, CudaEvent::make(core_));
    MC_TRY_(event->record(handle_));
    return event;
  }
  Result<> after(Event& event) override {
    auto* const ours = dynamic_cast<CudaEvent*>(&event);
    if (ours == nullptr) return fail(Code::kInvalid, "an event of another kind of device");
    if (capturing_) return fail(within_capture());
    MC_TRY(const Entered in, core_->enter());
    return core_->ok(core_->d.stream_wait_event(handle_, ours->handle(), 0), "cuStreamWaitEvent");
  }
  Result<> begin_capture() override {
    if (!core_->d.has_graphs())
      return fail(Code::kUnsupported, "this driver has no graphs: a newer one has");
    if (capturing_) return fail(within_capture());
    MC_TRY(const Entered in, core_->enter());
    MC_TRY_(core_->ok(core_->d.capture_begin(handle_, kCaptureRelaxed), "cuStreamBeginCapture"));
    capturing_ = true;
    return {};
  }
  Result<std::unique_ptr<Graph>> end_capture() override;
  Result<> launch(Graph& graph) override {
    auto* const ours = dynamic_cast<CudaGraph*>(&graph);
    if (ours == nullptr) return fail(Code::kInvalid, "a graph of another kind of device");
    MC_TRY(const Entered in, core_->enter());
    return core_->ok(core_->d.graph_launch(ours->handle(), handle_), "cuGraphLaunch");
  }

 private:
  Result<BlockList*> next_list();
  Result<> launch_blocks(std::span<const Block> blocks);
  Result<> launch_copy(Function function, unsigned x, unsigned y, void** arguments) {
    return core_->ok(
        core_->d.launch(function, x, y, 1, MC_COPY_THREADS, 1, 1, 0, handle_, arguments, nullptr),
        "cuLaunchKernel");
  }
  const CorePtr core_;
  const StreamHandle handle_;
  bool capturing_ = false;
  std::array<BlockList, kLists> lists_;
  size_t turn_ = 0;
};

Result<> CudaStream::copy_rows(const Rows& r) {
  if (capturing_) return fail(within_capture());
  if (r.rows == 0 || r.bytes == 0) return {};
  if (r.rows == 1 || (r.to_stride == r.bytes && r.from_stride == r.bytes))
    return copy(r.to, r.from, r.bytes * r.rows);
  const bool fits = r.rows <= INT32_MAX && r.bytes <= kTilesMax * MC_COPY_TILE;
  if (core_->copy_rows == nullptr || !fits) {
    for (uint64_t i = 0; i < r.rows; ++i)
      MC_TRY_(copy(r.to + i * r.to_stride, r.from + i * r.from_stride, r.bytes));
    return {};
  }
  Pointer to = pointer(r.to), from = pointer(r.from);
  uint64_t to_stride = r.to_stride, from_stride = r.from_stride, bytes = r.bytes;
  void* arguments[] = {&to, &from, &to_stride, &from_stride, &bytes};
  MC_TRY(const Entered in, core_->enter());
  return launch_copy(core_->copy_rows, static_cast<unsigned>(r.rows), tiles(bytes), arguments);
}

Result<> CudaStream::copy_blocks(std::span<const Block> blocks) {
  if (capturing_) return fail(within_capture());
  const auto large = [](const Block& b) { return b.bytes > kTilesMax * MC_COPY_TILE; };
  if (blocks.size() <= 1 || core_->copy_blocks == nullptr ||
      std::any_of(blocks.begin(), blocks.end(), large)) {
    for (const Block& b : blocks) MC_TRY_(copy(b.to, b.from, b.bytes));
    return {};
  }
  MC_TRY(const Entered in, core_->enter());
  for (; !blocks.empty(); blocks = blocks.subspan(std::min(blocks.size(), kListBlocks)))
    MC_TRY_(launch_blocks(blocks.first(std::min(blocks.size(), kListBlocks))));
  return {};
}

Result<> CudaStream::launch(const Launch& l) {
  MC_TRY(const Entered in, core_->enter());
  MC_TRY(const Function function, core_->function(l.kernel));
  std::vector<void*> arguments;
  for (const Argument& a : l.arguments) arguments.push_back(const_cast<uint64_t*>(&a.bits));
  return core_->ok(core_->d.launch(function, l.x, l.y, l.z, mc_group_threads(l.kernel), 1, 1, 0,
                                   handle_, arguments.data(), nullptr),
                   l.kernel);
}

Result<std::unique_ptr<Graph>> CudaStream::end_capture() {
  if (!std::exchange(capturing_, false))
    return fail(Code::kInvalid, "end_capture without begin_capture");
  MC_TRY(const Entered in, core_->enter());
  GraphHandle captured = nullptr;
  GraphExec exec = nullptr;
  MC_TRY_(core_->ok(core_->d.capture_end(handle_, &captured), "cuStreamEndCapture"));
  const Status s = core_->d.graph_instantiate(&exec, captured, 0);
  (void)core_->d.graph_destroy(captured);
  MC_TRY_(core_->ok(s, "cuGraphInstantiate"));
  return std::make_unique<CudaGraph>(core_, exec);
}

// A free list, or else the one used longest ago, after waiting for its launch.
Result<BlockList*> CudaStream::next_list() {
  BlockList& list = lists_[turn_++ % kLists];
  constexpr size_t kBytes = kListBlocks * sizeof(mc_copy_block);
  if (list.used != nullptr) {
    MC_TRY_(list.used->wait());
    return &list;
  }
  if (list.host == nullptr)
    MC_TRY_(core_->ok(core_->d.host_alloc(&list.host, kBytes, kHostPortable), "cuMemHostAlloc"));
  if (list.device == 0)
    MC_TRY_(core_->ok(core_->d.memory_alloc(&list.device, kBytes), "cuMemAlloc"));
  MC_TRY(list.used, CudaEvent::make(core_));
  return &list;
}

Result<> CudaStream::launch_blocks(std::span<const Block> blocks) {
  MC_TRY(BlockList* const list, next_list());
  auto* const entries = static_cast<mc_copy_block*>(list->host);
  uint64_t most = 1;
  for (size_t i = 0; i < blocks.size(); ++i) {
    entries[i] = {pointer(blocks[i].to), pointer(blocks[i].from), blocks[i].bytes};
    most = std::max(most, blocks[i].bytes);
  }
  const Status s = core_->d.copy_async(list->device, reinterpret_cast<Pointer>(list->host),
                                       blocks.size() * sizeof(mc_copy_block), handle_);
  MC_TRY_(core_->ok(s, "cuMemcpyAsync"));
  void* arguments[] = {&list->device};
  MC_TRY_(launch_copy(core_->copy_blocks, static_cast<unsigned>(blocks.size()), tiles(most),
                      arguments));
  return list->used->record(handle_);
}

}  // namespace

Result<CorePtr> Core::make(const Driver& d, const Info& info, const void* kernels,
                           FindProducts find) {
  auto core = std::make_shared<Core>(d, info, find);
  MC_TRY_(core->ok(d.device_get(&core->device, info.ordinal), "cuDeviceGet"));
  MC_TRY_(core->ok(d.context_retain(&core->context, core->device), "cuDevicePrimaryCtxRetain"));
  if (kernels == nullptr) {
    core->info.note = "blocks are copied one by one: this build has no kernels";
    return core;
  }
  MC_TRY(const Entered in, core->enter());
  auto loads = core->ok(d.module_load(&core->module, kernels), "loading the kernels");
  if (loads)
    loads = core->ok(d.module_function(&core->copy_blocks, core->module, MC_COPY_BLOCKS),
                     MC_COPY_BLOCKS);
  if (loads)
    loads = core->ok(d.module_function(&core->copy_rows, core->module, MC_COPY_ROWS), MC_COPY_ROWS);
  if (loads) return core;
  // The kernels were not built for this device or driver: blocks are copied one by one.
  core->info.note = "blocks are copied one by one: " + loads.error().what;
  core->copy_blocks = core->copy_rows = nullptr;
  return core;
}

Result<Function> Core::function(const char* name) {
  if (copy_blocks == nullptr)
    return fail(Code::kUnsupported, "%s has no %s: %s", info.location().c_str(), name,
                info.note.c_str());
  Lock lock(mutex);
  Function& known = functions[name];
  if (known == nullptr) MC_TRY_(ok(d.module_function(&known, module, name), name));
  return known;
}

Result<cublaslt::CublasLt*> Core::products() {
  MC_TRY(const Entered in, enter());
  Lock lock(mutex);
  if (opened_products != nullptr) return opened_products.get();
  if (without_products) return fail(*without_products);
  if (find_products == nullptr) {
    without_products = Error{Code::kUnsupported, info.location() + " is used without cuBLASLt"};
    return fail(*without_products);
  }
  const Result<cublaslt::Library>& library = find_products();
  auto opened = library ? cublaslt::CublasLt::open(*library) : fail(library.error());
  if (!opened) return fail(*(without_products = opened.error()));
  opened_products = std::move(*opened);
  return opened_products.get();
}

Core::~Core() {
  if (context == nullptr) return;
  if (const auto in = enter()) {
    opened_products.reset();
    if (module != nullptr) (void)d.module_unload(module);
  }
  (void)d.context_release(device);
}

Result<std::unique_ptr<Stream>> open_cuda_stream(const CorePtr& core) {
  StreamHandle handle = nullptr;
  MC_TRY(const Entered in, core->enter());
  MC_TRY_(core->ok(core->d.stream_create(&handle, kNonBlocking), "cuStreamCreate"));
  return std::make_unique<CudaStream>(core, handle);
}

}  // namespace mc::device
