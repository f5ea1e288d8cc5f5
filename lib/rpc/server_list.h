// Which of several servers is asked: one of them answers, the others stand by and refuse, telling
// who does when they know. A server that refuses names the next; one that is silent is passed over
// for the next of the list. Those that were told of are asked like those of the list; when there
// are too many of them, a new one takes the place of an old.
//
//   MC_TRY(ServerList servers, ServerList::parse("10.0.0.1:5550,10.0.0.2:5550"));
//   servers.address(servers.current());
//
// Thread: one owner. Pure. Errors of parse(): kInvalid for what is no list of addresses.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace mc::rpc {

class ServerList {
 public:
  static constexpr size_t kMax = 16;  // addresses, those that were told of included

  static Result<ServerList> parse(const std::string& addresses);  // separated by commas

  size_t size() const { return addresses_.size(); }
  size_t current() const { return current_; }
  const std::string& address(size_t i) const { return addresses_[i]; }
  std::string text() const;  // all of the list
  void choose(size_t at) { current_ = at; }

  // No answer from there, or one of no use: the next is asked, unless that was decided meanwhile.
  void skip(size_t at);
  // It is not the one; `instead` is, or empty. True: another one is asked now, and a call that it
  // refused may be made there.
  bool refused(size_t at, const std::string& instead);

 private:
  explicit ServerList(std::vector<std::string> addresses)
      : addresses_(std::move(addresses)), listed_(addresses_.size()) {}
  std::vector<std::string> addresses_;
  size_t listed_;
  size_t current_ = 0;
  size_t told_ = 0;  // which of the others goes next, when there are too many
};

}  // namespace mc::rpc
