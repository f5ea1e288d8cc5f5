// Parses and prints JSON without exceptions: nlohmann/json behind Results. It is costly to compile:
// include it in .cc files only (headers name Json through base/json_fwd.h). Objects keep the order
// of insertion.
//
// Thread: values; any thread.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/result.h"

namespace mc {

// What a text may hold. All is counted while it is parsed, in time linear in its bytes.
struct JsonLimits {
  size_t depth = 128;         // arrays and objects inside each other
  size_t members = 1024;      // of one object
  size_t values = 1'200'000;  // in all: a prompt of 2^20 tokens, and what is around it
  bool comments = false;      // `//` and `/* */` are passed over
};
inline constexpr JsonLimits kJsonMessage{};  // what comes over a network
inline constexpr JsonLimits kJsonFile{.members = 1 << 20, .values = 1 << 23, .comments = true};

// Parses one value. An object that has two members of one name is refused: readers disagree about
// which counts. Errors: kInvalid with line and column, or with the limit that was passed.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = kJsonMessage);
// Of up to 256 MiB, by kJsonFile; the error names the file.
Result<Json> read_json_file(const std::string& path);

// Serializes; bytes that are not UTF-8 are replaced, never thrown at. indent < 0: one line.
std::string dump_json(const Json& json, int indent = -1);

// Appends `text` as a JSON string with its quotes, as dump_json() prints it.
void append_quoted(std::string& out, std::string_view text);

// Appends a member of a name that the object does not have: without the search that `object[name]`
// makes, which is quadratic for many.
void append_member(Json& object, std::string name, Json value);

// The member `key` when `object` is an object that has it and it is not null; else nullptr.
const Json* member(const Json& object, const char* key);

// The member `key` of an object as a T (integers must be whole and in range). get: an error when
// absent; get_or: the fallback when absent, an error when of the wrong type.
Result<std::string> get_string(const Json& object, const char* key);
Result<double> get_number(const Json& object, const char* key);
Result<uint64_t> get_uint(const Json& object, const char* key);
Result<bool> get_bool(const Json& object, const char* key);
Result<std::string> get_string_or(const Json& object, const char* key, std::string fallback);
Result<double> get_number_or(const Json& object, const char* key, double fallback);
Result<uint64_t> get_uint_or(const Json& object, const char* key, uint64_t fallback);
Result<bool> get_bool_or(const Json& object, const char* key, bool fallback);

}  // namespace mc
