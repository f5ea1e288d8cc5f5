#include "wire/release.h"

#include <doctest/doctest.h>

#include "wire/codec.h"

namespace mc::wire {
namespace {

TEST_CASE("releases with a protocol in common work together (F124)") {
  CHECK(check_release("a", this_release(), "b"));
  CHECK(check_release("a", {"9.9.9", 0, UINT32_MAX}, "b"));
  CHECK(check_release("a", {}, "b"));  // one that does not say
  const auto newer = check_release("node n1", {"9.9.9", kProtocolMax + 1, kProtocolMax + 3}, "b");
  REQUIRE_FALSE(newer);
  CHECK(newer.error().code == Code::kUnsupported);
  CHECK(newer.error().what ==
        strf("node n1 is mc 9.9.9 (protocols %u to %u) and b is %s: they have no protocol in "
             "common; run releases that do",
             kProtocolMax + 1, kProtocolMax + 3, release_text(this_release()).c_str()));
  CHECK_FALSE(check_release("a", {"0.0.1", 0, kProtocolMin - 1}, "b"));
  CHECK_FALSE(check_release("a", {"x", kProtocolMax, kProtocolMin - 1}, "b"));  // no range at all
}

TEST_CASE("a peer's build is printable and short in messages") {
  const std::string text = release_text({std::string(50000, 'x') + "\n\x1b[2J", 2, 2});
  CHECK(text.size() < 200);
  CHECK(release_text({"\x1b[2J", 1, 1}).find('\x1b') == std::string::npos);
}

struct Greeting {
  static constexpr const char* kName = "greeting";
  Release release;
  static void fields(auto& a, auto& m) { a(m.release); }
};

TEST_CASE("a message without a release is of an older one") {
  const auto read = decode<Greeting>(std::string("\x90", 1));
  REQUIRE(read);
  CHECK(read->release.build.empty());
  CHECK(read->release.protocol_min == 1);
  CHECK(read->release.protocol_max == 1);
}

}  // namespace
}  // namespace mc::wire
