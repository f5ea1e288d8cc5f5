#include "base/json.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/units.h"

namespace mc {
namespace {

constexpr size_t kFewMembers = 8;
constexpr size_t kErrorMax = 256;  // of a parser's message: it quotes what it read
constexpr size_t kFileMax = 256 * kMiB;

// Builds a value while its text is parsed. An object's members are appended, and names that occur
// twice are found when it ends: the ordered object's own way in compares each name with all others.
class Builder {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}
  std::string error;
  Json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool v) { return put(v); }
  bool number_integer(Json::number_integer_t v) { return put(v); }
  bool number_unsigned(Json::number_unsigned_t v) { return put(v); }
  bool number_float(Json::number_float_t v, const std::string&) { return put(v); }
  bool string(std::string& v) { return put(std::move(v)); }
  bool binary(Json::binary_t&) { return refuse("binary"); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool key(std::string& name) {
    Members& members = top();
    if (members.size() >= limits_.members)
      return refuse(strf("an object has more than %zu members", limits_.members));
    members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool end_object() {
    const std::string* const twice = repeated(top());
    if (twice != nullptr) return refuse("'" + escape(*twice) + "' occurs twice in an object");
    return end_array();
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const std::exception& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    if (const auto at = what.find("] "); at != std::string::npos) what.erase(0, at + 2);
    if (what.size() > kErrorMax) what = what.substr(0, kErrorMax) + "...";
    return refuse(std::move(what));
  }

 private:
  using Members = std::vector<std::pair<const std::string, Json>>;  // what an ordered object is
  Members& top() { return open_.back()->get_ref<Json::object_t&>(); }
  bool refuse(std::string why) {
    error = std::move(why);
    return false;
  }
  bool put(Json&& value) { return place(std::move(value)) != nullptr; }
  bool open(Json&& empty) {
    if (open_.size() >= limits_.depth)
      return refuse(strf("JSON nested deeper than %zu levels", limits_.depth));
    Json* const placed = place(std::move(empty));
    if (placed != nullptr) open_.push_back(placed);
    return placed != nullptr;
  }
  Json* place(Json&& value) {
    if (++values_ > limits_.values) {
      refuse(strf("more than %zu values", limits_.values));
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    Json& outer = *open_.back();
    if (outer.is_object()) return &(top().back().second = std::move(value));
    auto& list = outer.get_ref<Json::array_t&>();
    return &list.emplace_back(std::move(value));
  }
  static const std::string* repeated(const Members& members) {
    if (members.size() <= kFewMembers) {
      for (size_t i = 1; i < members.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          if (members[i].first == members[j].first) return &members[i].first;
      return nullptr;
    }
    std::vector<const std::string*> names;  // sorted: a hash could be made to collide
    names.reserve(members.size());
    for (const auto& member : members) names.push_back(&member.first);
    std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
    const auto at =
        std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
    return at == names.end() ? nullptr : *at;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Json*> open_;  // arrays and objects around the next value, outermost first
  size_t values_ = 0;
};

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

constexpr int kPipeWaitMs = 5000;
constexpr size_t kPieceBytes = 256 * 1024;

Result<> wait_for_bytes(int fd, const std::string& path) {
  pollfd waits{fd, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&waits, 1, kPipeWaitMs);
  while (ready < 0 && errno == EINTR);
  if (ready < 0) return fail_errno("read %s", path.c_str());
  if (ready == 0)
    return fail(Code::kTimeout, "%s brings nothing: who writes to this pipe?", path.c_str());
  return {};
}

}  // namespace

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json, true,
                       limits.comments))
    return fail(Code::kInvalid, "%s", builder.error.c_str());
  // The parser takes it for the end of the text.
  if (const size_t at = text.find('\0'); at != text.npos)
    return fail(Code::kInvalid, "a NUL at byte %zu", at + 1);
  return builder.take();
}

Result<std::string> read_whole(int fd, const std::string& path, size_t bytes_max) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return fail_errno("read %s", path.c_str());
  if (S_ISDIR(info.st_mode))
    return fail(Code::kInvalid, "%s is a directory, want a file", path.c_str());
  const auto too_large = [&] {
    return fail(Code::kInvalid, "%s has more than %s", path.c_str(), bytes_text(bytes_max).c_str());
  };
  const auto size = static_cast<uint64_t>(std::max<off_t>(info.st_size, 0));
  if (S_ISREG(info.st_mode) && size > bytes_max) return too_large();
  std::string out;
  out.reserve(S_ISREG(info.st_mode) ? size : 0);
  std::string piece(kPieceBytes, '\0');
  for (;;) {
    const ssize_t n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      MC_TRY_(wait_for_bytes(fd, path));
      continue;
    }
    if (n < 0) return fail_errno("read %s", path.c_str());
    if (n == 0) return out;
    out.append(piece.data(), static_cast<size_t>(n));
    if (out.size() > bytes_max) return too_large();
  }
}

Result<std::string> read_whole(const std::string& path, size_t bytes_max) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return fail_errno("open %s", path.c_str());
  auto text = read_whole(fd, path, bytes_max);
  ::close(fd);
  return text;
}

Result<Json> read_json_file(const std::string& path) {
  MC_TRY(const std::string text, read_whole(path, kFileMax));
  auto json = parse_json(text, kJsonFile);
  if (!json) return fail(Code::kInvalid, "%s: %s", path.c_str(), json.error().what.c_str());
  return json;
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void append_member(Json& object, std::string name, Json value) {
  auto& members = object.get_ref<Json::object_t&>();
  members.emplace_back(std::move(name), std::move(value));
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
