#include "xfer/engine.h"

#include <sys/prctl.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "base/log.h"
#include "io/address.h"
#include "io/file.h"
#include "topo/discover/sysfs.h"
#include "xfer/core/host.h"
#include "xfer/core/planner.h"
#include "xfer/engine/engine_impl.h"
#include "xfer/transports/fault/fault_transport.h"

namespace mc::xfer {
namespace {
constexpr size_t kTransportsMax = 8;

Option gid_option(int& index) {
  Option o;
  o.name = "gid-index";
  o.help = "GID that rdma uses; auto: a routable RoCE v2 one where there is one";
  o.kind = Option::Kind::kText;
  o.get = [&index] { return index < 0 ? "auto" : std::to_string(index); };
  o.set = [&index](const std::string& text) -> Result<> {
    const auto number = parse_uint(text);
    if (text != "auto" && (!number || *number > 65535))
      return fail(Code::kInvalid, "'%s' is no GID index, nor auto", text.c_str());
    index = text == "auto" ? -1 : static_cast<int>(*number);
    return {};
  };
  return o;
}

}  // namespace

void EngineOptions::describe(OptionList& v) {
  v("data", data, "addresses that tcp data connections are taken on, one a rail; 0.0.0.0: all");
  v("nics", nics,
    "network interfaces to use for tcp, and devices for rdma, such as eth0,mlx5_0; empty: all");
  v("transports", transports, "transports allowed, in order of preference: shm, rdma, file, tcp");
  v("copy-workers", workers, "threads that copy shared memory");
  v("file-depth", file_depth, "file reads and writes under way");
  v("file-uring", file_uring, "use io_uring for files; else one pread or pwrite at a time");
  v("connections", connections, "tcp connections a rail to each peer");
  v("endpoints", endpoints,
    "tcp connections kept, and queue pairs, to all peers; idle ones give way to new ones");
  v.all().push_back(gid_option(gid_index));
  v("traffic-class", traffic_class, "traffic class of rdma packets, 0 to 255");
  v("rdma-mtu", rdma_mtu, "most bytes in an rdma packet, 256 to 4096; 0: what the port has");
  v("rdma-control", rdma_control,
    "address where peers ask for rdma connections; empty: a free port of the first data address");
  v("rdma-pkey", rdma_pkey, "partition key of rdma, such as 32786; 0: the first one of the port");
  v("rdma-service-level", rdma_service_level, "service level of rdma packets, 0 to 15");
  v("rdma-flow-label", rdma_flow_label, "flow label of rdma packets, 0 to 1048575");
  v("slice", slice, "bytes a slice, 64KiB or more");
  v("peer-timeout", peer_timeout, "a peer silent for this long fails a transfer");
  v("max-failover-attempts", max_failover_attempts,
    "transports a slice may move on to after the first one failed it");
  v("class-weights", class_weights,
    "what high, medium and low requests get of a link that all of them wait for");
  v("share-table", share_table,
    "folder in which this user's processes agree on shares of a link; empty: each takes what it "
    "gets");
  v("sysfs", sysfs,
    "tree that tells the NUMA nodes of memory and devices; for drills, one of another machine");
  v("fault", fault, "script of faults to inject, for drills (JSON lines; see docs/transfer.md)");
}

Memory::Memory(std::shared_ptr<Impl> impl)
    : impl_(std::move(impl)),
      bytes_(impl_->buffer->data, impl_->buffer->data == nullptr ? 0 : impl_->buffer->bytes),
      size_(impl_->buffer->bytes),
      offset_(impl_->buffer->offset) {}

Engine::Impl::Impl(const Clock& c, EngineOptions o, Metrics& m)
    : clock(c),
      options(std::move(o)),
      metrics(m),
      notifier(c),
      staging(
          [this](SlicePtr slice) {
            // Staging buffers are host memory.
            if (slice->device == nullptr && slice->memory == MemoryLocation{}) {
              slice->memory = host_location(slice->local);
            }
            dispatch(std::move(slice));
          },
          [this](SlicePtr slice, const Result<>& outcome) { complete(std::move(slice), outcome); },
          c, {options.staging_chunk, options.staging_buffers, 2}),
      refresher(c, options.node, refresher_hooks()) {}

// Checks options early: a transport would report them later, or never if it is unused.
static Result<> check_numbers(const EngineOptions& o) {
  if (o.file_depth == 0 || o.file_depth > 1024)
    return fail(Code::kInvalid, "file-depth %u: want 1 to 1024", o.file_depth);
  if (o.slice.n < kSliceBytesMin)
    return fail(Code::kInvalid, "slice %s: want 64KiB or more", bytes_text(o.slice).c_str());
  if (o.traffic_class > 255)
    return fail(Code::kInvalid, "traffic-class %u: want 0 to 255", o.traffic_class);
  const uint32_t mtu = o.rdma_mtu;
  if (mtu != 0 && (mtu < 256 || mtu > 4096 || !std::has_single_bit(mtu)))
    return fail(Code::kInvalid, "rdma-mtu %u: want 256, 512, 1024, 2048, 4096, or 0", mtu);
  if (o.rdma_pkey > 0xffff)
    return fail(Code::kInvalid, "rdma-pkey %u: want 1 to 65535, or 0", o.rdma_pkey);
  if (o.rdma_service_level > 15)
    return fail(Code::kInvalid, "rdma-service-level %u: want 0 to 15", o.rdma_service_level);
  if (o.rdma_flow_label >= 1u << 20)
    return fail(Code::kInvalid, "rdma-flow-label %u: want 0 to 1048575", o.rdma_flow_label);
  if (!o.rdma_control.empty())
    if (const auto address = io::parse_address(o.rdma_control); !address)
      return fail(Code::kInvalid, "rdma-control: %s", address.error().what.c_str());
  return {};
}

Result<> Engine::Impl::start() {
  MC_TRY_(check_node_id(options.node));
  MC_TRY_(check_numbers(options));
  if (options.sysfs != "/sys") MC_TRY_(topo::Sysfs::open(options.sysfs));
  several_nodes = numa_nodes(options.sysfs) > 1;
  // Larger at every start, so that peers detect a restart.
  registry = std::make_shared<Registry>(Generation{static_cast<uint64_t>(wall_now_ns())});
  if (!allowed("shm")) registry->allocate_unshared();
  host = host_id();
  net = net_id();
  secret.resize(32);
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return fail(Code::kInternal, "no randomness for the data secret");
  // Peers of this host read and write memory, and look at what tells that a file is still offered,
  // by process_vm_readv, which Yama forbids otherwise; nobody else needs to attach.
  if (allowed("shm") || allowed("file")) ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  MC_TRY(const auto weights, parse_weights(options.class_weights));
  NicInflight::Config share{.shared = !options.share_table.empty(),
                            .directory = options.share_table};
  share.nic.qos.weights = weights;
  nic_inflight = std::make_unique<NicInflight>(std::move(share));
  file_streams = std::make_shared<FileStreamPool>(options.file_uring);
  MC_TRY_(start_transports());
  self_counts = counters_of("self");
  StagingEngine::Counters paths{};
  for (uint32_t path = 0; path < paths.size(); ++path)
    paths[path] = &metrics.counter("mc_xfer_device_slices_total", "slices of device memory, by way",
                                   {{"way", StagingEngine::name(StagingEngine::CopyPath{path})}});
  staging.count(paths);
  for (const auto& t : transports) counts.push_back(counters_of(t->name()));
  if (host_copies != nullptr) {
    const Counters& count = counts[0];
    host_copies->count_cached_copies(*count.slices, *count.bytes, *count.requests);
  }
  MC_TRY(PeerPtr me, make_peer(describe()));
  {
    Lock lock(mutex);
    segments.push_back({me, "", {}});
  }
  background_thread = std::thread([this] { run_deferred(); });
  return {};
}

bool Engine::Impl::allowed(const char* name) const {
  return std::count(options.transports.begin(), options.transports.end(), name) > 0;
}

Result<> Engine::Impl::start_transports() {
  std::vector<std::string> names = options.transports;
  if (names.empty() || names.size() > kTransportsMax)
    return fail(Code::kInvalid, "%zu transports are allowed: name some of shm, rdma, file, tcp",
                names.size());
  // Transfers inside this process are always allowed.
  if (!allowed("shm")) names.insert(names.begin(), "self");
  if (!allowed("file")) names.push_back("file");
  split_nics();
  std::optional<fault::Plan> drill;
  if (!options.fault.empty()) {
    MC_TRY(const std::string script, io::read_file(options.fault));
    MC_TRY(drill, fault::Plan::parse(script, options.fault));
  }
  for (const std::string& name : names) {
    if (!drill) {
      auto transport = make_transport(name, *this);
      if (!transport && left_out(name, transport.error())) continue;
      if (!transport) return fail(transport.error());
      transports.push_back(std::move(*transport));
      continue;
    }
    auto faulty = std::make_unique<fault::FaultTransport>(*this, *drill, transports.size() + 1,
                                                          clock, options.peer_timeout);
    auto transport = make_transport(name, *faulty);
    if (!transport && left_out(name, transport.error())) continue;
    if (!transport) return fail(transport.error());
    faulty->wrap(std::move(*transport));
    transports.push_back(std::move(faulty));
  }
  return {};
}

// Names of RDMA devices are for rdma, all others for tcp.
void Engine::Impl::split_nics() {
  tcp_nics = options.nics;
  if (options.nics.empty() || !allowed("rdma")) return;
  const auto devices = rdma::device_names();
  const auto is_device = [&](const std::string& name) {
    return std::count(devices.begin(), devices.end(), name) > 0;
  };
  for (const std::string& name : options.nics)
    if (is_device(name) || !allowed("tcp")) rdma_nics.push_back(name);
  std::erase_if(tcp_nics, is_device);
}

// True if the machine has no RDMA and another transport is allowed.
bool Engine::Impl::left_out(const std::string& name, const Error& why) const {
  if (name != "rdma" || why.code != Code::kUnsupported || options.transports.size() == 1)
    return false;
  log_info("xfer", "without rdma: %s", why.what.c_str());
  return true;
}

Result<std::unique_ptr<Transport>> Engine::Impl::make_transport(const std::string& name,
                                                                Sink& sink) {
  auto local = [&](LocalTransport::Config config) {
    auto local_transport = std::make_unique<LocalTransport>(sink, *registry, clock, config);
    // Under fault injection every transfer goes through the decorator.
    if (transports.empty() && &sink == this) host_copies = local_transport.get();
    return local_transport;
  };
  const std::string copies = copies_file(options.share_table);
  if (name == "self") return local({.copies_file = copies});
  if (name == "shm") {
    MC_TRY(fd_server, FdServer::open(*registry, clock));
    return local({options.workers, true, allowed("tcp"), copies});
  }
  if (name == "file")
    return std::make_unique<FileTransport>(
        sink, *registry, clock,
        FileTransport::Config{options.file_depth, options.file_uring, allowed("file"),
                              allowed("tcp")});
  if (name == "tcp") {
    MC_TRY_(serve_tcp());
    SprayConfig spray;
    spray.scheduler = options.scheduler;
    return std::make_unique<tcp::TcpTransport>(
        sink, clock,
        tcp::TcpTransport::Config{options.connections, options.endpoints, options.peer_timeout,
                                  nics, spray, nic_inflight.get()});
  }
  if (name == "rdma") return open_rdma(sink);
  return fail(Code::kInvalid, "unknown transport '%s': there is shm, rdma, file and tcp",
              name.c_str());
}

Result<std::unique_ptr<Transport>> Engine::Impl::open_rdma(Sink& sink) {
  rdma::RdmaConfig config;
  config.node = options.node;
  config.secret = secret;
  // By default the host of the first data address, and any port.
  if (!options.rdma_control.empty()) {
    config.listen = options.rdma_control;
  } else if (!options.data.empty()) {
    MC_TRY(const io::Address address, io::parse_address(options.data.front()));
    config.listen = io::Address{address.host, 0}.text();
  }
  config.nics = rdma_nics;
  config.endpoints = options.endpoints;
  config.eviction = options.eviction;
  config.peer_timeout = options.peer_timeout;
  config.gid_index = options.gid_index;
  config.traffic_class = options.traffic_class;
  config.mtu = options.rdma_mtu;
  config.pkey = options.rdma_pkey;
  config.service_level = options.rdma_service_level;
  config.flow_label = options.rdma_flow_label;
  config.sysfs = options.sysfs;
  config.spray.scheduler = options.scheduler;
  config.nic_inflight = nic_inflight.get();
  MC_TRY(rdma::Rdma opened, rdma::open(sink, *registry, clock, metrics, std::move(config)));
  rdma_offer = std::move(opened.offer);
  registry->observe(rdma_offer);
  return std::move(opened.transport);
}

Engine::Impl::~Impl() {
  if (background_thread.joinable()) {
    {
      Lock lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    background_thread.join();
  }
  refresher.stop();
  for (auto& t : transports) t->stop();  // each may still return slices to finished()
  if (rdma_offer != nullptr) rdma_offer->stop();
  staging.stop();
  notifier.stop();  // last: completed slices send notifications
}

Engine::Impl::Counters Engine::Impl::counters_of(const std::string& transport) {
  const Labels labels{{"transport", transport}};
  return {&metrics.counter("mc_xfer_bytes_total", "payload bytes moved", labels),
          &metrics.counter("mc_xfer_slices_total", "slices tried", labels),
          &metrics.counter("mc_xfer_requests_total", "requests completed", labels),
          &metrics.counter("mc_xfer_failures_total", "slices that failed", labels),
          &metrics.counter("mc_xfer_carried_total",
                           "slices of rails moved by the thread that waits for them", labels)};
}

const Engine::Impl::Counters& Engine::Impl::counters_of(const Slice& slice) const {
  return slice.peer->same_process ? self_counts : counts[slice.transport];
}

Counter& Engine::Impl::failovers(uint32_t from, uint32_t to) const {
  return metrics.counter("mc_xfer_failovers_total", "slices handed on to the next transport",
                         {{"from", transports[from]->name()}, {"to", transports[to]->name()}});
}

void Engine::Impl::defer(std::function<void()> job) {
  deferred.push_back(std::move(job));
  changed.notify_all();
}

void Engine::Impl::run_deferred() {
  for (;;) {
    std::function<void()> job;
    {
      Lock lock(mutex);
      while (deferred.empty() && !stopping) changed.wait(mutex);
      if (deferred.empty()) return;
      job = std::move(deferred.front());
      deferred.pop_front();
    }
    job();
  }
}

// ---- the public interface

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const Clock& clock, EngineOptions options,
                                             Metrics& metrics) {
  auto impl = std::make_unique<Impl>(clock, std::move(options), metrics);
  MC_TRY_(impl->start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<Memory> Engine::allocate(uint64_t bytes, bool writable, std::string location) {
  MC_TRY(BufferPtr buffer, impl_->allocate(bytes, writable, std::move(location)));
  auto memory = std::make_shared<Memory::Impl>();
  memory->buffer = std::move(buffer);
  memory->registry = impl_->registry;
  return Memory(std::move(memory));
}

Result<Memory> Engine::allocate_from(MemorySource source, uint64_t bytes) {
  MC_TRY(BufferPtr buffer, impl_->registry->allocate_from(std::move(source), bytes, true));
  auto memory = std::make_shared<Memory::Impl>();
  memory->buffer = std::move(buffer);
  memory->registry = impl_->registry;
  return Memory(std::move(memory));
}

Result<Memory> Engine::register_memory(std::span<std::byte> memory, bool writable,
                                       std::string location) {
  MC_TRY(BufferPtr buffer, impl_->add_buffer(memory, writable, std::move(location)));
  auto owner = std::make_shared<Memory::Impl>();
  owner->buffer = std::move(buffer);
  owner->registry = impl_->registry;
  return Memory(std::move(owner));
}

Result<> Engine::add_memory_kind(const std::string& name, std::shared_ptr<MemoryKind> kind) {
  return impl_->add_kind(name, std::move(kind));
}

Result<Memory> Engine::register_file(const std::string& path, uint64_t bytes, bool writable) {
  MC_TRY(const auto file, FileStore::offer(path, bytes, writable, impl_->file_streams));
  MC_TRY(BufferPtr buffer, impl_->registry->add(file, writable));
  auto owner = std::make_shared<Memory::Impl>();
  owner->buffer = std::move(buffer);
  owner->registry = impl_->registry;
  return Memory(std::move(owner));
}

SegmentDescriptor Engine::describe() const { return impl_->describe(); }
Generation Engine::generation() const { return impl_->registry->generation(); }
const std::vector<std::string>& Engine::data_addresses() const { return impl_->data; }

Result<SegmentHandle> Engine::open_segment(const std::string& control, Duration budget,
                                           Generation expected) {
  return impl_->open_by_address(control, budget, expected);
}
Result<SegmentHandle> Engine::open_segment(const SegmentDescriptor& descriptor,
                                           const std::string& control) {
  return impl_->open(descriptor, control);
}
void Engine::close_segment(SegmentHandle segment) { impl_->close(segment); }
SegmentHandle Engine::self() const { return 0; }

Result<uint64_t> Engine::segment_bytes(SegmentHandle segment) const {
  Lock lock(impl_->mutex);
  MC_TRY(const PeerPtr peer, impl_->peer_of(segment));
  uint64_t end = 0;
  for (const BufferInfo& b : peer->descriptor.buffers) end = std::max(end, b.offset + b.bytes);
  return end;
}

std::string Engine::transport_of(SegmentHandle segment) const {
  PeerPtr peer;
  {
    Lock lock(impl_->mutex);
    auto found = impl_->peer_of(segment);
    if (!found) return "none";
    peer = *found;
  }
  if (peer->same_process) return "self";
  const auto& buffers = peer->descriptor.buffers;
  const uint64_t offset = buffers.empty() ? 0 : buffers.front().offset;
  if (!buffers.empty() && peer->same_host && !buffers.front().device_handle.bytes.empty() &&
      impl_->kind_of(buffers.front().location) != nullptr)
    return "device";
  for (const auto& t : impl_->transports)
    if (t->reaches(*peer, offset, Op::kRead)) return t->name();
  return "none";
}

}  // namespace mc::xfer
