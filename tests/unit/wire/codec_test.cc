#include "wire/codec.h"

#include <doctest/doctest.h>

#include "base/random.h"

using namespace mc;

namespace {
struct Inner {
  uint32_t a = 0;
  std::string b;
  static void fields(auto& x, auto& m) { x(m.a, m.b); }
};
struct Outer {
  static constexpr const char* kName = "outer";
  uint64_t n = 7;
  int32_t i = -3;
  double d = 0;
  bool flag = false;
  std::string text;
  wire::Blob blob;
  BlockHash hash;
  std::vector<Inner> list;
  static void fields(auto& x, auto& m) {
    x(m.n, m.i, m.d, m.flag, m.text, m.blob, m.hash, wire::at_most<1000>(m.list));
  }
};
struct Lean {
  static constexpr const char* kName = "lean";
  uint32_t a = 0;
  Inner inner{};  // always says something
  bool flag = false;
  std::string text{};
  Generation g{};
  std::vector<uint8_t> list{};
  static void fields(auto& x, auto& m) {
    x.lean(m.a, m.inner, m.flag, m.text, m.g, wire::at_most<8>(m.list));
  }
};
struct Whole {  // the same message, as an older writer has it
  static constexpr const char* kName = "lean";
  Lean m{};
  static void fields(auto& x, auto& w) {
    x(w.m.a, w.m.inner, w.m.flag, w.m.text, w.m.g, wire::at_most<8>(w.m.list));
  }
};
struct OuterOld {  // the same message, before its last fields were added
  static constexpr const char* kName = "outer";
  uint64_t n = 0;
  int32_t i = 0;
  static void fields(auto& x, auto& m) { x(m.n, m.i); }
};
struct Small {
  static constexpr const char* kName = "small";
  uint8_t v = 0;
  static void fields(auto& x, auto& m) { x(m.v); }
};
struct Ids {
  static constexpr const char* kName = "ids";
  std::vector<int32_t> v{};
  static void fields(auto& x, auto& m) { x(wire::at_most<wire::kListMax>(m.v)); }
};
struct Row {
  std::vector<uint8_t> v{};
  uint64_t more[7]{};
  static void fields(auto& x, auto& m) { x(wire::at_most<wire::kListMax>(m.v)); }
};
struct Nested {
  static constexpr const char* kName = "nested";
  std::vector<Row> v;
  static void fields(auto& x, auto& m) { x(wire::at_most<wire::kListMax>(m.v)); }
};

Outer sample() {
  Outer m;
  m.n = UINT64_MAX;
  m.i = INT32_MIN;
  m.d = 2.5;
  m.flag = true;
  m.text = "caf\xc3\xa9 \xff";  // not UTF-8 at the end: keys may hold any byte
  m.blob.bytes = std::string("\0\1\2", 3);
  m.hash.bytes[5] = 9;
  m.list = {{1, "one"}, {2, ""}};
  return m;
}
}  // namespace

TEST_SUITE("wire/codec") {
  TEST_CASE("a message keeps its fields") {
    auto back = wire::decode<Outer>(wire::encode(sample()));
    REQUIRE(back.has_value());
    CHECK(back->n == UINT64_MAX);
    CHECK(back->i == INT32_MIN);
    CHECK(back->d == 2.5);
    CHECK(back->flag);
    CHECK(back->text == sample().text);
    CHECK(back->blob.bytes == sample().blob.bytes);
    CHECK(back->hash == sample().hash);
    REQUIRE(back->list.size() == 2);
    CHECK(back->list[0].b == "one");
  }

  TEST_CASE("the bytes do not change between releases") {
    Outer m;
    m.text = "k";
    const std::string bytes = wire::encode(m);
    CHECK(bytes.substr(0, 5) == std::string("\x98\x07\xfd\x00\xc2", 5));
    CHECK(bytes.substr(5, 4) == std::string("\xa1k\xc4\x00", 4));
    CHECK(bytes.substr(9, 2) == "\xc4\x20");
  }

  TEST_CASE("numbers take the shortest form there is, and long lists of them come back") {
    Ids m;
    m.v = {0, 127, 128, 255, 256, 65535, 65536, INT32_MAX, -1, -32, -33, INT32_MIN};
    const std::string bytes = wire::encode(m);
    CHECK(bytes == std::string("\x91\x9c\x00\x7f\xcc\x80\xcc\xff\xcd\x01\x00\xcd\xff\xff"
                               "\xce\x00\x01\x00\x00\xce\x7f\xff\xff\xff\xff\xe0\xd0\xdf"
                               "\xd2\x80\x00\x00\x00",
                               33));
    Random random(5);
    while (m.v.size() < 100'000)
      m.v.push_back(static_cast<int32_t>(random.below(1u << (1 + m.v.size() % 31))));
    CHECK(wire::decode<Ids>(wire::encode(m))->v == m.v);
  }

  TEST_CASE("fields that an older writer lacks keep their defaults; newer ones are ignored") {
    auto newer = wire::decode<Outer>(wire::encode(OuterOld{5, 6}));
    REQUIRE(newer.has_value());
    CHECK(newer->n == 5);
    CHECK(newer->text.empty());
    auto older = wire::decode<OuterOld>(wire::encode(sample()));
    REQUIRE(older.has_value());
    CHECK(older->i == INT32_MIN);
  }

  TEST_CASE("nothing of the message before is in one that is read over it") {
    const std::string full = wire::encode(sample());
    Outer m;
    m.text = std::string(100, 'x');
    m.list = {{7, "seven"}, {8, "eight"}, {9, "nine"}};
    m.blob.bytes = "more than there is";
    REQUIRE(wire::decode_over(full, m));
    CHECK(wire::encode(m) == full);
    REQUIRE(wire::decode_over(wire::encode(Outer{}), m));
    CHECK(wire::encode(m) == wire::encode(Outer{}));
    REQUIRE(wire::decode_over(full, m));
    REQUIRE(wire::decode_over(wire::encode(OuterOld{5, 6}), m));  // which lacks most of it
    CHECK(m.n == 5);
    CHECK(m.i == 6);
    CHECK(m.text.empty());
    CHECK(m.list.empty());
    CHECK_FALSE(wire::decode_over(std::string_view(full).substr(0, full.size() - 3), m));
    REQUIRE(wire::decode_over(full, m));
    CHECK(wire::encode(m) == full);
  }

  TEST_CASE("a lean message leaves out trailing fields that say nothing, whole ones are read too") {
    CHECK(wire::encode(Lean{}) == std::string("\x92\x00\x92\x00\xa0", 5));
    CHECK(wire::encode(Lean{1, {}, false, "t"}) == std::string("\x94\x01\x92\x00\xa0\xc2\xa1t", 8));
    CHECK(wire::encode(Lean{0, {}, false, "", Generation{3}}).front() == '\x95');
    CHECK(wire::encode(Lean{0, {}, false, "", {}, {0}}).front() == '\x96');
    const Lean full{5, {6, "x"}, true, "text", Generation{7}, {8, 9}};
    for (const Lean& m : {Lean{}, full, Lean{1, {}, true}}) {
      const auto back = wire::decode<Whole>(wire::encode(m));  // by an older reader
      REQUIRE(back);
      CHECK(wire::encode(back->m) == wire::encode(m));
      const auto lean = wire::decode<Lean>(wire::encode(Whole{m}));
      REQUIRE(lean);
      CHECK(wire::encode(*lean) == wire::encode(m));
      Lean over = full;
      REQUIRE(wire::decode_over(wire::encode(m), over));
      CHECK(wire::encode(over) == wire::encode(m));
    }
  }

  TEST_CASE("whole doubles that a packer shortened are read") {
    for (const double d : {0.0, 1.0, -2.0, 1e9, 0.25}) {
      Outer m;
      m.d = d;
      CHECK(wire::decode<Outer>(wire::encode(m)).value().d == d);
    }
  }

  TEST_CASE("every truncation is an error and nothing worse") {
    const std::string bytes = wire::encode(sample());
    for (size_t n = 0; n < bytes.size(); ++n)
      CHECK_FALSE(wire::decode<Outer>(std::string_view(bytes).substr(0, n)).has_value());
    CHECK_FALSE(wire::decode<Outer>(bytes + "x").has_value());
  }

  TEST_CASE("any byte gone wild is an error or another message, never a crash") {
    const std::string bytes = wire::encode(sample());
    Random random(1);
    for (int i = 0; i < 20'000; ++i) {
      std::string bad = bytes;
      for (uint64_t k = 0; k <= random.below(3); ++k)
        bad[random.below(bad.size())] = static_cast<char>(random.next());
      (void)wire::decode<Outer>(bad);
    }
    for (int i = 0; i < 20'000; ++i) {
      std::string junk(random.below(40), '\0');
      for (char& c : junk) c = static_cast<char>(random.next());
      (void)wire::decode<Outer>(junk);
    }
  }

  TEST_CASE("lengths that lie allocate nothing") {
    CHECK_FALSE(wire::decode<Outer>(std::string("\xdd\xff\xff\xff\xff", 5)).has_value());
    CHECK_FALSE(wire::decode<Outer>(std::string("\x91\xc6\xff\xff\xff\xff", 6)).has_value());
    CHECK_FALSE(wire::decode<Outer>(std::string("\x91\xdb\xff\xff\xff\xff", 6)).has_value());
    // A list may claim no more elements than there are bytes, at any depth.
    std::string lies;
    for (int i = 0; i < 12; ++i) lies += std::string("\xdd\x00\x0f\xff\xff", 5);
    CHECK_FALSE(wire::decode<Nested>(lies).has_value());
    CHECK_FALSE(wire::decode<Nested>(std::string("\x91\xdc\x00\x05\x90", 5)).has_value());
    CHECK_FALSE(wire::decode<Outer>(std::string(wire::kMessageBytesMax + 1, '\0')).has_value());
    CHECK_FALSE(wire::decode<Nested>("\x91" + std::string(200, '\x91') + "\x90").has_value());
  }

  TEST_CASE("F22: a list is refused by its head when it is longer than its message allows") {
    Outer m;
    m.list.resize(1001);
    CHECK(wire::decode<Outer>(wire::encode(m)).error().what ==
          "outer message with a list of 1001, 1000 at most");
    m.list.pop_back();
    CHECK(wire::decode<Outer>(wire::encode(m)).has_value());
    CHECK(wire::decode<Outer>(wire::encode(m) + "x").error().what.starts_with("malformed outer"));
  }

  TEST_CASE(
      "F22: what lists and strings take in memory has a limit, whatever they take on the wire") {
    const auto rows = [](size_t n) {
      const std::string head = {'\x91',
                                '\xdd',
                                0,
                                static_cast<char>(n >> 16),
                                static_cast<char>(n >> 8),
                                static_cast<char>(n)};
      return head + std::string(n, '\x90');
    };
    constexpr size_t kFit = wire::kDecodedBytesMax / sizeof(Row);
    CHECK(wire::decode<Nested>(rows(kFit))->v.size() == kFit);
    CHECK(wire::decode<Nested>(rows(kFit + 1)).error().what.find("more than 24MiB of memory") !=
          std::string::npos);
    Outer m;
    m.blob.bytes.assign(15 << 20, 'x');
    CHECK(wire::decode<Outer>(wire::encode(m)).has_value());
  }

  TEST_CASE("numbers out of a field's range and strings over the limit are refused") {
    CHECK_FALSE(wire::decode<Small>("\x91\xcd\x01").has_value());
    CHECK_FALSE(wire::decode<Small>(std::string("\x91\xcd\x01\x00", 4)).has_value());
    CHECK_FALSE(wire::decode<Small>("\x91\xff").has_value());  // -1
    Outer m;
    m.text.assign(wire::kStringBytesMax + 1, 'x');
    CHECK_FALSE(wire::decode<Outer>(wire::encode(m)).has_value());
    m.text.pop_back();
    CHECK(wire::decode<Outer>(wire::encode(m)).has_value());
    CHECK_FALSE(wire::decode<Outer>("\x01").has_value());  // not an array at all
  }
}
