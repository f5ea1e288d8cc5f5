// The address sanitizer sees a read past the end of an input, whichever code reads it.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "base/hash.h"

using namespace mc;

namespace hash_test {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSeen = true;
#elif defined(__clang__)
constexpr bool kSeen = __has_feature(address_sanitizer);
#else
constexpr bool kSeen = false;
#endif

// Whether a child that does it ends otherwise than it should.
bool stopped(const std::function<void()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(STDERR_FILENO);  // the sanitizer's report
    work();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

}  // namespace

TEST_CASE("a byte past the end of an input is not read unseen, however long the input is") {
  for (const size_t n : {8u, 100u, 240u, 241u, 1000u, 100'000u}) {
    CAPTURE(n);
    const std::vector<char> bytes(n);
    CHECK_FALSE(stopped([&] { (void)xxh3(bytes.data(), n); }));
    if (!kSeen) continue;
    CHECK(stopped([&] { (void)xxh3(bytes.data(), n + 1); }));
    CHECK(stopped([&] {
      Xxh3Stream stream;
      stream.update(bytes.data(), n + 1);
      (void)stream.digest();
    }));
  }
}

}  // namespace hash_test
