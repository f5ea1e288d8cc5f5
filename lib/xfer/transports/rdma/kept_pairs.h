// Tells owners every ten seconds which of their queue pairs this process still holds, in use or
// idle, so that they know those of processes that are gone. Private to rdma/*.cc.
//
// Thread: the control thread.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "io/loop.h"
#include "rpc/client.h"

namespace mc::xfer::rdma {

class KeptPairs {
 public:
  static constexpr Duration kEvery = std::chrono::seconds(10);
  struct Owner {
    std::string control, secret;  // of its descriptor
    auto operator<=>(const Owner&) const = default;
  };
  using ClientOf = std::function<Result<rpc::Client*>(const std::string& control)>;
  KeptPairs(io::Loop& loop, ClientOf client) : loop_(loop), client_(std::move(client)) {}
  void add(const Owner& owner, uint32_t nic, uint32_t number);
  void remove(const Owner& owner, uint32_t nic, uint32_t number);

 private:
  void tell();
  io::Loop& loop_;
  const ClientOf client_;
  std::map<Owner, std::set<std::pair<uint32_t, uint32_t>>> held_;  // NIC and number
  io::Loop::Handle timer_ = 0;                                     // while some are held
};

}  // namespace mc::xfer::rdma
