#include "serve/request/openai_members.h"

#include "base/json.h"
#include "base/units.h"

namespace mc::serve {
namespace {
constexpr size_t kModelsShown = 8;  // in an error

// Of what is to be tokenized in a prompt or in messages.
uint64_t text_bytes(const Json& j) {
  if (j.is_string()) return j.get_ref<const std::string&>().size();
  uint64_t bytes = 0;
  if (j.is_array())
    for (const Json& part : j) bytes += part.is_number() ? 0 : text_bytes(part);
  if (j.is_object())
    for (const char* key : {"content", "text"})
      if (const Json* text = member(j, key)) bytes += text_bytes(*text);
  return bytes;
}

}  // namespace

tl::unexpected<ApiError> wrong_type(const char* key, const Json& j, const char* want) {
  return bad(key, strf("'%s' is of type %s, want %s", key, j.type_name(), want));
}

const Json* Members::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Parsed Members::read(const char* key, bool& v) const {
  const Json* j = find(key);
  if (j == nullptr) return {};
  if (!j->is_boolean()) return wrong_type(key, *j, "a boolean");
  v = j->get<bool>();
  return {};
}

Parsed Members::read(const char* key, std::string& v, size_t bytes_max) const {
  const Json* j = find(key);
  if (j == nullptr) return {};
  if (!j->is_string()) return wrong_type(key, *j, "a string");
  if (j->get_ref<const std::string&>().size() > bytes_max)
    return bad(key, strf("'%s' is longer than %zu bytes", key, bytes_max));
  v = j->get<std::string>();
  return {};
}

Parsed Members::read(const char* key, double& v, double low, double high) const {
  const Json* j = find(key);
  if (j == nullptr) return {};
  if (!j->is_number()) return wrong_type(key, *j, "a number");
  const double n = j->get<double>();
  if (!(n >= low && n <= high))
    return bad(key, strf("'%s' is %g, want %g to %g", key, n, low, high));
  v = n;
  return {};
}

Parsed Members::integer(const char* key, std::optional<int64_t>& v, int64_t low,
                        int64_t high) const {
  const Json* j = find(key);
  if (j == nullptr) return {};
  if (!j->is_number_integer()) return wrong_type(key, *j, "an integer");
  const bool huge = j->is_number_unsigned() && j->get<uint64_t>() > INT64_MAX;
  const int64_t n = huge ? INT64_MAX : j->get<int64_t>();
  if (huge || n < low || n > high)
    return bad(key, strf("'%s' is %s, want %lld to %lld", key, j->dump().c_str(),
                         static_cast<long long>(low), static_cast<long long>(high)));
  v = n;
  return {};
}

tl::expected<Json, ApiError> parse_object(std::string_view body) {
  auto json = parse_json(body);
  if (!json)
    return tl::unexpected(
        ApiError{400, "the body is not taken: " + json.error().what, "", "invalid_json"});
  if (!json->is_object())
    return tl::unexpected(ApiError{400, "the body is not a JSON object", "", ""});
  return std::move(*json);
}

ApiError no_such_model(const std::string& model, const ApiLimits& limits) {
  const std::string all =
      limits.names ? limits.names->list(kModelsShown) : "'" + limits.model + "'";
  return {404, "the model '" + escape(model) + "' does not exist; this server has " + all, "model",
          "model_not_found"};
}

Parsed check_model(const Members& m, const ApiLimits& limits, std::string* named) {
  std::string model = limits.model;
  MC_API_TRY(m.read("model", model, 4096));
  const auto meaning =
      limits.names ? limits.names->find(model) : ModelNames(limits.model).find(model);
  if (!meaning) return tl::unexpected(no_such_model(model, limits));
  if (meaning->model != limits.model || !meaning->adapter.empty())
    return tl::unexpected(ApiError{503, "no engine that serves '" + escape(model) + "' is up",
                                   "model", "no_capacity"});
  if (named != nullptr) *named = std::move(model);
  return {};
}

Parsed read_tokens(const Json& array, const char* key, uint32_t vocab, std::vector<int32_t>& out) {
  out.reserve(array.size());
  for (const Json& j : array) {
    if (!j.is_number_integer()) return wrong_type(key, j, "token ids (integers)");
    if (!j.is_number_unsigned() || j.get<uint64_t>() >= vocab)
      return bad(key, strf("token id %s in '%s', want 0 to %u", j.dump().c_str(), key, vocab - 1));
    out.push_back(static_cast<int32_t>(j.get<uint64_t>()));
  }
  return {};
}

Parsed check_text(const Json& prompt, const char* key, const ApiLimits& limits) {
  const uint64_t bytes = limits.text_max == 0 ? 0 : text_bytes(prompt);
  if (bytes <= limits.text_max) return {};
  return tl::unexpected(
      ApiError{400,
               strf("the context holds %llu tokens, which are at most %llu bytes of text; '%s' has "
                    "%llu",
                    static_cast<unsigned long long>(limits.context_max),
                    static_cast<unsigned long long>(limits.text_max), key,
                    static_cast<unsigned long long>(bytes)),
               key, "context_length_exceeded"});
}

}  // namespace mc::serve
