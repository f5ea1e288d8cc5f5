#include "serve/answers/api_error.h"

#include "base/json.h"

namespace mc::serve {
namespace {

const char* type_name(int status) {
  switch (status) {
    case 400:
    case 401:
    case 404:
    case 405:
    case 408:
    case 413:
    case 415:
    case 421:
    case 431: return "invalid_request_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    default: return "server_error";
  }
}

}  // namespace

std::string error_json(const ApiError& e) {
  const Json body = {{"error",
                      {{"message", e.message},
                       {"type", type_name(e.status)},
                       {"param", e.param.empty() ? Json() : Json(e.param)},
                       {"code", e.code.empty() ? Json() : Json(e.code)}}}};
  return dump_json(body);
}

}  // namespace mc::serve
