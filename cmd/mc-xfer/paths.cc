// mc-xfer paths: lists each transport to a peer, why it is usable or not, and the chosen one.
// mc-xfer probe: measures latency and bandwidth of each transport.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/histogram.h"
#include "base/json.h"
#include "cmd/mc-xfer/client.h"
#include "cmd/mc-xfer/verbs.h"
#include "xfer/rails/nics.h"

namespace mc::xfer {
namespace {

struct PathsOptions {
  ClientOptions client;
  std::string op = "read";
  Bytes offset, bytes{1 * kMiB};
  uint32_t warm_up = 32;
  void describe(OptionList& v) {
    v("op", op, "read or write", {"read", "write"});
    v("offset", offset, "offset in the peer's segment");
    v("bytes", bytes, "bytes per transfer");
    v("warm-up", warm_up, "transfers made first, so that rails have been measured");
    client.describe_device(v);
    client.describe(v);
  }
};

// Of what no transfer has measured yet there is no number.
std::optional<double> measured(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

struct Measured {
  std::optional<double> gb_per_s, latency_us, predicted_us;
  Measured(const Path& p, size_t rail)
      : gb_per_s(measured(p.rails[rail].bandwidth / 1e9)),
        latency_us(measured(static_cast<double>(p.rails[rail].latency.count()) / 1e3)),
        predicted_us(measured(rail < p.predicted_s.size() ? p.predicted_s[rail] * 1e6 : 0)) {}
};

Json or_null(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

std::string or_dash(std::optional<double> value, int decimals) {
  return value ? strf("%.*f", decimals, *value) : "-";
}

Json to_json(const Path& p) {
  Json rails = Json::array();
  for (size_t i = 0; i < p.rails.size(); ++i) {
    const RailView& r = p.rails[i];
    const Measured m(p, i);
    rails.push_back({{"local", r.info.local},
                     {"remote", r.info.remote},
                     {"tier", r.tier},
                     {"mapped", r.info.mapped},
                     {"state", name(r.state)},
                     {"gb_per_s", or_null(m.gb_per_s)},
                     {"latency_us", or_null(m.latency_us)},
                     {"window", r.window},
                     {"slices", r.slices},
                     {"bytes", r.bytes},
                     {"errors", r.errors},
                     {"hedged", r.hedged},
                     {"predicted_us", or_null(m.predicted_us)}});
  }
  return {{"transport", p.transport},
          {"usable", p.usable},
          {"chosen", p.chosen},
          {"why", p.why},
          {"memory_node", p.memory.here.node},
          {"memory_gpu", p.memory.here.gpu},
          {"rails", std::move(rails)}};
}

void print(const Path& p, uint64_t bytes) {
  std::printf("%-5s %-10s %s\n", p.transport.c_str(),
              p.chosen   ? "chosen"
              : p.usable ? "usable"
                         : "unusable",
              p.why.c_str());
  if (p.rails.empty()) return;
  std::printf("      %-32s %4s %-9s %10s %12s %10s %8s %7s  %s\n", "rail", "tier", "state", "GB/s",
              "latency us", "slices", "errors", "hedged",
              strf("%s in us", bytes_text(bytes).c_str()).c_str());
  for (size_t i = 0; i < p.rails.size(); ++i) {
    const RailView& r = p.rails[i];
    const std::string rail = r.info.local + " -> " + r.info.remote + (r.info.mapped ? "" : " *");
    const Measured m(p, i);
    std::printf("      %-32s %4u %-9s %10s %12s %10llu %8llu %7llu  %s\n", rail.c_str(), r.tier,
                name(r.state), or_dash(m.gb_per_s, 3).c_str(), or_dash(m.latency_us, 1).c_str(),
                static_cast<unsigned long long>(r.slices),
                static_cast<unsigned long long>(r.errors),
                static_cast<unsigned long long>(r.hedged), or_dash(m.predicted_us, 0).c_str());
  }
}

Result<int> paths(const PathsOptions& o, const Context& context) {
  MC_TRY(const auto client, Client::open(o.client, "paths"));
  const Op op = o.op == "read" ? Op::kRead : Op::kWrite;
  if (o.offset >= client->offered || o.bytes > client->offered - o.offset)
    return fail(Code::kInvalid,
                "--bytes %llu at --offset %llu: %s offers %llu bytes of memory (serve --size)",
                static_cast<unsigned long long>(o.bytes.n),
                static_cast<unsigned long long>(o.offset.n), o.client.target.c_str(),
                static_cast<unsigned long long>(client->offered));
  MC_TRY(const Memory local, client->memory(o.bytes, "paths"));
  // Reads only: the peer's memory must not change.
  for (uint32_t i = 0; i < o.warm_up; ++i)
    MC_TRY_(client->move(Op::kRead, local.bytes(), o.offset));
  MC_TRY(const auto all,
         client->engine->paths(client->segment, o.offset, op, o.bytes, local.bytes().data()));
  bool spare = false;
  for (const Path& p : all) {
    if (context.json)
      std::printf("%s\n", dump_json(to_json(p)).c_str());
    else
      print(p, o.bytes);
    for (const RailView& r : p.rails) spare = spare || !r.info.mapped;
  }
  if (spare && !context.json) std::printf("* outside the rail map: serves retries only\n");
  return 0;
}

// ---- probe

struct ProbeOptions {
  ClientOptions client;
  uint32_t pings = 200;
  Bytes bulk{64 * kMiB};
  void describe(OptionList& v) {
    v("pings", pings, "reads of 4 KiB, for the latency");
    v("bulk", bulk, "bytes read at once, for the bandwidth; 8 times");
    client.describe(v);
  }
};

struct Probe {
  std::string transport, nic;
  Histogram ping_ns;
  double gb_per_s = 0;
  Error error;
};

Result<Probe> measure(const ProbeOptions& o, const std::string& transport, const std::string& nic) {
  constexpr uint64_t kPing = 4 * kKiB;
  constexpr int kRounds = 8;
  ClientOptions options = o.client;
  options.engine.transports = {transport};
  if (!nic.empty()) options.engine.nics = {nic};
  MC_TRY(const auto client, Client::open(options, "probe"));
  const uint64_t bulk = std::min<uint64_t>(o.bulk, client->offered);
  MC_TRY(const Memory local, client->engine->allocate(std::max(bulk, kPing)));
  Probe probe;
  probe.transport = transport;
  probe.nic = nic;
  const auto ping = local.bytes().first(std::min(kPing, client->offered));
  for (uint32_t i = 0; i < o.pings + 10; ++i) {
    const Time start = client->clock.now();
    MC_TRY_(client->move(Op::kRead, ping, 0));
    if (i >= 10)  // connections are made and memory is mapped
      probe.ping_ns.record(static_cast<uint64_t>((client->clock.now() - start).count()));
  }
  std::vector<double> rates;
  for (int i = 0; i < kRounds; ++i) {
    const Time start = client->clock.now();
    MC_TRY_(client->move(Op::kRead, local.bytes().first(bulk), 0));
    rates.push_back(static_cast<double>(bulk) / to_seconds(client->clock.now() - start) / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  probe.gb_per_s = rates[rates.size() / 2];
  return probe;
}

void print(const Probe& p, bool json) {
  auto us = [&](double q) { return static_cast<double>(p.ping_ns.quantile(q)) / 1e3; };
  if (json) {
    Json row = {{"transport", p.transport}, {"nic", p.nic}};
    if (p.error.what.empty()) {
      row["p50_us"] = us(.5);
      row["p99_us"] = us(.99);
      row["gb_per_s"] = p.gb_per_s;
    } else {
      row["error"] = p.error.what;
    }
    std::printf("%s\n", dump_json(row).c_str());
  } else if (p.error.what.empty()) {
    std::printf("%-5s %-12s %10.1f %10.1f %9.3f\n", p.transport.c_str(),
                p.nic.empty() ? "-" : p.nic.c_str(), us(.5), us(.99), p.gb_per_s);
  } else {
    std::printf("%-5s %-12s %s\n", p.transport.c_str(), p.nic.empty() ? "-" : p.nic.c_str(),
                p.error.what.c_str());
  }
  std::fflush(stdout);
}

// Every allowed transport, and tcp over every local interface by itself.
Result<int> probe(const ProbeOptions& o, const Context& context) {
  if (o.pings == 0) return fail(Code::kInvalid, "--pings 0: want 1 or more");
  if (!context.json)
    std::printf("%-5s %-12s %10s %10s %9s\n", "via", "interface", "p50 us", "p99 us", "GB/s");
  size_t reached = 0;
  Error last;
  for (const std::string& transport : o.client.engine.transports) {
    std::vector<std::string> nics{""};
    if (transport == "tcp")
      for (const Nic& nic : system_nics())
        if (std::find(nics.begin(), nics.end(), nic.name) == nics.end() && nic.name != "lo")
          nics.push_back(nic.name);
    for (const std::string& nic : nics) {
      auto p = measure(o, transport, nic);
      if (p) {
        ++reached;
      } else {
        last = p.error();
        p = Probe{transport, nic, {}, 0, last};
      }
      print(*p, context.json);
    }
  }
  if (reached == 0) return fail(last);
  return 0;
}

}  // namespace

void add_paths(Program& program) {
  program.verb<PathsOptions>(
      "paths", "list the transports to a peer, and the one that would be chosen",
      [](Verb& v, PathsOptions& o) {
        v.positional("TARGET", o.client.target, "control address of a peer that serves", false);
        v.example("mc-xfer paths 127.0.0.1:5600 --bytes 16MiB",
                  "what carries 16 MiB, over which rails, and how long each would take");
        v.example("mc-xfer paths 127.0.0.1:5600 --device cuda:0",
                  "the same for memory of a GPU, with the NICs' tiers as seen from it");
        v.run_with([&o](Context& context) { return paths(o, context); });
      });
  program.verb<ProbeOptions>(
      "probe", "measure latency and bandwidth of each transport to a peer",
      [](Verb& v, ProbeOptions& o) {
        v.positional("TARGET", o.client.target, "control address of a peer that serves", false);
        v.example("mc-xfer probe 127.0.0.1:5600", "each transport, and tcp over each interface");
        v.run_with([&o](Context& context) { return probe(o, context); });
      });
}

}  // namespace mc::xfer
