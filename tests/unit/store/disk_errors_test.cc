// A real folder whose listing fails. The program's own readdir stands before the C library's.
#include <dirent.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "base/hash.h"
#include "base/time.h"
#include "ssd_values.h"

namespace {
std::atomic<int> names_left{-1};  // that readdir tells before it fails; negative: all
}

extern "C" dirent* readdir(DIR* folder) {
  using Readdir = dirent* (*)(DIR*);
  static const auto real = reinterpret_cast<Readdir>(::dlsym(RTLD_NEXT, "readdir"));
  if (names_left == 0) {
    errno = EIO;
    return nullptr;
  }
  if (names_left > 0) --names_left;
  return real(folder);
}

namespace mc::store::ssd {
namespace {

// F105: a part of a listing looked like all of it, and values without their tables were removed.
TEST_CASE("a listing that fails half way is an error, and loses nothing") {
  const auto base =
      std::filesystem::temp_directory_path() / ("mc-listing-" + std::to_string(::getpid()));
  const SteadyClock clock;
  BackendOptions options;
  options.capacity = 64 * kMiB;
  for (const std::string kind : {"bucket", "file", "offset"}) {
    CAPTURE(kind);
    options.kind = kind;
    std::filesystem::remove_all(base);
    ScanReport report;
    const auto reopened = [&] {
      auto disk = open_disk(base.string(), {false, true});
      REQUIRE(disk.has_value());
      return open_backend(*disk, options, clock, report);
    };
    {
      auto backend = reopened();
      REQUIRE(backend.has_value());
      for (uint64_t i = 0; i < 8; ++i) {
        Saves saves;
        saves.add("k" + std::to_string(i), 3, 1000);
        REQUIRE((*backend)->write(saves.items()).has_value());
      }
    }
    for (int told = 1; told < 12; ++told) {
      names_left = told;
      (void)reopened();
      names_left = -1;
    }
    auto backend = reopened();
    REQUIRE_MESSAGE(backend.has_value(), backend.error().what);
    for (uint64_t i = 0; i < 8; ++i) CHECK(read_one(**backend, "k" + std::to_string(i)));
  }
  std::filesystem::remove_all(base);
}

}  // namespace
}  // namespace mc::store::ssd
