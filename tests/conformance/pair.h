// Two engines that are peers to each other, over one transport.
#pragma once
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "tests/conformance/fabric.h"
#include "tests/slow.h"
#include "xfer/engine.h"

namespace mc::xfer {

using namespace std::chrono_literals;

inline const SteadyClock kClock;

inline std::unique_ptr<Engine> make_engine(const std::string& node,
                                           std::vector<std::string> transports,
                                           Duration peer_timeout = 2s * kSlow) {
  static Metrics metrics;
  EngineOptions o;
  o.node = node;
  o.transports = std::move(transports);
  o.peer_timeout = peer_timeout;
  auto engine = Engine::open(kClock, o, metrics);
  REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
  return std::move(*engine);
}

inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  Random random(seed);
  for (auto& b : bytes) b = static_cast<std::byte>(random.next());
}
inline uint64_t digest(std::span<const std::byte> bytes) {
  return xxh3(bytes.data(), bytes.size());
}

// The names under which the suite runs: "self" is one engine, its own peer. rdma, where there are
// NICs, or those of the emulator.
inline std::vector<std::string> with_rdma(std::vector<std::string> names) {
  if (has_rdma()) names.push_back("rdma");
  return names;
}
inline const std::vector<std::string> kTransports = with_rdma({"self", "shm", "tcp"});
inline const std::vector<std::string> kBetween = with_rdma({"shm", "tcp"});  // processes

struct Pair {
  std::unique_ptr<Engine> owner, user;  // the same engine for "self" keeps `user` null
  Memory remote;
  SegmentHandle segment = 0;
  explicit Pair(const std::string& transport, uint64_t bytes = 4 * kMiB, bool writable = true) {
    const std::vector<std::string> allowed{transport == "self" ? "shm" : transport};
    owner = make_engine("owner", allowed);
    auto memory = owner->allocate(bytes, writable);
    REQUIRE(memory.has_value());
    remote = *memory;
    if (transport == "self") return;
    user = make_engine("user", allowed);
    auto opened = user->open_segment(owner->describe());
    REQUIRE(opened.has_value());
    segment = *opened;
    CHECK(user->transport_of(segment) == transport);
  }
  Engine& engine() { return user ? *user : *owner; }
  Request request(Op op, std::span<std::byte> local, uint64_t at = 0) const {
    Request r;
    r.op = op;
    r.local = local.data();
    r.bytes = local.size();
    r.segment = segment;
    r.offset = remote.offset() + at;
    return r;
  }
};

}  // namespace mc::xfer
