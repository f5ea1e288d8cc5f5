#include "cmd/mc-xfer/client.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/random.h"
#include "cmd/mc-xfer/peer_name.h"
#include "rpc/socket.h"
#include "xfer/memory/device_platform.h"

namespace mc::xfer {
namespace {
constexpr Duration kOpenBudget = std::chrono::seconds(3);
constexpr uint64_t kStep = 64 * kMiB;
}  // namespace

Result<std::unique_ptr<Client>> Client::open(const ClientOptions& options, const char* verb) {
  MC_TRY_(rpc::load_cluster_key(options.cluster_key));
  auto client = std::make_unique<Client>();
  EngineOptions engine = options.engine;
  engine.node = strf("mc-xfer-%s-%d", verb, static_cast<int>(::getpid()));
  MC_TRY(client->engine, Engine::open(client->clock, engine, client->metrics));
  if (!options.device.empty()) {
    MC_TRY(client->location, add_device(*client->engine, options.device, client->clock));
  }
  MC_TRY_(check_peer_name(options.target, kOpenBudget));
  MC_TRY(client->segment, client->engine->open_segment(options.target, kOpenBudget));
  MC_TRY(client->offered, client->engine->segment_bytes(client->segment));
  client->timeout = options.timeout;
  return client;
}

Result<Memory> Client::memory(uint64_t bytes, const std::string& need) const {
  if (bytes > offered)
    return fail(Code::kInvalid, "%s need %s, the peer offers %s: its --size sets it", need.c_str(),
                rounded_bytes_text(bytes).c_str(), rounded_bytes_text(offered).c_str());
  return engine->allocate(bytes, true, location);
}

Result<> Client::put(const Memory& memory, std::span<std::byte> image) const {
  if (image.data() == memory.data()) return {};
  Request r;
  r.op = Op::kWrite;
  r.segment = engine->self();
  r.local = image.data();
  r.offset = memory.offset();
  r.bytes = image.size();
  return engine->transfer_sync(r, timeout);
}

Result<> Client::get(const Memory& memory, std::span<std::byte> image) const {
  if (image.data() == memory.data()) return {};
  Request r;
  r.op = Op::kRead;
  r.segment = engine->self();
  r.local = image.data();
  r.offset = memory.offset();
  r.bytes = image.size();
  return engine->transfer_sync(r, timeout);
}

Result<std::string> add_device(Engine& engine, const std::string& word, const Clock& clock) {
  MC_TRY(const auto kind, open_device_platform(word, clock));
  MC_TRY_(engine.add_memory_kind(kind->first().kind, kind));
  return kind->first().location();
}

Result<> Client::move(Op op, std::span<std::byte> local, uint64_t offset) const {
  for (uint64_t at = 0; at < local.size(); at += kStep) {
    Request r;
    r.op = op;
    r.segment = segment;
    r.local = local.data() + at;
    r.offset = offset + at;
    r.bytes = std::min<uint64_t>(kStep, local.size() - at);
    MC_TRY_(engine->transfer_sync(r, timeout));
  }
  return {};
}

Result<> Client::verify(std::span<const std::byte> local, const std::string& after) const {
  MC_TRY(const Memory back, engine->allocate(std::min<uint64_t>(kStep, local.size())));
  for (uint64_t at = 0; at < local.size(); at += kStep) {
    const auto part = local.subspan(at, std::min<uint64_t>(kStep, local.size() - at));
    MC_TRY_(move(Op::kRead, back.bytes().first(part.size()), at));
    if (xxh3(back.data(), part.size()) != xxh3(part.data(), part.size()))
      return fail(Code::kCorrupt, "contents differ at %llu after %s",
                  static_cast<unsigned long long>(at), after.c_str());
  }
  return {};
}

void fill_random(std::span<std::byte> memory, uint64_t seed) {
  Random random(seed);
  for (size_t at = 0; at < memory.size(); at += 8) {
    const uint64_t word = random.next();
    std::memcpy(memory.data() + at, &word, std::min<size_t>(8, memory.size() - at));
  }
}

}  // namespace mc::xfer
