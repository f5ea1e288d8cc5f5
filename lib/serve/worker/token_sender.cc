#include "serve/worker/token_sender.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"

namespace mc::serve {
namespace {
constexpr size_t kConductorsMax = 64;
constexpr Duration kDrainWait = std::chrono::seconds(10);  // for a conductor that takes nothing
}  // namespace

void TokenSender::send(const std::string& conductor, std::vector<TokenUpdate> updates) {
  if (conductors_.size() >= kConductorsMax)  // forgets those for which nothing is kept
    std::erase_if(conductors_, [](const auto& c) { return c.second.outbox.empty(); });
  auto it = conductors_.find(conductor);
  if (it == conductors_.end()) {
    auto connected = rpc::Client::connect(loop_, conductor, rpc::Channel::kShm);
    if (!connected) {
      log_warn("decode", "%s", connected.error().what.c_str());
      return;
    }
    TokenOutboxOptions options;
    options.patience = patience_;
    it = conductors_.emplace(conductor, Conductor{std::move(*connected), TokenOutbox(options)})
             .first;
  }
  for (TokenUpdate& u : updates) it->second.outbox.add(std::move(u));
  flush(conductor, it->second);
}

void TokenSender::flush(const std::string& name, Conductor& to) {
  while (auto next = to.outbox.next(loop_.now())) {
    TokenBatch message;
    message.node = node_;
    message.updates = std::move(next->updates);
    const auto answered = [this, name, id = next->id](const Result<rpc::Empty>& answer) {
      Conductor& from = conductors_.at(name);  // it owns the client that calls this
      if (answer) {
        from.outbox.taken(id);
      } else {
        if (!from.outbox.failing())
          log_warn("decode", "conductor %s: %s: tokens are sent again until it takes them",
                   name.c_str(), answer.error().what.c_str());
        from.outbox.lost(id, loop_.now());
      }
      flush(name, from);
    };
    to.client->call(message, retry_, answered);
  }
}

void TokenSender::drop(const std::string& conductor, const std::string& request) {
  const auto it = conductors_.find(conductor);
  if (it != conductors_.end()) it->second.outbox.drop(request);
}

std::vector<std::string> TokenSender::tick() {
  std::vector<std::string> gone;
  for (auto& [name, to] : conductors_) {
    if (to.outbox.tick(loop_.now()))
      flush(name, to);
    else
      gone.push_back(name);
  }
  for (const std::string& name : gone) {
    log_warn("decode", "conductor %s has taken no token for %s: its requests end", name.c_str(),
             to_text(patience_).c_str());
    conductors_.erase(name);
  }
  return gone;
}

bool TokenSender::settled() const {
  return std::all_of(conductors_.begin(), conductors_.end(), [](const auto& c) {
    return c.second.outbox.empty() || c.second.outbox.silent() >= kDrainWait;
  });
}

}  // namespace mc::serve
