// The first frame of every control message, and how errors travel.
//
// A request is [envelope][body]; its reply [envelope][body] with the same id and the type "ok" or
// "error". A server sees ROUTER's peer identity before them. Source: docs/wire.md.
//
// Thread: values; any thread. Pure.
#pragma once
#include <string>

#include "wire/codec.h"

namespace mc::rpc {

inline constexpr uint8_t kProtocolVersion = 1;

struct Envelope {
  static constexpr const char* kName = "envelope";
  uint8_t version = kProtocolVersion;
  std::string type;
  uint64_t id = 0;
  uint32_t budget_ms = 0;  // the caller waits this long, from when it sent
  wire::Blob trace_id;     // 16 bytes, or empty
  static void fields(auto& a, auto& m) { a(m.version, m.type, m.id, m.budget_ms, m.trace_id); }
};

struct ErrorBody {
  static constexpr const char* kName = "error";
  uint8_t code = 0;
  std::string name, what;
  bool elsewhere = false;  // not done, for such calls are another server's
  std::string instead{};   // which one, "host:port"; empty: that is not known yet
  static void fields(auto& a, auto& m) { a(m.code, m.name, m.what, m.elsewhere, m.instead); }
};

struct Empty {  // the reply of calls that answer only "done"
  static constexpr const char* kName = "empty";
  static void fields(auto& a, auto&) { a(); }
};

}  // namespace mc::rpc
