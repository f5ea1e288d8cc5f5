// Chooses which of several servers to call. One of them answers; the others stand by and refuse. A
// refusal names the server that answers if the refusing one knows it; calls go there next. A silent
// server is skipped for the next of the list. Servers that refusals named join the list. When there
// are too many of those, a new one replaces an old one.
//
//   MC_TRY(ServerList servers, ServerList::parse("10.0.0.1:5550,10.0.0.2:5550"));
//   servers.address(servers.current());
//
// Errors: of parse(): kInvalid for what is no list of addresses.
// Thread: one owner. Pure.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace mc::rpc {

class ServerList {
 public:
  static constexpr size_t kMax = 16;  // addresses, with those that refusals named

  static Result<ServerList> parse(const std::string& addresses);  // separated by commas

  size_t size() const { return addresses_.size(); }
  size_t current() const { return current_; }
  const std::string& address(size_t i) const { return addresses_[i]; }
  std::string text() const;  // the whole list
  void choose(size_t at) { current_ = at; }

  // `at` gave no useful answer: chooses the next one, unless another call did so already.
  void skip(size_t at);
  // `at` refused a call and named `instead`, which may be empty. True: the current server is
  // another one now, and the caller may repeat the call there.
  bool refused(size_t at, const std::string& instead);

 private:
  explicit ServerList(std::vector<std::string> addresses)
      : addresses_(std::move(addresses)), listed_(addresses_.size()) {}
  std::vector<std::string> addresses_;
  size_t listed_;
  size_t current_ = 0;
  size_t replaced_ = 0;  // servers that refusals named: the next to replace when there are too many
};

}  // namespace mc::rpc
