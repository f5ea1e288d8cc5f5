#include "serve/conductor/pair_bodies.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "io/address.h"

namespace mc::serve {
namespace {

constexpr const char* kKvParams = "kv_transfer_params";
constexpr size_t kPromptsMax = 1024;  // of one request to a pair of SGLang's
constexpr const char* kRoomMembers[] = {"bootstrap_host", "bootstrap_port", "bootstrap_room"};

void put(std::vector<JsonText::Change>& changes, const char* member, std::string value) {
  const auto it = std::find_if(changes.begin(), changes.end(),
                               [&](const JsonText::Change& c) { return c.name == member; });
  if (it != changes.end())
    it->value = std::move(value);
  else
    changes.push_back({member, std::move(value)});
}

// One prompt: a value. Several: a list of them.
template <class Value>
std::string each(const std::vector<uint64_t>& rooms, const Value& value) {
  if (rooms.size() == 1) return dump_json(Json(value(rooms[0])));
  Json list = Json::array();
  for (const uint64_t room : rooms) list.push_back(value(room));
  return dump_json(list);
}

void change_for_sglang(const PairMeeting& meeting, const PairFirst& first,
                       std::vector<JsonText::Change>& changes) {
  const std::string& at = first.bootstrap;  // "http://host:port"
  const auto address = io::parse_address(at.substr(std::min(at.size(), at.find("//") + 2)));
  if (!address) return;  // its registration was checked
  const std::string host =
      address->host.find(':') == std::string::npos ? address->host : "[" + address->host + "]";
  put(changes, kRoomMembers[0], each(meeting.rooms, [&](uint64_t) { return host; }));
  put(changes, kRoomMembers[1], each(meeting.rooms, [&](uint64_t) { return address->port; }));
  put(changes, kRoomMembers[2], each(meeting.rooms, [](uint64_t room) { return room; }));
}

}  // namespace

size_t prompts_of(const JsonText& body) {
  const auto prompt = body.find("prompt");
  if (!prompt || !prompt->starts_with('[')) return 1;
  const size_t first = prompt->find_first_not_of(" \t\r\n", 1);
  if (first == std::string_view::npos || ((*prompt)[first] != '"' && (*prompt)[first] != '['))
    return 1;
  const auto list = parse_json(*prompt);
  return list && list->is_array() ? std::max<size_t>(list->size(), 1) : 1;
}

bool one_answer(const JsonText& body) {
  for (const char* count : {"n", "best_of"})
    if (const auto n = body.find(count); n && *n != "1") return false;
  const auto beams = body.find("use_beam_search");
  return (!beams || *beams != "true") && prompts_of(body) == 1;
}

PairUse use_of(PairKind kind, const ProxiedRequest& request, bool names_blocks) {
  if (request.method != "POST" || request.form || !generates(request.path)) return PairUse::kNone;
  if (kind == PairKind::kSglang)
    return prompts_of(request.body) <= kPromptsMax ? PairUse::kBoth : PairUse::kNone;
  const bool for_one = kind == PairKind::kConcurrent || names_blocks;
  return for_one && !one_answer(request.body) ? PairUse::kSecondAlone : PairUse::kBoth;
}

void drop_pair_members(std::vector<JsonText::Change>& changes) {
  changes.push_back({kKvParams, std::nullopt});
  for (const char* member : kRoomMembers) changes.push_back({member, std::nullopt});
}

void change_for_first(PairKind kind, const PairMeeting& meeting, const PairFirst& first,
                      const ProxiedRequest& request, std::vector<JsonText::Change>& changes) {
  if (kind == PairKind::kSglang) return change_for_sglang(meeting, first, changes);
  Json params = {{"do_remote_decode", true}, {"do_remote_prefill", false}};
  if (kind == PairKind::kConcurrent) {
    params["transfer_id"] = meeting.transfer;
  } else {
    for (const char* member :
         {"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"})
      params[member] = nullptr;
  }
  put(changes, kKvParams, dump_json(params));
  for (const char* member :
       {"stream_options", "min_tokens", "max_completion_tokens", "n", "best_of", "use_beam_search"})
    changes.push_back({member, std::nullopt});
  changes.push_back({"stream", "false"});
  const bool responses = request.path == "/v1/responses";
  changes.push_back({responses ? "max_output_tokens" : "max_tokens", "1"});
}

void change_for_second(PairKind kind, const PairMeeting& meeting, const PairFirst& first,
                       const ProxiedRequest& request, const std::string& answered,
                       std::vector<JsonText::Change>& changes) {
  if (kind == PairKind::kSglang) return change_for_sglang(meeting, first, changes);
  if (kind == PairKind::kConcurrent) {
    const Json params = {{"do_remote_decode", false},
                         {"do_remote_prefill", true},
                         {"remote_bootstrap_addr", first.bootstrap},
                         {"remote_engine_id", first.engine},
                         {"transfer_id", meeting.transfer}};
    return put(changes, kKvParams, dump_json(params));
  }
  const auto answer = parse_json(answered);
  if (!answer) return;
  const auto handed = handed_over(*answer);
  if (!handed) return;
  if (names_blocks(*handed) && !one_answer(request.body)) return;
  put(changes, kKvParams, dump_json(*handed));
}

Result<Json> handed_over(const Json& answer) {
  const Json* const handed = member(answer, kKvParams);
  if (handed != nullptr && handed->is_object()) return *handed;
  return fail(Code::kUnsupported,
              "it hands no KV over: its answer has no '%s'; start it with a connector, or register "
              "it with role both",
              kKvParams);
}

bool names_blocks(const Json& handed) {
  const Json* const blocks = member(handed, "remote_block_ids");
  return blocks != nullptr && !blocks->is_null();
}

}  // namespace mc::serve
