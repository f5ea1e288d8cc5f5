// Devices: listing, opening and closing them. VERBS_EMU_FABRIC names the fabric, VERBS_EMU_HOST the
// host of it that this process is on (0 where it is not set).
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>

#include "events.h"
#include "objects.h"
#include "query.h"
#undef ibv_get_device_list

namespace mc::emu {
namespace {

struct Opened {
  std::string path;
  dev_t device;
  ino_t inode;
  std::shared_ptr<Fabric> fabric;
};

// Devices and fabrics stay for the life of the process: clients keep pointers to devices past the
// list they came in.
struct Library {
  std::mutex mutex;
  std::vector<Opened> fabrics;
  std::vector<std::unique_ptr<Device>> devices;
};
Library& library() {
  static auto* one = new Library;
  return *one;
}

std::shared_ptr<Fabric> open_fabric(const std::string& path, std::string* why) {
  struct stat now {};
  bool there = stat(path.c_str(), &now) == 0;
  for (const Opened& one : library().fabrics)
    if (there && one.path == path && one.device == now.st_dev && one.inode == now.st_ino)
      return one.fabric;
  std::shared_ptr<Fabric> fabric = Fabric::open(path, why);
  if (fabric != nullptr && stat(path.c_str(), &now) == 0)
    library().fabrics.push_back({path, now.st_dev, now.st_ino, fabric});
  return fabric;
}

Device* device_of(const std::shared_ptr<Fabric>& fabric, uint32_t nic) {
  const auto type = ibv_transport_type((*fabric)->nic[nic].transport.load());
  for (const auto& device : library().devices) {
    if (device->fabric != fabric || device->nic != nic) continue;
    device->device.transport_type = type;
    return device.get();
  }
  auto device = std::make_unique<Device>();
  device->fabric = fabric;
  device->nic = nic;
  ibv_device& out = device->device;
  const char* name = (*fabric)->nic[nic].name;
  out.node_type = IBV_NODE_CA;
  out.transport_type = type;
  snprintf(out.name, sizeof out.name, "%s", name);
  snprintf(out.dev_name, sizeof out.dev_name, "uverbs%u", nic);
  snprintf(out.dev_path, sizeof out.dev_path, "/sys/class/infiniband_verbs/uverbs%u", nic);
  snprintf(out.ibdev_path, sizeof out.ibdev_path, "/sys/class/infiniband/%s", name);
  library().devices.push_back(std::move(device));
  return library().devices.back().get();
}

bool this_host(uint32_t* host) {
  const char* text = getenv("VERBS_EMU_HOST");
  if (text == nullptr || *text == 0) text = "0";
  const char* end = text + strlen(text);
  auto [stop, error] = std::from_chars(text, end, *host);
  return error == std::errc() && stop == end;
}

void fill_operations(verbs_context& verbs) {
  verbs.sz = sizeof verbs;
  verbs.query_port = query_port;
  verbs.query_device_ex = query_device_extended;
  verbs.create_qp_ex = create_qp_extended;
  verbs.context.ops.poll_cq = poll_cq;
  verbs.context.ops.req_notify_cq = request_notify;
  verbs.context.ops.post_send = post_send;
  verbs.context.ops.post_recv = post_recv;
  verbs.context.ops.post_srq_recv = post_srq_recv;
  verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

// Clients may close a device with objects on it. Events they took and never acknowledged must not
// hold that up.
void release_leftovers(Context& context) {
  while (!context.qps.empty()) {
    Qp& qp = *context.qps.begin()->second;
    qp.async_events = qp.head.ex.qp_base.events_completed;
    ibv_destroy_qp(&qp.head.ex.qp_base);
  }
  while (!context.srqs.empty()) {
    Srq& srq = *context.srqs.begin()->second;
    srq.async_events = srq.srq.events_completed;
    ibv_destroy_srq(&srq.srq);
  }
  while (!context.cqs.empty()) {
    Cq& cq = *context.cqs.begin()->second;
    cq.comp_events = cq.cq.comp_events_completed;
    cq.async_events = cq.cq.async_events_completed;
    ibv_destroy_cq(&cq.cq);
  }
  while (!context.mrs.empty()) ibv_dereg_mr(&(*context.mrs.begin())->mr);
  while (!context.channels.empty()) ibv_destroy_comp_channel(&(*context.channels.begin())->channel);
  while (!context.pds.empty()) ibv_dealloc_pd(&(*context.pds.begin())->pd);
}

}  // namespace
}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  const char* path = getenv("VERBS_EMU_FABRIC");
  std::vector<ibv_device*> found;
  if (path != nullptr && *path != 0) {
    std::lock_guard lock(library().mutex);
    std::string why;
    uint32_t host = 0;
    std::shared_ptr<Fabric> fabric;
    if (!this_host(&host))
      why = std::string("VERBS_EMU_HOST=") + getenv("VERBS_EMU_HOST") + ": give a host's number";
    else
      fabric = open_fabric(path, &why);
    if (fabric == nullptr) {
      fprintf(stderr, "verbs emulator: %s\n", why.c_str());
      return none(ENOENT);
    }
    for (uint32_t i = 0; i < (*fabric)->nics; ++i) {
      const Nic& nic = (*fabric)->nic[i];
      if (nic.host == host && nic.present.load() != 0)
        found.push_back(&device_of(fabric, i)->device);
    }
  }
  auto** list = static_cast<ibv_device**>(calloc(found.size() + 1, sizeof(void*)));
  std::copy(found.begin(), found.end(), list);
  if (count != nullptr) *count = int(found.size());
  return list;
}

void ibv_free_device_list(ibv_device** list) { free(list); }

ibv_context* ibv_open_device(ibv_device* ibdevice) {
  Device& device = *of(ibdevice);
  Fabric& fabric = *device.fabric;
  fabric.reap();
  if (fabric->nic[device.nic].present.load() == 0) return none(EIO);
  auto context = std::make_unique<Context>();
  ibv_context& out = context->head.verbs.context;
  fill_operations(context->head.verbs);
  context->head.self = context.get();
  if (!open_pipe(&out.async_fd, &context->async_write)) return nullptr;
  out.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  out.device = ibdevice;
  out.num_comp_vectors = 8;
  pthread_mutex_init(&out.mutex, nullptr);
  context->slot = fabric.take_context(device.nic);
  if (context->slot == nullptr) {
    close(out.async_fd);
    close(context->async_write);
    close(out.cmd_fd);
    return none(ENOMEM);
  }
  context->fabric = device.fabric;
  context->index = fabric.index(*context->slot);
  context->nic_index = device.nic;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // peers of the same user reach our memory
  start_engine(*context);
  return &context.release()->head.verbs.context;
}

int ibv_close_device(ibv_context* ibcontext) {
  std::unique_ptr<Context> context(of(ibcontext));
  stop_engine(*context);
  release_leftovers(*context);
  context->fabric->free_context(*context->slot);
  close(ibcontext->async_fd);
  close(context->async_write);
  close(ibcontext->cmd_fd);
  pthread_mutex_destroy(&ibcontext->mutex);
  return 0;
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

int ibv_get_device_index(ibv_device* device) { return int(of(device)->nic); }

__be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64((*of(device)->fabric)->nic[of(device)->nic].guid);
}

int ibv_fork_init(void) { return 0; }

ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

}  // extern "C"
