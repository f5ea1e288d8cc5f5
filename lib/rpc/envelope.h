// The envelope is the first frame of every control message.
//
// A request is [envelope][body]. Its reply is [envelope][body] with the same id and the type "ok"
// or "error"; the body of "error" is an ErrorBody. A server sees ROUTER's peer identity before
// them.
//
// Thread: values; any thread. Pure.
// Source: docs/wire.md.
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
  wire::Blob trace_id;     // telemetry/trace_context.h
  static void fields(auto& a, auto& m) { a(m.version, m.type, m.id, m.budget_ms, m.trace_id); }
};

struct ErrorBody {
  static constexpr const char* kName = "error";
  uint8_t code = 0;
  std::string name, what;
  bool elsewhere = false;  // not done: another server answers such calls
  std::string instead{};   // that server, "host:port"; empty: not known yet
  static void fields(auto& a, auto& m) { a(m.code, m.name, m.what, m.elsewhere, m.instead); }
};

struct Empty {  // the reply of calls that return nothing
  static constexpr const char* kName = "empty";
  static void fields(auto& a, auto&) { a(); }
};

}  // namespace mc::rpc
