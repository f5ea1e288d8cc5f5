// Calls the next process of a pipeline; cancels all calls in flight at once.
// It is an rpc::Client with cancel(), so that no caller waits for a stage that is gone.
//
// Thread: the loop's. The destructor drops the calls in flight without calling back.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "rpc/client.h"

namespace mc::serve {

class PipelineLink {
 public:
  static Result<std::unique_ptr<PipelineLink>> open(io::Loop& loop, const std::string& address) {
    MC_TRY(auto client, rpc::Client::connect(loop, address, rpc::Channel::kShm));
    return std::unique_ptr<PipelineLink>(new PipelineLink(std::move(client)));
  }
  PipelineLink(const PipelineLink&) = delete;
  PipelineLink& operator=(const PipelineLink&) = delete;

  const std::string& address() const { return client_->address(); }
  // Runs `done` once: with the answer, or with the error of cancel().
  template <class M>
  void call(const M& message, Duration budget,
            std::function<void(const Result<typename M::Reply>&)> done) {
    const uint64_t id = ++calls_;
    waiting_.emplace(id, [done](const Error& e) { done(fail(e)); });
    client_->call<M>(message, budget,
                     [this, id, done = std::move(done)](const Result<typename M::Reply>& reply) {
                       if (waiting_.erase(id) > 0) done(reply);
                     });
  }
  void cancel(const Error& why) {
    for (const auto& [id, end] : std::exchange(waiting_, {})) end(why);
  }

 private:
  explicit PipelineLink(std::unique_ptr<rpc::Client> client) : client_(std::move(client)) {}
  uint64_t calls_ = 0;
  std::map<uint64_t, std::function<void(const Error&)>> waiting_;
  std::unique_ptr<rpc::Client> client_;
};

}  // namespace mc::serve
