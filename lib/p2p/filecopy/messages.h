// Control messages between a copier and a peer that offers a folder. File bytes do not travel
// here. The peer leases the copier slots of its memory, one for each piece in flight. A piece is
// loaded into a slot and read from there, or written there and stored from it.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "p2p/filecopy/file_tree.h"
#include "wire/codec.h"

namespace mc::p2p::filecopy {

struct Done {
  static constexpr const char* kName = "files-done";
  bool made = false;  // of MakeFolder
  static void fields(auto& a, auto& m) { a(m.made); }
};

struct SlotLease {
  static constexpr const char* kName = "files-slot";
  uint64_t ticket = 0;
  uint64_t offset = 0;  // of kPieceBytes, in the peer's segment
  bool writable = false;
  static void fields(auto& a, auto& m) { a(m.ticket, m.offset, m.writable); }
};
// A lease expires after Service::kSlotIdle without a call. kBusy: all slots are leased.
struct LeaseSlot {
  static constexpr const char* kName = "files-lend";
  using Reply = SlotLease;
  uint64_t ticket = 0;  // of a lease to renew; 0: a new one
  static void fields(auto& a, auto& m) { a(m.ticket); }
};
struct ReturnSlot {
  static constexpr const char* kName = "files-return";
  using Reply = Done;
  uint64_t ticket = 0;
  static void fields(auto& a, auto& m) { a(m.ticket); }
};

struct FoundEntry {
  static constexpr const char* kName = "files-entry";
  TreeEntry entry;
  static void fields(auto& a, auto& m) { a(m.entry); }
};
struct LookAt {
  static constexpr const char* kName = "files-look";
  using Reply = FoundEntry;
  std::string path;
  static void fields(auto& a, auto& m) { a(m.path); }
};
struct ListFolder {
  static constexpr const char* kName = "files-list";
  using Reply = Page;
  std::string path, after;
  static void fields(auto& a, auto& m) { a(m.path, m.after); }
};

struct Sums {
  static constexpr const char* kName = "files-sums";
  std::vector<uint64_t> sums;
  static void fields(auto& a, auto& m) { a(wire::at_most<kSumsMax>(m.sums)); }
};
struct SumPieces {
  static constexpr const char* kName = "files-sum";
  using Reply = Sums;
  TreeEntry file;
  uint64_t part = 0;  // of a file that is being written; or 0
  uint64_t first = 0;
  uint32_t count = 0;
  static void fields(auto& a, auto& m) { a(m.file, m.part, m.first, m.count); }
};

struct Loaded {
  static constexpr const char* kName = "files-loaded";
  uint64_t sum = 0;
  static void fields(auto& a, auto& m) { a(m.sum); }
};
struct LoadPiece {
  static constexpr const char* kName = "files-load";
  using Reply = Loaded;
  uint64_t ticket = 0;
  TreeEntry file;
  uint64_t piece = 0;
  static void fields(auto& a, auto& m) { a(m.ticket, m.file, m.piece); }
};

struct MakeFolder {
  static constexpr const char* kName = "files-folder";
  using Reply = Done;
  std::string path;
  uint32_t mode = 0;
  static void fields(auto& a, auto& m) { a(m.path, m.mode); }
};
struct SetMode {
  static constexpr const char* kName = "files-mode";
  using Reply = Done;
  std::string path;
  uint32_t mode = 0;
  static void fields(auto& a, auto& m) { a(m.path, m.mode); }
};

struct Begun {
  static constexpr const char* kName = "files-begun";
  uint64_t part = 0;
  wire::Blob present;  // a p2p::ShardSet of the file's pieces
  static void fields(auto& a, auto& m) { a(m.part, m.present); }
};
// A new writer of a file ends an earlier writer's part, because that writer may be dead.
struct BeginFile {
  static constexpr const char* kName = "files-begin";
  using Reply = Begun;
  TreeEntry file;
  static void fields(auto& a, auto& m) { a(m.file); }
};
struct StorePiece {
  static constexpr const char* kName = "files-store";
  using Reply = Done;
  uint64_t ticket = 0, part = 0, piece = 0, sum = 0;
  static void fields(auto& a, auto& m) { a(m.ticket, m.part, m.piece, m.sum); }
};
struct FinishFile {
  static constexpr const char* kName = "files-finish";
  using Reply = Done;
  uint64_t part = 0;
  uint32_t mode = 0;
  static void fields(auto& a, auto& m) { a(m.part, m.mode); }
};

}  // namespace mc::p2p::filecopy
