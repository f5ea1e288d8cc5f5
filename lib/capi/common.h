// Shared code of the C interfaces of the engine and the store. No exception leaves them: what the
// library itself throws (out of memory) becomes a code here.
//
// Thread: any; each thread has its own last error text.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "base/fork.h"
#include "base/metrics.h"
#include "base/options.h"
#include "base/time.h"
#include "capi/devices.h"
#include "capi/mc/transfer.h"
#include "io/limits.h"
#include "io/loop.h"
#include "rpc/server.h"
#include "store/client/client.h"
#include "xfer/engine.h"

namespace mc::capi {

struct Settings {
  std::string listen = "127.0.0.1:0", cluster_key, log_level = "warn", devices = "auto";
  xfer::EngineOptions engine;
  store::ClientOptions store;
  void describe(OptionList& v);
};

mc_code report(const Error& error);
mc_code report(const Result<>& outcome);

// Runs `work` (which returns Result<>), without letting an exception out.
template <class Work>
mc_code guarded(Work&& work) {
  try {
    return report(work());
  } catch (const std::bad_alloc&) {
    return report({Code::kNoSpace, "out of memory"});
  } catch (const std::system_error& e) {
    return report({Code::kUnavailable, std::string(e.what()) +
                                           ": see the limits on processes "
                                           "(ulimit -u, pids.max), open files and memory"});
  } catch (const std::exception& e) {
    return report({Code::kInternal, e.what()});
  }
}

Result<> in_its_process(const ProcessMark& mark);

// kInvalid if the argument of that name is NULL.
Result<> need(const void* argument, const char* name);

// Whether there is such an object, of this process.
template <class Handle>
bool usable(const Handle* handle) {
  return handle != nullptr && handle->mark.here();
}

// The same for a call on an object, which must be one of this process.
template <class Handle, class Work>
mc_code guarded(const Handle* handle, Work&& work) {
  return guarded([&]() -> Result<> {
    MC_TRY_(need(handle, "the object"));
    MC_TRY_(in_its_process(handle->mark));
    return work();
  });
}

// In a child of a fork an object of its parent stays: its threads are not there to be ended.
template <class Handle>
void destroy(Handle* handle) {
  if (usable(handle)) delete handle;
}

// A structure that begins with its size, as its caller's version has it.
template <class T>
Result<T> sized(const T* in, const char* name) {
  MC_TRY_(need(in, name));
  T out{};
  const size_t size = in->size;
  if (size < sizeof in->size)
    return fail(Code::kInvalid, "%s.size is %zu: set it to sizeof(%s)", name, size, name);
  std::memcpy(&out, in, std::min(size, sizeof out));
  out.size = sizeof out;
  const auto* bytes = reinterpret_cast<const std::byte*>(in);
  for (size_t i = sizeof out; i < size; ++i)
    if (bytes[i] != std::byte{})
      return fail(Code::kInvalid, "%s of %zu bytes has fields that this library does not know",
                  name, size);
  return out;
}

// An engine and what it opens at once take this many at most.
inline constexpr int kSpareFiles = 64;

// That of a store has memory of the host only.
Result<std::unique_ptr<mc_engine>> open_engine(const char* node, const mc_options* options,
                                               bool of_store);

}  // namespace mc::capi

struct mc_options {
  mc::capi::Settings settings;
};

struct mc_engine {
  explicit mc_engine(mc::capi::Settings s)
      : settings(std::move(s)), devices(settings.devices), loop(clock) {}
  ~mc_engine() {
    loop.stop();
    if (control.joinable()) control.join();
  }
  mc::ProcessMark mark;
  mc::capi::Settings settings;
  mc::SteadyClock clock;
  mc::capi::Devices devices;
  mc::Metrics metrics;
  mc::io::Loop loop;  // of the control endpoint
  std::unique_ptr<mc::xfer::Engine> engine;
  std::unique_ptr<mc::rpc::Server> server;
  std::string address;
  std::thread control;
};

struct mc_memory {
  mc::ProcessMark mark;
  mc::xfer::Memory memory;
  bool writable = false;  // by peers
};
