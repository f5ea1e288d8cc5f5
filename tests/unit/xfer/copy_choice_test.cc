// Which kind of copy is chosen by what was measured, and what becomes of the file that keeps it.
#include "xfer/memory/copy_choice.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "io/file.h"
#include "xfer/memory/machine_copies.h"

using namespace mc;
using namespace mc::xfer;

namespace {

const auto kAlways = [] { return true; };

// A machine by its seconds for each kind: plain, streaming, string.
struct Machine {
  std::array<double, kCopyKinds> hot, cold;
  double operator()(CopyKind kind, const CopyCase& c) const {
    return (c.cold ? cold : hot)[static_cast<size_t>(kind)];
  }
};

struct Folder {
  Folder() {
    char name[] = "/tmp/mc-copies.XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

CopyChoice all(CopyKind kind) {
  CopyChoice out;
  out.kinds.fill(kind);
  return out;
}

}  // namespace

TEST_SUITE("xfer/copy_choice") {
  TEST_CASE("F178: where non-temporal stores are slow, no copy uses them") {
    // Gigabytes a second of one thread: 2.6 non-temporal, 8.3 plain.
    const CopyChoice slow =
        choose_copies(Machine{{1 / 8.3, 1 / 2.6, 1 / 8.}, {1 / 8.3, 1 / 2.6, 1 / 8.}}, kAlways);
    CHECK(slow == all(CopyKind::kPlain));
    const CopyChoice usual =
        choose_copies(Machine{{1 / 20., 1 / 9., 1 / 15.}, {1 / 5., 1 / 9., 1 / 6.}}, kAlways);
    CHECK(usual == default_copies());
    CHECK(usual.of({false, true, false}) == CopyKind::kStreaming);
    CHECK(usual.of({true, false, true}) == CopyKind::kPlain);
    const CopyChoice strings =
        choose_copies(Machine{{1 / 20., 1 / 9., 1 / 25.}, {1 / 5., 1 / 9., 1 / 12.}}, kAlways);
    CHECK(strings == all(CopyKind::kString));
  }

  TEST_CASE("what is chosen is never slower than 0.95 of the best, on any machine") {
    uint64_t state = 1;
    const auto speed = [&] {
      state = state * 6364136223846793005 + 1442695040888963407;
      return 1 + static_cast<double>(state >> 40) / static_cast<double>(1 << 24) * 30;
    };
    for (int i = 0; i < 1000; ++i) {
      std::map<std::pair<size_t, size_t>, double> seconds;
      for (size_t c = 0; c < CopyCase::kCount; ++c)
        for (size_t k = 0; k < kCopyKinds; ++k) seconds[{c, k}] = 1 / speed();
      const CopyChoice chosen = choose_copies(
          [&](CopyKind kind, const CopyCase& c) {
            return seconds[{c.index(), static_cast<size_t>(kind)}];
          },
          kAlways);
      for (size_t c = 0; c < CopyCase::kCount; ++c) {
        const double mine = seconds[{c, static_cast<size_t>(chosen.kinds[c])}];
        for (size_t k = 0; k < kCopyKinds; ++k) CHECK(seconds[{c, k}] >= 0.95 * mine);
      }
    }
  }

  TEST_CASE(
      "a copy that was interrupted does not count, and a machine that is too slow keeps the "
      "defaults") {
    const Machine machine{{1 / 8.3, 1 / 2.6, 1 / 8.}, {1 / 8.3, 1 / 2.6, 1 / 8.}};
    int n = 0;
    const auto interrupted = [&](CopyKind kind, const CopyCase& c) {
      return ++n % 5 == 0 && kind == CopyKind::kPlain ? 1. : machine(kind, c);
    };
    CHECK(choose_copies(interrupted, kAlways) == all(CopyKind::kPlain));
    // One round and a half: the first cases were measured twice, the others keep the default.
    int left = 12 * static_cast<int>(kCopyKinds);
    const CopyChoice some = choose_copies(machine, [&] { return left-- > 0; });
    for (size_t c = 0; c < CopyCase::kCount; ++c)
      CHECK(some.kinds[c] == (c < 4 ? CopyKind::kPlain : default_copies().kinds[c]));
    CHECK(choose_copies(machine, [] { return false; }) == default_copies());
  }

  TEST_CASE("the text of a choice is read back, and damage of any byte is noticed") {
    CopyChoice choice = default_copies();
    choice.kinds[3] = CopyKind::kString;
    const std::string text = print_copies(choice, "host-1");
    const auto back = parse_copies(text, "host-1");
    REQUIRE(back);
    CHECK(*back == choice);
    CHECK(!parse_copies(text, "host-2"));  // another boot
    CHECK(!parse_copies("", "host-1"));
    for (size_t i = 0; i < text.size(); ++i) {
      CHECK(!parse_copies(text.substr(0, i), "host-1"));
      std::string bad = text;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      CHECK(!parse_copies(bad, "host-1"));
    }
    CHECK(!parse_copies(text + "x", "host-1"));
  }

  TEST_CASE(
      "a machine is measured once a boot, before its first large copy, and again where the file is "
      "damaged") {
    const Folder folder;
    const std::string file = copies_file(folder.path);
    int measured = 0;
    const auto measure = [&] {
      ++measured;
      return all(CopyKind::kString);
    };
    std::vector<std::byte> a(4096), b(4096);
    const Rows rows{a.data(), b.data(), 4096};
    const auto kind_after = [&](uint64_t bytes, const std::string& host) {
      MachineCopies copies(file, host, measure);
      copies.learn_for(bytes);
      copies.learn_for(bytes);
      return copies.kind(rows, false);
    };
    CHECK(kind_after(MachineCopies::kLearnBytes - 1, "boot-1") == CopyKind::kPlain);
    CHECK(measured == 0);
    CHECK(kind_after(MachineCopies::kLearnBytes, "boot-1") == CopyKind::kString);
    CHECK(measured == 1);
    CHECK(kind_after(MachineCopies::kLearnBytes, "boot-1") == CopyKind::kString);
    CHECK(measured == 1);  // another process
    CHECK(kind_after(MachineCopies::kLearnBytes, "boot-2") == CopyKind::kString);
    CHECK(measured == 2);
    REQUIRE(io::write_file_atomically(file, "mccopies 1\nboot-2\nplain\n", 0600));
    CHECK(kind_after(MachineCopies::kLearnBytes, "boot-2") == CopyKind::kString);
    CHECK(measured == 3);
    CHECK(parse_copies(*io::read_file(file), "boot-2"));
    ::unlink(file.c_str());
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);  // nobody waits for its writer
    CHECK(kind_after(MachineCopies::kLearnBytes, "boot-2") == CopyKind::kString);
    CHECK(measured == 4);
    CHECK(parse_copies(*io::read_file(file), "boot-2"));
    MachineCopies nowhere("/nowhere/file", "boot", measure);  // not kept, and no error
    nowhere.learn_for(MachineCopies::kLearnBytes);
    CHECK(nowhere.kind(rows, false) == CopyKind::kString);
    CHECK(measured == 5);
  }

  TEST_CASE("every kind copies the same bytes, and this machine can be measured") {
    for (const size_t bytes : {1024u, 5000u, 16'384u, 70'000u, 300'001u}) {
      std::vector<std::byte> from(bytes);  // ends where its memory ends
      for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 13 + i / 256);
      for (size_t kind = 0; kind < kCopyKinds; ++kind)
        for (size_t skew = 0; skew < 64; skew += skew < 8 ? 1 : 7) {
          std::vector<std::byte> to(bytes + skew + 1);
          copy_rows({to.data() + skew, from.data(), bytes}, static_cast<CopyKind>(kind));
          CHECK(std::memcmp(to.data() + skew, from.data(), bytes) == 0);
          CHECK(to[skew + bytes] == std::byte{0});
          CHECK((skew == 0 || to[skew - 1] == std::byte{0}));
        }
    }
    for (const CopyKind kind : measure_copies().kinds)
      CHECK(static_cast<size_t>(kind) < kCopyKinds);
  }
}
