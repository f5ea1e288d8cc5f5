#include "base/json.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/units.h"

namespace mc {
namespace {

constexpr size_t kFileMax = 256 * kMiB;

Failure wrong_type(const char* key, const char* want, const Json& got) {
  return fail(Code::kInvalid, "'%s' is %s, want %s", key, got.type_name(), want);
}

Result<const Json*> required(const Json& object, const char* key) {
  if (!object.is_object())
    return fail(Code::kInvalid, "want an object with '%s', got %s", key, object.type_name());
  auto it = object.find(key);
  if (it == object.end()) return fail(Code::kInvalid, "'%s' is missing", key);
  return &*it;
}

bool absent(const Json& object, const char* key) {
  return object.is_object() && (!object.contains(key) || object.find(key)->is_null());
}

}  // namespace

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<Json> read_json_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail_errno("open %s", path.c_str());
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))  // a directory opens, and reads as empty
    return fail(Code::kInvalid, "%s is a directory, want a JSON file", path.c_str());
  const auto too_large = [&] {
    return fail(Code::kInvalid, "%s has more than %s", path.c_str(), bytes_text(kFileMax).c_str());
  };
  if (const auto size = std::filesystem::file_size(path, unknown); !unknown && size > kFileMax)
    return too_large();
  std::string text;  // of a pipe or a device the size is not known before
  std::vector<char> piece(256 * kKiB);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    text.append(piece.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > kFileMax) return too_large();
  }
  auto json = parse_json(text, kJsonFile);
  if (!json) return fail(Code::kInvalid, "%s: %s", path.c_str(), json.error().what.c_str());
  return json;
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void append_quoted(std::string& out, std::string_view text) {
  const auto plain = [](char c) { return c >= ' ' && c != '"' && c != '\\' && c < 0x7f; };
  if (std::all_of(text.begin(), text.end(), plain))
    out.append(1, '"').append(text).append(1, '"');
  else
    out += dump_json(text);
}

Result<std::string> get_string(const Json& object, const char* key) {
  MC_TRY(const Json* v, required(object, key));
  if (!v->is_string()) return wrong_type(key, "a string", *v);
  return v->get<std::string>();
}
Result<double> get_number(const Json& object, const char* key) {
  MC_TRY(const Json* v, required(object, key));
  if (!v->is_number()) return wrong_type(key, "a number", *v);
  return v->get<double>();
}
Result<uint64_t> get_uint(const Json& object, const char* key) {
  MC_TRY(const Json* v, required(object, key));
  if (v->is_number_unsigned()) return v->get<uint64_t>();
  if (v->is_number_integer() && v->get<int64_t>() >= 0) return v->get<uint64_t>();
  if (v->is_number_float()) {  // 5.0 counts as whole
    const double d = v->get<double>();
    if (d >= 0 && d <= 9e15 && d == static_cast<double>(static_cast<uint64_t>(d)))
      return static_cast<uint64_t>(d);
  }
  if (v->is_number())
    return fail(Code::kInvalid, "'%s' is %s, want a whole number of 0 or more", key,
                v->dump().c_str());
  return wrong_type(key, "a whole number", *v);
}
Result<bool> get_bool(const Json& object, const char* key) {
  MC_TRY(const Json* v, required(object, key));
  if (!v->is_boolean()) return wrong_type(key, "true or false", *v);
  return v->get<bool>();
}

Result<std::string> get_string_or(const Json& object, const char* key, std::string fallback) {
  return absent(object, key) ? Result<std::string>(std::move(fallback)) : get_string(object, key);
}
Result<double> get_number_or(const Json& object, const char* key, double fallback) {
  return absent(object, key) ? Result<double>(fallback) : get_number(object, key);
}
Result<uint64_t> get_uint_or(const Json& object, const char* key, uint64_t fallback) {
  return absent(object, key) ? Result<uint64_t>(fallback) : get_uint(object, key);
}
Result<bool> get_bool_or(const Json& object, const char* key, bool fallback) {
  return absent(object, key) ? Result<bool>(fallback) : get_bool(object, key);
}

}  // namespace mc
