// Who is let in: the same user, with the same cluster key.
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/random.h"
#include "io/address.h"
#include "rpc/near.h"
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

Result<> same_user(int socket) {
  ucred peer{};
  socklen_t n = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0)
    return fail_errno("user of a peer on this host");
  if (peer.uid != ::geteuid())
    return fail(Code::kDenied, "a peer on this host is of user %u: want %u", peer.uid, ::geteuid());
  return {};
}

// A message, and the descriptor that came with it. Nothing: there is none yet.
struct Received {
  std::string bytes;
  io::Fd fd;
};
Result<std::optional<Received>> receive(int socket) {
  std::array<char, 256> buffer;
  iovec data{buffer.data(), buffer.size()};
  msghdr message{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (n <= 0) return fail(Code::kUnavailable, "a greeting on this host was cut off");
  Received out{{buffer.data(), static_cast<size_t>(n)}, {}};
  if (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    out.fd.reset(fd);
  }
  return out;
}

Result<> send(int socket, std::string_view bytes, int fd) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    return fail(Code::kUnavailable, "a greeting on this host: %s", std::strerror(errno));
  return {};
}

bool same(std::string_view a, std::string_view b) {  // in a time that does not tell where they part
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return differ == 0;
}

}  // namespace

std::vector<std::string> near_names(const std::string& address) {
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

Result<NearGreeting> NearGreeting::to(const std::string& address) {
  for (const std::string& name : near_names(address)) {
    io::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    if (!socket || name.size() >= sizeof to.sun_path) break;
    std::memcpy(to.sun_path + 1, name.data(), name.size());
    const auto n = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), n) != 0) continue;
    MC_TRY_(same_user(socket.get()));
    return NearGreeting(std::move(socket), false);
  }
  return fail(Code::kUnavailable, "%s: not on this host", address.c_str());
}

Result<NearGreeting> NearGreeting::from(io::Fd socket, const std::string&) {
  MC_TRY_(same_user(socket.get()));
  NearGreeting out(std::move(socket), true);
  out.nonces_ = fresh_nonce();
  MC_TRY_(send(out.fd(), std::string(kMagic) + out.nonces_, -1));
  return out;
}

std::string NearGreeting::proof(const char* who) const {
  const Digest d = hmac_sha256(cluster_key(), "mc near " + std::string(who) + nonces_);
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

Result<std::optional<NearEnd>> NearGreeting::step() {
  return server_ ? step_server() : step_client();
}

Result<std::optional<NearEnd>> NearGreeting::step_server() {
  MC_TRY(const std::optional<Received> got, receive(fd()));
  if (!got) return std::nullopt;
  if (got->bytes.size() != kNonceBytes + kProofBytes)
    return fail(Code::kInvalid, "a greeting on this host of %zu bytes", got->bytes.size());
  nonces_ += got->bytes.substr(0, kNonceBytes);
  if (!same(got->bytes.substr(kNonceBytes), proof("client")))
    return fail(Code::kDenied, "a peer on this host has another cluster key");
  MC_TRY(const io::Fd memory, NearEnd::make_memory());
  MC_TRY_(send(fd(), proof("server"), memory.get()));
  MC_TRY(NearEnd end, NearEnd::map(std::move(socket_), memory.get(), true));
  return std::optional<NearEnd>(std::move(end));
}

Result<std::optional<NearEnd>> NearGreeting::step_client() {
  MC_TRY(const std::optional<Received> got, receive(fd()));
  if (!got) return std::nullopt;
  if (!greeted_) {
    if (got->bytes.size() != kMagic.size() + kNonceBytes || !got->bytes.starts_with(kMagic))
      return fail(Code::kUnavailable, "a greeting on this host of another version");
    nonces_ = got->bytes.substr(kMagic.size()) + fresh_nonce();
    greeted_ = true;
    MC_TRY_(send(fd(), nonces_.substr(kNonceBytes) + proof("client"), -1));
    return std::nullopt;
  }
  if (!same(got->bytes, proof("server")) || !got->fd)
    return fail(Code::kDenied, "the server on this host has another cluster key");
  MC_TRY(NearEnd end, NearEnd::map(std::move(socket_), got->fd.get(), false));
  return std::optional<NearEnd>(std::move(end));
}

}  // namespace mc::rpc
