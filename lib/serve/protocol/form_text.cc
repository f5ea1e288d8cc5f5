#include "serve/protocol/form_text.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace mc::serve {
namespace {

constexpr size_t kPartsMax = 256;
constexpr size_t kHeadersMax = 4096;
constexpr size_t kBoundaryMax = 70;  // RFC 2046

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// A parameter of a header's value: `; name=token` or `; name="text"`. Nothing where it stands
// twice, or as `name*=`: readers differ in which one they take.
std::optional<std::string> parameter(std::string_view value, std::string_view name) {
  std::optional<std::string> found;
  const std::string coded = std::string(name) + "*";
  size_t at = std::min(value.find(';'), value.size());
  while (at < value.size()) {
    ++at;
    const size_t sign = value.find('=', at);
    if (sign == value.npos) return found;
    const std::string_view key = trimmed(value.substr(at, sign - at));
    if (same_name(key, coded)) return std::nullopt;
    const bool wanted = same_name(key, name);
    at = sign + 1;
    std::string text;
    if (at < value.size() && value[at] == '"') {
      for (++at; at < value.size() && value[at] != '"'; ++at) {
        if (value[at] == '\\' && at + 1 < value.size()) ++at;
        text += value[at];
      }
      if (at == value.size()) return std::nullopt;
      at = std::min(value.find(';', at), value.size());
    } else {
      const size_t end = std::min(value.find(';', at), value.size());
      text = trimmed(value.substr(at, end - at));
      at = end;
    }
    if (wanted && found) return std::nullopt;
    if (wanted) found = std::move(text);
  }
  return found;
}

// Nothing where it stands twice.
std::string_view disposition_of(std::string_view headers) {
  std::string_view found;
  for (size_t at = 0; at < headers.size();) {
    const size_t end = std::min(headers.find("\r\n", at), headers.size());
    const std::string_view line = headers.substr(at, end - at);
    const size_t colon = std::min(line.find(':'), line.size());
    if (same_name(trimmed(line.substr(0, colon)), "content-disposition")) {
      if (!found.empty()) return {};
      found = line.substr(std::min(colon + 1, line.size()));
    }
    at = end + 2;
  }
  return found;
}

}  // namespace

bool is_form(std::string_view content_type) {
  return same_name(trimmed(content_type.substr(0, content_type.find(';'))), "multipart/form-data");
}

Result<FormText> FormText::parse(std::string text, std::string_view content_type) {
  const auto boundary = is_form(content_type) ? parameter(content_type, "boundary") : std::nullopt;
  if (!boundary || boundary->empty() || boundary->size() > kBoundaryMax)
    return fail(Code::kInvalid, "'%s' is no multipart/form-data with a boundary",
                escape(std::string(content_type.substr(0, 200))).c_str());
  const std::string first = "--" + *boundary, next = "\r\n" + first;
  FormText form;
  form.text_ = std::move(text);
  form.boundary_ = *boundary;
  const std::string_view all = form.text_;
  if (!all.starts_with(first))
    return fail(Code::kInvalid, "the form does not begin with its boundary");
  for (size_t at = first.size(); all.substr(at, 2) != "--";) {
    const size_t head = all.find("\r\n", at);
    if (head == all.npos || !trimmed(all.substr(at, head - at)).empty())
      return fail(Code::kInvalid, "a boundary of the form has something behind it");
    if (form.parts_.size() == kPartsMax)
      return fail(Code::kInvalid, "the form has over %zu parts", kPartsMax);
    // Without headers the empty line follows at once.
    const size_t blank = all.substr(head, kHeadersMax).find("\r\n\r\n");
    if (blank == all.npos)
      return fail(Code::kInvalid, "part %zu of the form has no end of its headers within %zu bytes",
                  form.parts_.size() + 1, kHeadersMax);
    const std::string_view disposition = disposition_of(all.substr(head, blank));
    const auto name = parameter(disposition, "name");
    if (!name)
      return fail(Code::kInvalid, "part %zu of the form has no name, or more than one",
                  form.parts_.size() + 1);
    const size_t begin = head + blank + 4, end = all.find(next, begin);
    if (end == all.npos) return fail(Code::kInvalid, "the form does not end with its boundary");
    const bool file = disposition.find("filename") != disposition.npos;
    form.parts_.push_back({*name, file, begin, end});
    at = end + next.size();
  }
  return form;
}

bool FormText::has(std::string_view name) const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [name](const Part& part) { return part.name == name; });
}

const FormText::Part* FormText::only(std::string_view name) const {
  const Part* found = nullptr;
  for (const Part& part : parts_) {
    if (part.name != name) continue;
    if (found != nullptr || part.file) return nullptr;
    found = &part;
  }
  return found;
}

std::optional<std::string_view> FormText::find(std::string_view name) const {
  const Part* const part = only(name);
  if (part == nullptr) return std::nullopt;
  return std::string_view(text_).substr(part->begin, part->end - part->begin);
}

std::string FormText::with(std::span<const Field> fields) const {
  std::vector<std::pair<const Part*, std::string_view>> replaced;
  std::string changed;
  for (const Field& field : fields) {
    if (const Part* const part = only(field.name))
      replaced.emplace_back(part, field.value);
    else if (!has(field.name))
      changed += "--" + boundary_ + "\r\nContent-Disposition: form-data; name=\"" +
                 std::string(field.name) + "\"\r\n\r\n" + std::string(field.value) + "\r\n";
  }
  const size_t added = changed.size();
  changed += text_;
  std::sort(replaced.begin(), replaced.end(),
            [](const auto& a, const auto& b) { return a.first->begin > b.first->begin; });
  for (const auto& [part, value] : replaced)
    changed.replace(added + part->begin, part->end - part->begin, value);
  return changed;
}

}  // namespace mc::serve
