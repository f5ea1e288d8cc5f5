#include "http/cross_origin.h"

#include <algorithm>
#include <cctype>

#include "base/units.h"

namespace mc::http {
namespace {

constexpr std::string_view kEvery = "*";
constexpr const char* kMethods = "GET, HEAD, POST";
constexpr const char* kKeptFor = "600";  // seconds that a browser need not ask again
constexpr const char* kReadable =
    "x-request-id, x-mc-prefill, x-mc-decode, x-mc-cached-tokens, x-mc-predicted-ttft-ms, "
    "x-mc-ignored, x-mc-reject-reason, retry-after";
constexpr size_t kNamesMax = 4096;

std::string_view value_of(const HeaderMap& headers, const char* name) {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

// Names of headers, as a preflight lists them.
bool is_list_of_names(std::string_view text) {
  return text.size() <= kNamesMax && std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
                  c == ',' || c == ' ' || c == '.';
         });
}

}  // namespace

Result<> check_origins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    if (origin == kEvery) continue;
    const size_t scheme = origin.find("://");
    const bool named = scheme != origin.npos && scheme > 0 && origin.size() > scheme + 3;
    if (!named || origin.find_first_of("/ ?#*,", scheme + 3) != origin.npos)
      return fail(Code::kInvalid,
                  "'%s' is no origin, want one as https://chat.example, with its port where that "
                  "is not the scheme's, or * for every site",
                  escape(origin).c_str());
  }
  return {};
}

bool allows_origin(std::string_view origin, const std::vector<std::string>& origins) {
  return !origin.empty() &&
         std::any_of(origins.begin(), origins.end(),
                     [origin](const std::string& o) { return o == kEvery || o == origin; });
}

HeaderLines cross_origin_headers(const HeaderMap& request,
                                 const std::vector<std::string>& origins) {
  if (origins.empty()) return {};
  const std::string_view origin = value_of(request, "origin");
  HeaderLines all = {{"vary", "Origin"}};
  if (!allows_origin(origin, origins)) return all;
  all.push_back({"access-control-allow-origin", std::string(origin)});
  all.push_back({"access-control-expose-headers", kReadable});
  return all;
}

std::optional<HeaderLines> preflight_answer(std::string_view method, const HeaderMap& request,
                                            const std::vector<std::string>& origins) {
  if (method != "OPTIONS" || !request.contains("access-control-request-method") ||
      !allows_origin(value_of(request, "origin"), origins))
    return std::nullopt;
  HeaderLines all = {{"access-control-allow-methods", kMethods},
                     {"access-control-max-age", kKeptFor}};
  const std::string_view names = value_of(request, "access-control-request-headers");
  if (!names.empty() && is_list_of_names(names))
    all.push_back({"access-control-allow-headers", std::string(names)});
  if (value_of(request, "access-control-request-private-network") == "true")
    all.push_back({"access-control-allow-private-network", "true"});
  return all;
}

}  // namespace mc::http
