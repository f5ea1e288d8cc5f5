#include "serve/openapi/openapi.h"

asm(".pushsection .rodata\n"
    "mc_openapi_begin:\n"
    ".incbin \"" MC_OPENAPI
    "\"\n"
    "mc_openapi_end:\n"
    ".popsection\n");
extern "C" const char mc_openapi_begin[], mc_openapi_end[];

namespace mc::serve {

std::string_view openapi_json() {
  return {mc_openapi_begin, static_cast<size_t>(mc_openapi_end - mc_openapi_begin)};
}

}  // namespace mc::serve
