// A process that has no further files to open.
#include <sys/resource.h>

#include <filesystem>

#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

rlim_t open_files() {
  rlim_t n = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n;
  return n;
}

class FileLimit {
 public:
  explicit FileLimit(rlim_t soft) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit lower{soft, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
  }
  ~FileLimit() { CHECK(::setrlimit(RLIMIT_NOFILE, &before_) == 0); }

 private:
  rlimit before_{};
};

// ZeroMQ, the library below, and the loop abort where they lack a file.
TEST_CASE("an engine or a store that cannot open its files says so, and works once it can") {
  const Pool pool;
  int refused = 0, opened = 0;
  for (const unsigned spare :
       {0u, 1u, 2u, 4u, 8u, 12u, 16u, 24u, 32u, 48u, 60u, 64u, 72u, 90u, 120u, 200u}) {
    CAPTURE(spare);
    mc_store* store = nullptr;
    {
      const FileLimit limit(open_files() + spare);
      const mc_code code = mc_store_setup("few", pool.address().c_str(), nullptr, &store);
      CHECK((code == MC_OK || code == MC_NO_SPACE));
      if (code == MC_NO_SPACE) {
        CHECK(std::string(mc_last_error()).find("ulimit -n") != std::string::npos);
        ++refused;
        continue;
      }
      ++opened;
    }
    CHECK(mc_store_put(store, "k", 1, "value", 5) == MC_OK);
    mc_store_close(store);
  }
  CHECK(refused > 0);
  CHECK(opened > 0);
}

}  // namespace
}  // namespace mc::capi
