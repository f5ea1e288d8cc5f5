// What is said of an external engine when it is registered, by POST /register or in a file.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "serve/external/pairs.h"

namespace mc::serve {

struct ExternalOptions {
  std::string name;     // instance_id
  std::string url;      // "http://host:port" or https; empty: only indexed, gets no requests
  std::string ca_file;  // https: certificates to trust; empty: the system's
  std::string model;    // as it calls it
  std::string serves;   // the same model, as we call it; empty: the conductor's own
  std::string tenant = "default";  // for /query
  std::string events, replay;      // of its publisher; empty: its cache is not known
  uint32_t block_tokens = 0;       // 0: as its first event says
  uint64_t rank = 0;               // data parallel
  // "both"; or "prefill", which hands its KV to any engine of role "decode" in the same group.
  std::string role = "both";
  std::string kv_group = "default";
  PairKind pair = PairKind::kSequential;  // how it and its other half share a request
  std::string bootstrap;  // of a first half that meets the second: "http://host:port"
  std::string api_key;    // sent to it as a bearer's; in no log and no answer of ours
  bool posted = false;    // by POST /register: kept in the state file, where there is one
};

// The first may hand what it computed to the second.
bool are_halves(const ExternalOptions& first, const ExternalOptions& second);

// What POST /register takes:
//   {"instance_id", "url", "model", "modelname", "endpoint", "replay_endpoint", "block_size",
//   "tenant_id",
//    "dp_rank", "type", "role", "kv_group", "pair", "bootstrap",
//    "api_key"}
// Errors: kInvalid, naming the member. Others than these are let be: see unknown_members().
Result<ExternalOptions> parse_external(const Json& json);
// Members that nothing reads, as "unknown member 'modelnam': did you mean modelname?"; "": none.
std::string unknown_members(const Json& registration);
Json registration_json(const ExternalOptions& options);  // what parse_external() reads
// A file with a list of those; there "key_file" may name a file with the key, of mode 0600, and
// unknown members are errors, unless the file was written by a conductor, maybe a newer one. A file
// that has keys itself must be of mode 0600 (kDenied).
Result<std::vector<ExternalOptions>> read_external(const std::string& path, bool written = false);

// Errors: kInvalid, as parse_external().
Result<> check_external(const ExternalOptions& options);

}  // namespace mc::serve
