// The handshake of a shared-memory connection: same user, same cluster key.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/random.h"
#include "io/address.h"
#include "io/local_socket.h"
#include "rpc/shm_channel.h"
#include "rpc/socket.h"

namespace mc::rpc {
namespace {

constexpr std::string_view kMagic = "mc-near1";
constexpr size_t kNonceBytes = 32, kProofBytes = 32;

std::string fresh_nonce() {
  std::string out;
  while (out.size() < kNonceBytes) {
    const uint64_t word = fresh_seed();
    out.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return out;
}

// A message and the descriptor sent with it. Nothing: none has arrived yet.
struct Received {
  std::string bytes;
  io::Fd fd;
};
Result<std::optional<Received>> receive(int socket) {
  std::array<char, 256> buffer;
  io::WithFd got = io::receive_with_fd(socket, buffer, MSG_DONTWAIT);
  if (got.bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (got.bytes <= 0)
    return fail(Code::kUnavailable, "shared-memory handshake: the peer closed the connection");
  return Received{{buffer.data(), static_cast<size_t>(got.bytes)}, std::move(got.fd)};
}

Result<> send(int socket, std::string_view bytes, int fd) {
  if (io::send_with_fd(socket, bytes, fd, MSG_DONTWAIT)) return {};
  return fail(Code::kUnavailable, "shared-memory handshake: send: %s", std::strerror(errno));
}

bool same(std::string_view a, std::string_view b) {  // in constant time
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return differ == 0;
}

}  // namespace

std::vector<std::string> shm_names(const std::string& address) {
  const auto parsed = io::parse_address(address);
  if (!parsed || parsed->port == 0) return {};
  const std::string port = std::to_string(parsed->port);
  if (parsed->host == "0.0.0.0" || parsed->host == "::" || parsed->host == "*")
    return {"mc-near-*:" + port};
  const bool local = io::is_loopback(parsed->host);
  std::vector<std::string> out{
      "mc-near-" + (parsed->host == "localhost" ? "127.0.0.1" : parsed->host) + ":" + port};
  if (local) out.push_back("mc-near-*:" + port);
  return out;
}

Result<ShmHandshake> ShmHandshake::to(const std::string& address) {
  for (const std::string& name : shm_names(address)) {
    io::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket || io::connect_local(socket.get(), name) != 0) continue;
    MC_TRY_(io::check_same_user(socket.get()));
    return ShmHandshake(std::move(socket), false);
  }
  return fail(Code::kUnavailable, "%s: no server of this user listens there on this host",
              address.c_str());
}

Result<ShmHandshake> ShmHandshake::from(io::Fd socket, const std::string&) {
  MC_TRY_(io::check_same_user(socket.get()));
  ShmHandshake out(std::move(socket), true);
  out.nonces_ = fresh_nonce();
  MC_TRY_(send(out.fd(), std::string(kMagic) + out.nonces_, -1));
  return out;
}

std::string ShmHandshake::proof(const char* who, const ClusterKey* key) const {
  const std::string secret = key == nullptr ? "" : key->secret;
  const Digest d = hmac_sha256(secret, "mc near " + std::string(who) + nonces_);
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

Result<std::optional<ShmChannel>> ShmHandshake::step() {
  return server_ ? step_server() : step_client();
}

Result<std::optional<ShmChannel>> ShmHandshake::step_server() {
  MC_TRY(const std::optional<Received> got, receive(fd()));
  if (!got) return std::nullopt;
  if (got->bytes.size() != kNonceBytes + kProofBytes)
    return fail(Code::kInvalid, "shared-memory handshake: a message of %zu bytes",
                got->bytes.size());
  nonces_ += got->bytes.substr(0, kNonceBytes);
  const std::string proved = got->bytes.substr(kNonceBytes);
  const ClusterKeys keys = cluster_keys();
  const ClusterKey* key = keys.first;
  if (keys.second != nullptr && same(proved, proof("client", keys.second))) key = keys.second;
  if (!same(proved, proof("client", key)))
    return fail(Code::kDenied, "shared-memory handshake: the client has another cluster key");
  MC_TRY(const io::Fd memory, ShmChannel::make_memory());
  MC_TRY_(send(fd(), proof("server", key), memory.get()));
  MC_TRY(ShmChannel end, ShmChannel::map(std::move(socket_), memory.get(), true, key));
  return std::optional<ShmChannel>(std::move(end));
}

Result<std::optional<ShmChannel>> ShmHandshake::step_client() {
  MC_TRY(const std::optional<Received> got, receive(fd()));
  if (!got) return std::nullopt;
  if (!greeted_) {
    if (got->bytes.size() != kMagic.size() + kNonceBytes || !got->bytes.starts_with(kMagic))
      return fail(Code::kUnavailable, "shared-memory handshake: the server runs another version");
    nonces_ = got->bytes.substr(kMagic.size()) + fresh_nonce();
    greeted_ = true;
    key_ = cluster_keys().first;
    MC_TRY_(send(fd(), nonces_.substr(kNonceBytes) + proof("client", key_), -1));
    return std::nullopt;
  }
  if (!same(got->bytes, proof("server", key_)) || !got->fd)
    return fail(Code::kDenied, "shared-memory handshake: the server has another cluster key");
  MC_TRY(ShmChannel end, ShmChannel::map(std::move(socket_), got->fd.get(), false, key_));
  return std::optional<ShmChannel>(std::move(end));
}

}  // namespace mc::rpc
