#pragma once
// The records in the pipes behind async_fd.

#include "objects.h"

namespace mc::emu {

enum class EventKind : uint32_t { kPort, kQp, kCq, kSrq };

struct EventRecord {
  uint32_t type = 0;  // ibv_event_type
  EventKind kind = EventKind::kPort;
  uint32_t id = 0;  // queue pair number, or slot
  uint32_t generation = 0;
};

bool open_pipe(int* read_fd, int* write_fd);
void write_event(const Context& context, const EventRecord& record);

}  // namespace mc::emu
