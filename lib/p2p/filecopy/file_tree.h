// The interface of a copy's source and target: a local folder (tree.h) or a peer's (remote.h).
// Files move in pieces of kPieceBytes, each with its XXH3. A file is written under a temporary
// name and renamed when it is complete and verified. begin() finds what an interrupted copy left
// behind and keeps the pieces whose checksums agree with the source's.
//
// Requires: paths are relative to the tree's root, "" is the root itself. "." and ".." as a
// component, and symbolic links, give kDenied.
// Errors: kNotFound, kDenied, kStale (the file changed since it was listed), kCorrupt, kNoSpace,
// kBusy (another copy writes the same file), and for a peer kUnavailable and kTimeout.
// Thread: any.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "p2p/shards.h"

namespace mc::p2p::filecopy {

inline constexpr uint64_t kPieceBytes = 4 * kMiB;
inline constexpr uint64_t kFileBytesMax = 1ull << 44;
inline constexpr size_t kPageMax = 2000;
inline constexpr uint32_t kSumsMax = 64;  // pieces summed in one call

struct TreeEntry {
  std::string path;  // in a page: the name only
  bool folder = false;
  uint64_t bytes = 0;
  uint32_t mode = 0;         // the lower nine bits
  uint64_t modified_ns = 0;  // with `bytes`: is it still the same file?
  static void fields(auto& a, auto& m) { a(m.path, m.folder, m.bytes, m.mode, m.modified_ns); }
};

constexpr uint64_t pieces_of(uint64_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes; }
constexpr uint64_t piece_bytes(uint64_t bytes, uint64_t piece) {
  const uint64_t at = piece * kPieceBytes;
  return at >= bytes ? 0 : bytes - at < kPieceBytes ? bytes - at : kPieceBytes;
}

struct Page {  // of a folder, by name
  static constexpr const char* kName = "files-page";
  std::vector<TreeEntry> entries;
  bool more = false;     // ask again, after the last name
  std::string last;      // the last name looked at, shown or not
  uint64_t skipped = 0;  // links, devices, sockets and half-copied files
  static void fields(auto& a, auto& m) {
    a(wire::at_most<kPageMax>(m.entries), m.more, m.last, m.skipped);
  }
};

// A file that is being written.
class PartialFile {
 public:
  virtual ~PartialFile() = default;
  // What an earlier copy may have left: to be compared with the source.
  virtual const p2p::ShardSet& present() const = 0;
  virtual Result<std::vector<uint64_t>> sums(uint64_t first, uint32_t count) = 0;
  // The piece is the front of `bytes`; kCorrupt unless that has this sum.
  virtual Result<> store(uint64_t piece, std::span<std::byte> bytes, uint64_t sum) = 0;
  virtual Result<> finish(uint32_t mode) = 0;  // renames it; last
};

class FileTree {
 public:
  virtual ~FileTree() = default;
  virtual Result<TreeEntry> look(const std::string& path) = 0;
  virtual Result<Page> list(const std::string& path, const std::string& after) = 0;
  virtual Result<std::vector<uint64_t>> sums(const TreeEntry& file, uint64_t first,
                                             uint32_t count) = 0;
  // Fills the front of `into`; returns the XXH3 of what the source read, for store() to check.
  virtual Result<uint64_t> load(const TreeEntry& file, uint64_t piece,
                                std::span<std::byte> into) = 0;
  // Makes it and the folders above it; one that is there is made writable for its owner. False: it
  // was there.
  virtual Result<bool> make_folder(const std::string& path, uint32_t mode) = 0;
  virtual Result<> set_mode(const std::string& path, uint32_t mode) = 0;
  virtual Result<std::unique_ptr<PartialFile>> begin(const TreeEntry& file) = 0;
};

}  // namespace mc::p2p::filecopy
