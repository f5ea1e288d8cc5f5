#include "store/service/master_service.h"

#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "io/address.h"

namespace mc::store {
namespace {

Json node_json(const NodeStat& n) {
  return {{"name", n.name},           {"control", n.control},
          {"state", n.state},         {"generation", n.generation.n},
          {"capacity", n.capacity},   {"used", n.used},
          {"releasing", n.releasing}, {"objects", n.objects},
          {"heard-ms", n.heard_ms},   {"fragmentation", n.fragmentation},
          {"host", n.host},           {"domain", n.domain},
          {"release", n.release}};
}

Json state_json(const ClusterStat& s) {
  Json nodes = Json::array();
  for (const NodeStat& n : s.nodes) nodes.push_back(node_json(n));
  Json tenants = Json::array();
  for (const TenantStat& t : s.tenants)
    tenants.push_back({{"name", t.name},
                       {"objects", t.objects},
                       {"used", t.used},
                       {"quota", t.quota},
                       {"disk-used", t.disk_used},
                       {"disk-quota", t.disk_quota}});
  return {{"epoch", s.epoch},
          {"capacity", s.capacity},
          {"used", s.used},
          {"objects", s.objects},
          {"object-bytes", s.object_bytes},
          {"leased", s.leased},
          {"writing", s.writing},
          {"evicted-objects", s.evicted_objects},
          {"evicted-bytes", s.evicted_bytes},
          {"rebuilding", s.rebuilding},
          {"memory", s.memory},
          {"tenants", std::move(tenants)},
          {"disk-objects", s.disk_objects},
          {"disk-bytes", s.disk_bytes},
          {"nodes", std::move(nodes)}};
}

constexpr const char* kEventTopic = "mc-store-events";

// Events from `at` on, which it moves on, for a message of few bytes: what a slow subscriber has
// not read is bounded by the number of messages.
std::vector<Event> few_of(const std::vector<Event>& events, size_t& at) {
  constexpr size_t kBytes = 8192, kNumbers = 64;  // of a message, and of an event beside its texts
  std::vector<Event> few;
  for (size_t bytes = 0; at < events.size() && bytes < kBytes; ++at) {
    const Event& e = events[at];
    bytes += e.key.size() + e.tenant.size() + e.nodes.size() + e.reason.size() + kNumbers;
    few.push_back(e);
  }
  return few;
}

Result<> check_ha(const MasterServiceOptions& o) {
  if (o.leader_ttl < std::chrono::seconds(1) || o.leader_ttl > std::chrono::minutes(5))
    return fail(Code::kInvalid, "--leader-ttl %s: want 1s to 5m", to_text(o.leader_ttl).c_str());
  const std::string& told = o.advertise.empty() ? o.listen : o.advertise;
  MC_TRY(const io::Address address, io::parse_address(told));
  if (address.host == "0.0.0.0" || address.host == "::" || address.host == "*")
    return fail(Code::kInvalid, "--ha: %s cannot be announced: give an address with --advertise",
                told.c_str());
  return {};
}

}  // namespace

void MasterServiceOptions::describe(OptionList& v) {
  v("listen", listen, "control address; port 0 takes a free one");
  v("ha", ha,
    "etcd://host:port[,host:port][/prefix]: be one of several masters, whose leader etcd "
    "elects");
  v("advertise", advertise,
    "with --ha: control address announced to nodes and clients; empty: that of --listen");
  v("leader-ttl", leader_ttl,
    "with --ha: how long after the leader was last heard of another one takes over");
  v("events", events, "address where events are published; port 0 takes a free one");
  v("http", http, "address of /metrics, /live, /ready, /health and /state");
  master.describe(v);
}

Result<std::unique_ptr<MasterService>> MasterService::open(io::Loop& loop,
                                                           const MasterServiceOptions& options,
                                                           uint64_t epoch, uint64_t seed,
                                                           Metrics& metrics,
                                                           rpc::Server::BeginAnswer trace) {
  MC_TRY_(options.master.check());
  EtcdUrl etcd;
  if (!options.ha.empty()) {
    auto url = EtcdUrl::parse(options.ha);
    if (!url) return fail(url.error().code, "--ha %s", url.error().what.c_str());
    etcd = std::move(*url);
    MC_TRY_(check_ha(options));
  }
  MC_TRY(auto server, rpc::Server::open(loop, options.listen, metrics));
  server->offer_shm("store");
  server->trace_calls(std::move(trace));
  auto service = std::unique_ptr<MasterService>(
      new MasterService(loop, options, epoch, seed, metrics, std::move(server)));
  MC_TRY(service->events_, rpc::Listener::open(loop, rpc::Socket::Kind::kPub, options.events,
                                               metrics, [s = service.get()] { s->subscribers(); }));
  MC_TRY(service->http_, http::Server::open(loop, options.http, {},
                                            [s = service.get()](const http::Exchange& exchange) {
                                              s->page(exchange);
                                            }));
  if (!options.ha.empty()) service->join(etcd, options);
  return service;
}

MasterService::MasterService(io::Loop& loop, const MasterServiceOptions& options, uint64_t epoch,
                             uint64_t seed, Metrics& metrics, std::unique_ptr<rpc::Server> server)
    : loop_(loop),
      metrics_(metrics),
      options_(options.master),
      seed_(seed),
      rpc_(std::move(server)),
      told_(metrics) {
  if (options.ha.empty()) master_ = std::make_unique<Master>(options_, epoch, seed_, loop_.now());
  answer_all();
}

MasterService::~MasterService() {
  loop_.cancel(timer_);
  loop_.cancel(parked_timer_);
  // Calls that still wait get the new leader's address.
  if (leader_election_) master_.reset();
  for (auto& [until, parked] : parked_) parked.give_up();
}

void MasterService::subscribers() {
  for (uint64_t port = 0; !events_->receive(port).empty();) continue;
}

// A slow subscriber misses events, sees the gap in the numbers, and requests a replay.
void MasterService::publish() {
  constexpr size_t kMost = 1000;
  if (!events_ || events_->subscriptions() == 0) published_ = master_->events().next();
  while (published_ < master_->events().next()) {
    bool gap = false;
    const std::vector<Event> events = master_->events().since(published_, kMost, &gap);
    if (events.empty()) return;
    published_ = events.back().seq + 1;
    for (size_t at = 0; at < events.size();) {
      Replayed message{master_->epoch(), master_->events().next(), std::exchange(gap, false)};
      message.events = few_of(events, at);
      const std::string body = wire::encode(message);
      events_->send_to_all({kEventTopic, body});  // no subscriber, or too slow a one
    }
  }
}

void MasterService::arm() {
  publish();
  if (leader_election_) leader_election_->raise(master_->epoch());
  const Time when = master_->deadline();
  if (when >= armed_ && armed_ > loop_.now()) return;  // the earlier timer re-arms
  loop_.cancel(timer_);
  armed_ = when;
  if (when == Time::max()) return;
  timer_ = loop_.at(when, [this] {
    armed_ = Time::max();
    if (!leads()) return;
    const uint64_t expired = master_->totals().nodes_expired;
    master_->tick(loop_.now());
    if (const uint64_t gone = master_->totals().nodes_expired - expired; gone > 0)
      log_warn("store", "%llu node(s) silent for the client-ttl: gone, with what they held",
               static_cast<unsigned long long>(gone));
    arm();
  });
}

void MasterService::page(const http::Exchange& exchange) {
  if (!leads()) return page_standing_by(exchange);
  if (exchange.request().path == "/metrics") told_.update(*master_, loop_.now());
  const ClusterStat stat = master_->handle(Stat{}, loop_.now());
  const Json health = {{"status", "ok"}, {"epoch", stat.epoch}, {"nodes", stat.nodes.size()}};
  if (http::serve_common(exchange, metrics_, "", dump_json(health))) return;
  if (exchange.request().path == "/state")
    exchange.reply(200, "application/json", dump_json(state_json(stat), 2) + "\n");
  else
    exchange.reply(404, "text/plain",
                   "no such page: try /live, /ready, /health, /metrics or /state\n");
}

}  // namespace mc::store
