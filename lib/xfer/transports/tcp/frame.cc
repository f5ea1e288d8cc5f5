#include "xfer/transports/tcp/frame.h"

#include <algorithm>

namespace mc::xfer::tcp {

Header make_header(Kind kind, uint64_t id, const void* body, uint32_t body_bytes, uint16_t code,
                   uint32_t flags) {
  Header h;
  h.kind = kind;
  h.id = id;
  h.code = code;
  h.flags = flags;
  h.body_bytes = body_bytes;
  h.body_check = static_cast<uint32_t>(xxh3(body, body_bytes));
  h.check = static_cast<uint32_t>(xxh3(&h, offsetof(Header, check)));
  return h;
}

Result<> check_header(const Header& h) {
  if (h.magic != kMagic || h.check != static_cast<uint32_t>(xxh3(&h, offsetof(Header, check))))
    return fail(Code::kCorrupt, "not a frame of the data plane");
  if (h.version != kVersion)
    return fail(Code::kUnsupported, "data-plane version %u: this end speaks %u",
                unsigned{h.version}, unsigned{kVersion});
  const size_t most = is_many(h.kind) ? kManyMax * sizeof(Descriptor)
                                      : std::max<size_t>(kTextMax, sizeof(Descriptor));
  if (h.body_bytes > most) return fail(Code::kCorrupt, "frame body of %u bytes", h.body_bytes);
  return {};
}

bool check_body(const Header& h, const void* body) {
  return h.body_check == static_cast<uint32_t>(xxh3(body, h.body_bytes));
}

HelloBody prove(const std::string& secret, const Nonce& nonce) {
  HelloBody hello;
  hello.proof = hmac_sha256(
      secret, std::string_view(reinterpret_cast<const char*>(nonce.data()), nonce.size()));
  return hello;
}

}  // namespace mc::xfer::tcp
