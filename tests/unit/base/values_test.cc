#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "base/hash.h"
#include "base/histogram.h"
#include "base/huge_pages.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/text.h"
#include "base/units.h"

using namespace mc;
using namespace std::chrono_literals;

TEST_SUITE("base/result") {
  TEST_CASE("each code has a name, an exit code and a status, and survives the wire") {
    std::set<std::string> names;
    for (unsigned n = 1; n <= 12; ++n) {
      const Code code = code_from_wire(n);
      CHECK(static_cast<unsigned>(code) == n);
      CHECK(names.insert(name(code)).second);
      CHECK(code_info(code).exit_code >= 1);
      CHECK(code_info(code).exit_code <= 4);
      CHECK(code_info(code).http_status >= 400);
    }
    CHECK(code_from_wire(0) == Code::kInternal);
    CHECK(code_from_wire(99) == Code::kInternal);
    CHECK(code_info(Code::kTimeout).exit_code == 3);
    CHECK(code_info(Code::kCorrupt).exit_code == 4);
  }
  TEST_CASE("a message longer than the first buffer is kept whole") {
    const std::string text(5000, 'x');
    CHECK(fail(Code::kInvalid, "<%s>", text.c_str()).value().what.size() == 5002);
  }
}

TEST_SUITE("base/units") {
  TEST_CASE("a peer's words are one line without control characters") {
    CHECK(one_line("all is well", 100) == "all is well");
    CHECK(one_line("a\nb\tc\x1b[31m\x7f", 100) == "a b c?[31m?");
    CHECK(one_line(std::string_view("a\0b", 3), 100) == "a?b");
    CHECK(one_line("\xc2\x9b"
                   "1m \xe2\x80\xae"
                   "txt \xe2\x80\xa8",
                   100) == "?1m ?txt ?");
    CHECK(one_line("gr\xc3\xbc\xc3\x9f \xf0\x9f\x99\x82", 100) ==
          "gr\xc3\xbc\xc3\x9f \xf0\x9f\x99\x82");
    for (const char* bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
      const std::string made = one_line(bad, 100);
      CHECK(made == std::string(std::string_view(bad).size(), '?'));
    }
  }
  TEST_CASE("what is too long ends at a character, and says how much is left out") {
    CHECK(one_line("abcdef", 6) == "abcdef");
    CHECK(one_line("abcdef", 4) == "abcd... (cut, 2 bytes more)");
    CHECK(one_line("abc\xe2\x82\xac", 5) == "abc... (cut, 3 bytes more)");
    CHECK(one_line(std::string(60'000, 'x'), 1000).size() < 1050);
  }
  TEST_CASE("sizes and durations read as they print") {
    for (const uint64_t n : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, 5 * kMiB, 3 * kGiB})
      CHECK(parse_bytes(bytes_text(n)).value() == n);
    for (const Duration d : {Duration(1), Duration(250us), Duration(10ms), Duration(90s)})
      CHECK(parse_duration(to_text(d)).value() == d);
    CHECK(parse_duration("1.5s").value() == 1500ms);
    CHECK(to_text(Duration(120s)) == "2m");
  }
  TEST_CASE("durations for people have three digits at most") {
    const std::pair<Duration, const char*> all[] = {
        {4999839201ns, "5s"}, {1234567ns, "1.23ms"},   {999ns, "999ns"},
        {999'999ns, "1ms"},   {100'500us, "100ms"},    {90s, "1.5m"},
        {0ns, "0ns"},         {-1500ms, "-1.5s"},      {59'960'000us, "60s"},
        {2h, "2h"},           {1'000'000h, "1000000h"}};
    for (const auto& [d, text] : all) CHECK(rounded_text(d) == text);
  }
  TEST_CASE("what is no size or duration is refused") {
    for (const char* bad : {"", "4kb", "-1", "KiB", "1e400", "99999999999999GiB", "0x10"})
      CHECK_FALSE(parse_bytes(bad).has_value());
    for (const char* bad : {"", "5", "5 s", "s", "-5s", "5sec", "99999999999h"})
      CHECK_FALSE(parse_duration(bad).has_value());
  }
  TEST_CASE("whole sizes are exact, and too large ones are called that") {
    CHECK(parse_bytes("9007199254740993").value() == 9007199254740993u);  // no double holds it
    CHECK(parse_bytes("9007199254740993").value() == parse_bytes(bytes_text(9007199254740993u)));
    CHECK(parse_bytes("8000000TiB").value() == 8'000'000ull << 40);
    CHECK(parse_bytes("1.5KiB").value() == 1536);
    for (const char* large : {"9000000TiB", "18446744073709551615", "99999999999999999999999GiB",
                              "10000000000000000000.5"}) {
      CAPTURE(large);
      CHECK(parse_bytes(large).error().code == Code::kInvalid);
    }
    CHECK(parse_duration("9000000000s").value() == Duration(9'000'000'000s));
    CHECK(parse_duration("9000000001s").error().what.find("too large") != std::string::npos);
    CHECK(parse_uint("18446744073709551615").value() == UINT64_MAX);
    for (const char* bad : {"18446744073709551616", "-1", "+1", " 1", "1 ", "1.0", ""})
      CHECK_FALSE(parse_uint(bad).has_value());
    for (const char* bad : {"nan", "inf", "1,5", "1e999", ""}) {
      CHECK_FALSE(parse_number(bad).has_value());
      CHECK_FALSE(parse_bytes(bad).has_value());
    }
  }
  TEST_CASE("keys may hold any byte but NUL, up to 1024 of them") {
    CHECK(check_object_key("a\n\xff").has_value());
    CHECK(check_object_key(std::string(1024, 'k')).has_value());
    CHECK_FALSE(check_object_key(std::string(1025, 'k')).has_value());
    CHECK_FALSE(check_object_key("").has_value());
    CHECK_FALSE(check_object_key(std::string_view("a\0b", 3)).has_value());
    CHECK_FALSE(check_node_id("two words").has_value());
    CHECK(escape("a\n\x01") == "a\\x0a\\x01");
  }
}

TEST_SUITE("base/json") {
  TEST_CASE("nesting that would exhaust the stack is refused") {
    CHECK_FALSE(parse_json(std::string(200, '[') + std::string(200, ']')).has_value());
    CHECK(parse_json("{\"a\": \"[[[[\\\"[[\"}").has_value());
    CHECK(parse_json(std::string(128, '[') + std::string(128, ']')).has_value());
    // A quote in a comment must not hide what follows it.
    for (const char* comment : {"// it's \"\n", "/* \" */"}) {
      const std::string bomb = comment + std::string(200, '[') + std::string(200, ']');
      CHECK(parse_json(bomb, kJsonFile).error().what.find("deeper") != std::string::npos);
      CHECK(parse_json(comment + std::string("[1]"), kJsonFile).has_value());
    }
    for (const char* bad : {"/*", "/", "//", "\"", "\"\\", "[1e999]", "\"\xff\"", ""}) {
      CAPTURE(bad);
      CHECK_FALSE(parse_json(bad, kJsonFile).has_value());
    }
  }
  TEST_CASE("errors say where, comments are taken when asked for") {
    auto bad = parse_json("{\n  \"a\": }");
    REQUIRE_FALSE(bad.has_value());
    CHECK(bad.error().what.find("line 2") != std::string::npos);
    CHECK_FALSE(parse_json("{} // x").has_value());
    CHECK(parse_json("{} // x", kJsonFile).has_value());
  }
  TEST_CASE("typed members refuse other types by name") {
    const Json j = {{"n", 5}, {"f", 1.5}, {"neg", -1}, {"s", "x"}, {"none", nullptr}};
    CHECK(get_uint(j, "n").value() == 5);
    CHECK_FALSE(get_uint(j, "f").has_value());
    CHECK_FALSE(get_uint(j, "neg").has_value());
    CHECK_FALSE(get_string(j, "n").has_value());
    CHECK(get_uint_or(j, "none", 7).value() == 7);
    CHECK_FALSE(get_uint_or(j, "s", 7).has_value());
    CHECK(get_bool(j, "missing").error().what.find("'missing'") != std::string::npos);
  }
  TEST_CASE("bytes that are not UTF-8 print without throwing") {
    CHECK(dump_json(Json("a\xff")).find("a") != std::string::npos);
  }
  TEST_CASE("a text that is quoted is what a value of it prints") {
    for (const std::string text :
         {"", "plain", "a\"b\\c", "line\nend\t", "\x01\x1f\x7f", "na\xC3\xAFve", "cut\xC3"}) {
      std::string out = "x";
      append_quoted(out, text);
      CHECK(out == "x" + dump_json(Json(text)));
    }
  }
}

TEST_SUITE("base/huge_pages") {
  TEST_CASE("a table may be small or large, and grow from one into the other") {
    std::vector<uint64_t, HugePages<uint64_t>> table;
    for (uint64_t n : {uint64_t{1}, kHugeFrom / 8 - 1, kHugeFrom / 8, kHugeFrom / 8 + 1}) {
      table.resize(n, n);
      CHECK(table.front() == 1);
      CHECK(table.back() == n);
      CHECK((n * 8 < kHugeFrom ||
             reinterpret_cast<uintptr_t>(table.data()) % kHugePage == 0));  // starts a huge page
    }
    table.clear();
    table.shrink_to_fit();
    CHECK(table.empty());
  }
}

TEST_SUITE("base/hash") {
  TEST_CASE("known answers") {
    CHECK(hex(sha256(std::as_bytes(std::span("abc", 3)))) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(xxh3("", 0) == 0x2d06800538d394c2ull);
    CHECK(xxh3("abc") == 0x78af5f94892f3950ull);
    CHECK(hex(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(hmac_sha256("key", "The quick brown fox jumps over the lazy dog")) ==
          "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8");
  }
  TEST_CASE("a block's hash is SHA-256 over its parent and its tokens, little-endian") {
    std::vector<std::byte> bytes(32 + 8);
    const int32_t tokens[2] = {1, 258};
    std::memcpy(bytes.data() + 32, tokens, sizeof tokens);
    CHECK(chain_hash({}, tokens).bytes == sha256(bytes));
    const int32_t pair[2] = {1, 258};
    CHECK(chain_hash({}, pair).hex() ==
          "3a456ddfef8851dd66c15e99dcff3d18c35cd2cfb17aa55cc5ad7cf4b52315a6");
    const std::vector<int32_t> five{1, 258, 3, 4, 5};
    const auto hashes = chain_hashes(five, 2);
    REQUIRE(hashes.size() == 2);  // the fifth token is in no full block
    CHECK(hashes[0] == chain_hash({}, tokens));
    CHECK(hashes[1] == chain_hash(hashes[0], std::span(five).subspan(2, 2)));
    CHECK(chain_hashes(five, 2, "salt")[0] != hashes[0]);
    CHECK(parse_block_hash(hashes[0].hex()).value() == hashes[0]);
    CHECK_FALSE(parse_block_hash(hashes[0].hex().substr(1)).has_value());
  }
  TEST_CASE("a digest does not depend on the CPU: known answers on both sides of each algorithm") {
    std::vector<uint8_t> bytes(4999);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
    const std::pair<size_t, uint64_t> known[] = {{240, 0x4917a75c0ef8eed7ull},
                                                 {241, 0x541b19226f0052e8ull},
                                                 {1024, 0xdc5acf0b043c445bull},
                                                 {1025, 0xe1d9cd946277ae26ull},
                                                 {4999, 0xfc0712c597b16ce5ull}};
    for (const auto& [n, digest] : known) CHECK(xxh3(bytes.data(), n) == digest);
    CHECK(xxh3(bytes.data(), bytes.size(), 9) == 0x12591119a79a318cull);
    Xxh3Stream stream;  // by pieces that are long and ones that are not
    for (size_t at = 0; at < bytes.size(); at += at % 2 == 0 ? 1001 : 99)
      stream.update(bytes.data() + at,
                    std::min<size_t>(at % 2 == 0 ? 1001 : 99, bytes.size() - at));
    CHECK(stream.digest() == 0xfc0712c597b16ce5ull);
  }
  TEST_CASE("a digest does not depend on how the bytes came") {
    const std::string text(100'000, 'q');
    Xxh3Stream stream;
    for (size_t at = 0; at < text.size(); at += 777)
      stream.update(text.data() + at, std::min<size_t>(777, text.size() - at));
    CHECK(stream.digest() == xxh3(text));
  }
}

TEST_SUITE("base/random") {
  TEST_CASE("a seed fixes the sequence for good") {
    Random a(42), b(42), c(43);
    const uint64_t first = a.next();
    CHECK(first == 0x15780b2e0c2ec716ull);
    CHECK(a.next() == 0x6104d9866d113a7eull);
    CHECK(a.next() == 0xae17533239e499a1ull);
    CHECK(first == b.next());
    CHECK(first != c.next());
    CHECK(mix64(0) == 0xe220a8397b1dcdafull);
  }
  TEST_CASE("distributions have the means they promise") {
    Random r(7);
    double uniform = 0, exponential = 0, gamma = 0, beta = 0, normal = 0;
    constexpr int n = 100'000;
    for (int i = 0; i < n; ++i) {
      uniform += r.uniform();
      exponential += r.exponential(3);
      gamma += r.gamma(0.5, 2);
      beta += r.beta(2, 6);
      normal += r.normal();
      CHECK(r.below(10) < 10);
    }
    CHECK(uniform / n == doctest::Approx(0.5).epsilon(0.02));
    CHECK(exponential / n == doctest::Approx(3).epsilon(0.03));
    CHECK(gamma / n == doctest::Approx(1).epsilon(0.04));
    CHECK(beta / n == doctest::Approx(0.25).epsilon(0.02));
    CHECK(std::abs(normal / n) < 0.02);
  }
}

TEST_SUITE("base/histogram") {
  TEST_CASE("quantiles are within two percent, over ten decades") {
    for (uint64_t scale = 1; scale < 10'000'000'000; scale *= 10) {
      Histogram h;
      for (uint64_t i = 1; i <= 1000; ++i) h.record(i * scale);
      CHECK(static_cast<double>(h.quantile(0.5)) ==
            doctest::Approx(500.5 * static_cast<double>(scale)).epsilon(0.02));
      CHECK(static_cast<double>(h.quantile(0.99)) ==
            doctest::Approx(990.5 * static_cast<double>(scale)).epsilon(0.02));
      CHECK(h.quantile(1) == 1000 * scale);
      CHECK(h.min() == scale);
    }
  }
  TEST_CASE("merging two is recording all in one") {
    Histogram a, b, all;
    Random r(1);
    for (int i = 0; i < 1000; ++i) {
      const uint64_t v = r.below(1 << 20);
      (i % 2 == 0 ? a : b).record(v);
      all.record(v);
    }
    a.merge(b);
    CHECK(a.count() == all.count());
    CHECK(a.quantile(0.9) == all.quantile(0.9));
    CHECK(Histogram().quantile(0.5) == 0);
  }
}

TEST_SUITE("base/metrics") {
  TEST_CASE("the text is what Prometheus reads") {
    Metrics m;
    m.counter("mc_x_total", "xs", {{"code", "a\"b\\c\nd"}}).add(3);
    m.gauge("mc_y", "ys").set(1.5);
    auto& h = m.histogram("mc_z_seconds", "zs", {0.1, 1});
    h.observe(0.05);
    h.observe(0.1);
    h.observe(5);
    const std::string text = m.text();
    CHECK(text.find("# TYPE mc_x_total counter\n") != std::string::npos);
    CHECK(text.find("mc_x_total{code=\"a\\\"b\\\\c\\nd\"} 3\n") != std::string::npos);
    CHECK(text.find("mc_y 1.5\n") != std::string::npos);
    CHECK(text.find("mc_z_seconds_bucket{le=\"0.1\"} 2\n") != std::string::npos);
    CHECK(text.find("mc_z_seconds_bucket{le=\"+Inf\"} 3\n") != std::string::npos);
    CHECK(text.find("mc_z_seconds_count 3\n") != std::string::npos);
    CHECK(&m.counter("mc_x_total", "xs", {{"code", "a\"b\\c\nd"}}) ==
          &m.counter("mc_x_total", "xs", {{"code", "a\"b\\c\nd"}}));
  }
}
