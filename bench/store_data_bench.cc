// store get of 1 MiB against redis-server GET over a unix socket: both servers are processes of
// their own, started here and stopped at the end; turns alternate; contents are checked. Bytes a
// second of whole values that have arrived in the caller's buffer.
#include <hiredis/hiredis.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/random.h"
#include "bench/child.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "store/client.h"

namespace mc {
namespace {

constexpr uint64_t kValue = 1 * kMiB;
constexpr size_t kObjects = 64;  // more than a cache holds
constexpr size_t kBatch = 16;

using bench::Child;
using bench::control_of;

struct Servers {
  std::string folder;
  std::unique_ptr<Child> master, node, redis;
  std::string master_address, redis_socket;
  ~Servers() {
    node.reset();
    master.reset();
    redis.reset();
    std::error_code ignored;
    if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  }
};

Result<> start(Servers& s, const std::string& bin, const Clock& clock) {
  char folder[] = "/tmp/mc-bench.XXXXXX";
  if (::mkdtemp(folder) == nullptr) return fail_errno("make %s", folder);
  s.folder = folder;
  const std::string log = s.folder + "/log", master = s.folder + "/master.json";
  const std::string any = "127.0.0.1:0";
  MC_TRY(s.master,
         Child::start({bin + "/mc-master", "--listen", any, "--http", any, "--announce", master},
                      log));
  MC_TRY(s.master_address, control_of(master, clock));
  MC_TRY(s.node, Child::start({bin + "/mc-store", "serve", "--listen", any, "--http", any, "--name",
                               "n", "--size", "256MiB", "--master", s.master_address, "--announce",
                               s.folder + "/node.json"},
                              log));
  MC_TRY_(bench::await_file(s.folder + "/node.json", clock));
  s.redis_socket = s.folder + "/redis.sock";
  MC_TRY(s.redis, Child::start({"redis-server", "--port", "0", "--unixsocket", s.redis_socket,
                                "--save", "", "--appendonly", "no", "--dir", s.folder},
                               log));
  return bench::await_file(s.redis_socket, clock);
}

struct FreeRedis {
  void operator()(redisContext* c) const { ::redisFree(c); }
};
struct FreeReply {
  void operator()(redisReply* r) const { ::freeReplyObject(r); }
};
using Redis = std::unique_ptr<redisContext, FreeRedis>;
using RedisReply = std::unique_ptr<redisReply, FreeReply>;

std::string key_of(size_t i) { return "object-" + std::to_string(i); }

struct Bench {
  const Clock& clock;
  store::Client& store;
  redisContext* redis;
  std::span<std::byte> into;  // kBatch values
  std::vector<std::string> values;
  size_t next = 0;

  bool same(size_t i, const void* got) const {
    return std::memcmp(values[i % kObjects].data(), got, kValue) == 0;
  }
  // GB/s of `rounds` gets of `batch` values each.
  Result<double> store_turn(size_t rounds, size_t batch) {
    std::vector<std::vector<store::GetItem>> asks(rounds);
    for (auto& items : asks)
      for (size_t b = 0; b < batch; ++b)
        items.push_back({key_of(next++ % kObjects), {into.subspan(b * kValue, kValue)}});
    const Time start = clock.now();
    for (const auto& items : asks)
      for (const auto& got : store.get_batch(items)) MC_TRY_(got);
    const double seconds = to_seconds(clock.now() - start);
    for (size_t b = 0; b < batch; ++b)
      if (!same(next - batch + b, into.data() + b * kValue))
        return fail(Code::kCorrupt, "the store returned other bytes than were put");
    return static_cast<double>(rounds * batch * kValue) / 1e9 / seconds;
  }
  Result<double> redis_turn(size_t rounds, size_t batch) {
    RedisReply last;
    const Time start = clock.now();
    for (size_t r = 0; r < rounds; ++r) {
      for (size_t b = 0; b < batch; ++b)  // pipelined, as one batch
        ::redisAppendCommand(redis, "GET %s", key_of(next++ % kObjects).c_str());
      for (size_t b = 0; b < batch; ++b) {
        void* reply = nullptr;
        if (::redisGetReply(redis, &reply) != REDIS_OK)
          return fail(Code::kUnavailable, "redis: %s", redis->errstr);
        last.reset(static_cast<redisReply*>(reply));
      }
    }
    const double seconds = to_seconds(clock.now() - start);
    if (last == nullptr || last->len != kValue || !same(next - 1, last->str))
      return fail(Code::kCorrupt, "redis returned other bytes than were set");
    return static_cast<double>(rounds * batch * kValue) / 1e9 / seconds;
  }
};

Result<> measure(Bench& b, size_t batch, size_t turns, size_t rounds) {
  const std::string what = batch == 1 ? "1MiB" : std::to_string(batch) + "x1MiB";
  return bench::compare(
      {"store-data", "get " + what, "GB/s", "redis GET " + what}, turns,
      [&] { return b.store_turn(rounds, batch); }, [&] { return b.redis_turn(rounds, batch); });
}

struct BenchOptions : bench::Options {
  std::string bin;
  void describe(OptionList& v) {
    bench::Options::describe(v);
    v("bin", bin, "folder of mc-master and mc-store; empty: this program's own");
  }
};

Result<int> run(const BenchOptions& o) {
  SteadyClock clock;
  Servers servers;
  if (auto started = start(servers, o.bin, clock); !started) {
    if (started.error().what.find("redis-server") == std::string::npos)
      return fail(started.error());
    std::printf("skipped: store-data needs redis-server: apt-get install redis-server\n");
    return 0;
  }
  Metrics metrics;
  MC_TRY(auto engine, xfer::Engine::open(clock, {}, metrics));
  store::ClientOptions options;
  options.master = servers.master_address;
  MC_TRY(auto client, store::Client::open(*engine, clock, options, metrics));
  MC_TRY(xfer::Memory memory, engine->allocate(kBatch * kValue));
  const Redis redis(::redisConnectUnix(servers.redis_socket.c_str()));
  if (redis == nullptr || redis->err != 0)
    return fail(Code::kUnavailable, "redis: %s", redis == nullptr ? "no memory" : redis->errstr);

  Bench bench{clock, *client, redis.get(), memory.bytes(), {}};
  Random random(1);
  for (size_t i = 0; i < kObjects; ++i) {
    std::string value(kValue, '\0');
    for (size_t at = 0; at < kValue; at += 8) {
      const uint64_t word = random.next();
      std::memcpy(value.data() + at, &word, 8);
    }
    MC_TRY_(client->put(key_of(i), std::as_bytes(std::span(value))));
    const RedisReply set(static_cast<redisReply*>(
        ::redisCommand(redis.get(), "SET %s %b", key_of(i).c_str(), value.data(), value.size())));
    if (set == nullptr || set->type == REDIS_REPLY_ERROR)
      return fail(Code::kUnavailable, "redis: SET failed");
    bench.values.push_back(std::move(value));
  }
  const size_t gets = o.quick ? 128 : 512;
  MC_TRY_(measure(bench, 1, o.turns(), gets));
  MC_TRY_(measure(bench, kBatch, o.turns(), gets / kBatch));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::BenchOptions options;
  options.bin = std::filesystem::path(argv[0]).parent_path().string();
  mc::Program program("store_data_bench", "store get of 1 MiB against redis-server GET");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
