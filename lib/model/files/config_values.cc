#include "model/files/config_values.h"

#include "base/json.h"

namespace mc::model {

Result<uint64_t> number(const Json& object, const char* key, uint64_t fallback, uint64_t most) {
  uint64_t n = fallback;
  if (member(object, key) != nullptr) {
    MC_TRY(n, get_uint(object, key));
  } else if (fallback == 0) {
    return fail(Code::kInvalid, "'%s' is missing", key);
  }
  if (n == 0 || n > most)
    return fail(Code::kInvalid, "'%s' is %llu, want 1 to %llu", key,
                static_cast<unsigned long long>(n), static_cast<unsigned long long>(most));
  return n;
}

Result<> small(const Json& object, const char* key, uint64_t fallback, uint64_t most,
               uint32_t& out) {
  MC_TRY(const uint64_t n, number(object, key, fallback, most));
  out = static_cast<uint32_t>(n);
  return {};
}

Result<double> positive(const Json& object, const char* key, double fallback) {
  double n = fallback;
  if (member(object, key) != nullptr) {
    MC_TRY(n, get_number(object, key));
  }
  if (!(n > 0 && n < 1e12))
    return fail(Code::kInvalid, "'%s' is %g, want a number above 0", key, n);
  return n;
}

}  // namespace mc::model
