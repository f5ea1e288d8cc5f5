// mc-topo probe: measures the latency of each rail to another node, and derives the rail map.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "io/address.h"
#include "io/fd.h"
#include "rpc/client.h"
#include "rpc/socket.h"
#include "xfer/core/messages.h"
#include "xfer/rails/nics.h"

namespace mc::topo {
namespace {

struct ProbeOptions {
  std::string target = "127.0.0.1:5600";  // positional
  uint32_t pings = 5;
  Duration timeout = std::chrono::milliseconds(500);
  std::string cluster_key;
  void describe(OptionList& v) {
    v("pings", pings, "connections made over each pair of NICs; the quickest counts");
    v("timeout", timeout, "a pair that takes longer than this is unreachable");
    v("cluster-key", cluster_key, "file with the cluster's secret");
  }
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// NICs are identified by their IP addresses; names are not resolved.
std::optional<SocketAddress> socket_address(const std::string& host, uint16_t port) {
  SocketAddress out;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out.length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    out.length = sizeof *v6;
  } else {
    return std::nullopt;
  }
  return out;
}

// The time of one TCP handshake between two addresses; nothing when there is none in time.
std::optional<Duration> handshake(const std::string& from, const io::Address& to, Duration timeout,
                                  const Clock& clock) {
  auto near = socket_address(from, 0), far = socket_address(to.host, to.port);
  if (!near || !far || near->storage.ss_family != far->storage.ss_family) return std::nullopt;
  const io::Fd fd(::socket(far->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::bind(fd.get(), near->get(), near->length) != 0) return std::nullopt;
  const Time start = clock.now();
  if (::connect(fd.get(), far->get(), far->length) != 0 && errno != EINPROGRESS) {
    return std::nullopt;
  }
  for (;;) {
    const Duration left = start + timeout - clock.now();
    if (left <= Duration::zero()) return std::nullopt;
    pollfd waiting{fd.get(), POLLOUT, 0};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int ready = ::poll(&waiting, 1, static_cast<int>(ms));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      return std::nullopt;
    }
    return clock.now() - start;
  }
}

struct Ends {
  std::vector<xfer::Nic> local, remote;
  std::vector<io::Address> addresses;  // of the remote ones
};

Result<Ends> ends_of(const ProbeOptions& o, const Clock& clock) {
  constexpr size_t kRemoteMax = 64;
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  MC_TRY(const auto client, rpc::SyncClient::connect(o.target, clock));
  MC_TRY(auto segment, client->call(xfer::DescribeSegment{"mc-topo"}, std::chrono::seconds(5)));
  if (segment.tcp.size() > kRemoteMax) {
    return fail(Code::kInvalid, "%s offers %zu data addresses, more than %zu", o.target.c_str(),
                segment.tcp.size(), kRemoteMax);
  }
  segment.nics.resize(segment.tcp.size());
  Ends ends{.local = xfer::system_nics(), .remote = {}, .addresses = {}};
  for (size_t i = 0; i < segment.tcp.size(); ++i) {
    MC_TRY(const auto address, io::parse_address(segment.tcp[i]));
    const xfer::NicInfo& nic = segment.nics[i];
    ends.remote.push_back({.name = nic.name,
                           .address = address.host,
                           .prefix_bits = nic.prefix_bits,
                           .numa = nic.numa,
                           .gpu = nic.gpu,
                           .speed_mbit = nic.speed_mbit});
    ends.addresses.push_back(address);
  }
  if (ends.remote.empty()) {
    return fail(Code::kNotFound, "%s takes no data over tcp: there is no rail to probe",
                o.target.c_str());
  }
  return ends;
}

xfer::Probed measure(const ProbeOptions& o, const Ends& ends, const Clock& clock) {
  xfer::Probed probed;
  for (const xfer::Nic& local : ends.local) {
    for (const io::Address& address : ends.addresses) {
      std::optional<Duration> best;
      for (uint32_t i = 0; i < o.pings; ++i) {
        const auto taken = handshake(local.address, address, o.timeout, clock);
        if (!taken) break;  // an unreachable pair costs one timeout, not all
        if (!best || *taken < *best) best = taken;
      }
      probed.round_trips.push_back(best);
    }
  }
  return probed;
}

Result<int> probe(const ProbeOptions& o, const Context& context) {
  if (o.pings == 0) return fail(Code::kInvalid, "--pings 0: want 1 or more");
  SteadyClock clock;
  MC_TRY(const Ends ends, ends_of(o, clock));
  const xfer::Probed probed = measure(o, ends, clock);
  const auto pairs = xfer::pair_rails(ends.local, ends.remote, &probed);
  Json rows = Json::array();
  std::string text = strf("%-36s %-36s %10s  %s\n", "here", "there", "round trip", "rail map");
  const auto named = [](const xfer::Nic& n) {
    return (n.name.empty() ? "?" : n.name) + " " + n.address;
  };
  for (const auto& pair : pairs) {
    const xfer::Nic &l = ends.local[pair.local], &r = ends.remote[pair.remote];
    const auto& taken = probed.round_trips[pair.local * ends.remote.size() + pair.remote];
    if (!taken) continue;
    const double us = static_cast<double>(taken->count()) / 1e3;
    rows.push_back({{"local", {{"name", l.name}, {"address", l.address}}},
                    {"remote", {{"name", r.name}, {"address", r.address}}},
                    {"round_trip_us", us},
                    {"mapped", pair.mapped},
                    {"why", pair.why}});
    text += strf("%-36s %-36s %7.1f us  %s\n", named(l).c_str(), named(r).c_str(), us,
                 pair.mapped ? "mapped" : "spare");
  }
  if (rows.empty()) {
    return fail(Code::kUnavailable,
                "%s answers, but none of its %zu data addresses is reached from here: check "
                "firewalls and routes",
                o.target.c_str(), ends.remote.size());
  }
  put(context.json ? dump_json({{"rails", std::move(rows)}}) + "\n" : text);
  return 0;
}

}  // namespace

void add_probe(Program& program) {
  program.verb<ProbeOptions>(
      "probe", "measure every pair of NICs to a running node, and map rails by it",
      [](Verb& v, ProbeOptions& o) {
        v.positional("TARGET", o.target, "control address of a node that serves", false);
        v.example("mc-topo probe 127.0.0.1:5600", "round trips, and which pairs become rails");
        v.run_with([&o](Context& context) { return probe(o, context); });
      });
}

}  // namespace mc::topo
