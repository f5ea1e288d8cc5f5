// Memory of this process for the pool: a node of the store with an engine, a loop and a thread of
// its own. The engine of the store's client is another one: its generation moves with every buffer
// that is withdrawn, and a node's must not.
#include <atomic>
#include <future>
#include <span>
#include <utility>

#include "base/log.h"
#include "capi/common.h"
#include "capi/mc/store.h"
#include "capi/store_calls.h"
#include "store/node/node.h"

struct mc_lent {
  explicit mc_lent(mc::Duration d) : drain(d), loop(clock) {}
  ~mc_lent() {
    if (thread.joinable()) leave();
    if (thread.joinable()) thread.join();
  }
  void leave();

  mc::ProcessMark mark;
  const mc::Duration drain;
  mc::SteadyClock clock;
  mc::Metrics metrics;
  mc::io::Loop loop;
  std::unique_ptr<mc::xfer::Engine> engine;
  std::unique_ptr<mc::rpc::Server> server;
  std::unique_ptr<mc::store::StoreNode> node;  // of the loop's thread, once that runs
  std::thread thread;
};

// Drains, unmounts and ends the loop; each step has an end of its own.
void mc_lent::leave() {
  const auto ends = [this] { node->stop([this] { loop.stop(); }); };
  if (!loop.post([this, ends] { node->drain(drain, ends); })) loop.stop();
}

namespace {

using namespace mc;
using mc::capi::guarded;

// The caller's; empty: the library allocates.
Result<std::span<std::byte>> memory_of(const mc_lend_options& how) {
  if (how.memory == nullptr) return std::span<std::byte>{};
  if (!how.memory->writable)
    return fail(Code::kDenied, "mc_lend_options.memory: register it with MC_WRITABLE");
  const std::span<std::byte> all = how.memory->memory.bytes();
  if (how.numa != 0 || how.bytes > all.size())
    return fail(Code::kInvalid,
                "mc_lend_options: of memory of %zu bytes, %llu are wanted, and numa is %u: want no "
                "more than there are, and 0",
                all.size(), static_cast<unsigned long long>(how.bytes), how.numa);
  return all.first(how.bytes == 0 ? all.size() : how.bytes);
}

Result<> open_node(mc_store& store, const mc_lend_options& how, mc_lent& out) {
  MC_TRY(const std::span<std::byte> memory, memory_of(how));
  if (how.bytes == 0 && memory.empty()) return fail(Code::kInvalid, "mc_lend_options.bytes is 0");
  constexpr uint64_t kMost = uint64_t{1} << 46;  // of one piece of memory
  if (how.bytes >= kMost)
    return fail(Code::kNoSpace, "mc_lend_options.bytes is %llu: want less than %llu",
                static_cast<unsigned long long>(how.bytes), static_cast<unsigned long long>(kMost));
  static std::atomic<uint32_t> number{0};
  const capi::Settings& settings = store.engine->settings;
  store::NodeOptions node;
  node.master = store.options.master;
  node.size = Bytes{how.bytes};
  node.memory = memory;
  if (how.numa != 0)
    node.segments = {
        strf("%llu@numa=%u", static_cast<unsigned long long>(how.bytes), how.numa - 1)};
  node.host = how.host != nullptr ? how.host : store.options.put.host;
  node.domain = how.domain != nullptr ? how.domain : "";
  xfer::EngineOptions engine = settings.engine;
  engine.node = strf("%s-pool-%u", settings.engine.node.c_str(), ++number);
  MC_TRY(out.engine, xfer::Engine::open(out.clock, engine, out.metrics));
  const std::string listen = settings.listen.substr(0, settings.listen.rfind(':')) + ":0";
  MC_TRY(out.server, rpc::Server::open(out.loop, listen, out.metrics));
  serve(*out.engine, *out.server);
  MC_TRY(out.node, store::StoreNode::open(out.loop, *out.engine, engine.node, out.server->address(),
                                          node, out.metrics));
  out.thread = std::thread([&out] {
    if (auto ran = out.loop.run(); !ran)
      log_error("capi", "the node %s stopped: %s", out.node->me().name.c_str(),
                ran.error().what.c_str());
  });
  return {};
}

}  // namespace

extern "C" {

mc_code mc_store_lend(mc_store* store, const mc_lend_options* options, mc_lent** out) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY_(capi::need(out, "out"));
    MC_TRY(const mc_lend_options how, capi::sized(options, "mc_lend_options"));
    MC_TRY_(io::spare_files(capi::kSpareFiles));
    auto node = std::make_unique<mc_lent>(std::chrono::milliseconds(how.drain_ms));
    MC_TRY_(open_node(*store, how, *node));
    *out = node.release();
    return {};
  });
}

void mc_lent_free(mc_lent* node) { capi::destroy(node); }

}  // extern "C"
