#include "tls/client_tls.h"

#include <arpa/inet.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

namespace mc::tls {
namespace {

struct FreeContext {
  void operator()(SSL_CTX* c) const { SSL_CTX_free(c); }
};
using Context = std::unique_ptr<SSL_CTX, FreeContext>;

std::string reason_of(unsigned long error) {
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "unknown" : reason;
}

// "": those that the system trusts.
Result<Context> context_for(const std::string& ca_file) {
  ERR_clear_error();
  Context c(SSL_CTX_new(TLS_client_method()));
  if (!c) return fail(Code::kInternal, "TLS: %s", reason_of(ERR_get_error()).c_str());
  SSL_CTX_set_min_proto_version(c.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(c.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(c.get(), SSL_MODE_RELEASE_BUFFERS);
  if (ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(c.get());
    return c;
  }
  if (SSL_CTX_load_verify_locations(c.get(), ca_file.c_str(), nullptr) == 1) return c;
  const unsigned long error = ERR_get_error();
  const bool system = ERR_SYSTEM_ERROR(error);
  return fail(system ? Code::kNotFound : Code::kInvalid,
              "ca_file %s: %s: want a file with certificates (PEM)", ca_file.c_str(),
              system ? std::strerror(ERR_GET_REASON(error)) : reason_of(error).c_str());
}

bool is_number(const std::string& host) {
  unsigned char raw[16];
  return inet_pton(AF_INET, host.c_str(), raw) == 1 || inet_pton(AF_INET6, host.c_str(), raw) == 1;
}

bool wants_name(SSL* session, const std::string& host) {
  if (is_number(host))
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str()) == 1;
  SSL_set_hostflags(session, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set1_host(session, host.c_str()) == 1 &&
         SSL_set_tlsext_host_name(session, host.c_str()) == 1;
}

class OpenSslClient final : public http::ClientTls {
 public:
  Result<bufferevent*> connection(event_base* base, const std::string& host,
                                  const std::string& ca_file) override {
    auto& context = contexts_[ca_file];
    if (!context) {
      MC_TRY(context, context_for(ca_file));
    }
    SSL* const session = SSL_new(context.get());
    if (session == nullptr) return fail(Code::kNoSpace, "TLS: no memory for a session");
    if (!wants_name(session, host)) {
      SSL_free(session);
      return fail(Code::kInvalid, "'%s' is no name that a certificate can have",
                  escape(host).c_str());
    }
    bufferevent* const made = bufferevent_openssl_socket_new(
        base, -1, session, BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE);
    if (made == nullptr) SSL_free(session);
    MC_CHECK(made != nullptr);
    return made;
  }
  std::string why(bufferevent* connection) const override {
    const int system = EVUTIL_SOCKET_ERROR();
    SSL* const session = bufferevent_openssl_get_ssl(connection);
    const long verified = SSL_get_verify_result(session);
    if (verified != X509_V_OK)
      return std::string("its certificate is not accepted: ") +
             X509_verify_cert_error_string(verified);
    const unsigned long error = bufferevent_get_openssl_error(connection);
    if (error != 0) return "TLS: " + reason_of(error);
    return system != 0 ? std::strerror(system) : "TLS: the connection was cut";
  }

 private:
  std::map<std::string, Context> contexts_;  // by ca_file
};

}  // namespace

std::unique_ptr<http::ClientTls> client_tls() { return std::make_unique<OpenSslClient>(); }

Result<> check_ca_file(const std::string& path) {
  MC_TRY_(context_for(path));
  return {};
}

}  // namespace mc::tls
