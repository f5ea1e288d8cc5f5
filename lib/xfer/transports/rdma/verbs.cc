#include "xfer/transports/rdma/verbs.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>

namespace mc::xfer::rdma {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

struct Loader {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  Error error;
  Verbs verbs{};

  template <class F>
  void optional(F& function, const char* name) {
    void* const symbol = ::dlsym(library, name);
    static_assert(sizeof symbol == sizeof function);
    std::memcpy(&function, &symbol, sizeof symbol);
  }
  template <class F>
  void need(F& function, const char* name) {
    optional(function, name);
    if (function == nullptr && error.what.empty())
      error = {Code::kUnsupported, strf("%s has no %s: it is too old", kLibrary, name)};
  }
  Loader();
};

Loader::Loader() {
  if (library == nullptr) {
    const char* why = ::dlerror();
    error = {Code::kUnsupported, strf("%s (install libibverbs1)", why == nullptr ? "" : why)};
    return;
  }
  Verbs& v = verbs;
  need(v.get_device_list, "ibv_get_device_list");
  need(v.free_device_list, "ibv_free_device_list");
  need(v.get_device_name, "ibv_get_device_name");
  need(v.open_device, "ibv_open_device");
  need(v.close_device, "ibv_close_device");
  need(v.query_device, "ibv_query_device");
  need(v.query_gid, "ibv_query_gid");
  need(v.get_async_event, "ibv_get_async_event");
  need(v.ack_async_event, "ibv_ack_async_event");
  need(v.alloc_pd, "ibv_alloc_pd");
  need(v.dealloc_pd, "ibv_dealloc_pd");
  need(v.dereg_mr, "ibv_dereg_mr");
  need(v.create_comp_channel, "ibv_create_comp_channel");
  need(v.destroy_comp_channel, "ibv_destroy_comp_channel");
  need(v.create_cq, "ibv_create_cq");
  need(v.destroy_cq, "ibv_destroy_cq");
  need(v.get_cq_event, "ibv_get_cq_event");
  need(v.ack_cq_events, "ibv_ack_cq_events");
  need(v.create_qp, "ibv_create_qp");
  need(v.modify_qp, "ibv_modify_qp");
  need(v.destroy_qp, "ibv_destroy_qp");
  need(v.wc_status_str, "ibv_wc_status_str");
  need(v.event_type_str, "ibv_event_type_str");
  need(v.register_mr, "ibv_reg_mr");
  need(v.query_port_short, "ibv_query_port");
  optional(v.query_gid_ex, "_ibv_query_gid_ex");
  optional(v.query_pkey, "ibv_query_pkey");
  optional(v.resize_cq, "ibv_resize_cq");
  optional(v.register_dmabuf_mr, "ibv_reg_dmabuf_mr");
}

}  // namespace

// The exported function fills in the first part of the structure only, as old programs have it.
int Verbs::query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr) const {
  std::memset(attr, 0, sizeof *attr);
  verbs_context* const extended = verbs_get_ctx(context);
  // The structure grows at its front: older devices have the end of it.
  constexpr size_t kNeeded = sizeof(verbs_context) - offsetof(verbs_context, query_port);
  if (extended != nullptr && extended->sz >= kNeeded && extended->query_port != nullptr)
    return extended->query_port(context, port, attr, sizeof *attr);
  return query_port_short(context, port, attr);
}

Result<const Verbs*> load_verbs() {
  static const Loader loader;
  if (!loader.error.what.empty()) return fail(loader.error);
  return &loader.verbs;
}

}  // namespace mc::xfer::rdma
