#include "xfer/transports/rdma/host.h"

#include <algorithm>

#include "base/log.h"
#include "topo/discover/discover.h"

namespace mc::xfer::rdma {
namespace {

constexpr Duration kReopenEvery = std::chrono::milliseconds(250);
constexpr size_t kClientsMax = 1024;

// The CPUs of a NUMA node.
std::vector<int> cpus_of(const topo::Machine& machine, int node) {
  for (const topo::NumaNode& n : machine.nodes)
    if (n.id == node) return n.cpus;
  return {};
}

Result<std::vector<std::string>> choose(const std::vector<std::string>& all,
                                        const std::vector<std::string>& only) {
  if (only.empty()) return all;
  std::vector<std::string> out;
  std::string known;
  for (const std::string& name : all) known += (known.empty() ? "" : ", ") + name;
  for (const std::string& name : only) {
    if (std::count(all.begin(), all.end(), name) == 0)
      return fail(Code::kNotFound, "nics: no RDMA device '%s': there is %s", name.c_str(),
                  known.c_str());
    out.push_back(name);
  }
  return out;
}

}  // namespace

class Host::Calling {
 public:
  explicit Calling(Host& host) : host_(host) {
    Lock lock(host_.mutex_);
    listener_ = host_.listener_;
    if (listener_ != nullptr) ++host_.calling_;
  }
  ~Calling() {
    if (listener_ == nullptr) return;
    Lock lock(host_.mutex_);
    if (--host_.calling_ == 0) host_.quiet_.notify_all();
  }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;
  Listener* operator->() const { return listener_; }
  explicit operator bool() const { return listener_ != nullptr; }

 private:
  Host& host_;
  Listener* listener_ = nullptr;
};

Host::Host(const Verbs& verbs, const Registry& registry, const Clock& clock, Metrics& metrics,
           RdmaConfig config, std::vector<std::string> names)
    : verbs_(verbs),
      registry_(registry),
      clock_(clock),
      config_(std::move(config)),
      regions_(clock, metrics, names.size()),
      loop_(clock),
      served_(metrics.gauge("mc_xfer_rdma_served_queue_pairs", "queue pairs held for peers")),
      kept_(loop_, [this](const std::string& control) { return client(control); }) {
  // Where the kernel does not tell, nothing is near or far.
  const topo::Machine machine = topo::discover_sysfs(config_.sysfs).value_or(topo::Machine());
  tiers_ = NicTiers(machine);
  for (std::string& name : names) {
    int node = topo::kUnknownNode;
    for (const topo::RdmaDevice& device : machine.rdma)
      if (device.name == name) node = device.at.numa;
    nics_.push_back(
        std::make_unique<Nic>(nics_.size(), std::move(name), node, cpus_of(machine, node)));
  }
}

Result<std::shared_ptr<Host>> Host::open(const Registry& registry, const Clock& clock,
                                         Metrics& metrics, RdmaConfig config) {
  MC_TRY(const Verbs* verbs, load_verbs());
  std::vector<DeviceLeftOut> left_out;
  MC_TRY(const auto all, Device::names(*verbs, &left_out));
  for (const DeviceLeftOut& out : left_out)
    log_warn("xfer", "rdma: %s is left out: %s", out.name.c_str(), out.why.c_str());
  if (all.empty() && !left_out.empty())
    return fail(Code::kUnsupported, "there is no RDMA device of use: %s is %s",
                left_out[0].name.c_str(), left_out[0].why.c_str());
  if (all.empty()) return fail(Code::kUnsupported, "there is no RDMA device");
  MC_TRY(auto names, choose(all, config.nics));
  std::shared_ptr<Host> host(
      new Host(*verbs, registry, clock, metrics, std::move(config), std::move(names)));
  Error why;
  size_t opened = 0;
  for (const auto& nic : host->nics_) {
    auto device = host->open_device(nic->name);
    if (!device) {
      log_warn("xfer", "rdma: %s", device.error().what.c_str());
      why = device.error();
      continue;
    }
    ++opened;
    host->regions_.use(nic->index, *device);
    nic->use(std::move(*device));
  }
  if (opened == 0) return fail(why);
  MC_TRY(host->server_, rpc::Server::open(host->loop_, host->config_.listen, metrics));
  host->address_ = host->server_->address();
  host->answer(*host->server_);
  return host;
}

Result<DevicePtr> Host::open_device(const std::string& name) {
  const auto now = static_cast<uint64_t>(wall_now_ns());
  last_epoch_ = std::max(last_epoch_ + 1, now);
  return Device::open(verbs_, name, config_, last_epoch_);
}

Result<> Host::start(Listener& listener) {
  {
    Lock lock(mutex_);
    listener_ = &listener;
  }
  for (const auto& nic : nics_) {
    MC_TRY_(nic->start(*this));
    if (nic->device() == nullptr) loop_.after(kReopenEvery, [this, n = nic.get()] { reopen(*n); });
  }
  thread_ = std::thread([this] {
    if (auto ran = loop_.run(); !ran) log_error("xfer", "rdma: %s", ran.error().what.c_str());
  });
  return {};
}

void Host::silence() {
  Lock lock(mutex_);
  listener_ = nullptr;
  while (calling_ > 0) quiet_.wait(mutex_);
}

void Host::stop() {
  {
    Lock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  silence();
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  for (const auto& nic : nics_) nic->stop();
  served_.close_all();
  clients_.clear();
  server_.reset();
  for (const auto& nic : nics_) {
    regions_.use(nic->index, nullptr);
    nic->use(nullptr);
  }
}

Result<rpc::Client*> Host::client(const std::string& address) {
  const auto known = clients_.find(address);
  if (known != clients_.end()) return known->second.get();
  if (clients_.size() >= kClientsMax)
    std::erase_if(clients_, [](const auto& c) { return c.second->in_flight() == 0; });
  MC_TRY(auto made, rpc::Client::connect(loop_, address));
  return clients_.emplace(address, std::move(made)).first->second.get();
}

void Host::describe_nics(SegmentDescriptor& segment) const {
  segment.rdma_control = address_;
  for (const auto& nic : nics_) {
    RdmaNic& info = segment.rdma.emplace_back();
    info.nic.name = nic->name;
    info.nic.numa = nic->numa;
    info.nic.gpu = tiers_.gpu_beside(nic->name);
    for (const uint8_t tier : tiers_.of(nic->name))
      if (info.gpu_tiers.size() < kAddressesMax) info.gpu_tiers.push_back(tier);
    const DevicePtr device = nic->device();
    if (device == nullptr) continue;
    const auto port = device->port();
    info.nic.speed_mbit = port->speed_mbit;
    info.epoch = device->epoch();
    info.ethernet = port->ethernet;
    info.gid.bytes = port->gid;
  }
}

// ---- what happens to NICs

bool Host::drain(Nic& nic, bool wait) {
  const Calling listener(*this);
  return listener && listener->drain(nic, wait);
}

void Host::port_changed(Nic& nic, bool up, bool moved) {
  log_warn("xfer", "rdma: the port of %s is %s%s", nic.name.c_str(), up ? "up" : "down",
           moved ? ", with another address or partition" : "");
  if (moved)
    post([this, n = &nic] {
      served_.close_nic(n->index);  // peers make others, and hear of the new address then
      const Calling listener(*this);
      if (listener) listener->lost(*n, "has another address");
    });
  const Calling listener(*this);
  if (listener) listener->port_changed(nic, up);
}

void Host::died(Nic& nic, const DevicePtr&) {
  log_warn("xfer", "rdma: device %s failed, or is gone; reopening it", nic.name.c_str());
  post([this, n = &nic] { take_offline(*n); });
}

void Host::take_offline(Nic& nic) {
  nic.use(nullptr);
  {
    const Calling listener(*this);
    if (listener) listener->lost(nic, "is gone");
  }
  served_.close_nic(nic.index);
  regions_.use(nic.index, nullptr);
  // Not at once: one that fails whenever it is opened would keep this thread busy.
  loop_.after(kReopenEvery, [this, n = &nic] { reopen(*n); });
}

void Host::reopen(Nic& nic) {
  auto opened = open_device(nic.name);
  if (!opened) {
    loop_.after(kReopenEvery, [this, n = &nic] { reopen(*n); });
    return;
  }
  // To register much memory takes long, and this thread has others to answer.
  nic.run([this, n = &nic, device = std::move(*opened)] {
    regions_.use(n->index, device);
    post([this, n, device] {
      log_info("xfer", "rdma: device %s is back", n->name.c_str());
      n->use(device);
      const Calling listener(*this);
      if (listener) listener->back(*n);
    });
  });
}

}  // namespace mc::xfer::rdma
