#pragma once
// What a device tells about itself and its port.

#include <infiniband/verbs.h>

namespace mc::emu {

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t size);
int query_device_extended(ibv_context* context, const ibv_query_device_ex_input* input,
                          ibv_device_attr_ex* attr, size_t size);

}  // namespace mc::emu
