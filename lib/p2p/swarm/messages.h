// Control messages between publishers and pullers of a set.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "p2p/shards.h"

namespace mc::p2p {

inline constexpr size_t kSourcesMax = 1024;
inline constexpr size_t kSetsMax = 65536;

struct SetInfo {
  std::string name;
  uint64_t id = 0, bytes = 0, shards = 0, have = 0, files = 0, sources = 0;
  static void fields(auto& a, auto& m) {
    a(m.name, m.id, m.bytes, m.shards, m.have, m.files, m.sources);
  }
};

struct SetList {
  static constexpr const char* kName = "p2p-sets";
  std::vector<SetInfo> sets;
  static void fields(auto& a, auto& m) { a(wire::at_most<kSetsMax>(m.sets)); }
};
struct ListSets {
  static constexpr const char* kName = "p2p-list";
  using Reply = SetList;
  std::string prefix;
  static void fields(auto& a, auto& m) { a(m.prefix); }
};

struct SetDescription {
  static constexpr const char* kName = "p2p-set";
  Manifest manifest;
  std::vector<std::string> sources;  // control addresses, the answering one not among them
  static void fields(auto& a, auto& m) { a(m.manifest, wire::at_most<kSourcesMax>(m.sources)); }
};
struct DescribeSet {
  static constexpr const char* kName = "p2p-describe";
  using Reply = SetDescription;
  std::string name;
  static void fields(auto& a, auto& m) { a(m.name); }
};

// "One of these shards, please": the asker becomes a source too, under its control address.
struct ShardGrant {
  static constexpr const char* kName = "p2p-grant";
  uint32_t shard = 0;
  uint64_t offset = 0;               // in the source's segment
  std::vector<std::string> sources;  // others, to ask as well
  static void fields(auto& a, auto& m) {
    a(m.shard, m.offset, wire::at_most<kSourcesMax>(m.sources));
  }
};
struct AskShard {
  static constexpr const char* kName = "p2p-ask";
  using Reply = ShardGrant;
  std::string name;
  uint64_t id = 0;    // of the manifest
  std::string asker;  // its control address; empty: it will not serve
  wire::Blob wanted;  // a ShardSet
  static void fields(auto& a, auto& m) { a(m.name, m.id, m.asker, m.wanted); }
};

struct Noted {
  static constexpr const char* kName = "p2p-noted";
  static void fields(auto& a, auto&) { a(); }
};
struct ReleaseShard {  // pulled, or given up: the upload slot is free
  static constexpr const char* kName = "p2p-release";
  using Reply = Noted;
  std::string name, asker;
  uint32_t shard = 0;
  static void fields(auto& a, auto& m) { a(m.name, m.asker, m.shard); }
};
struct LeaveSwarm {  // this source is going
  static constexpr const char* kName = "p2p-leave";
  using Reply = Noted;
  std::string name, source;
  static void fields(auto& a, auto& m) { a(m.name, m.source); }
};
struct DropSet {
  static constexpr const char* kName = "p2p-drop";
  using Reply = SetDescription;  // as it was, so that the caller can tell the other sources
  std::string name;
  static void fields(auto& a, auto& m) { a(m.name); }
};

}  // namespace mc::p2p
