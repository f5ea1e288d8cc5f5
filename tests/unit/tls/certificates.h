// Certificates made for tests: an authority and what it issues, with any name and any time.
#pragma once
#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace mc::tls::test {

struct FreeX509 {
  void operator()(X509* c) const { X509_free(c); }
  void operator()(EVP_PKEY* k) const { EVP_PKEY_free(k); }
};
struct Certified {
  std::unique_ptr<X509, FreeX509> certificate;
  std::unique_ptr<EVP_PKEY, FreeX509> key;
};

inline void add_extension(X509* to, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  X509_EXTENSION* const e = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  REQUIRE(e != nullptr);
  REQUIRE(X509_add_ext(to, e, -1) == 1);
  X509_EXTENSION_free(e);
}

// `names`: "DNS:localhost,IP:127.0.0.1", or "" for an authority. Without an issuer it is its own.
// In date from `from` to `to`, seconds from now.
inline Certified certify(const std::string& who, const std::string& names,
                         const Certified* issuer = nullptr, long from = -3600, long to = 3600) {
  Certified c;
  c.key.reset(EVP_EC_gen("P-256"));
  c.certificate.reset(X509_new());
  X509* const x = c.certificate.get();
  static long serial = 1;
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), serial++);
  X509_gmtime_adj(X509_getm_notBefore(x), from);
  X509_gmtime_adj(X509_getm_notAfter(x), to);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(who.c_str()), -1, -1, 0);
  X509* const by = issuer != nullptr ? issuer->certificate.get() : x;
  X509_set_issuer_name(x, X509_get_subject_name(by));
  X509_set_pubkey(x, c.key.get());
  if (names.empty()) {
    add_extension(x, by, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(x, by, NID_key_usage, "critical,keyCertSign,cRLSign");
  } else {
    add_extension(x, by, NID_subject_alt_name, names);
  }
  REQUIRE(X509_sign(x, issuer != nullptr ? issuer->key.get() : c.key.get(), EVP_sha256()) > 0);
  return c;
}

inline void write_pem(const X509* certificate, const std::string& path) {
  std::FILE* const f = std::fopen(path.c_str(), "w");
  REQUIRE(f != nullptr);
  REQUIRE(PEM_write_X509(f, certificate) == 1);
  std::fclose(f);
}

}  // namespace mc::tls::test
