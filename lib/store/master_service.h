// Drives a Master: ZeroMQ calls in, the real clock for its deadlines, HTTP for people.
//
// Thread: the loop's.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "http/server.h"
#include "io/loop.h"
#include "rpc/server.h"
#include "rpc/socket.h"
#include "store/master.h"

namespace mc::store {

struct MasterServiceOptions {
  std::string listen = "127.0.0.1:5550";
  std::string http = "127.0.0.1:5551";
  std::string events = "127.0.0.1:0";
  MasterOptions master;
  void describe(OptionList& v);
};

class MasterService {
 public:
  // `epoch` and `seed` as Master takes them. Errors: kUnavailable when a port is in use; kInvalid.
  static Result<std::unique_ptr<MasterService>> open(io::Loop& loop,
                                                     const MasterServiceOptions& options,
                                                     uint64_t epoch, uint64_t seed,
                                                     Metrics& metrics);
  ~MasterService();
  MasterService(const MasterService&) = delete;
  MasterService& operator=(const MasterService&) = delete;

  const std::string& control() const { return rpc_->address(); }
  const std::string& http() const { return http_->address(); }
  const std::string& events() const { return events_->address(); }
  const Master& master() const { return master_; }

 private:
  MasterService(io::Loop& loop, const MasterOptions& options, uint64_t epoch, uint64_t seed,
                Metrics& metrics, std::unique_ptr<rpc::Server> server);
  template <class M>
  void answer();
  template <class M>
  void answer_later();
  void arm();      // after each message: the timer, and what is to be published
  void publish();  // events since the last time, as one message
  void page(const http::Exchange& exchange);
  void update_metrics();

  io::Loop& loop_;
  Metrics& metrics_;
  Master master_;
  std::unique_ptr<rpc::Server> rpc_;
  std::unique_ptr<http::Server> http_;
  std::optional<rpc::Socket> events_;
  uint64_t published_ = 1;  // number of the first event that was not
  io::Loop::Handle timer_ = 0;
  Time armed_ = Time::max();
};

}  // namespace mc::store
