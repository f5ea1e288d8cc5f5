// Gets and puts of values of 64 KiB, 1 MiB and 8 MiB, by one client, against redis-server and
// memcached over unix sockets: hot, a few values over and over; and cold, a working set of
// gigabytes, against copies of as much with non-temporal stores. Over tcp, against the transfer
// engine alone, reading the same bytes of the same node; and what a digest costs a raw stream,
// beside one without. All servers are processes of their own; turns alternate; contents are
// checked. GB/s of whole values that have arrived in the caller's buffer.
#include <hiredis/hiredis.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "base/hash.h"
#include "base/random.h"
#include "bench/raw_pair.h"
#include "bench/store_pool.h"
#include "cmd/command.h"
#include "xfer/memory/copy.h"

namespace mc {
namespace {

using bench::Measured;
using bench::StoreClient;

constexpr size_t kHot = 4;             // values, over and over
constexpr uint64_t kTurn = 64 * kMiB;  // bytes of one
constexpr size_t kBatch = 16;

using Buffer = std::vector<std::byte>;

Buffer value_of(uint64_t bytes, uint64_t seed) {
  Random random(seed);
  Buffer out(bytes);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random.next();
    std::memcpy(out.data() + at, &word, std::min<uint64_t>(8, bytes - at));
  }
  return out;
}

// One of the sides: gets key i into memory, or puts it.
struct Side {
  virtual ~Side() = default;
  virtual Result<> get(const std::string& key, std::span<std::byte> into) = 0;
  virtual Result<> put(const std::string& key, std::span<const std::byte> value) = 0;
  virtual Result<> forget(const std::string& key) = 0;
};

struct Store final : Side {
  explicit Store(store::Client& c) : client(c) {}
  store::Client& client;
  Result<> get(const std::string& key, std::span<std::byte> into) override {
    MC_TRY(const uint64_t n, client.get(key, into));
    return n == into.size() ? Result<>() : fail(Code::kCorrupt, "%s is too short", key.c_str());
  }
  Result<> put(const std::string& key, std::span<const std::byte> value) override {
    MC_TRY_(client.put(key, value));
    return {};
  }
  Result<> forget(const std::string& key) override { return client.remove({key}, true)[0]; }
};

struct Redis final : Side {
  struct Free {
    void operator()(redisContext* c) const { ::redisFree(c); }
    void operator()(redisReply* r) const { ::freeReplyObject(r); }
  };
  explicit Redis(const std::string& socket) : context(::redisConnectUnix(socket.c_str())) {}
  std::unique_ptr<redisContext, Free> context;
  Result<std::unique_ptr<redisReply, Free>> checked(void* reply) const {
    std::unique_ptr<redisReply, Free> out(static_cast<redisReply*>(reply));
    if (out == nullptr || out->type == REDIS_REPLY_ERROR)
      return fail(Code::kUnavailable, "redis: %s", context->errstr);
    return out;
  }
  Result<> get(const std::string& key, std::span<std::byte> into) override {
    MC_TRY(const auto r, checked(::redisCommand(context.get(), "GET %s", key.c_str())));
    if (r->len != into.size()) return fail(Code::kCorrupt, "%s is too short", key.c_str());
    into[0] = static_cast<std::byte>(r->str[0]);  // the library has it in memory of its own: enough
    into.back() = static_cast<std::byte>(r->str[r->len - 1]);
    return {};
  }
  Result<> put(const std::string& key, std::span<const std::byte> value) override {
    MC_TRY_(checked(
        ::redisCommand(context.get(), "SET %s %b", key.c_str(), value.data(), value.size())));
    return {};
  }
  Result<> forget(const std::string& key) override {
    MC_TRY_(checked(::redisCommand(context.get(), "DEL %s", key.c_str())));
    return {};
  }
};

// Its text protocol, straight into the caller's memory.
struct Memcached final : Side {
  explicit Memcached(const std::string& path) : fd(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof to.sun_path - 1);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fd.reset();
  }
  io::Fd fd;
  Result<> send(const void* data, size_t n) const {
    for (const auto* at = static_cast<const char*>(data); n > 0;) {
      const ssize_t done = ::send(fd.get(), at, n, MSG_NOSIGNAL);
      if (done <= 0) return fail_errno("memcached");
      at += done;
      n -= static_cast<size_t>(done);
    }
    return {};
  }
  Result<> receive(void* data, size_t n) const {
    for (auto* at = static_cast<char*>(data); n > 0;) {
      const ssize_t done = ::recv(fd.get(), at, n, MSG_WAITALL);
      if (done <= 0) return fail_errno("memcached");
      at += done;
      n -= static_cast<size_t>(done);
    }
    return {};
  }
  Result<> says(const std::string& line) const {
    std::string got(line.size(), '\0');
    MC_TRY_(receive(got.data(), got.size()));
    return got == line ? Result<>() : fail(Code::kCorrupt, "memcached says %s", got.c_str());
  }
  Result<> get(const std::string& key, std::span<std::byte> into) override {
    const std::string ask = "get " + key + "\r\n";
    MC_TRY_(send(ask.data(), ask.size()));
    MC_TRY_(says("VALUE " + key + " 0 " + std::to_string(into.size()) + "\r\n"));
    MC_TRY_(receive(into.data(), into.size()));
    return says("\r\nEND\r\n");
  }
  Result<> put(const std::string& key, std::span<const std::byte> value) override {
    const std::string ask = "set " + key + " 0 0 " + std::to_string(value.size()) + "\r\n";
    MC_TRY_(send(ask.data(), ask.size()));
    MC_TRY_(send(value.data(), value.size()));
    MC_TRY_(send("\r\n", 2));
    return says("STORED\r\n");
  }
  Result<> forget(const std::string& key) override {
    const std::string ask = "delete " + key + "\r\n";
    MC_TRY_(send(ask.data(), ask.size()));
    return says("DELETED\r\n");
  }
};

struct Bench {
  const Clock& clock;
  uint64_t bytes;
  std::vector<Buffer> values;
  std::span<std::byte> into;
  size_t puts = 0;

  Bench(const Clock& c, uint64_t n, std::span<std::byte> memory)
      : clock(c), bytes(n), into(memory.first(n)) {
    for (size_t i = 0; i < kHot; ++i) values.push_back(value_of(n, n + i));
  }
  std::string key(size_t i) const { return human_key("hot", i); }
  std::string human_key(const char* what, size_t i) const {
    return strf("%s-%llu-%zu", what, static_cast<unsigned long long>(bytes), i);
  }
  size_t rounds() const { return std::max<uint64_t>(8, kTurn / bytes / 2); }
  Result<> fill(Side& side) const {
    for (size_t i = 0; i < kHot; ++i) MC_TRY_(side.put(key(i), values[i]));
    return {};
  }
  Result<Measured> gets(Side& side) const {
    const size_t n = rounds();
    const Time start = clock.now();
    for (size_t i = 0; i < n; ++i) MC_TRY_(side.get(key(i % kHot), into));
    const double seconds = to_seconds(clock.now() - start);
    const Buffer& last = values[(n - 1) % kHot];
    if (into[0] != last[0] || into.back() != last.back())
      return fail(Code::kCorrupt, "other bytes than were put");
    return Measured(static_cast<double>(n * bytes) / 1e9 / seconds);
  }
  // Of new keys; they are forgotten again, which is not timed.
  Result<Measured> new_puts(Side& side) {
    const size_t n = std::max<size_t>(4, rounds() / 2), first = puts;
    puts += n;
    const Time start = clock.now();
    for (size_t i = 0; i < n; ++i) MC_TRY_(side.put(human_key("new", first + i), values[i % kHot]));
    const double seconds = to_seconds(clock.now() - start);
    for (size_t i = 0; i < n; ++i) MC_TRY_(side.forget(human_key("new", first + i)));
    return Measured(static_cast<double>(n * bytes) / 1e9 / seconds);
  }
};

struct Sides {
  Store sampled, always;
  Redis redis;
  std::unique_ptr<Memcached> memcached;  // null: not there
};

Result<> hot(Sides& s, const bench::StoreOptions& o, const Clock& clock, uint64_t bytes,
             std::span<std::byte> memory) {
  Bench b(clock, bytes, memory);
  const std::string size = bytes_text(bytes);
  MC_TRY_(b.fill(s.sampled));
  MC_TRY_(b.fill(s.redis));
  const auto against = [&](const std::string& name, Side& ours, Side& peer, const char* who,
                           double target, bool puts) {
    const bench::Figure figure{"store-data", name, "GB/s", who, target};
    const auto turn = [&](Side& side) { return puts ? b.new_puts(side) : b.gets(side); };
    return bench::compare(
        figure, o.turns(), [&] { return turn(ours); }, [&] { return turn(peer); });
  };
  const bool mib = bytes == kMiB;
  MC_TRY_(against("get " + size + " hot", s.sampled, s.redis, "redis GET", mib ? 5 : 0, false));
  MC_TRY_(against("get " + size + " hot, verified", s.always, s.redis, "redis GET", mib ? 3 : 0,
                  false));
  MC_TRY_(against("put " + size, s.sampled, s.redis, "redis SET", 0, true));
  if (s.memcached == nullptr) return {};
  MC_TRY_(b.fill(*s.memcached));
  MC_TRY_(against("get " + size + " hot", s.sampled, *s.memcached, "memcached get",
                  bytes == 8 * kMiB ? 1.7 : 0, false));
  return against("put " + size, s.sampled, *s.memcached, "memcached set", 0, true);
}

// A working set that no cache holds: each value once a turn, in order, to one place.
Result<> cold(Store& ours, const bench::StoreOptions& o, const Clock& clock,
              std::span<std::byte> into, uint64_t total) {
  constexpr uint64_t kValue = 8 * kMiB;
  const size_t n = total / kValue, turn = n / 4;
  const Buffer value = value_of(kValue, 3);
  for (size_t i = 0; i < n; ++i) MC_TRY_(ours.put("cold-" + std::to_string(i), value));
  void* p = ::mmap(nullptr, total, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED) return fail_errno("map %s", rounded_bytes_text(total).c_str());
  const std::unique_ptr<void, std::function<void(void*)>> owner(
      p, [total](void* m) { ::munmap(m, total); });
  const auto* from = static_cast<const std::byte*>(p);
  size_t next = 0, copied = 0;
  const size_t places = into.size() / kValue;
  return bench::compare(
      {"store-data", "get 8MiB cold", "GB/s", "non-temporal copy", 0.9}, o.turns(),
      [&] {
        return bench::gigabytes(clock, turn * kValue, 1, [&]() -> Result<> {
          for (size_t i = 0; i < turn; ++i, ++next)
            MC_TRY_(ours.get("cold-" + std::to_string(next % n),
                             into.subspan(next % places * kValue, kValue)));
          return {};
        });
      },
      [&] {
        return bench::gigabytes(clock, turn * kValue, 1, [&]() -> Result<> {
          for (size_t i = 0; i < turn; ++i, ++copied)
            xfer::copy_rows({into.data() + copied % places * kValue, from + copied % n * kValue,
                             kValue, 1, 0, 0},
                            true);
          return {};
        });
      });
}

std::string tcp_key(size_t i) {
  return strf("hot-%llu-%zu", static_cast<unsigned long long>(kMiB), i);
}

// The same values by tcp; the engine alone reads the memory that the first of them lie in.
Result<> over_tcp(Store& near, const std::string& master, const std::string& node,
                  const bench::StoreOptions& o, const Clock& clock) {
  for (size_t i = 0; i < kHot; ++i)  // there already, unless this part is run alone
    MC_TRY_(near.put(tcp_key(i), value_of(kMiB, kMiB + i)));
  xfer::EngineOptions engine;
  engine.transports = {"tcp"};
  store::ClientOptions options;
  options.master = master;
  options.hedge = false;
  MC_TRY(auto c, StoreClient::open(clock, "tcp", options, engine));
  MC_TRY(const auto segment, c->engine->open_segment(node, std::chrono::seconds(5)));
  Buffer into(kBatch * kMiB);
  std::vector<store::GetItem> items;
  std::vector<xfer::Request> requests;
  for (size_t i = 0; i < kBatch; ++i) {
    const std::span<std::byte> to(into.data() + i * kMiB, kMiB);
    items.push_back({tcp_key(i % kHot), {to}});
    MC_TRY(const auto at, c->client->locate(items[i].key));
    xfer::Request r;
    r.local = to.data();
    r.segment = segment;
    r.offset = at.places.at(0).offset;
    r.bytes = kMiB;
    requests.push_back(r);
  }
  const size_t rounds = o.quick ? 8 : 32;
  return bench::compare(
      {"store-data", "get 16x1MiB over tcp, verified", "GB/s", "transfer engine", 0.9}, o.turns(),
      [&] {
        return bench::gigabytes(clock, kBatch * kMiB, rounds, [&]() -> Result<> {
          for (const auto& got : c->client->get_batch(items)) MC_TRY_(got);
          return {};
        });
      },
      [&] {
        return bench::gigabytes(clock, kBatch * kMiB, rounds, [&]() -> Result<> {
          const xfer::BatchId batch = c->engine->allocate_batch();
          Result<> moved = c->engine->submit(batch, requests);
          if (moved) moved = c->engine->wait(batch, std::chrono::seconds(10));
          c->engine->free_batch(batch);
          return moved;
        });
      });
}

// What verification may cost at least: a raw stream whose receiver digests what is in its cache.
Result<> raw_digest(const bench::RawPair& raw, const bench::StoreOptions& o, const Clock& clock) {
  constexpr size_t kPiece = 256 * kKiB;  // as lib/xfer/transports/tcp/link.cc
  MC_TRY(const io::Fd fd, raw.connect());
  Buffer into(kBatch * kMiB);
  const auto digested = [&]() -> Result<> {
    const bench::Ask ask{into.size(), into.size(), 0};
    if (::send(fd.get(), &ask, sizeof ask, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof ask))
      return fail_errno("raw stream");
    Xxh3Stream digest;
    for (size_t at = 0; at < into.size(); at += kPiece) {
      if (::recv(fd.get(), into.data() + at, kPiece, MSG_WAITALL) != static_cast<ssize_t>(kPiece))
        return fail_errno("raw stream");
      digest.update(into.data() + at, kPiece);
    }
    (void)digest.digest();
    return {};
  };
  const auto plain = [&]() -> Result<> {
    if (bench::RawPair::ping(fd.get(), into)) return {};
    return fail_errno("raw stream");
  };
  const size_t rounds = o.quick ? 8 : 32;
  return bench::compare(
      {"store-data", "raw stream, digested", "GB/s", "raw stream"}, o.turns(),
      [&] { return bench::gigabytes(clock, into.size(), rounds, digested); },
      [&] { return bench::gigabytes(clock, into.size(), rounds, plain); });
}

struct DataOptions : bench::StoreOptions {
  std::string only;
  void describe(OptionList& v) {
    StoreOptions::describe(v);
    v("only", only, "a part of it", {"", "hot", "tcp", "cold"});
  }
  bool wants(const char* part) const { return only.empty() || only == part; }
};

Result<int> run(const DataOptions& o) {
  const SteadyClock clock;
  const uint64_t cold_bytes = o.quick ? 1 * kGiB : 4 * kGiB;
  if (o.wants("tcp")) {
    MC_TRY(const auto raw, bench::RawPair::start());
    MC_TRY_(raw_digest(*raw, o, clock));
  }
  bench::StorePool pool(o.bin, clock);
  MC_TRY(const std::string master, pool.master("master"));
  MC_TRY(const std::string node,
         pool.node("n", master, {"--size", std::to_string(cold_bytes + 1 * kGiB)}));
  const auto redis = pool.redis();
  if (bench::skipped("store-data", redis, "redis-server")) return 0;
  const auto memcached = pool.memcached();
  (void)bench::skipped("half of store-data", memcached, "memcached");
  store::ClientOptions options;
  options.master = master;
  MC_TRY(auto sampled, StoreClient::open(clock, "sampled", options));
  options.verify = "always";
  MC_TRY(auto always, StoreClient::open(clock, "always", options));
  MC_TRY(xfer::Memory memory, sampled->engine->allocate(128 * kMiB));
  Sides sides{Store(*sampled->client), Store(*always->client), Redis(*redis), nullptr};
  if (sides.redis.context == nullptr || sides.redis.context->err != 0)
    return fail(Code::kUnavailable, "redis: not there");
  if (memcached) sides.memcached = std::make_unique<Memcached>(*memcached);
  if (o.wants("hot"))
    for (const uint64_t bytes : {64 * kKiB, 1 * kMiB, 8 * kMiB})
      MC_TRY_(hot(sides, o, clock, bytes, memory.bytes()));
  if (o.wants("tcp")) MC_TRY_(over_tcp(sides.sampled, master, node, o, clock));
  if (o.wants("cold")) MC_TRY_(cold(sides.sampled, o, clock, memory.bytes(), cold_bytes));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::DataOptions options;
  options.bin = std::filesystem::path(argv[0]).parent_path().string();
  mc::Program program("store_data_bench", "store gets and puts against redis and memcached");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
