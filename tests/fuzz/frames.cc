// What a peer may send, fuzzed: an input is a conversation with the owner of a segment over the
// data plane, by a client that knows the secret. Memory that it was not given must not change, and
// the owner must go on serving. The same input is also read as a control-plane body.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "io/address.h"
#include "io/fd.h"
#include "p2p/swarm/messages.h"
#include "tests/fuzz/target.h"
#include "xfer/engine.h"
#include "xfer/transports/tcp/frame.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::tcp;

namespace {

constexpr size_t kOpen = 64 * 1024, kClosed = 64 * 1024;

// One frame of an input: how much of it is put right, and the frame.
enum : uint8_t { kFixMagic = 1, kFixSums = 2, kFixGeneration = 4, kNearOffset = 8, kNoGuard = 16 };
struct Record {
  uint8_t fix, payload;
  Header header;
  Descriptor body;
};

struct Owner {
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  Memory open, closed;
  uint64_t sum = 0;
  SegmentDescriptor segment;
  Owner() {
    (void)set_up_logs("frames", "error", "text");
    EngineOptions o;
    o.node = "owner";
    o.transports = {"tcp"};
    o.peer_timeout = std::chrono::milliseconds(200);
    auto opened = Engine::open(clock, o, metrics);
    MC_CHECK(opened.has_value());
    engine = std::move(*opened);
    open = *engine->allocate(kOpen, true);
    closed = *engine->allocate(kClosed, false);
    // Here first, not on a thread of the engine: libcrypto then tidies up after they have ended.
    (void)prove({}, {});
    Random random(1);
    for (auto& b : closed.bytes()) b = static_cast<std::byte>(random.next());
    sum = xxh3(closed.data(), closed.size());
    segment = engine->describe();
  }
};

// A plain socket: unlike Stream it can end its own side alone, so that the owner reads all of it.
class Socket {
 public:
  explicit Socket(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const auto parsed = io::parse_address(address);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(parsed->port));
    ::inet_pton(AF_INET, parsed->host.c_str(), &to.sin_addr);
    MC_CHECK(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  }
  bool send(const void* p, size_t n) {
    return n == 0 || ::send(fd_.get(), p, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n);
  }
  bool receive(void* p, size_t n) {
    return ::recv(fd_.get(), p, n, MSG_WAITALL) == static_cast<ssize_t>(n);
  }
  void drain() {
    ::shutdown(fd_.get(), SHUT_WR);
    char buffer[4096];
    while (::recv(fd_.get(), buffer, sizeof buffer, 0) > 0) {
    }
  }

 private:
  io::Fd fd_;
};

void greet(Socket& socket, const Owner& owner) {
  Nonce nonce{};
  MC_CHECK(socket.receive(nonce.data(), nonce.size()));
  const HelloBody hello = prove(owner.segment.secret.bytes, nonce);
  const Header header = make_header(Kind::kHello, 0, &hello, sizeof hello);
  MC_CHECK(socket.send(&header, sizeof header) && socket.send(&hello, sizeof hello));
  Header reply;
  MC_CHECK(socket.receive(&reply, sizeof reply) && reply.code == 0);
}

// Returns: what follows the header.
std::string repair(Record& r, const Owner& owner) {
  if ((r.fix & kFixGeneration) != 0) r.body.generation = owner.segment.generation.n;
  if ((r.fix & kNearOffset) != 0) {
    r.body.offset %= 2 * (kOpen + kClosed);
    r.body.bytes %= 4096;
    r.body.rows %= 8;
    r.body.stride %= 8192;
  }
  if ((r.fix & kNoGuard) != 0) r.body.guard_offset = Guard::kNone;
  if ((r.fix & kFixMagic) != 0) {
    r.header.magic = kMagic;
    r.header.version = kVersion;
    r.header.kind = static_cast<Kind>(1 + static_cast<uint8_t>(r.header.kind) % 8);
    r.header.body_bytes = r.header.kind == Kind::kRetire ? kNonceBytes : sizeof r.body;
  }
  // The same again and again, a kilobyte further each time.
  std::vector<Descriptor> bodies(1, r.body);
  if ((r.fix & kFixMagic) != 0 && is_many(r.header.kind)) {
    bodies.resize(1 + r.payload % 4, r.body);
    for (size_t i = 0; i < bodies.size(); ++i) bodies[i].offset += i * 1024;
    r.header.body_bytes = static_cast<uint32_t>(bodies.size() * sizeof r.body);
  }
  const size_t bytes = std::min<size_t>(r.header.body_bytes, bodies.size() * sizeof r.body);
  if ((r.fix & kFixSums) != 0)
    r.header = make_header(r.header.kind, r.header.id, bodies.data(), static_cast<uint32_t>(bytes));
  std::string out(bytes, '\0');
  std::memcpy(out.data(), bodies.data(), bytes);
  return out;
}

void converse(const Owner& owner, const uint8_t* data, size_t size) {
  Socket socket(owner.segment.tcp.front());
  greet(socket, owner);
  for (; size >= sizeof(Record); data += sizeof(Record), size -= sizeof(Record)) {
    Record r;
    std::memcpy(static_cast<void*>(&r), data, sizeof r);
    const std::string body = repair(r, owner);
    const std::vector<std::byte> payload(r.payload * 64u, std::byte{0xee});
    // Once the owner closed, the rest of the conversation is not heard.
    if (!socket.send(&r.header, sizeof r.header) || !socket.send(body.data(), body.size()) ||
        !socket.send(payload.data(), payload.size()))
      break;
  }
  socket.drain();
}

}  // namespace

namespace mc::fuzz {

void run_frames(std::string_view text) {
  static const Owner owner;
  (void)wire::decode<SegmentDescriptor>(text);
  if (const auto set = wire::decode<p2p::SetDescription>(text)) (void)p2p::check(set->manifest);
  converse(owner, reinterpret_cast<const uint8_t*>(text.data()),
           std::min<size_t>(text.size(), 16 * sizeof(Record)));
  MC_CHECK(xxh3(owner.closed.data(), owner.closed.size()) == owner.sum);
}

}  // namespace mc::fuzz
