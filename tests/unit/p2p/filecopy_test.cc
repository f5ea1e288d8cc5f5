#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "p2p/filecopy/copier.h"
#include "p2p/filecopy/tree.h"

namespace mc::p2p::filecopy {
namespace {
namespace fs = std::filesystem;

struct Folder {
  Folder() {
    char name[] = "/tmp/mc-files.XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
  std::string get(const std::string& name) const {
    std::ifstream in(path / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::unique_ptr<Tree> tree() const {
    auto t = Tree::open(path.string());
    REQUIRE(t);
    return std::move(*t);
  }
  fs::path path;
};

std::string text(size_t n) {
  std::string out(n, 'a');
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<char>('a' + i * 7 % 23 + i / kPieceBytes);
  return out;
}

// Corrupts chosen pieces while they are loaded.
class Spoilt : public FileTree {
 public:
  explicit Spoilt(FileTree& place) : place_(place) {}
  uint32_t spoil = 0, loads = 0;
  Result<TreeEntry> look(const std::string& path) override { return place_.look(path); }
  Result<Page> list(const std::string& path, const std::string& after) override {
    auto page = place_.list(path, after);
    if (page && !evil.empty()) page->entries.push_back({evil, false, 1, 0644, 0});
    return page;
  }
  Result<std::vector<uint64_t>> sums(const TreeEntry& f, uint64_t first, uint32_t count) override {
    return place_.sums(f, first, count);
  }
  Result<uint64_t> load(const TreeEntry& f, uint64_t piece, std::span<std::byte> into) override {
    ++loads;
    auto sum = place_.load(f, piece, into);
    if (spoil > 0 && spoil-- > 0) into[0] ^= std::byte{1};
    return sum;
  }
  Result<bool> make_folder(const std::string& p, uint32_t m) override {
    return place_.make_folder(p, m);
  }
  Result<> set_mode(const std::string& p, uint32_t m) override { return place_.set_mode(p, m); }
  Result<std::unique_ptr<PartialFile>> begin(const TreeEntry& f) override {
    return place_.begin(f);
  }
  std::string evil;

 private:
  FileTree& place_;
};

Result<CopyReport> copy(FileTree& from, FileTree& to, const std::string& a, const std::string& b) {
  std::vector<std::byte> memory(kPieceBytes);
  return Copier(from, to, {std::span(memory)}, {}).run(a, b);
}

TEST_CASE("a piece that arrives spoilt is fetched again, and given up after a few times") {
  const Folder a, b;
  a.put("f", text(kPieceBytes + 5));
  const auto from = a.tree(), to = b.tree();
  Spoilt spoilt(*from);
  spoilt.spoil = 2;
  REQUIRE(copy(spoilt, *to, "f", "g"));
  CHECK(b.get("g") == a.get("f"));
  CHECK(spoilt.loads == 4);
  spoilt.spoil = 100;
  const auto report = copy(spoilt, *to, "f", "h");
  REQUIRE(!report);
  CHECK(report.error().code == Code::kCorrupt);
  CHECK(!fs::exists(b.path / "h"));
}

TEST_CASE("a copy that stopped is gone on with, and only what is missing is loaded") {
  const Folder a, b;
  a.put("f", text(3 * kPieceBytes + 5));
  const auto from = a.tree(), to = b.tree();
  {
    const auto file = from->look("f");
    REQUIRE(file);
    auto part = to->begin(*file);
    REQUIRE(part);
    std::vector<std::byte> buffer(kPieceBytes);
    const auto sum = from->load(*file, 2, buffer);
    REQUIRE(sum);
    REQUIRE((*part)->store(2, buffer, *sum));
    CHECK((*part)->store(2, buffer, *sum + 1).error().code == Code::kCorrupt);
    CHECK((*part)->store(4, buffer, *sum).error().code == Code::kInvalid);
    CHECK(to->begin(*file).error().code == Code::kBusy);  // one writer at a time
  }
  Spoilt counted(*from);
  const auto report = copy(counted, *to, "f", "f");
  REQUIRE(report);
  CHECK(report->kept == kPieceBytes);
  CHECK(counted.loads == 3);
  CHECK(b.get("f") == a.get("f"));
}

TEST_CASE("a file that changes after it was listed is stale") {
  const Folder a;
  a.put("f", text(100));
  const auto tree = a.tree();
  const auto file = tree->look("f");
  REQUIRE(file);
  a.put("f", text(101));
  std::vector<std::byte> buffer(kPieceBytes);
  CHECK(tree->load(*file, 0, buffer).error().code == Code::kStale);
  CHECK(tree->sums(*file, 0, 1).error().code == Code::kStale);
}

TEST_CASE("no path leaves the folder, for reading or writing") {
  const Folder outside, a;
  outside.put("secret", "x");
  a.put("f", "y");
  fs::create_symlink(outside.path, a.path / "link");
  fs::create_symlink(outside.path / "secret", a.path / "file-link");
  const auto tree = a.tree();
  for (const std::string path : {"../x", "/etc/passwd", "f/../../x", "link/secret", "./f", "a//b",
                                 "file-link", "link/new"}) {
    CAPTURE(path);
    const TreeEntry file{path, false, 1, 0644, 0};
    std::vector<std::byte> buffer(kPieceBytes);
    CHECK(tree->load(file, 0, buffer).error().code == Code::kDenied);
    if (path != "file-link") CHECK(tree->begin(file).error().code == Code::kDenied);
    CHECK(tree->list(path, "").error().code == Code::kDenied);
    CHECK(tree->look(path).error().code == Code::kDenied);
    CHECK(tree->set_mode(path, 0777).error().code == Code::kDenied);
  }
  CHECK(tree->make_folder("link/new", 0755).error().code == Code::kDenied);
  CHECK(tree->make_folder("../new", 0755).error().code == Code::kDenied);
  CHECK(fs::is_empty(outside.path) == false);
  CHECK(std::distance(fs::directory_iterator(outside.path), {}) == 1);
}

TEST_CASE("a file where a folder is meant, and a folder where a file is, move nothing") {
  const Folder a, b;
  a.put("f", text(kPieceBytes + 5));
  fs::create_directory(a.path / "folder");
  a.put("folder/sub", "file");
  b.put("file", "old");
  fs::create_directories(b.path / "there/sub");
  const auto from = a.tree(), to = b.tree();
  Spoilt counted(*from);
  using Ends = std::pair<std::string, std::string>;
  for (const Ends& ends : {Ends{"f", "file/one"}, Ends{"f", "file/a/one"}, Ends{"f", "there"},
                           Ends{"folder", "file"}, Ends{"folder", "there"}}) {
    const std::string target = ends.second;
    CAPTURE(target);
    const auto report = copy(counted, *to, ends.first, target);
    REQUIRE(!report);
    CHECK(report.error().code == Code::kInvalid);
  }
  CHECK(counted.loads == 0);
  CHECK(b.get("file") == "old");
  CHECK(to->look("file/one").error().code == Code::kInvalid);
}

TEST_CASE("a peer that lists a name with a slash is not believed") {
  const Folder a, b;
  a.put("d/f", "y");
  const auto from = a.tree(), to = b.tree();
  for (const std::string evil : {"../f", "x/y", "..", "/x"}) {
    Spoilt place(*from);
    place.evil = evil;
    CHECK(copy(place, *to, "d", "d").error().code == Code::kDenied);
  }
}

TEST_CASE("a folder of thousands is listed page by page, whole") {
  const Folder a, b;
  for (int i = 0; i < 4100; ++i) a.put(std::to_string(i), std::to_string(i));
  const auto from = a.tree(), to = b.tree();
  const auto report = copy(*from, *to, "", "all");
  REQUIRE(report);
  CHECK(report->files == 4100);
  CHECK(b.get("all/4099") == "4099");
}

}  // namespace
}  // namespace mc::p2p::filecopy
