#include "serve/external/external_events.h"

#include <algorithm>

#include "wire/value.h"

namespace mc::serve {
namespace {

constexpr size_t kEventsMax = 1 << 16;       // in a batch
constexpr size_t kEventHashesMax = 1 << 16;  // in an event
constexpr uint64_t kEventBlockMax = 65536;
constexpr size_t kNameMax = 256;
constexpr size_t kNowhere = 1 << 16;  // the array form does not have it

std::optional<uint64_t> event_hash(const wire::Value& v) {
  if (const auto n = v.unsigned_integer()) return *n;
  if (const auto n = v.integer()) return static_cast<uint64_t>(*n);
  const std::string_view b = v.bytes();
  if (b.size() < 8) return std::nullopt;
  uint64_t n = 0;
  for (const char c : b.substr(b.size() - 8)) n = n << 8 | static_cast<uint8_t>(c);
  return n;
}

// An event's fields by place in the array form, by name in the map form.
class EventFields {
 public:
  explicit EventFields(const wire::Value& event) : event_(event) {}
  wire::Value get(size_t place, std::string_view name, std::string_view other = {}) const {
    if (event_.kind() == wire::Value::Kind::kArray) return event_.at(place);
    const wire::Value v = event_[name];
    return v.nil() && !other.empty() ? event_[other] : v;
  }

 private:
  const wire::Value& event_;
};

Result<std::vector<uint64_t>> event_hashes(const wire::Value& list) {
  if (list.kind() != wire::Value::Kind::kArray || list.size() > kEventHashesMax)
    return fail(Code::kInvalid, "want a list of at most %zu block hashes", kEventHashesMax);
  std::vector<uint64_t> all;
  all.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto hash = event_hash(list.at(i));
    if (!hash) return fail(Code::kInvalid, "block hash %zu is no integer or bytes", i);
    all.push_back(*hash);
  }
  return all;
}

// [identifier, offset] of a picture.
bool read_picture(const wire::Value& v, std::string& content) {
  const auto offset = v.at(1).integer();
  if (v.size() != 2 || v.at(0).bytes().empty() || !offset) return false;
  add_picture(content, v.at(0).bytes(), *offset);
  return true;
}

ExternalEvent::Extra event_extra(const wire::Value& keys, const ExternalEvent& e, bool first) {
  ExternalEvent::Extra extra;
  for (size_t i = 0; i < keys.size(); ++i) {
    const wire::Value key = keys.at(i);
    if (key.kind() == wire::Value::Kind::kArray)
      extra.unknown |= !read_picture(key, extra.content);
    else if (key.kind() == wire::Value::Kind::kBinary)
      extra.content += key.bytes();
    else if (i == 0 && !e.lora.empty() && key.text() == e.lora)
      continue;
    else if (first && extra.salt.empty() && !key.text().empty())
      extra.salt = key.text();
    else
      extra.unknown = true;
  }
  extra.unknown |= !keys.nil() && keys.kind() != wire::Value::Kind::kArray;
  return extra;
}

Result<> stored(const EventFields& fields, ExternalEvent& e) {
  if (const wire::Value parent = fields.get(2, "parent_block_hash", "parent_hash"); !parent.nil()) {
    e.parent = event_hash(parent);
    if (!e.parent) return fail(Code::kInvalid, "the parent's hash is no integer or bytes");
  }
  const uint64_t block = fields.get(4, "block_size").unsigned_integer().value_or(0);
  if (block == 0 || block > kEventBlockMax)
    return fail(Code::kInvalid, "block_size %llu, want 1 to %llu",
                static_cast<unsigned long long>(block),
                static_cast<unsigned long long>(kEventBlockMax));
  e.block_tokens = static_cast<uint32_t>(block);
  const wire::Value tokens = fields.get(3, "token_ids");
  if (tokens.size() != e.hashes.size() * block)
    return fail(Code::kInvalid, "%zu token_ids for %zu blocks of %llu", tokens.size(),
                e.hashes.size(), static_cast<unsigned long long>(block));
  e.tokens.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const wire::Value token = tokens.at(i);
    const bool with_next = token.kind() == wire::Value::Kind::kArray && token.size() == 2;
    const auto t = with_next ? token.at(0).integer() : token.integer();
    if (!t || *t < 0 || *t > INT32_MAX) return fail(Code::kInvalid, "token_ids[%zu]", i);
    e.tokens.push_back(static_cast<int32_t>(*t));
  }
  e.lora = fields.get(7, "lora_name").text().substr(0, kNameMax);
  e.adapter = !fields.get(5, "lora_id").nil() || !e.lora.empty();
  e.salt = fields.get(kNowhere, "cache_salt").text();
  const wire::Value extras = fields.get(8, "extra_keys");
  if (extras.kind() == wire::Value::Kind::kArray && extras.size() != e.hashes.size())
    return fail(Code::kInvalid, "%zu extra_keys for %zu blocks", extras.size(), e.hashes.size());
  if (extras.kind() == wire::Value::Kind::kArray)
    for (size_t i = 0; i < extras.size(); ++i)
      e.extras.push_back(event_extra(extras.at(i), e, i == 0 && !e.parent));
  const std::string_view kind = fields.get(kNowhere, "kv_cache_spec_kind").text();
  e.full = kind.empty() || kind == "unknown" || kind.find("full") != kind.npos ||
           kind == "mla_attention";
  return {};
}

Result<> decode_event(const wire::Value& v, ExternalBatch& batch) {
  const EventFields fields(v);
  const std::string_view type = fields.get(0, "type", "event_type").text();
  ExternalEvent e;
  if (type == "AllBlocksCleared" || type == "cleared") {
    e.kind = ExternalEvent::Kind::kCleared;
  } else if (type == "BlockRemoved" || type == "removed" || type == "BlockStored" ||
             type == "stored") {
    MC_TRY(e.hashes, event_hashes(fields.get(1, "block_hashes", "seq_hashes")));
    e.group = fields.get(kNowhere, "group_idx").integer();
    const bool added = type == "BlockStored" || type == "stored";
    if (added) {
      MC_TRY_(stored(fields, e));
    } else {
      e.kind = ExternalEvent::Kind::kRemoved;
    }
    e.medium = fields.get(added ? 6 : 2, "medium").text().substr(0, 16);
    e.here = e.medium != "EXTERNAL" && fields.get(kNowhere, "locality").text() != "REMOTE";
  } else {
    ++batch.skipped;
    return {};
  }
  batch.events.push_back(std::move(e));
  return {};
}

}  // namespace

void add_picture(std::string& content, std::string_view name, int64_t offset) {
  content.append(name).push_back('\0');
  content.append(std::to_string(offset)).push_back('\0');
}

Result<ExternalBatch> decode_events(std::string_view payload) {
  MC_TRY(const wire::Document doc, wire::Document::parse(payload, kEventBytesMax));
  const wire::Value root = doc.root();
  const wire::Value events = root.at(1);
  ExternalBatch batch;
  if (root.kind() != wire::Value::Kind::kArray || !root.at(0).number() ||
      events.kind() != wire::Value::Kind::kArray || events.size() > kEventsMax)
    return fail(Code::kInvalid, "want [time, [events], rank]");
  batch.time = *root.at(0).number();
  batch.rank = root.at(2).integer();
  for (size_t i = 0; i < events.size(); ++i)
    if (auto ok = decode_event(events.at(i), batch); !ok)
      return fail(Code::kInvalid, "event %zu: %s", i, ok.error().what.c_str());
  return batch;
}

}  // namespace mc::serve
