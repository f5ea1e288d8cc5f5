// Times puts and gets of its own values.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/histogram.h"
#include "base/json.h"
#include "base/random.h"
#include "cmd/mc-store/verbs.h"
#include "cmd/side_by_side.h"

namespace mc::store {
namespace {

struct BenchOptions : ClientVerb {
  Bytes value{1 * kMiB};
  uint32_t count = 64, batch = 1, threads = 1;
  Duration time = std::chrono::seconds(3);
  std::string prefix;
  void describe(OptionList& v) {
    v("value", value, "bytes of a value");
    v("count", count, "how many values are put, and then got in turn");
    v("batch", batch, "values a call");
    v("threads", threads, "callers at the same time, each with a client of its own");
    v("for", time, "how long values are got");
    v("prefix", prefix, "what their keys begin with; empty: bench-PID-");
    v("transports", transports,
      "transports allowed, in order of preference: shm, rdma, file, tcp; empty: shm, file, tcp");
    ClientVerb::describe(v);
  }
};

struct Tally {
  Histogram us;  // of calls
  uint64_t values = 0, bytes = 0, missing = 0, wrong = 0, near = 0, hedged = 0;
  double seconds = 0;
  Error error{};
};

struct Caller {
  const BenchOptions& o;
  Client& client;
  const std::vector<std::vector<std::byte>>& values;
  SteadyClock clock{};

  std::string key(size_t i) const { return o.prefix + std::to_string(i); }
  // Every `step`th batch from `first` on.
  Tally put(size_t first, size_t step) {
    Tally t;
    const Time start = clock.now();
    for (size_t at = first * o.batch; at < values.size(); at += step * o.batch) {
      std::vector<PutItem> items;
      for (size_t i = at; i < std::min(values.size(), at + o.batch); ++i)
        items.push_back({key(i), {values[i]}});
      const Time began = clock.now();
      for (const auto& stored : client.put_batch(items)) {
        if (!stored) t.error = stored.error();
        ++t.values;
        t.bytes += o.value.n;
      }
      note(t, began);
    }
    t.seconds = to_seconds(clock.now() - start);
    return t;
  }
  Tally get(size_t first) {
    Tally t;
    std::vector<std::vector<std::byte>> into(o.batch, std::vector<std::byte>(o.value.n));
    const Time start = clock.now();
    size_t next = first * o.batch;
    while (clock.now() - start < o.time) {
      std::vector<GetItem> items;
      std::vector<size_t> which;
      for (size_t b = 0; b < o.batch; ++b) {
        which.push_back(next++ % values.size());
        items.push_back({key(which.back()), {into[b]}});
      }
      const Time began = clock.now();
      const auto got = client.get_batch(items);
      note(t, began);
      for (size_t b = 0; b < o.batch; ++b) {
        if (got[b]) {
          ++t.values;
          t.bytes += *got[b];
          // Its first bytes tell it from the others; --verify decides about the rest.
          const size_t head = std::min<size_t>(64, o.value.n);
          if (*got[b] != o.value.n ||
              std::memcmp(into[b].data(), values[which[b]].data(), head) != 0)
            ++t.wrong;
        } else if (got[b].error().code == Code::kNotFound) {
          ++t.missing;
        } else {
          t.error = got[b].error();
        }
      }
    }
    t.seconds = to_seconds(clock.now() - start);
    return t;
  }
  void note(Tally& t, Time began) const {
    t.us.record(static_cast<uint64_t>(to_seconds(clock.now() - began) * 1e6));
  }
};

void add(Tally& all, const Tally& one) {
  all.us.merge(one.us);
  all.values += one.values;
  all.bytes += one.bytes;
  all.missing += one.missing;
  all.wrong += one.wrong;
  all.seconds = std::max(all.seconds, one.seconds);
  if (!one.error.what.empty()) all.error = one.error;
}

void show(const char* what, const Tally& t, const Context& context) {
  const double rate = static_cast<double>(t.values) / t.seconds;
  const double gbs = static_cast<double>(t.bytes) / 1e9 / t.seconds;
  if (context.json)
    put(dump_json({{"op", what},
                   {"values", t.values},
                   {"values-per-s", rate},
                   {"gb-per-s", gbs},
                   {"p50-us", t.us.quantile(0.5)},
                   {"p99-us", t.us.quantile(0.99)},
                   {"max-us", t.us.max()},
                   {"near", t.near},
                   {"hedged", t.hedged},
                   {"missing", t.missing},
                   {"wrong", t.wrong}}) +
        "\n");
  else
    put(
        strf("%s  %8.0f values/s  %7.2f GB/s  p50 %llu us  p99 %llu us  max %llu us\n     "
             "%llu missing  %llu wrong  %llu out of the near cache  %llu hedged\n",
             what, rate, gbs, static_cast<unsigned long long>(t.us.quantile(0.5)),
             static_cast<unsigned long long>(t.us.quantile(0.99)),
             static_cast<unsigned long long>(t.us.max()),
             static_cast<unsigned long long>(t.missing), static_cast<unsigned long long>(t.wrong),
             static_cast<unsigned long long>(t.near), static_cast<unsigned long long>(t.hedged)));
}

// All values, and what each thread gets, are in memory at once.
Result<> check_sizes(const BenchOptions& o) {
  if (o.count == 0 || o.batch == 0 || o.threads == 0 || o.threads > 256)
    return fail(
        Code::kInvalid,
        "--count, --batch, --threads: want at least one value, a batch and 1 to 256 threads");
  const auto pages = static_cast<double>(::sysconf(_SC_PHYS_PAGES));
  const double most = pages * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  const double values = o.count + static_cast<double>(o.threads) * o.batch;
  if (const double each = static_cast<double>(o.value.n) + sizeof(std::vector<std::byte>);
      values * each > most)
    return fail(Code::kNoSpace,
                "--value %s, --count %u, --batch %u, --threads %u: that is %.1f GB of memory, and "
                "there are %.1f: ask for less",
                rounded_bytes_text(o.value.n).c_str(), o.count, o.batch, o.threads,
                values * each / 1e9, most / 1e9);
  return {};
}

Result<int> run_bench(BenchOptions o, const Context& context) {
  MC_TRY_(check_sizes(o));
  if (o.prefix.empty()) o.prefix = "bench-" + std::to_string(::getpid()) + "-";
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t i = 0; i < o.threads; ++i) {
    MC_TRY(auto session, Session::open(o));
    sessions.push_back(std::move(session));
  }
  std::vector<std::vector<std::byte>> values(o.count, std::vector<std::byte>(o.value.n));
  Random random(static_cast<uint64_t>(::getpid()));
  for (auto& value : values)
    for (size_t at = 0; at < value.size(); at += 8) {
      const uint64_t word = random.next();
      std::memcpy(value.data() + at, &word, std::min<size_t>(8, value.size() - at));
    }
  const auto all_do = [&](const auto& turn) {
    std::vector<Tally> tallies(o.threads);
    Tally all;
    const auto ran = side_by_side(o.threads, [&](size_t i, const auto&) {
      Caller caller{o, sessions[i]->client(), values};
      tallies[i] = turn(caller, static_cast<uint32_t>(i));
    });
    if (!ran) all.error = ran.error();
    for (const Tally& t : tallies) add(all, t);
    return all;
  };
  const Tally puts = all_do([&](Caller& c, uint32_t i) { return c.put(i, o.threads); });
  if (!puts.error.what.empty()) return fail(puts.error);
  show("put", puts, context);
  std::fflush(stdout);  // the gets take a while
  Tally gets = all_do([&](Caller& c, uint32_t i) { return c.get(i); });
  for (const auto& session : sessions) {
    gets.near += session->metrics().counter("mc_store_client_near_hits_total", "").value();
    gets.hedged += session->metrics().counter("mc_store_client_hedged_total", "").value();
  }
  show("get", gets, context);
  std::vector<ObjectKey> keys;
  for (size_t i = 0; i < values.size(); ++i) keys.push_back(o.prefix + std::to_string(i));
  (void)sessions[0]->client().remove(keys, true);
  if (!gets.error.what.empty()) return fail(gets.error);
  return gets.wrong > 0 ? 4 : 0;
}

}  // namespace

void add_bench(Program& program) {
  program.verb<BenchOptions>(
      "bench", "put and get values of one's own, and tell how fast", [](Verb& v, BenchOptions& o) {
        v.example("mc-store bench", "64 values of 1 MiB, got for three seconds");
        v.example("mc-store bench --value 64KiB --batch 16 --threads 4 --verify always",
                  "small ones, many at a time, every checksum looked at");
        v.exit_status(4, "a value came back with other bytes");
        v.run_with([&o](Context& context) { return run_bench(o, context); });
      });
}

}  // namespace mc::store
