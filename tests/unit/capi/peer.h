// Engines opened through the C interface, memory that they offer, and faults of their transfers.
#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "capi/mc/transfer.h"

namespace mc::capi {

struct Peer {
  using Options = std::initializer_list<std::pair<const char*, std::string>>;
  explicit Peer(const char* name, Options given = {{"addresses", "true"}}) {
    mc_options* options = nullptr;
    REQUIRE(mc_options_new(&options) == MC_OK);
    for (const auto& [option, value] : given)
      REQUIRE(mc_options_set(options, option, value.c_str()) == MC_OK);
    REQUIRE(mc_engine_open(name, options, &engine) == MC_OK);
    mc_options_free(options);
  }
  ~Peer() { close(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  mc_segment open(const Peer& other) const {
    mc_segment segment = 0;
    REQUIRE(mc_segment_open(engine, mc_engine_address(other.engine), 60'000, &segment) == MC_OK);
    return segment;
  }
  void close() {
    mc_engine_close(engine);
    engine = nullptr;
  }
  mc_engine* engine = nullptr;
};

struct Registered {
  Registered(const Peer& peer, std::vector<char>& memory, unsigned flags = MC_WRITABLE) {
    REQUIRE(mc_memory_register(peer.engine, memory.data(), memory.size(), nullptr, flags,
                               &handle) == MC_OK);
  }
  ~Registered() { free(); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  void free() {
    mc_memory_free(handle);
    handle = nullptr;
  }
  mc_memory* handle = nullptr;
};

// The script of an engine's option "fault".
struct FaultScript {
  explicit FaultScript(const std::string& rule) {
    const int file = ::mkstemp(path.data());
    REQUIRE(file >= 0);
    REQUIRE(::write(file, rule.data(), rule.size()) == static_cast<ssize_t>(rule.size()));
    ::close(file);
  }
  ~FaultScript() { ::unlink(path.c_str()); }
  FaultScript(const FaultScript&) = delete;
  FaultScript& operator=(const FaultScript&) = delete;
  std::string path = "/tmp/mc-fault.XXXXXX";
};

inline mc_request request_for(uint32_t op, char* local, mc_segment segment, uint64_t offset,
                              uint64_t bytes) {
  mc_request out{};
  out.op = op;
  out.local = local;
  out.segment = segment;
  out.offset = offset;
  out.bytes = bytes;
  return out;
}

}  // namespace mc::capi
