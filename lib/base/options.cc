#include "base/options.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/json.h"
#include "base/text.h"

namespace mc {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) out.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

Result<bool> parse_flag(const std::string& s) {
  if (s == "true" || s == "1" || s == "on" || s == "yes") return true;
  if (s == "false" || s == "0" || s == "off" || s == "no") return false;
  return fail(Code::kInvalid, "'%s' is not true or false", escape(s).c_str());
}

template <class T>
Result<T> parse_count(const std::string& s) {
  MC_TRY(const uint64_t n, parse_uint(s));
  if (n > static_cast<uint64_t>(std::numeric_limits<T>::max()))
    return fail(Code::kInvalid, "'%s' is too large", escape(s).c_str());
  return static_cast<T>(n);
}

// Converts a JSON value to the text of an option of this kind.
Result<std::string> json_text(const Option& option, const Json& v) {
  using Kind = Option::Kind;
  if (option.kind == Kind::kList && v.is_array()) {
    std::vector<std::string> items;
    for (const auto& item : v) {
      if (!item.is_string())
        return fail(Code::kInvalid, "'%s' wants a list of strings", option.name.c_str());
      items.push_back(item.get<std::string>());
    }
    return join(items, ",");
  }
  if (v.is_string()) return v.get<std::string>();
  if (option.kind == Kind::kFlag && v.is_boolean()) return v.get<bool>() ? "true" : "false";
  const bool numeric = option.kind == Kind::kNumber || option.kind == Kind::kCount ||
                       option.kind == Kind::kSize || option.kind == Kind::kDuration;
  if (numeric && v.is_number()) return v.dump();
  return fail(Code::kInvalid, "'%s' is %s, want %s", option.name.c_str(), v.type_name(),
              placeholder(option.kind));
}

}  // namespace

const char* placeholder(Option::Kind kind) {
  switch (kind) {
    case Option::Kind::kText: return "TEXT";
    case Option::Kind::kFlag: return "BOOL";
    case Option::Kind::kNumber: return "NUMBER";
    case Option::Kind::kCount: return "N";
    case Option::Kind::kSize: return "SIZE";
    case Option::Kind::kDuration: return "DURATION";
    case Option::Kind::kList: return "LIST";
  }
  return "?";
}

void OptionList::add(const char* name, const char* help, Option::Kind kind,
                     std::function<std::string()> get,
                     std::function<Result<>(const std::string&)> set, Strings choices) {
  options_.push_back(
      {name, help, kind, std::move(choices), std::move(get), std::move(set), "default"});
}

void OptionList::operator()(const char* name, std::string& v, const char* help, Strings choices) {
  auto set = [&v, choices](const std::string& s) -> Result<> {
    if (!choices.empty() && std::find(choices.begin(), choices.end(), s) == choices.end())
      return fail(Code::kInvalid, "'%s' is not one of %s", escape(s).c_str(),
                  join(choices, ",").c_str());
    v = s;
    return {};
  };
  add(
      name, help, Option::Kind::kText, [&v] { return v; }, set, choices);
}
void OptionList::operator()(const char* name, bool& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v, parse_flag(s));
    return {};
  };
  add(
      name, help, Option::Kind::kFlag, [&v] { return v ? "true" : "false"; }, set);
}
void OptionList::operator()(const char* name, double& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v, parse_number(s));
    return {};
  };
  add(
      name, help, Option::Kind::kNumber, [&v] { return number_text(v); }, set);
}
void OptionList::operator()(const char* name, uint32_t& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v, parse_count<uint32_t>(s));
    return {};
  };
  add(
      name, help, Option::Kind::kCount, [&v] { return std::to_string(v); }, set);
}
void OptionList::operator()(const char* name, uint64_t& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v, parse_uint(s));
    return {};
  };
  add(
      name, help, Option::Kind::kCount, [&v] { return std::to_string(v); }, set);
}
void OptionList::operator()(const char* name, int& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v, parse_count<int>(s));
    return {};
  };
  add(
      name, help, Option::Kind::kCount, [&v] { return std::to_string(v); }, set);
}
void OptionList::operator()(const char* name, Bytes& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v.n, parse_bytes(s));
    return {};
  };
  add(
      name, help, Option::Kind::kSize, [&v] { return bytes_text(v); }, set);
}
void OptionList::operator()(const char* name, Duration& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    MC_TRY(v, parse_duration(s));
    return {};
  };
  add(
      name, help, Option::Kind::kDuration, [&v] { return to_text(v); }, set);
}
void OptionList::operator()(const char* name, Strings& v, const char* help) {
  auto set = [&v](const std::string& s) -> Result<> {
    v = split(s);
    return {};
  };
  add(
      name, help, Option::Kind::kList, [&v] { return join(v, ","); }, set);
}

Result<Option*> OptionList::find(std::string_view name, const char* where) {
  std::vector<std::string> names;
  for (Option& option : options_) {
    if (option.name == name) return &option;
    names.push_back(option.name);
  }
  const std::string near = nearest(name, names);
  return fail(Code::kInvalid, "%s: unknown option '%s'%s", where, escape(name).c_str(),
              near.empty() ? "" : (": did you mean '" + near + "'?").c_str());
}

Result<> apply_json(OptionList& options, const Json& json, const std::string& where) {
  if (!json.is_object())
    return fail(Code::kInvalid, "%s: want an object of options, got %s", where.c_str(),
                json.type_name());
  for (const auto& [key, value] : json.items()) {
    MC_TRY(Option * option, options.find(key, where.c_str()));
    auto text = json_text(*option, value);
    if (!text) return fail(Code::kInvalid, "%s: %s", where.c_str(), text.error().what.c_str());
    if (auto set = option->set(*text); !set)
      return fail(Code::kInvalid, "%s: '%s': %s", where.c_str(), key.c_str(),
                  set.error().what.c_str());
    option->origin = "file";
  }
  return {};
}

std::string config_text(const OptionList& options, std::string_view header) {
  std::string out = "// " + std::string(header) + "\n{\n";
  for (size_t i = 0; i < options.all().size(); ++i) {
    const Option& o = options.all()[i];
    Json value = o.get();
    if (o.kind == Option::Kind::kFlag) value = o.get() == "true";
    if (o.kind == Option::Kind::kNumber || o.kind == Option::Kind::kCount)
      value = parse_json(o.get()).value_or(Json(o.get()));
    if (o.kind == Option::Kind::kList) value = Json(split(o.get()));
    out += "  " + Json(o.name).dump() + ": " + dump_json(value) +
           (i + 1 < options.all().size() ? "," : "") + "  // " + o.origin + ": " + o.help + "\n";
  }
  return out + "}\n";
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& c : candidates) {
    std::vector<size_t> row(c.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= c.size(); ++j) {
        const size_t change = diagonal + (word[i - 1] == c[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = c;
    }
  }
  return best;
}

}  // namespace mc
