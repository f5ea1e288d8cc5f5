// What a decode worker refuses of a message that names blocks in the pool.
#include "serve/pipeline/pooled_kv.h"

#include <doctest/doctest.h>

namespace mc::serve {

TEST_CASE("blocks in the pool are of a part each, and below the prompt's end") {
  const cost::ModelSpec spec = cost::tiny();
  KvReady m{"r", 1, {0, 1}, 2, {}};
  const auto refused = check_pooled(m, 4, true, spec, 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kInvalid);
  m.parts = {{0, {0, 1}}, {1, {0}}};
  CHECK(check_pooled(m, 4, true, spec, 1));
  CHECK_FALSE(check_pooled(m, 1, true, spec, 1));
  CHECK_FALSE(check_pooled(m, 4, false, spec, 1));
  CHECK_FALSE(check_pooled(m, 4, true, spec, 2));
  m.parts.push_back({2, {0}});
  CHECK_FALSE(check_pooled(m, 4, true, spec, 1));
}

}  // namespace mc::serve
