// Serves a Master: ZeroMQ calls, deadlines by the real clock, HTTP for people.
//
// With --ha several masters run. The Master exists only while this process leads, and starts empty
// with every lead, as after a restart. A standby refuses calls and names the leader. If there is no
// leader, it holds calls for a moment, in which one may be elected.
//
// Thread: the loop's.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "http/server.h"
#include "io/loop.h"
#include "rpc/listener.h"
#include "rpc/server.h"
#include "store/election/leader_election.h"
#include "store/master/master.h"
#include "store/service/master_metrics.h"

namespace mc::store {

struct MasterServiceOptions {
  std::string listen = "127.0.0.1:5550";
  std::string http = "127.0.0.1:5551";
  std::string events = "127.0.0.1:0";
  std::string ha, advertise;
  Duration leader_ttl = std::chrono::seconds(3);
  MasterOptions master;
  void describe(OptionList& v);
};

class MasterService {
 public:
  // `epoch` and `seed`: see Master. `trace`: of the calls that it answers.
  // Errors: kUnavailable (a port is in use); kInvalid.
  static Result<std::unique_ptr<MasterService>> open(io::Loop& loop,
                                                     const MasterServiceOptions& options,
                                                     uint64_t epoch, uint64_t seed,
                                                     Metrics& metrics,
                                                     rpc::Server::BeginAnswer trace = {});
  ~MasterService();
  MasterService(const MasterService&) = delete;
  MasterService& operator=(const MasterService&) = delete;

  const std::string& control() const { return rpc_->address(); }
  const std::string& http() const { return http_->address(); }
  const std::string& events() const { return events_->address(); }
  // Resigns, so that another master leads at once, then calls back.
  void leave(std::function<void()> done);

 private:
  template <class R>
  class Held;
  struct Parked {  // a call that waits for a leader
    std::function<void()> again, give_up;
  };
  MasterService(io::Loop& loop, const MasterServiceOptions& options, uint64_t epoch, uint64_t seed,
                Metrics& metrics, std::unique_ptr<rpc::Server> server);
  void answer_all();
  template <class M>
  void answer();
  template <class M>
  void take(const M& m, const rpc::Call& call, const rpc::Reply<typename M::Reply>& reply);
  template <class M>
  void stand_by(const M& m, const rpc::Call& call, const rpc::Reply<typename M::Reply>& reply);
  template <class R>
  Done<R> held(const rpc::Reply<R>& reply);
  template <class M>
  Done<typename M::Reply> counted(const M& m, Done<typename M::Reply> done);
  bool leads() const {
    return master_ != nullptr && (leader_election_ == nullptr || leader_election_->leads());
  }
  void join(const EtcdUrl& etcd, const MasterServiceOptions& options);
  void elected();  // handles a lead won or lost
  void run_parked(Time now);
  std::string leader() const;
  std::string standing_by() const;  // a text for people
  void arm();                       // after each message: sets the timer and schedules publishing
  void publish();                   // sends new events
  void subscribers();               // reads who came or went
  void page(const http::Exchange& exchange);
  void page_standing_by(const http::Exchange& exchange);

  io::Loop& loop_;
  Metrics& metrics_;
  const MasterOptions options_;
  uint64_t seed_;
  std::unique_ptr<Master> master_;
  std::unique_ptr<rpc::Server> rpc_;
  MasterMetrics told_;
  std::unique_ptr<http::Server> http_;
  std::unique_ptr<rpc::Listener> events_;
  std::unique_ptr<LeaderElection> leader_election_;  // with --ha
  uint64_t lead_ = 0;                                // the epoch at the start of the lead
  std::multimap<Time, Parked> parked_;
  io::Loop::Handle parked_timer_ = 0;
  uint64_t published_ = 1;  // number of the first unpublished event
  io::Loop::Handle timer_ = 0;
  Time armed_ = Time::max();
};

}  // namespace mc::store
