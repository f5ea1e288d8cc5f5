// A master and a node in this process, and a store opened through the C interface.
#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "capi/mc/store.h"
#include "io/loop.h"
#include "rpc/server.h"
#include "store/node/node.h"
#include "store/service/master_service.h"
#include "tests/slow.h"
#include "xfer/core/messages.h"

namespace mc::capi {

using namespace std::chrono_literals;

class Pool {
 public:
  // `read_only`: the node says that its memory is, which is not so with a node that tells the
  // truth.
  explicit Pool(uint64_t bytes = 64 * kMiB, store::MasterOptions how = {}, bool read_only = false,
                const std::string& listen = "127.0.0.1:0")
      : loop_(clock_) {
    store::MasterServiceOptions options;
    options.listen = listen;
    options.http = "127.0.0.1:0";
    options.master = std::move(how);
    options.master.rebuild_wait = 0s;  // what it does not know is absent
    auto master = store::MasterService::open(loop_, options, 1'700'000'000, 1, metrics_);
    REQUIRE(master);
    master_ = std::move(*master);
    xfer::EngineOptions e;
    e.node = "n";
    auto engine = xfer::Engine::open(clock_, e, metrics_);
    REQUIRE(engine);
    engine_ = std::move(*engine);
    auto server = rpc::Server::open(loop_, "127.0.0.1:0", metrics_);
    REQUIRE(server);
    server_ = std::move(*server);
    if (read_only)
      server_->on<xfer::DescribeSegment>(
          [this](const xfer::DescribeSegment&,
                 const rpc::Call&) -> Result<xfer::SegmentDescriptor> {
            xfer::SegmentDescriptor told = engine_->describe();
            for (xfer::BufferInfo& buffer : told.buffers) buffer.writable = false;
            return told;
          });
    else
      xfer::serve(*engine_, *server_);
    store::NodeOptions n;
    n.master = master_->control();
    n.size = Bytes{bytes};
    auto node = store::StoreNode::open(loop_, *engine_, "n", server_->address(), n, metrics_);
    REQUIRE(node);
    node_ = std::move(*node);
    bool mounted = false;
    node_->on_mounted([&] { mounted = true; });
    for (int i = 0; i < 3000 && !mounted; ++i) REQUIRE(loop_.turn(10ms));
    REQUIRE(mounted);
    address_ = master_->control();
    thread_ = std::thread([this] { (void)loop_.run(); });
  }
  ~Pool() {
    mc_store_close(store_);
    stop();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // From here on master and node stand still.
  void stop() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const { return address_; }
  mc_store* open(const char* timeout = "60s", const char* name = "c",
                 const char* transports = nullptr, const char* fault = nullptr) const {
    mc_options* options = nullptr;
    REQUIRE(mc_options_new(&options) == MC_OK);
    REQUIRE(mc_options_set(options, "timeout", timeout) == MC_OK);
    if (transports != nullptr) REQUIRE(mc_options_set(options, "transports", transports) == MC_OK);
    if (fault != nullptr) REQUIRE(mc_options_set(options, "fault", fault) == MC_OK);
    mc_store* store = nullptr;
    REQUIRE(mc_store_setup(name, address_.c_str(), options, &store) == MC_OK);
    mc_options_free(options);
    return store;
  }
  mc_store* store() {
    if (store_ == nullptr) store_ = open();
    return store_;
  }
  // Until so many nodes are ready.
  void await_nodes(uint32_t wanted) {
    uint32_t nodes = wanted + 1;
    for (const Time end = clock_.now() + 60s; nodes != wanted && clock_.now() < end;) {
      std::this_thread::yield();
      REQUIRE(mc_store_health(store(), 60'000, &nodes, nullptr) == MC_OK);
    }
    REQUIRE(nodes == wanted);
  }

 private:
  SteadyClock clock_;
  Metrics metrics_;
  io::Loop loop_;
  std::unique_ptr<store::MasterService> master_;
  std::unique_ptr<xfer::Engine> engine_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<store::StoreNode> node_;
  std::string address_;
  std::thread thread_;
  mc_store* store_ = nullptr;
};

struct CloseQueue {
  void operator()(mc_queue* queue) const { mc_queue_close(queue); }
};
using OwnQueue = std::unique_ptr<mc_queue, CloseQueue>;

inline OwnQueue open_queue(mc_store* store, uint32_t threads = 1, uint32_t depth = 0) {
  mc_queue* queue = nullptr;
  REQUIRE(mc_queue_open(mc_store_engine(store), threads, depth, &queue) == MC_OK);
  return OwnQueue(queue);
}

// The next call that is done.
inline mc_done next(const OwnQueue& queue) {
  REQUIRE(mc_queue_wait(queue.get(), 60'000) == MC_OK);
  mc_done done{};
  REQUIRE(mc_queue_take(queue.get(), &done, 1) == 1);
  return done;
}

inline mc_key key_of(const std::string& text) { return {text.data(), text.size()}; }

inline std::string error_text() { return mc_last_error(); }

// A value of one buffer. What it names must outlive it.
struct Item {
  Item(const std::string& key, void* data, size_t bytes, const mc_put_options* options = nullptr)
      : buffer{data, bytes}, key_(key_of(key)), options_(options) {}
  mc_buffer buffer;
  operator mc_item() const { return {key_, &buffer, 1, options_, 0}; }

 private:
  mc_key key_;
  const mc_put_options* options_;
};

}  // namespace mc::capi
