// Gets over loops of their own. F60: a replica whose node does not answer leaves the next one its
// share of the time.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "store/client/client.h"
#include "tests/unit/store/loop_threads.h"

namespace mc::store {
namespace {

struct Reader {
  Reader(const std::string& master, Duration timeout, const std::string& fault = {}) {
    xfer::EngineOptions e;
    e.fault = fault;
    auto opened = xfer::Engine::open(clock, e, metrics);
    REQUIRE(opened);
    engine = std::move(*opened);
    ClientOptions options;
    options.master = master;
    options.timeout = timeout;
    options.replicas = 2;
    auto c = Client::open(*engine, clock, options, metrics);
    REQUIRE(c);
    client = std::move(*c);
  }
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<Client> client;
};

struct TwoReplicas {
  TwoReplicas() {
    Reader writer(master.service->control(), 10s);
    REQUIRE(writer.client->put("k", value));
    std::vector<NodeRef> nodes;
    const auto at = writer.client->locate("k", &nodes);
    REQUIRE(at);
    REQUIRE(at->places.size() == 2);
    first = nodes[at->places[0].node].name;
  }
  bool suspected(Reader& reader) const {
    const auto stat = reader.client->stat(10s);
    REQUIRE(stat);
    for (const auto& n : stat->nodes)
      if (n.name == first) return n.state == "suspect";
    return false;
  }
  const std::vector<std::byte> value = std::vector<std::byte>(4096, std::byte{7});
  OneMaster master;
  OneNode a{"a", master.service->control()}, b{"b", master.service->control()};
  std::string first;  // the node of the replica that is read first
};

// A machine that stands still may use up the little time of a read: then it is tried from the
// start.
bool once_in_five(const std::function<bool(TwoReplicas&)>& reads) {
  for (int i = 0; i < 5; ++i) {
    TwoReplicas t;
    if (reads(t)) return true;
  }
  return false;
}

TEST_CASE("F60: a node that does not describe its segment leaves time for the next replica") {
  CHECK(once_in_five([](TwoReplicas& t) {
    (t.first == "a" ? t.a : t.b).halt();
    Reader reader(t.master.service->control(), 950ms);  // less than a call may take
    const auto got = reader.client->get("k");
    if (!got) return false;
    CHECK(*got == t.value);
    return t.suspected(reader);
  }));
}

TEST_CASE("F60: a copy that does not come leaves the next replica time; its node is suspected") {
  CHECK(once_in_five([](TwoReplicas& t) {
    const auto script = std::filesystem::temp_directory_path() /
                        ("mc-unanswered-" + std::to_string(::getpid()) + ".json");
    std::ofstream(script) << R"({"op": "read", "skip": 1, "delay": "60s", "peer": ")" + t.first +
                                 "\"}\n";
    Reader reader(t.master.service->control(), 1500ms, script.string());
    std::filesystem::remove(script);
    std::vector<std::byte> got(t.value.size());
    if (!reader.client->get("k", got) || t.suspected(reader)) return false;
    (t.first == "a" ? t.a : t.b).halt();  // its heartbeats would clear it
    got.assign(got.size(), std::byte{0});
    if (!reader.client->get("k", got)) return false;
    CHECK(got == t.value);
    return t.suspected(reader);
  }));
}

TEST_CASE("of a batch that two nodes do not answer each of them is reported once a round") {
  TwoReplicas t;
  Reader writer(t.master.service->control(), 10s);
  std::vector<std::string> keys;
  for (int i = 0; i < 20; ++i) keys.push_back("k" + std::to_string(i));
  for (const std::string& key : keys) REQUIRE(writer.client->put(key, t.value));
  const auto script = std::filesystem::temp_directory_path() /
                      ("mc-silent-" + std::to_string(::getpid()) + ".json");
  std::ofstream(script) << R"({"op": "read", "delay": "60s", "peer": "a"})" << '\n'
                        << R"({"op": "read", "delay": "60s", "peer": "b"})" << '\n';
  Reader reader(t.master.service->control(), 1s, script.string());
  std::filesystem::remove(script);
  std::vector<std::byte> memory(keys.size() * t.value.size());
  std::vector<GetItem> items;
  for (size_t i = 0; i < keys.size(); ++i)
    items.push_back({keys[i], {std::span(memory).subspan(i * t.value.size(), t.value.size())}});
  for (const auto& got : reader.client->get_batch(items)) {
    REQUIRE_FALSE(got);
    CHECK(got.error().code == Code::kTimeout);
  }
  const auto reports =
      t.master.metrics.counter("mc_rpc_requests_total", "", {{"type", ReportNode::kName}}).value();
  CHECK(reports >= 1);
  CHECK(reports <= 4);
}

TEST_CASE("while a master rebuilds a batch brings what it knows, and waits for the rest") {
  for (const Duration rebuild : {Duration(60s), Duration(1s)}) {
    OneMaster master(rebuild);
    OneNode node("a", master.service->control());
    Reader reader(master.service->control(), rebuild > 10s ? 3s : 60s);
    const std::vector<std::byte> value(4096, std::byte{7});
    REQUIRE(reader.client->put("k", value));
    std::vector<std::byte> known(value.size()), absent(value.size());
    std::vector<GetItem> items(1500, GetItem{"k", {known}});  // more than one call asks for
    items[0] = {"absent", {absent}};
    const auto got = reader.client->get_batch(items);
    CHECK(std::ranges::count_if(got, [](const auto& one) { return one.has_value(); }) == 1499);
    CHECK(known == value);
    REQUIRE_FALSE(got[0]);
    CHECK(got[0].error().code == (rebuild > 10s ? Code::kUnavailable : Code::kNotFound));
  }
}

TEST_CASE("while a master rebuilds, a thousand keys that it does not know keep no others waiting") {
  for (const Duration rebuild : {Duration(60s), Duration(2s)}) {
    OneMaster master(rebuild);
    OneNode node("a", master.service->control());
    Reader reader(master.service->control(), rebuild > 10s ? 6s : 60s);
    const std::vector<std::byte> value(4096, std::byte{7});
    REQUIRE(reader.client->put("k", value));
    std::vector<std::byte> known(value.size()), absent(value.size());
    std::vector<GetItem> items(1024, GetItem{"absent", {absent}});  // all that one call asks for
    items.resize(1500, GetItem{"k", {known}});
    const auto got = reader.client->get_batch(items);
    CHECK(std::ranges::count_if(got, [](const auto& one) { return one.has_value(); }) == 476);
    CHECK(known == value);
    REQUIRE_FALSE(got[0]);
    CHECK(got[0].error().code == (rebuild > 10s ? Code::kUnavailable : Code::kNotFound));
    CHECK(got[1023].error().code == got[0].error().code);
  }
}

}  // namespace
}  // namespace mc::store
