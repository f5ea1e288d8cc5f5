#include "store/node/node_opening.h"

#include <sys/eventfd.h>

#include <utility>

namespace mc::store {
namespace {

std::string memory_of(const NodeOptions& options) {
  if (!options.memory.empty()) return rounded_bytes_text(options.memory.size());
  std::string all;
  for (const std::string& segment : options.segments) all += (all.empty() ? "" : ", ") + segment;
  return all.empty() ? rounded_bytes_text(options.size.n) : all;
}

}  // namespace

NodeOpening::NodeOpening(io::Loop& loop, xfer::Engine& engine, NodeId name, NodeOptions options,
                         Done done)
    : loop_(loop),
      what_("starting: finds " + options.master + " and allocates " + memory_of(options)),
      done_(std::move(done)),
      ended_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  MC_CHECK(ended_);
  watch_ = loop_.watch_fd(ended_.get(), [this] { finish(); });
  thread_ = std::thread(
      [this, &engine, &clock = loop.clock(), name = std::move(name), options = std::move(options)] {
        prepared_.emplace(prepare_node(engine, name, options, clock));
        eventfd_write(ended_.get(), 1);
      });
}

NodeOpening::~NodeOpening() {
  loop_.unwatch(watch_);
  if (thread_.joinable()) thread_.join();
}

void NodeOpening::finish() {
  loop_.unwatch(watch_);
  thread_.join();
  const Done done = std::exchange(done_, nullptr);
  done(std::move(*prepared_));  // may destroy this
}

}  // namespace mc::store
