// Loads libibverbs on first use, as a table of functions. Private to rdma/*.cc. Programs start and
// work where the library is not installed. Functions that verbs.h defines inline (posting,
// polling, arming) use the device's own table and need no library.
//
// Thread: any.
#pragma once
#include <infiniband/verbs.h>

#include "base/result.h"

namespace mc::xfer::rdma {

struct Verbs {
  ibv_device** (*get_device_list)(int*);
  void (*free_device_list)(ibv_device**);
  const char* (*get_device_name)(ibv_device*);
  ibv_context* (*open_device)(ibv_device*);
  int (*close_device)(ibv_context*);
  int (*query_device)(ibv_context*, ibv_device_attr*);
  int (*query_gid)(ibv_context*, uint8_t, int, ibv_gid*);
  int (*get_async_event)(ibv_context*, ibv_async_event*);
  void (*ack_async_event)(ibv_async_event*);
  ibv_pd* (*alloc_pd)(ibv_context*);
  int (*dealloc_pd)(ibv_pd*);
  int (*dereg_mr)(ibv_mr*);
  ibv_comp_channel* (*create_comp_channel)(ibv_context*);
  int (*destroy_comp_channel)(ibv_comp_channel*);
  ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int);
  int (*destroy_cq)(ibv_cq*);
  int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**);
  void (*ack_cq_events)(ibv_cq*, unsigned);
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*);
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int);
  int (*destroy_qp)(ibv_qp*);
  const char* (*wc_status_str)(ibv_wc_status);
  const char* (*event_type_str)(ibv_event_type);
  // The next two are macros in the header.
  ibv_mr* (*register_mr)(ibv_pd*, void*, size_t, int);
  int (*query_port_short)(ibv_context*, uint8_t, ibv_port_attr*);
  // Not in every version: null.
  int (*query_gid_ex)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t);
  int (*query_pkey)(ibv_context*, uint8_t, int, __be16*);
  int (*resize_cq)(ibv_cq*, int);
  ibv_mr* (*register_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int);

  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr) const;
};

// Once a process; it is never unloaded. kUnsupported says what is missing.
Result<const Verbs*> load_verbs();

}  // namespace mc::xfer::rdma
