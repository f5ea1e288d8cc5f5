// A local folder as a file tree; nothing outside the folder is reachable. Every path is walked
// from the folder's descriptor, one component at a time, without following a link.
//
// Errors: file_tree.h.
// Thread: any.
#pragma once
#include "io/fd.h"
#include "p2p/filecopy/file_tree.h"

namespace mc::p2p::filecopy {

class Tree : public FileTree {
 public:
  // The folder itself may be named through links.
  static Result<std::unique_ptr<Tree>> open(const std::string& folder);

  Result<TreeEntry> look(const std::string& path) override;
  Result<Page> list(const std::string& path, const std::string& after) override;
  Result<std::vector<uint64_t>> sums(const TreeEntry& file, uint64_t first,
                                     uint32_t count) override;
  Result<uint64_t> load(const TreeEntry& file, uint64_t piece, std::span<std::byte> into) override;
  Result<bool> make_folder(const std::string& path, uint32_t mode) override;
  Result<> set_mode(const std::string& path, uint32_t mode) override;
  Result<std::unique_ptr<PartialFile>> begin(const TreeEntry& file) override;

 private:
  explicit Tree(io::Fd root) : root_(std::move(root)) {}
  Result<io::Fd> folder_of(const std::string& path) const;  // the folder that holds it
  Result<io::Fd> open_folder(const std::string& path) const;
  Result<io::Fd> open_file(const TreeEntry& file) const;
  const io::Fd root_;
};

}  // namespace mc::p2p::filecopy
