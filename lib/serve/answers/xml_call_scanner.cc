#include "serve/answers/xml_call_scanner.h"

#include <array>
#include <utility>

#include "base/json.h"
#include "base/units.h"

namespace mc::serve {
namespace {

constexpr std::string_view kXmlFunction = "<function=", kXmlFunctionEnd = "</function>",
                           kXmlParameter = "<parameter=", kXmlLineEnd = "\n</parameter>",
                           kXmlKey = "<arg_key>", kXmlKeyEnd = "</arg_key>",
                           kXmlValue = "<arg_value>", kXmlValueEnd = "</arg_value>",
                           kXmlCallEnd = "</tool_call>", kXmlBlanks = " \n\r\t";
constexpr uint8_t kXmlNull = 1, kXmlBoolean = 2, kXmlInteger = 4, kXmlNumber = 8, kXmlArray = 16,
                  kXmlObject = 32, kXmlText = 64;
constexpr int kXmlSchemaDepth = 16;

std::string_view xml_trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kXmlBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kXmlBlanks) + 1 - begin);
}

uint8_t xml_type(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kXmlNull;
    case Json::value_t::boolean: return kXmlBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kXmlInteger;
    case Json::value_t::number_float: return kXmlNumber;
    case Json::value_t::array: return kXmlArray;
    case Json::value_t::object: return kXmlObject;
    default: return kXmlText;
  }
}

uint8_t xml_type_named(const Json& name) {
  static const std::map<std::string, uint8_t, std::less<>> all = {
      {"null", kXmlNull},       {"boolean", kXmlBoolean},
      {"integer", kXmlInteger}, {"number", kXmlNumber | kXmlInteger},
      {"array", kXmlArray},     {"object", kXmlObject}};
  const auto found = name.is_string() ? all.find(name.get_ref<const std::string&>()) : all.end();
  return found == all.end() ? kXmlText : found->second;
}

// 0: the schema does not say.
uint8_t xml_types(const Json& schema, int depth) {
  uint8_t types = 0;
  if (!schema.is_object() || depth == 0) return types;
  if (schema.contains("$ref")) types |= kXmlObject | kXmlArray | kXmlText;  // not looked up
  if (const Json* const type = member(schema, "type")) {
    for (const Json& one : type->is_array() ? *type : Json::array({*type}))
      types |= xml_type_named(one);
    return types;
  }
  if (const Json* const value = member(schema, "const")) types |= xml_type(*value);
  if (const Json* const values = member(schema, "enum"); values != nullptr && values->is_array())
    for (const Json& value : *values) types |= xml_type(value);
  for (const char* const choice : {"anyOf", "oneOf", "allOf"})
    if (const Json* const all = member(schema, choice); all != nullptr && all->is_array())
      for (const Json& one : *all) types |= xml_types(one, depth - 1);
  return types;
}

void xml_append(std::string& out, char c) {
  if (c == '"' || c == '\\')
    (out += '\\') += c;
  else if (c == '\n')
    out += "\\n";
  else if (static_cast<unsigned char>(c) < 0x20)
    out += strf("\\u%04x", static_cast<unsigned>(c));
  else
    out += c;
}

std::string xml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) xml_append(out, c);
  return out + '"';
}

// As templates write true, false and null, some as Python has them.
std::string_view xml_word(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kWords = {
      {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
  for (const auto& [theirs, ours] : kWords)
    if (text == theirs) return ours;
  return text;
}

std::string xml_typed(const std::string& value, uint8_t types) {
  const std::string_view text = xml_word(xml_trimmed(value));
  const auto json = parse_json(text);
  if (!json) return xml_quoted(value);
  const bool may_be_text = (types & kXmlText) != 0;
  const bool fits = !json->is_string() && (types & xml_type(*json)) != 0;
  return fits || !may_be_text ? std::string(text) : xml_quoted(value);
}

}  // namespace

ParameterTypes parameter_types(const Json& schema) {
  ParameterTypes types;
  const Json* const properties = member(schema, "properties");
  if (properties == nullptr || !properties->is_object()) return types;
  for (const auto& [name, property] : properties->items())
    if (const uint8_t type = xml_types(property, kXmlSchemaDepth); type != 0) types[name] = type;
  return types;
}

void XmlCallScanner::begin(model::ToolCallFormat format, const Names& names, const ToolTypes& types,
                           bool inside) {
  *this = XmlCallScanner();
  format_ = format;
  names_ = &names;
  types_ = &types;
  at_ = inside || glm() ? At::kName : At::kOpen;
}

XmlCallScanner::State XmlCallScanner::push(char c) {
  if (at_ == At::kValue) return value_step(c);
  syntax_ += c;
  if (syntax_.size() > kSyntaxMax) return no_call();
  switch (at_) {
    case At::kOpen:
      if (fit(kXmlFunction) == Fit::kAll) next(At::kName);
      return at_ == At::kName || fit(kXmlFunction) == Fit::kPart ? State::kGoing : no_call();
    case At::kName: return name_step(c);
    case At::kBetween: return between_step();
    case At::kKey: return key_step(c);
    case At::kBehindKey:
      if (fit(kXmlValue) == Fit::kAll) return begin_value();
      return fit(kXmlValue) == Fit::kPart ? State::kGoing : no_call();
    case At::kValue: break;
  }
  return State::kNo;
}

// How far what is read now, behind white space, is that mark.
XmlCallScanner::Fit XmlCallScanner::fit(std::string_view mark) const {
  const std::string_view now = std::string_view(syntax_).substr(from_);
  const size_t begin = now.find_first_not_of(kXmlBlanks);
  if (begin == std::string_view::npos) return Fit::kPart;
  if (now.substr(begin) == mark) return Fit::kAll;
  return mark.starts_with(now.substr(begin)) ? Fit::kPart : Fit::kNone;
}

// What is read now, without so many bytes at its end and white space around.
std::string_view XmlCallScanner::element(size_t end_bytes) const {
  const std::string_view now = std::string_view(syntax_).substr(from_);
  return xml_trimmed(now.substr(0, now.size() - end_bytes));
}

void XmlCallScanner::next(At at) {
  at_ = at;
  from_ = syntax_.size();
}

XmlCallScanner::State XmlCallScanner::name_step(char c) {
  if (!glm()) return c == '>' ? name_ends(element(1)) : State::kGoing;
  if ((c != '<' && c != '\n') || element(1).empty()) return State::kGoing;
  const State state = name_ends(element(1));
  if (c == '<') --from_;  // it begins what comes next
  return state;
}

XmlCallScanner::State XmlCallScanner::name_ends(std::string_view name) {
  if (!names_->contains(name)) return no_call();
  name_ = name;
  next(At::kBetween);
  return State::kGoing;
}

XmlCallScanner::State XmlCallScanner::between_step() {
  const Fit more = fit(glm() ? kXmlKey : kXmlParameter);
  const Fit ends = fit(glm() ? kXmlCallEnd : kXmlFunctionEnd);
  if (ends == Fit::kAll) return finish();
  if (more == Fit::kAll) next(At::kKey);
  return more == Fit::kNone && ends == Fit::kNone ? no_call() : State::kGoing;
}

XmlCallScanner::State XmlCallScanner::key_step(char c) {
  const std::string_view mark = glm() ? kXmlKeyEnd : std::string_view(">");
  if (c != '>' || !syntax_.ends_with(mark)) return State::kGoing;
  key_ = element(mark.size());
  if (key_.empty()) return no_call();
  if (!glm()) return begin_value();
  next(At::kBehindKey);
  return State::kGoing;
}

XmlCallScanner::State XmlCallScanner::begin_value() {
  fresh_ += (any_ ? ", " : "{") + xml_quoted(key_) + ": ";
  any_ = counts_ = first_ = true;
  type_ = kXmlText;
  if (const auto tool = types_->find(name_); tool != types_->end())
    if (const auto found = tool->second.find(key_); found != tool->second.end())
      type_ = found->second;
  streams_ = type_ == kXmlText;
  if (streams_) fresh_ += '"';
  value_.clear();
  at_ = At::kValue;
  return State::kGoing;
}

XmlCallScanner::State XmlCallScanner::value_step(char c) {
  // A value may have its end on a line of its own, or not.
  const std::string_view line = glm() ? kXmlValueEnd : kXmlLineEnd;
  const std::string_view mark = glm() ? kXmlValueEnd : kXmlLineEnd.substr(1);
  held_ += c;
  while (!held_.empty() && !mark.starts_with(held_) && !line.starts_with(held_)) {
    value_byte(held_[0]);
    held_.erase(0, 1);
  }
  return held_ == mark || held_ == line ? value_ends() : State::kGoing;
}

void XmlCallScanner::value_byte(char c) {
  if (std::exchange(first_, false) && c == '\n' && !glm()) return;
  if (streams_) return xml_append(fresh_, c);
  value_ += c;
  if (value_.size() <= kValueMax) return;
  streams_ = true;
  fresh_ += '"';
  for (const char each : std::exchange(value_, {})) xml_append(fresh_, each);
}

XmlCallScanner::State XmlCallScanner::value_ends() {
  fresh_ += streams_ ? "\"" : xml_typed(value_, type_);
  held_.clear();
  syntax_.clear();
  next(At::kBetween);
  return State::kGoing;
}

void XmlCallScanner::end() {
  if (at_ == At::kValue && !streams_) fresh_ += std::exchange(value_, {});
}

XmlCallScanner::State XmlCallScanner::finish() {
  fresh_ += any_ ? "}" : "{}";
  counts_ = arguments_done_ = true;
  syntax_.clear();
  return State::kDone;
}

// A call that counts already has the arguments that are complete.
XmlCallScanner::State XmlCallScanner::no_call() {
  if (counts_) fresh_ += '}';
  arguments_done_ = counts_;
  return State::kNo;
}

}  // namespace mc::serve
