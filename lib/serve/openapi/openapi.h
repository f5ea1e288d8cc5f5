// The API as an OpenAPI 3.1 document: lib/serve/openapi/openapi.json, which /openapi.json answers.
//
// Thread: any.
#pragma once
#include <string_view>

namespace mc::serve {

std::string_view openapi_json();

}  // namespace mc::serve
