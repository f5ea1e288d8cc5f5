// Builds the masters' requests to etcd's JSON gateway (v3) and parses its answers. Answers are
// untrusted. Numbers travel as text, keys and values as base64.
//
//   <prefix>/store/leader/address   who leads; bound to its lease
//   <prefix>/store/leader/epoch     the latest leader's epoch
//   <prefix>/store/masters/ADDRESS  every running master; bound to its own lease
//
// Errors: kInvalid for a malformed URL; kCorrupt for a malformed answer.
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "store/election/election_state.h"

namespace mc::store {

struct EtcdUrl {  // etcd://host:port[,host:port...][/prefix]
  std::vector<std::string> endpoints;
  std::string prefix = "mc";
  static bool is(const std::string& text) { return text.starts_with("etcd://"); }
  static Result<EtcdUrl> parse(const std::string& text);
};

struct EtcdCall {
  std::string path, body;  // POST, JSON
};

EtcdCall call_of(const EtcdQuestion& q, const std::string& prefix, const std::string& me);
Result<EtcdAnswer> answer_to(const EtcdQuestion& q, const std::string& prefix, int status,
                             const std::string& body);

EtcdCall masters_call(const std::string& prefix);
// The masters' addresses, the leader's first.
Result<std::vector<std::string>> masters_answer(const std::string& prefix, int status,
                                                const std::string& body);

}  // namespace mc::store
