// Engines behind https: whose certificates are taken, and what is sent to whom.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/json.h"
#include "mixed_site.h"
#include "tests/unit/tls/tls_front.h"
#include "tls/client_tls.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;
using tls::test::Certified;
using tls::test::certify;
using tls::test::TlsFront;

namespace external_tls_test {
namespace {

const char* const kKey = "sk-of-the-engine";

// A conductor whose engine, which wants a key, is behind a server with such a certificate.
struct Secure {
  explicit Secure(const Certified& server, const char* host = "127.0.0.1",
                  const std::string& ca = "external_tls_test.ca.pem",
                  int versions_max = TLS1_3_VERSION) {
    engine.key = kKey;
    front = std::make_unique<TlsFront>(server, engine.http->address(), versions_max);
    ExternalOptions o;
    o.name = "e";
    o.url = front->url(host);
    o.ca_file = ca;
    o.api_key = kKey;
    REQUIRE(m.conductor->external().add(o));
  }
  const ExternalEngine& known() { return *m.conductor->external().find("e"); }
  bool up() {
    return until(m.loop, [&] { return known().up; });
  }
  std::string why() {
    REQUIRE(until(m.loop, [&] { return known().why != "not asked yet"; }));
    CHECK_FALSE(known().up);
    CHECK(front->decrypted().empty());
    return known().why;
  }
  Mixed m{false};
  MockEngine engine{m.loop, "tiny", 4};
  std::unique_ptr<TlsFront> front;
};

struct Authority {
  Authority() { tls::test::write_pem(ca.certificate.get(), path); }
  ~Authority() { std::remove(path.c_str()); }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;
  const std::string path = "external_tls_test.ca.pem";
  Certified ca = certify("an authority", "");
};

bool contains(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("F91: an engine that wants a key, behind TLS, answers, whole and in a stream") {
  const Authority a;
  const Certified by_number = certify("engine", "IP:127.0.0.1", &a.ca);
  const Certified by_name = certify("engine", "DNS:localhost", &a.ca);
  for (const bool named : {false, true}) {
    Secure s(named ? by_name : by_number, named ? "localhost" : "127.0.0.1");
    REQUIRE(s.up());
    const auto whole = s.m.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})");
    CHECK(whole.status == 200);
    CHECK((*parse_json(whole.body))["choices"][0]["text"] == "abc");
    const auto stream =
        s.m.ask("/v1/completions", R"({"model":"tiny","prompt":"x","stream":true})");
    CHECK(stream.body.ends_with("data: [DONE]\n\n"));
    CHECK(s.engine.came.back().headers.at("authorization") == std::string("Bearer ") + kKey);
    CHECK(contains(s.front->decrypted(), kKey));
    CHECK(s.m.ask("/cluster").body.find(kKey) == std::string::npos);
  }
}

TEST_CASE("F91: a certificate that does not prove who answers gets no key and no request") {
  const Authority a;
  const Certified other = certify("another authority", "");
  CHECK(contains(Secure(certify("e", "IP:127.0.0.1", &a.ca, -7200, -3600)).why(),
                 "certificate has expired"));
  CHECK(contains(Secure(certify("e", "IP:127.0.0.1", &a.ca, 3600, 7200)).why(),
                 "certificate is not yet valid"));
  CHECK(contains(Secure(certify("e", "IP:127.0.0.1", &other)).why(), "its certificate"));
  CHECK(contains(Secure(certify("e", "IP:127.0.0.1")).why(), "self-signed certificate"));
  CHECK(contains(Secure(certify("e", "IP:127.0.0.2", &a.ca)).why(), "IP address mismatch"));
  CHECK(contains(Secure(certify("e", "DNS:example.com", &a.ca), "localhost").why(),
                 "ostname mismatch"));
  // The system does not know our authority.
  CHECK(contains(Secure(certify("e", "IP:127.0.0.1", &a.ca), "127.0.0.1", "").why(),
                 "its certificate is not accepted"));
  CHECK(contains(
      Secure(certify("e", "IP:127.0.0.1", &a.ca), "127.0.0.1", a.path, TLS1_1_VERSION).why(),
      "TLS: "));
}

TEST_CASE("F91: a server that speaks no TLS gets nothing, and one that ends it is cut") {
  Mixed m(false);
  MockEngine plain(m.loop, "tiny", 4);
  ExternalOptions o;
  o.name = "e";
  o.url = "https://" + plain.http->address();
  o.api_key = kKey;
  REQUIRE(m.conductor->external().add(o));
  const auto& e = *m.conductor->external().find("e");
  REQUIRE(until(m.loop, [&] { return e.why != "not asked yet"; }));
  CHECK_FALSE(e.up);
  CHECK(plain.came.empty());
}

TEST_CASE("files of certificates are looked at when engines are read, and not for who posts") {
  const Authority a;
  const auto read = [](const std::string& members) {
    const std::string path = "external_tls_test.json";
    std::ofstream(path) << R"([{"instance_id":"a",)" << members << "}]";
    auto all = read_external(path);
    std::remove(path.c_str());
    return all;
  };
  const auto good = read(R"("url":"https://x","ca_file":")" + a.path + "\"");
  REQUIRE(good);
  CHECK(good->at(0).ca_file == a.path);
  CHECK(contains(read(R"("url":"https://x","ca_file":"not/there.pem")").error().what,
                 "not/there.pem: No such file"));
  CHECK(contains(read(R"("url":"https://x","ca_file":"/etc/passwd")").error().what,
                 "want a file with certificates"));
  CHECK(contains(read(R"("url":"http://x","ca_file":")" + a.path + "\"").error().what,
                 "ca_file is for an https url"));
  CHECK(contains(read(R"("url":"ftp://x")").error().what, "want http://host:port or https"));
  Mixed m(false);
  CHECK(m.administer("/register", R"({"instance_id":"a","url":"https://x","ca_file":"/etc/x"})")
            .status == 400);
}

}  // namespace external_tls_test
