// Connects HTTP clients to https servers with OpenSSL, and checks whom they talk to.
//
// A server's certificate must be in date, be issued by someone who is trusted, and name the host
// that was asked for: a DNS name, or a number as such. Nothing of a request is sent before that.
// TLS 1.2 at least. Certificates that were revoked are not looked for.
//
// Thread: one of a client's; files are read when the first connection needs them.
#pragma once
#include <memory>

#include "http/client.h"

namespace mc::tls {

std::unique_ptr<http::ClientTls> client_tls();
// Whether a file has certificates to trust, as connections will find it. Errors: kInvalid,
// kNotFound; naming the file.
Result<> check_ca_file(const std::string& path);

}  // namespace mc::tls
