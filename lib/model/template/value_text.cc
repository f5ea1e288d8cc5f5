// Values as text: str(), repr() and JSON.
#include <algorithm>
#include <cmath>

#include "model/template/characters.h"
#include "model/template/value.h"

namespace mc::model::jinja {
namespace {

// Writes until there is too much.
class Printer {
 public:
  Printer(size_t bytes_max, JsonStyle style) : most_(bytes_max), style_(std::move(style)) {}

  void repr(const Value& v) {
    if (full()) return;
    if (const std::string* t = v.text()) return quote(*t);
    if (const ListBox* l = v.list()) return repr_list(*l);
    if (const DictBox* d = v.dict()) return repr_dict(*d);
    if (v.is_undefined()) {
      out += "Undefined";
      return;
    }
    scalar(v);
  }

  void scalar(const Value& v) {
    if (v.is_undefined()) return;
    if (v.is_none())
      out += "None";
    else if (const bool* b = v.as<bool>())
      out += *b ? "True" : "False";
    else if (const int64_t* i = v.as<int64_t>())
      out += std::to_string(*i);
    else if (const double* d = v.as<double>())
      out += float_text(*d);
    else
      out += std::string("<") + type_name(v) + ">";
  }

  // False: not of JSON's types.
  bool json(const Value& v, size_t level) {
    if (full()) return true;
    if (const std::string* t = v.text()) {
      json_text(*t);
      return true;
    }
    if (const ListBox* l = v.list()) return json_list(*l, level);
    if (const DictBox* d = v.dict()) return json_dict(*d, level);
    return json_scalar(v);
  }

  bool full() const { return out.size() > most_; }
  std::string out;

 private:
  void quote(const std::string& text) {
    const bool twice = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
    const char quote = twice ? '"' : '\'';
    out += quote;
    for (size_t at = 0; at < text.size();) {
      const size_t size = character_bytes(text, at);
      const std::string_view c(text.data() + at, size);
      at += size;
      if (c == "\\" || c[0] == quote)
        out += '\\', out += c;
      else if (c == "\n")
        out += "\\n";
      else if (c == "\r")
        out += "\\r";
      else if (c == "\t")
        out += "\\t";
      else if (printable(code_of(c)))
        out += c;
      else
        out += escaped(code_of(c));
      if (full()) return;
    }
    out += quote;
  }

  static std::string escaped(uint32_t code) {
    if (code < 0x100) return strf("\\x%02x", code);
    return code < 0x10000 ? strf("\\u%04x", code) : strf("\\U%08x", code);
  }

  void repr_list(const ListBox& l) {
    if (l.kind == ListBox::Kind::kOnce) {
      out += "<generator>";
      return;
    }
    const bool tuple = l.kind == ListBox::Kind::kTuple;
    out += tuple ? '(' : '[';
    for (size_t i = 0; i < l.items.size(); ++i) {
      if (i > 0) out += ", ";
      repr(l.items[i]);
    }
    if (tuple && l.items.size() == 1) out += ',';
    out += tuple ? ')' : ']';
  }

  void repr_dict(const DictBox& d) {
    out += '{';
    for (size_t i = 0; i < d.items.size(); ++i) {
      if (i > 0) out += ", ";
      repr(d.items[i].first);
      out += ": ";
      repr(d.items[i].second);
    }
    out += '}';
  }

  void json_text(const std::string& text) {
    out += '"';
    for (size_t at = 0; at < text.size() && !full();) {
      const size_t size = character_bytes(text, at);
      const std::string_view c(text.data() + at, size);
      at += size;
      const auto byte = static_cast<unsigned char>(c[0]);
      constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
      const size_t known = kShort.find(c[0]);
      if (size == 1 && known != std::string_view::npos)
        out += '\\', out += kNames[known];
      else if (byte < 0x20)
        out += strf("\\u%04x", byte);
      else if (style_.ascii && size > 1)
        ascii(code_of(c));
      else
        out += c;
    }
    out += '"';
  }

  void ascii(uint32_t code) {
    if (code < 0x10000) {
      out += strf("\\u%04x", code);
      return;
    }
    code -= 0x10000;
    out += strf("\\u%04x\\u%04x", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff));
  }

  bool json_scalar(const Value& v) {
    if (v.is_none())
      out += "null";
    else if (const bool* b = v.as<bool>())
      out += *b ? "true" : "false";
    else if (const int64_t* i = v.as<int64_t>())
      out += std::to_string(*i);
    else if (const double* d = v.as<double>())
      out += std::isnan(*d)   ? "NaN"
             : std::isinf(*d) ? *d < 0 ? "-Infinity" : "Infinity"
                              : float_text(*d);
    else
      return false;
    return true;
  }

  void line(size_t level) {
    if (style_.indent < 0) return;
    out += '\n';
    out.append(level * static_cast<size_t>(style_.indent), ' ');
  }

  bool json_list(const ListBox& l, size_t level) {
    if (l.kind == ListBox::Kind::kOnce) return false;
    out += '[';
    for (size_t i = 0; i < l.items.size(); ++i) {
      if (i > 0) out += style_.item;
      line(level + 1);
      if (!json(l.items[i], level + 1)) return false;
    }
    if (!l.items.empty()) line(level);
    out += ']';
    return true;
  }

  bool json_dict(const DictBox& d, size_t level) {
    std::vector<const Member*> members;
    for (const Member& m : d.items) members.push_back(&m);
    if (style_.sorted)
      std::stable_sort(members.begin(), members.end(), [](const Member* a, const Member* b) {
        return less_atoms(a->first, b->first).value_or(false);
      });
    out += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out += style_.item;
      line(level + 1);
      const Value& key = members[i]->first;
      if (key.text() == nullptr) out += '"';
      if (!json(key, level)) return false;
      if (key.text() == nullptr) out += '"';
      out += style_.key;
      if (!json(members[i]->second, level + 1)) return false;
    }
    if (!members.empty()) line(level);
    out += '}';
    return true;
  }

  const size_t most_;
  const JsonStyle style_;
};

Result<std::string> checked(Printer& p, size_t bytes_max) {
  if (p.full()) return fail(Code::kNoSpace, "a text of more than %zu bytes", bytes_max);
  return std::move(p.out);
}

}  // namespace

Result<std::string> to_text(const Value& v, size_t bytes_max) {
  if (const std::string* t = v.text()) {
    if (t->size() > bytes_max)
      return fail(Code::kNoSpace, "a text of more than %zu bytes", bytes_max);
    return *t;
  }
  Printer p(bytes_max, {});
  if (v.list() != nullptr || v.dict() != nullptr)
    p.repr(v);
  else
    p.scalar(v);
  return checked(p, bytes_max);
}

Result<std::string> to_repr(const Value& v, size_t bytes_max) {
  Printer p(bytes_max, {});
  p.repr(v);
  return checked(p, bytes_max);
}

Result<std::string> to_json_text(const Value& v, const JsonStyle& style, size_t bytes_max) {
  Printer p(bytes_max, style);
  if (!p.json(v, 0))
    return fail(Code::kInvalid, "tojson of a value that JSON does not have (%s)", type_name(v));
  return checked(p, bytes_max);
}

}  // namespace mc::model::jinja
