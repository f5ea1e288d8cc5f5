// A writer that is as late as it can be: it is granted room for a value, sends one data frame into
// it over tcp, a byte now and then, until a file says to go on; then it sends the rest. It prints
// what the owner answers. With a script of faults it is a client that puts the value under that
// drill.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/mutex.h"
#include "cmd/command.h"
#include "rpc/client.h"
#include "store/client/client.h"
#include "store/protocol/messages.h"
#include "xfer/core/messages.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

namespace mc {
namespace {

using namespace xfer::tcp;
constexpr Duration kCall = std::chrono::seconds(5), kPause = std::chrono::milliseconds(20);

struct Options {
  std::string master = "127.0.0.1:5550", key = "late", ready, go, fault;
  Bytes bytes{1 * kMiB};
  Duration time = std::chrono::seconds(60);
  void describe(OptionList& v) {
    v("master", master, "address of mc-master");
    v("key", key, "key that it puts");
    v("bytes", bytes, "of the value");
    v("ready", ready, "file to make once the first bytes are sent");
    v("go", go, "file that makes it send the rest");
    v("fault", fault, "script of faults (docs/transfer.md); empty: none");
    v("time", time, "after which it sends the rest anyway");
  }
};

Result<int> put(const Options& options) {
  const SteadyClock clock;
  Metrics metrics;
  xfer::EngineOptions engine_options;
  engine_options.node = "late";
  engine_options.fault = options.fault;
  MC_TRY(const auto engine, xfer::Engine::open(clock, engine_options, metrics));
  store::ClientOptions client_options;
  client_options.master = options.master;
  client_options.timeout = options.time;
  MC_TRY(const auto client, store::Client::open(*engine, clock, client_options, metrics));
  const std::vector<std::byte> value(options.bytes.n, std::byte{0x5a});
  const auto stored = client->put(options.key, value);
  std::printf("%s\n", stored ? "stored" : stored.error().what.c_str());
  return 0;
}

class LateWriter {
 public:
  explicit LateWriter(const Options& options) : options_(options) {}
  Result<int> run() {
    MC_TRY(const auto master, rpc::SyncClient::connect(options_.master, clock_));
    store::PutStart start;
    start.items.push_back({options_.key, options_.bytes.n});
    start.wait_ms = 4'000;  // what was read last is leased
    MC_TRY(const auto started, master->call(start, kCall));
    MC_TRY_(started.items.at(0).outcome.result());
    const store::PutGrant& grant = started.items[0];
    const store::ReplicaLocation& place = grant.places.at(0);
    MC_TRY(const auto owner,
           rpc::SyncClient::connect(started.nodes.at(place.node).control, clock_));
    MC_TRY(const auto segment, owner->call(xfer::DescribeSegment{"late"}, kCall));
    MC_TRY_(connect(segment));
    Descriptor d;
    d.generation = segment.generation.n;
    d.offset = place.offset;
    d.bytes = place.bytes != 0 ? place.bytes : options_.bytes.n;
    d.rows = 1;
    d.guard_offset = place.guard;
    d.guard_value = grant.generation.n;
    MC_TRY_(send(Kind::kRaise, d));
    MC_TRY_(reply());
    MC_TRY_(send(Kind::kWrite, d));
    const std::vector<std::byte> payload(d.bytes, std::byte{0x5a});
    const size_t sent = drip(payload);
    const auto rest = stream_.send(payload.data() + sent, payload.size() - sent, kNever);
    const auto answer = rest ? reply() : rest;
    std::printf("%s\n", answer ? "stored" : answer.error().what.c_str());
    return 0;
  }

 private:
  static Result<> go_on() { return {}; }
  static constexpr auto kNever = go_on;

  Result<> connect(const xfer::SegmentDescriptor& segment) {
    if (segment.tcp.empty()) return fail(Code::kUnavailable, "the owner takes no tcp");
    MC_TRY(stream_, Stream::connect(segment.tcp.front(), clock_, kCall, kNever));
    Nonce nonce{};
    MC_TRY_(stream_.receive(nonce.data(), nonce.size(), kNever));
    const HelloBody hello = prove(segment.secret.bytes, nonce);
    const Header header = make_header(Kind::kHello, 0, &hello, sizeof hello);
    MC_TRY_(stream_.send(&header, sizeof header, kNever));
    MC_TRY_(stream_.send(&hello, sizeof hello, kNever));
    return reply();
  }
  Result<> send(Kind kind, const Descriptor& d) {
    const Header header = make_header(kind, 1, &d, sizeof d);
    MC_TRY_(stream_.send(&header, sizeof header, kNever));
    return stream_.send(&d, sizeof d, kNever);
  }
  Result<> reply() {
    Header header;
    MC_TRY_(stream_.receive(&header, sizeof header, kNever));
    MC_TRY_(check_header(header));
    std::string text(header.body_bytes, '\0');
    MC_TRY_(stream_.receive(text.data(), text.size(), kNever));
    if (header.code != 0) return fail(code_from_wire(header.code), "%s", text.c_str());
    return {};
  }
  // Returns: how many bytes it sent.
  size_t drip(const std::vector<std::byte>& payload) {
    size_t sent = std::min<size_t>(payload.size() / 4, 64 * kKiB);
    (void)stream_.send(payload.data(), sent, kNever);
    const Time until = clock_.now() + options_.time;
    for (bool open = true; clock_.now() < until && !std::filesystem::exists(options_.go);) {
      if (!options_.ready.empty()) std::ofstream(options_.ready).put('\n');
      open = open && sent < payload.size() && stream_.send(&payload[sent], 1, kNever);
      sent += open ? 1 : 0;
      Lock lock(mutex_);
      never_.wait_for(mutex_, kPause);
    }
    return sent;
  }

  const Options& options_;
  const SteadyClock clock_;
  Stream stream_;
  Mutex mutex_;
  Condition never_;
};

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::Options options;
  mc::Program program("late-writer", "puts a value as late as it can");
  program.options(options);
  program.run_with([&](mc::Context&) {
    return options.fault.empty() ? mc::LateWriter(options).run() : mc::put(options);
  });
  return program.main(argc, argv);
}
