#include "xfer/transports/tcp/frame.h"

#include <doctest/doctest.h>

#include <cstring>

#include "base/random.h"

using namespace mc;
using namespace mc::xfer::tcp;

TEST_SUITE("xfer/frame") {
  TEST_CASE("a header is these bytes, on every machine") {
    const Descriptor d{9, 4096, 100, 2, 128, UINT64_MAX, 0};
    const Header h = make_header(Kind::kRead, 0x1122334455667788, &d, sizeof d);
    uint8_t bytes[sizeof h];
    std::memcpy(bytes, &h, sizeof h);
    CHECK(std::string(reinterpret_cast<char*>(bytes), 4) == "MCX1");
    CHECK(bytes[4] == 1);                             // version
    CHECK(bytes[5] == 2);                             // kind: read
    CHECK((bytes[6] == 0 && bytes[7] == 0));          // code
    CHECK((bytes[8] == 56 && bytes[9] == 0));         // body bytes
    CHECK((bytes[16] == 0x88 && bytes[23] == 0x11));  // id
    CHECK(h.body_check == static_cast<uint32_t>(xxh3(&d, sizeof d)));
    CHECK(check_header(h).has_value());
    CHECK(check_body(h, &d));
  }

  TEST_CASE("a flipped bit anywhere in a header is found") {
    const Header good = make_header(Kind::kWrite, 5, "body", 4);
    for (size_t bit = 0; bit < sizeof good * 8; ++bit) {
      Header bad = good;
      auto* bytes = reinterpret_cast<uint8_t*>(&bad);
      bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ (1 << bit % 8));
      CAPTURE(bit);
      CHECK_FALSE(check_header(bad).has_value());
    }
  }

  TEST_CASE("a flipped bit in a descriptor is found") {
    Descriptor d{1, 2, 3, 4, 5, 6, 7};
    const Header h = make_header(Kind::kRead, 1, &d, sizeof d);
    d.offset ^= 64;
    CHECK_FALSE(check_body(h, &d));
  }

  TEST_CASE("another version and a body that is too long are refused by name") {
    Header h = make_header(Kind::kRead, 1, "", 0);
    h.version = 2;
    h.check = static_cast<uint32_t>(xxh3(&h, offsetof(Header, check)));
    auto version = check_header(h);
    REQUIRE_FALSE(version.has_value());
    CHECK(version.error().code == Code::kUnsupported);
    h = make_header(Kind::kReply, 1, "", 0);
    h.body_bytes = kTextMax + 1;
    h.check = static_cast<uint32_t>(xxh3(&h, offsetof(Header, check)));
    auto length = check_header(h);
    REQUIRE_FALSE(length.has_value());
    CHECK(length.error().code == Code::kCorrupt);
  }

  TEST_CASE("a proof depends on the secret and on the nonce") {
    Nonce one{}, other{};
    other[31] = 1;
    CHECK(prove("secret", one).proof == prove("secret", one).proof);
    CHECK(prove("secret", one).proof != prove("secret", other).proof);
    CHECK(prove("secret", one).proof != prove("secreT", one).proof);
  }
}
