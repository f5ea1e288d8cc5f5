// The stage of xfer-rails: two network namespaces joined by shaped links, owners of memory in one,
// and measurements in the other, each in a process of its own.
#pragma once
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "bench/figure.h"
#include "bench/namespaces.h"
#include "bench/relay.h"
#include "bench/serving_peer.h"
#include "rpc/socket.h"
#include "xfer/engine.h"

namespace mc::bench {

struct Event {  // something that happens to a link while it is measured
  Duration at{};
  std::string rail, rate;  // a new rate; "": the link is cut, "up": it heals
};

struct Load {
  std::vector<size_t> rails{0, 1, 2, 3};
  uint64_t block = kMiB;
  uint32_t threads = 8;
  Duration time = std::chrono::seconds(1);
  std::vector<Event> events{};
};

struct Read {
  double end = 0, took = 0;  // seconds since the start; seconds
};
struct Look {  // at the rails, while they work
  double at = 0;
  std::vector<double> bytes;
  std::vector<std::string> states;
};
struct Seen {
  std::vector<Read> reads;
  std::vector<Look> looks;
  uint64_t block = 0;
  double cpu = 0;  // seconds, of the reader and the owner
  double cpu_per_kib() const {
    return cpu * 1e9 / (static_cast<double>(block * std::max<size_t>(1, reads.size())) / 1024);
  }
  // GB/s between two times.
  double rate(double from, double to) const {
    double n = 0;
    for (const Read& r : reads) {  // a read counts with the part of its time that lies within
      const double start = r.end - r.took, a = std::max(from, start), b = std::min(to, r.end);
      if (b > a) n += static_cast<double>(block) * (b - a) / r.took;
    }
    return n / 1e9 / (to - from);
  }
  // Seconds a read took, of those that began between two times.
  double quantile(double q, double from, double to) const {
    std::vector<double> v;
    for (const Read& r : reads)
      if (r.end - r.took >= from && r.end <= to) v.push_back(r.took);
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
  }
};

inline double since(Time t, Time start) { return to_seconds(t - start); }

class Scene {
 public:
  static constexpr size_t kRails = 4;
  static constexpr uint64_t kMemory = 64 * kMiB;

  static Result<std::unique_ptr<Scene>> make(const Clock& clock) {
    auto s = std::unique_ptr<Scene>(new Scene(clock));
    MC_TRY_(rpc::use_cluster_key("a key for the length of a benchmark"));
    MC_TRY(s->here_, Namespace::make());
    MC_TRY(s->there_, Namespace::make());
    for (size_t i = 0; i < kRails; ++i)
      MC_TRY_(s->here_.join(s->there_, rail(i), host(i, 1), host(i, 2), "500mbit"));
    return s;
  }
  static std::string rail(size_t i) { return "rail" + std::to_string(i); }
  static std::string host(size_t i, int end) {
    return "10.89." + std::to_string(i) + "." + std::to_string(end);
  }

  Result<> shape(const std::string& rail, const std::string& rate) const {
    return there_.command("tc qdisc replace dev " + rail + " root tbf rate " + rate +
                          " burst 128kb latency 20ms");
  }

  // An owner that takes data on these rails; later measurements read from it.
  Result<> serve(const std::vector<size_t>& rails) {
    MC_TRY(owner_, Child::start([&](int fd) {
             if (there_.enter()) own(fd, rails);
           }));
    MC_TRY(peer_, wire::decode<xfer::SegmentDescriptor>(owner_.answer()));
    return {};
  }
  // Its address number `i` leads through a relay from now on.
  Result<> relay(size_t i, const Relay::Config& config) {
    const std::string target = peer_.tcp.at(i);
    MC_TRY(const io::Address at, io::parse_address(target));
    MC_TRY(relay_, Child::start([&](int fd) {
             std::string address;
             if (!there_.enter()) return;
             auto listener = listen_at(at.host, &address);
             if (!listener) return;
             say(fd, address);
             Relay(clock_, config).run(std::move(*listener), target);
           }));
    peer_.tcp.at(i) = relay_.answer();
    if (peer_.tcp.at(i).empty()) return fail(Code::kInternal, "the relay did not start");
    return {};
  }

  // Reads by some threads, one after the other, until the time is over.
  Result<Seen> measure(const Load& load) const {
    const double owner = cpu_of(owner_.pid());
    MC_TRY(const Child child, Child::start([&](int fd) {
             Json answer;
             auto entered = here_.enter();
             Result<Seen> seen = entered ? read(load) : Result<Seen>(fail(entered.error()));
             if (!seen) answer["error"] = seen.error().what;
             if (seen) answer = to_json(*seen);
             say(fd, dump_json(answer));
           }));
    MC_TRY(const Json answer, parse_json(child.answer()));
    if (answer.contains("error"))
      return fail(Code::kInternal, "%s", answer["error"].get<std::string>().c_str());
    Seen seen = from_json(answer, load.block);
    seen.cpu += cpu_of(owner_.pid()) - owner;
    return seen;
  }

  // GB/s of plain sockets, one stream a rail, and their CPU: what all of them brought in `time`,
  // or, with `stripe`, that many bytes cut in equal parts.
  Result<Measured> raw(const std::vector<size_t>& rails, Duration time, uint64_t stripe = 0) const;

 private:
  explicit Scene(const Clock& clock) : clock_(clock) {}
  void own(int fd, const std::vector<size_t>& rails) const;
  Result<Seen> read(const Load& load) const;
  Result<> happen(const Event& event) const;
  void look_on(const Load& load, xfer::Engine& engine, xfer::SegmentHandle segment, Time start,
               Seen& seen) const;
  static Json to_json(const Seen& seen);
  static Seen from_json(const Json& json, uint64_t block);

  const Clock& clock_;
  Namespace here_, there_;
  Child owner_, relay_;
  xfer::SegmentDescriptor peer_;
};

inline void Scene::own(int fd, const std::vector<size_t>& rails) const {
  Metrics metrics;
  xfer::EngineOptions options;
  options.node = "owner";
  options.data.clear();
  for (const size_t r : rails) options.data.push_back(host(r, 2) + ":0");
  options.transports = {"tcp"};
  auto engine = xfer::Engine::open(clock_, options, metrics);
  if (!engine) return;
  auto memory = (*engine)->allocate(kMemory);
  if (!memory) return;
  fill(memory->bytes(), 1);
  say(fd, wire::encode((*engine)->describe()));
  for (;;) ::pause();
}

inline Result<> Scene::happen(const Event& event) const {
  if (event.rate.empty()) return there_.command("ip link set " + event.rail + " down");
  if (event.rate == "up") return there_.command("ip link set " + event.rail + " up");
  return shape(event.rail, event.rate);
}

// What happens meanwhile, and what becomes of the rails.
inline void Scene::look_on(const Load& load, xfer::Engine& engine, xfer::SegmentHandle segment,
                           Time start, Seen& seen) const {
  Mutex mutex;
  Condition never;
  size_t next = 0;
  for (Time now = clock_.now(); now < start + load.time; now = clock_.now()) {
    while (next < load.events.size() && now >= start + load.events[next].at)
      if (!happen(load.events[next++])) return;
    Look look;
    look.at = since(now, start);
    if (const auto paths = engine.paths(segment, 0, xfer::Op::kRead, load.block))
      for (const xfer::Path& p : *paths)
        for (const xfer::RailView& r : p.rails) {
          if (!r.info.mapped) continue;
          look.bytes.push_back(static_cast<double>(r.bytes));
          look.states.push_back(xfer::name(r.state));
        }
    seen.looks.push_back(std::move(look));
    Lock lock(mutex);
    never.wait_for(mutex, std::chrono::milliseconds(10));
  }
}

inline Result<Seen> Scene::read(const Load& load) const {
  Metrics metrics;
  xfer::EngineOptions options;
  options.node = "reader";
  options.transports = {"tcp"};
  for (const size_t r : load.rails) options.nics.push_back(rail(r));
  MC_TRY(auto engine, xfer::Engine::open(clock_, options, metrics));
  MC_TRY(const auto segment, engine->open_segment(peer_));
  MC_TRY(const xfer::Memory local, engine->allocate(kMemory));
  std::vector<std::vector<Read>> reads(load.threads);
  std::vector<Result<>> outcomes(load.threads);
  std::vector<std::thread> threads;
  const double cpu = cpu_seconds();
  const Time start = clock_.now(), end = start + load.time;
  const uint64_t own = kMemory / load.threads / load.block * load.block;
  for (uint32_t t = 0; t < load.threads; ++t)
    threads.emplace_back([&, t] {
      xfer::Request r;
      r.segment = segment;
      for (uint64_t at = 0; clock_.now() < end; at = (at + load.block) % own) {
        r.local = local.data() + t * own + at;
        r.offset = t * own + at;
        r.bytes = load.block;
        const Time before = clock_.now();
        outcomes[t] = engine->transfer_sync(r, std::chrono::seconds(10));
        if (!outcomes[t]) return;
        const Time now = clock_.now();
        reads[t].push_back({since(now, start), since(now, before)});
      }
    });
  Seen seen;
  look_on(load, *engine, segment, start, seen);
  for (auto& t : threads) t.join();
  seen.cpu = cpu_seconds() - cpu;
  for (auto& outcome : outcomes) MC_TRY_(std::move(outcome));
  for (const auto& of : reads) seen.reads.insert(seen.reads.end(), of.begin(), of.end());
  std::vector<std::byte> want(kMemory);
  fill(want, 1);
  for (uint32_t t = 0; t < load.threads; ++t) {
    const uint64_t n = std::min<uint64_t>(own, reads[t].size() * load.block);
    if (std::memcmp(want.data() + t * own, local.data() + t * own, n) != 0)
      return fail(Code::kCorrupt, "what was read is not what was there");
  }
  return seen;
}

inline Json Scene::to_json(const Seen& seen) {
  Json out = {{"reads", Json::array()}, {"looks", Json::array()}, {"cpu", seen.cpu}};
  for (const Read& r : seen.reads) out["reads"].push_back({r.end, r.took});
  for (const Look& l : seen.looks) out["looks"].push_back({l.at, l.bytes, l.states});
  return out;
}

inline Seen Scene::from_json(const Json& json, uint64_t block) {
  Seen seen;
  seen.block = block;
  seen.cpu = json["cpu"].get<double>();
  for (const Json& r : json["reads"])
    seen.reads.push_back({r.at(0).get<double>(), r.at(1).get<double>()});
  for (const Json& l : json["looks"])
    seen.looks.push_back({l.at(0).get<double>(), l.at(1).get<std::vector<double>>(),
                          l.at(2).get<std::vector<std::string>>()});
  return seen;
}

// A socket with the congestion control that lib/xfer/tcp asks for.
inline io::Fd raw_socket() {
  io::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  return fd;
}

inline Result<Measured> Scene::raw(const std::vector<size_t>& rails, Duration time,
                                   uint64_t stripe) const {
  std::vector<Child> senders;
  std::vector<std::string> addresses;
  for (const size_t r : rails) {
    MC_TRY(Child sender, Child::start([&](int fd) {
             std::string address;
             if (!there_.enter()) return;
             auto listener = listen_at(host(r, 2), &address);
             if (!listener) return;
             ::setsockopt(listener->get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
             say(fd, address);
             const io::Fd to(::accept(listener->get(), nullptr, nullptr));
             const std::vector<char> block(kMiB);
             while (::send(to.get(), block.data(), block.size(), MSG_NOSIGNAL) > 0) {
             }
           }));
    addresses.push_back(sender.answer());
    senders.push_back(std::move(sender));
  }
  MC_TRY(const Child child, Child::start([&](int fd) {
           if (!here_.enter()) return;
           std::vector<std::thread> threads;
           std::vector<double> bytes(rails.size()), took(rails.size());
           const Time start = clock_.now();
           for (size_t i = 0; i < rails.size(); ++i)
             threads.emplace_back([&, i] {
               const io::Fd from = raw_socket();
               const auto to = ipv4(addresses[i]);
               if (!to ||
                   ::connect(from.get(), reinterpret_cast<const sockaddr*>(&*to), sizeof *to) != 0)
                 return;
               std::vector<char> block(kMiB);
               const double most = static_cast<double>(stripe) / static_cast<double>(rails.size());
               while (stripe > 0 ? bytes[i] < most : clock_.now() < start + time) {
                 const ssize_t n = ::recv(from.get(), block.data(), block.size(), 0);
                 if (n <= 0) return;
                 bytes[i] += static_cast<double>(n);
               }
               took[i] = since(clock_.now(), start);
             });
           for (auto& t : threads) t.join();
           double all = 0, longest = 0;
           for (const double b : bytes) all += b;
           for (const double s : took) longest = std::max(longest, s);
           say(fd, strf("%.9f %.9f %.0f", all / 1e9 / longest, cpu_seconds(), all));
         }));
  double rate = 0, cpu = 0, bytes = 0;
  if (std::sscanf(child.answer().c_str(), "%lf %lf %lf", &rate, &cpu, &bytes) != 3 || bytes <= 0)
    return fail(Code::kInternal, "the raw streams did not run");
  for (const Child& sender : senders) cpu += cpu_of(sender.pid());
  return Measured(rate, cpu * 1e9 / (bytes / 1024));
}

}  // namespace mc::bench
