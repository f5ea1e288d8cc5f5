// Queries the server of a replay before and after the run: readiness, model, cluster.
//
// Thread: the loop's; the calls turn the loop until the answer comes or their time is over.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "http/client.h"
#include "trace/report/report.h"

namespace mc::load {

struct Model {
  std::string id;
  std::optional<uint64_t> vocab;  // if the server says
};

// The content of /cluster. Absent members: the server has no such page, or does not say.
struct Cluster {
  std::optional<uint64_t> prefill, decode;  // workers that can do each
  std::string policy, admission;
  std::optional<uint64_t> block_tokens;
  std::optional<uint64_t> kv_errors;  // of all workers since they started
  // Blocks of the cache of each prefill worker; absent unless all say the same.
  std::optional<uint64_t> cache_blocks;
};
Cluster parse_cluster(std::string_view body);

class Target {
 public:
  // `url`: "http://host:port"; a path in it is a prefix of every page's.
  Target(io::Loop& loop, http::Client& client, std::string url);
  const std::string& url() const { return url_; }

  // Waits until /ready answers 200 (without such a page, /v1/models). `stopped`: give up early.
  // Errors: kUnavailable with the last answer or error.
  Result<> wait_ready(Duration limit, const std::function<bool()>& stopped = nullptr);
  Result<Model> model();  // the first of /v1/models
  Cluster cluster();      // empty where there is none

 private:
  Result<http::ClientResponse> get(const std::string& path, Duration limit);
  io::Loop& loop_;
  http::Client& client_;
  std::string url_;
};

}  // namespace mc::load
