// An error of the HTTP API, and how the APIs write it.
//
// Thread: values. Pure. Source: OpenAI API reference, errors.
#pragma once
#include <string>

namespace mc::serve {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // empty: null
  std::string code;   // empty: null
};

// {"error": {"message", "type", "param", "code"}}; the type follows from the status.
std::string error_json(const ApiError& error);

}  // namespace mc::serve
