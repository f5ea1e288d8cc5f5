// A CUDA driver in host memory, as a table of functions: two devices, work done at once (or, for
// copies, when a stream or an event is waited for), the kernels of this build run by the host, and
// errors where a test wants them. It keeps count of what was not given back.
#pragma once
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "device/driver.h"
#include "device/kernels/model_kernels.h"
#include "device/kernels_on_host.h"
#include "tests/unit/device/kernels_on_host.h"

namespace mc::device::fake {

using namespace mc::device::driver;

struct State {
  Mutex mutex;
  Mutex kernels;  // one at a time
  int count = 2;
  int peers = 1;
  int nic_ordering = 0;
  std::map<std::string, Status> errors;  // by function: what its calls end with
  std::map<std::string, int> calls;
  std::map<Pointer, std::pair<size_t, int>> memory;  // bytes and device; -1: of the host
  std::map<Pointer, int> opened;                     // by other processes' handles
  std::set<void*> streams, events, modules;
  std::set<std::string> names;  // of kernels that were looked up
  int contexts = 0;
  bool pending = false;  // events are not done yet
  using Steps = std::vector<std::function<Status()>>;
  bool later = false;  // copies run when they are waited for
  std::map<StreamHandle, Steps> queued;
  std::map<EventHandle, StreamHandle> recorded;
  int closed_busy = 0;  // streams that were destroyed with copies queued
  std::map<StreamHandle, Steps> capturing;
  std::map<void*, Steps> graphs;                // captured ones, and what was made of them
  static inline thread_local int current = -1;  // of this thread: a device, or an application's
  static inline thread_local std::vector<int> below;  // what it was, before each push

  Status enter(const char* name) {
    Lock lock(mutex);
    ++calls[name];
    const auto it = errors.find(name);
    return it == errors.end() ? kOk : it->second;
  }
  bool clean() {
    Lock lock(mutex);
    return memory.empty() && opened.empty() && streams.empty() && events.empty() &&
           modules.empty() && capturing.empty() && graphs.empty() && contexts == 0;
  }
};
inline State& state() {
  static State s;
  return s;
}

#define MC_FAKE(name) \
  if (const Status failed = state().enter(#name); failed != kOk) return failed

inline void* token() { return std::malloc(1); }

inline Status memory_add(Pointer* p, size_t bytes, int device) {
  if (bytes == 0) return kInvalidValue;
  void* const data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  *p = reinterpret_cast<Pointer>(data);
  Lock lock(state().mutex);
  state().memory[*p] = {bytes, device};
  return kOk;
}
inline Status memory_drop(Pointer p) {
  Lock lock(state().mutex);
  if (state().memory.erase(p) == 0) return kInvalidValue;
  std::free(reinterpret_cast<void*>(p));
  return kOk;
}
inline bool range_of(Pointer p, Pointer* base, size_t* bytes, int* device) {
  Lock lock(state().mutex);
  auto it = state().memory.upper_bound(p);
  if (it == state().memory.begin() || p - std::prev(it)->first >= std::prev(it)->second.first)
    return false;
  *base = std::prev(it)->first;
  *bytes = std::prev(it)->second.first;
  *device = std::prev(it)->second.second;
  return true;
}
inline void move_bytes(Pointer to, Pointer from, size_t n) {
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), n);
}
inline Status run_kernel(const std::string& name, unsigned x, unsigned y, void** arguments) {
  auto at = [&](int i) { return *static_cast<uint64_t*>(arguments[i]); };
  Lock lock(state().kernels);
  if (name == MC_COPY_BLOCKS) {
    on_host::launch(x, y, [list = reinterpret_cast<const mc_copy_block*>(at(0))] {
      on_host::mc_copy_blocks(list);
    });
    return kOk;
  }
  on_host::launch(x, y, [&] {
    on_host::mc_copy_rows(reinterpret_cast<char*>(at(0)), reinterpret_cast<const char*>(at(1)),
                          at(2), at(3), at(4));
  });
  return kOk;
}

inline void fill_devices(Driver& d) {
  d.init = [](unsigned) { return kOk; };
  d.driver_version = [](int* v) { return *v = 13000, kOk; };
  d.error_string = [](Status, const char** text) { return *text = "made up", kOk; };
  d.device_count = [](int* n) -> Status {
    MC_FAKE(device_count);
    return *n = state().count, kOk;
  };
  d.device_get = [](int* device, int ordinal) { return *device = ordinal, kOk; };
  d.device_name = [](char* name, int n, int) { return std::strncpy(name, "fake", size_t(n)), kOk; };
  d.device_total = [](size_t* n, int) { return *n = 1 << 30, kOk; };
  d.device_attribute = [](int* v, int a, int) {
    *v = a == kCapabilityMajor ? 9 : a == kNicWritesOrdering ? state().nic_ordering : 0;
    return kOk;
  };
  d.device_pci = [](char* text, int n, int) {
    return std::strncpy(text, "0000:4F:00.0", size_t(n)), kOk;
  };
  d.flush_nic_writes = [](int target, int scope) -> Status {
    MC_FAKE(flush_nic_writes);
    return target == kFlushOfContext && scope == kFlushToOwner ? kOk : kInvalidValue;
  };
  d.can_access_peer = [](int* can, int, int) { return *can = state().peers, kOk; };
  d.context_retain = [](Context* c, int device) -> Status {
    MC_FAKE(context_retain);
    Lock lock(state().mutex);
    ++state().contexts;
    return *c = reinterpret_cast<Context>(static_cast<intptr_t>(device + 1)), kOk;
  };
  d.context_release = [](int) {
    Lock lock(state().mutex);
    return --state().contexts, kOk;
  };
  d.context_push = [](Context c) -> Status {
    MC_FAKE(context_push);
    State::below.push_back(State::current);
    return State::current = static_cast<int>(reinterpret_cast<intptr_t>(c)) - 1, kOk;
  };
  d.context_pop = [](Context* c) -> Status {
    if (State::below.empty()) return kInvalidValue;
    *c = reinterpret_cast<Context>(static_cast<intptr_t>(State::current + 1));
    State::current = State::below.back();
    return State::below.pop_back(), kOk;
  };
  d.enable_peer = [](Context, unsigned) -> Status {
    MC_FAKE(enable_peer);
    return kOk;
  };
}

inline void fill_memory(Driver& d) {
  d.memory_info = [](size_t* f, size_t* t) { return *f = *t = 1 << 30, kOk; };
  d.memory_alloc = [](Pointer* p, size_t n) -> Status {
    MC_FAKE(memory_alloc);
    return memory_add(p, n, State::current);
  };
  d.memory_free = [](Pointer p) { return memory_drop(p); };
  d.host_alloc = [](void** p, size_t n, unsigned) -> Status {
    MC_FAKE(host_alloc);
    Pointer at = 0;
    const Status s = memory_add(&at, n, -1);
    *p = reinterpret_cast<void*>(at);
    return s;
  };
  d.host_free = [](void* p) { return memory_drop(reinterpret_cast<Pointer>(p)); };
  d.host_register = [](void*, size_t, unsigned) -> Status {
    MC_FAKE(host_register);
    return kOk;
  };
  d.host_unregister = [](void*) -> Status {
    MC_FAKE(host_unregister);
    return kOk;
  };
  d.pointer_attribute = [](void* out, int attribute, Pointer p) -> Status {
    MC_FAKE(pointer_attribute);
    Pointer base = 0;
    size_t n = 0;
    int device = 0;
    if (!range_of(p, &base, &n, &device)) return kInvalidValue;
    const unsigned type = device < 0 ? kMemoryOfHost : kMemoryOfDevice;
    if (attribute == kMemoryType) return std::memcpy(out, &type, sizeof type), kOk;
    return std::memcpy(out, &device, sizeof device), kOk;
  };
  d.address_range = [](Pointer* base, size_t* n, Pointer p) -> Status {
    int device = 0;
    return range_of(p, base, n, &device) ? kOk : kInvalidValue;
  };
  d.ipc_get = [](IpcHandle* h, Pointer p) -> Status {
    MC_FAKE(ipc_get);
    std::memcpy(h->reserved, &p, sizeof p);
    return kOk;
  };
  d.ipc_open = [](Pointer* p, IpcHandle h, unsigned) -> Status {
    MC_FAKE(ipc_open);
    std::memcpy(p, h.reserved, sizeof *p);
    Lock lock(state().mutex);
    if (!state().memory.contains(*p)) return kMapFailed;
    return ++state().opened[*p], kOk;
  };
  d.ipc_close = [](Pointer p) -> Status {
    MC_FAKE(ipc_close);
    Lock lock(state().mutex);
    if (--state().opened[p] == 0) state().opened.erase(p);
    return kOk;
  };
}

template <class Tag>
Status make_token(Tag** out, std::set<void*>& of) {
  Lock lock(state().mutex);
  *out = static_cast<Tag*>(token());
  return of.insert(*out), kOk;
}
inline Status drop_token(void* p, std::set<void*>& of) {
  Lock lock(state().mutex);
  if (of.erase(p) == 0) return kInvalidValue;
  return std::free(p), kOk;
}

// Now, or when the graph runs that the stream's work goes into.
inline Status run_or_capture(StreamHandle stream, std::function<Status()> step) {
  {
    Lock lock(state().mutex);
    if (const auto it = state().capturing.find(stream); it != state().capturing.end())
      return it->second.push_back(std::move(step)), kOk;
    if (state().later) return state().queued[stream].push_back(std::move(step)), kOk;
  }
  return step();
}
inline Status run_queued(StreamHandle stream) {
  State::Steps steps;
  {
    Lock lock(state().mutex);
    if (const auto it = state().queued.find(stream); it != state().queued.end())
      steps = std::move(state().queued.extract(it).mapped());
  }
  for (const auto& step : steps)
    if (const Status s = step(); s != kOk) return s;
  return kOk;
}
inline Status launch_now(const char* name, unsigned x, unsigned y, unsigned z,
                         std::vector<uint64_t> values) {
  std::vector<void*> arguments;
  for (uint64_t& value : values) arguments.push_back(&value);
  if (host_has_kernel(name)) return run_kernel_on_host(name, {x, y, z}, arguments.data()), kOk;
  return run_kernel(name, x, y, arguments.data());
}

inline void fill_work(Driver& d) {
  d.copy_async = [](Pointer to, Pointer from, size_t n, StreamHandle s) -> Status {
    MC_FAKE(copy_async);
    return run_or_capture(s, [=] { return move_bytes(to, from, n), kOk; });
  };
  d.stream_create = [](StreamHandle* s, unsigned) -> Status {
    MC_FAKE(stream_create);
    return make_token(s, state().streams);
  };
  d.stream_synchronize = [](StreamHandle s) -> Status {
    MC_FAKE(stream_synchronize);
    return run_queued(s);
  };
  d.stream_destroy = [](StreamHandle s) {  // at once, as the real one
    {
      Lock lock(state().mutex);
      state().closed_busy += state().queued.erase(s) > 0 ? 1 : 0;
    }
    return drop_token(s, state().streams);
  };
  d.stream_wait_event = [](StreamHandle, EventHandle, unsigned) -> Status {
    MC_FAKE(stream_wait_event);
    return kOk;
  };
  d.event_create = [](EventHandle* e, unsigned) { return make_token(e, state().events); };
  d.event_destroy = [](EventHandle e) { return drop_token(e, state().events); };
  d.event_record = [](EventHandle e, StreamHandle s) -> Status {
    MC_FAKE(event_record);
    Lock lock(state().mutex);
    return state().recorded[e] = s, kOk;
  };
  d.event_query = [](EventHandle) -> Status {
    MC_FAKE(event_query);
    return state().pending ? kNotReady : kOk;
  };
  d.event_synchronize = [](EventHandle e) -> Status {
    MC_FAKE(event_synchronize);
    StreamHandle of = nullptr;
    {
      Lock lock(state().mutex);
      if (const auto it = state().recorded.find(e); it != state().recorded.end()) of = it->second;
    }
    return run_queued(of);
  };
  d.module_load = [](Module* m, const void*) -> Status {
    MC_FAKE(module_load);
    return make_token(m, state().modules);
  };
  d.module_unload = [](Module m) { return drop_token(m, state().modules); };
  d.module_function = [](Function* f, Module, const char* name) -> Status {
    MC_FAKE(module_function);
    const bool copies = std::string(name) == MC_COPY_BLOCKS || std::string(name) == MC_COPY_ROWS;
    if (!copies && !host_has_kernel(name)) return kNotFound;
    Lock lock(state().mutex);  // names live as long as the program
    const std::string& kept = *state().names.insert(name).first;
    return *f = reinterpret_cast<Function>(const_cast<char*>(kept.c_str())), kOk;
  };
  d.launch = [](Function f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                unsigned, unsigned, StreamHandle s, void** arguments, void**) -> Status {
    MC_FAKE(launch);
    const std::string name = reinterpret_cast<const char*>(f);
    const bool copies = name == MC_COPY_BLOCKS || name == MC_COPY_ROWS;
    if (threads != (copies ? MC_COPY_THREADS : mc_group_threads(name.c_str())))
      return kInvalidValue;
    const size_t n = copies ? name == MC_COPY_BLOCKS ? 1 : 5 : host_kernel_arguments(name);
    std::vector<uint64_t> values(n);  // each argument's memory is as long
    for (size_t i = 0; i < n; ++i) std::memcpy(&values[i], arguments[i], sizeof values[i]);
    return run_or_capture(s, [=] { return launch_now(name.c_str(), x, y, z, values); });
  };
}

inline Status destroy_graph(void* graph) {
  Lock lock(state().mutex);
  if (state().graphs.erase(graph) == 0) return kInvalidValue;
  return std::free(graph), kOk;
}
inline void fill_graphs(Driver& d) {
  d.capture_begin = [](StreamHandle s, int mode) -> Status {
    MC_FAKE(capture_begin);
    Lock lock(state().mutex);
    return mode == kCaptureRelaxed && state().capturing.emplace(s, State::Steps{}).second
               ? kOk
               : kInvalidValue;
  };
  d.capture_end = [](StreamHandle s, GraphHandle* graph) -> Status {
    Lock lock(state().mutex);
    auto node = state().capturing.extract(s);
    ++state().calls["capture_end"];
    if (node.empty()) return kInvalidValue;
    if (const auto it = state().errors.find("capture_end"); it != state().errors.end())
      return it->second;
    *graph = static_cast<GraphHandle>(token());
    return state().graphs[*graph] = std::move(node.mapped()), kOk;
  };
  d.graph_instantiate = [](GraphExec* exec, GraphHandle graph, unsigned long long) -> Status {
    MC_FAKE(graph_instantiate);
    Lock lock(state().mutex);
    const auto it = state().graphs.find(graph);
    if (it == state().graphs.end()) return kInvalidValue;
    *exec = static_cast<GraphExec>(token());
    return state().graphs[*exec] = it->second, kOk;
  };
  d.graph_destroy = [](GraphHandle graph) -> Status { return destroy_graph(graph); };
  d.graph_exec_destroy = [](GraphExec exec) -> Status { return destroy_graph(exec); };
  d.graph_launch = [](GraphExec exec, StreamHandle) -> Status {
    MC_FAKE(graph_launch);
    State::Steps steps;
    {
      Lock lock(state().mutex);
      const auto it = state().graphs.find(exec);
      if (it == state().graphs.end()) return kInvalidValue;
      steps = it->second;
    }
    for (const auto& step : steps)
      if (const Status s = step(); s != kOk) return s;
    return kOk;
  };
}
#undef MC_FAKE

inline Driver make_driver(bool graphs) {
  Driver all{};
  fill_devices(all);
  fill_memory(all);
  fill_work(all);
  if (graphs) fill_graphs(all);
  return all;
}
inline const Driver& driver() {
  static const Driver d = make_driver(true);
  return d;
}
// An old one; or one beside which the products of a library are computed at once, which would be
// missing from a graph.
inline const Driver& driver_without_graphs() {
  static const Driver d = make_driver(false);
  return d;
}

// Errors and counts of one test.
struct Scene {
  Scene() { reset(); }
  ~Scene() { reset(); }
  static void reset() {
    Lock lock(state().mutex);
    state().errors.clear();
    state().calls.clear();
    state().pending = state().later = false;
    state().closed_busy = 0;
    state().queued.clear();
    state().recorded.clear();
    state().count = 2;
    state().peers = 1;
  }
  void fails(const char* call, Status with) {
    Lock lock(state().mutex);
    state().errors[call] = with;
  }
  int calls(const char* call) {
    Lock lock(state().mutex);
    return state().calls[call];
  }
};

}  // namespace mc::device::fake
