// Schedulers of other engines ask a prefill worker for its hits, over real sockets.
#include "serve/worker/lookup_bridge.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "pool.h"
#include "serve/connector/store_connector.h"
#include "store/client/async_client.h"
#include "tests/stretched_clock.h"

namespace mc::serve {
namespace lookup_bridge_test {
namespace {

struct Bridge {
  explicit Bridge(io::Loop& on, Pair& pair) : loop(on) {
    auto opened = LookupBridge::open(
        loop, path, kBlock,
        [&pair](const std::vector<BlockHash>& hashes, std::function<void(size_t)> done) {
          pair.prefill->lookup(hashes, std::move(done));
        },
        metrics);
    REQUIRE_MESSAGE(opened, opened.error().what);
    bridge = std::move(*opened);
  }
  Result<std::string> ask(const std::vector<std::string>& question) {
    Result<std::string> answer = fail(Code::kInternal, "not asked");
    std::atomic<bool> done = false;
    std::thread asker([&] {
      answer = rpc::ask_local(path, question, 60s * kSlow);
      done = true;
    });
    while (!done) REQUIRE(loop.turn(5ms));
    asker.join();
    return answer;
  }
  uint64_t hits(uint64_t tokens, const std::vector<BlockHash>& hashes) {
    const auto answer = ask(lookup_question(tokens, hashes));
    REQUIRE_MESSAGE(answer, answer.error().what);
    const auto n = lookup_hits(*answer);
    REQUIRE_MESSAGE(n, n.error().what);
    return *n;
  }

  io::Loop& loop;
  Metrics metrics;
  const std::string path =
      "/tmp/mc-lookup-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
  std::unique_ptr<LookupBridge> bridge;
  static inline int serial = 0;
};

TEST_CASE("hits are the leading blocks that are cached here or in the pool") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  Pair one(loop, options, "1"), two(loop, options, "2");
  Bridge at_one(loop, one), at_two(loop, two);
  const auto prompt = prompt_of(100, 1);
  const auto hashes = chain_hashes(prompt, kBlock);
  CHECK(at_one.hits(100, hashes) == 0);
  one.serve("a", prompt);
  REQUIRE(published(one, 6));
  CHECK(at_one.hits(100, hashes) == 6);
  CHECK(at_two.hits(100, hashes) == 6);  // all from the pool
  auto longer = hashes;
  longer.push_back(BlockHash{});
  CHECK(at_two.hits(112, longer) == 6);
  CHECK(at_one.hits(112, {hashes[3], hashes[4], BlockHash{}, hashes[5]}) == 2);
  CHECK(at_one.hits(16, {BlockHash{}}) == 0);
  two.serve("b", prompt);
  CHECK(at_two.hits(100, hashes) == 6);
}

TEST_CASE("F57: a prompt of 20,000 blocks is found whole, and to its first gap") {
  constexpr size_t kBlocks = 20'000, kGap = 18'000, kTogether = 5'000;  // a call has 16,384 keys
  StretchedClock clock;  // a lookup of so many takes long, and a worker waits a second for its pool
  io::Loop loop(clock);
  Store store(loop, 256 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  Pair pair(loop, options, "1");
  Bridge bridge(loop, pair);
  std::vector<BlockHash> hashes(kBlocks);
  Random random(1);
  for (BlockHash& hash : hashes)
    for (auto& byte : hash.bytes) byte = static_cast<uint8_t>(random.below(256));
  store::ClientOptions to;
  to.master = options.master;
  to.timeout = 20s * kSlow;
  auto client = store::AsyncClient::open(loop, *pair.p_xfer, to, pair.p_metrics, 1);
  REQUIRE(client);
  std::byte value{1};
  size_t stored = 0;
  for (size_t at = 0; at < kBlocks; at += kTogether) {
    std::vector<store::PutItem> items;
    for (size_t i = at; i < at + kTogether; ++i)
      items.push_back({pool_key("tiny", hashes[i]), {{&value, 1}}});
    (*client)->put_batch(std::move(items), {},
                         [&](const std::vector<Result<store::PutOutcome>>& ends) {
                           for (const auto& end : ends) stored += end.has_value();
                         });
  }
  REQUIRE(pair.until([&] { return stored == kBlocks; }));
  // A worker that had to wait for its pool says 0: it asks again.
  const auto found = [&] {
    uint64_t hits = 0;
    for (const Time end = clock.now() + 10s * kSlow; hits == 0 && clock.now() < end;)
      hits = bridge.hits(kBlocks * kBlock, hashes);
    return hits;
  };
  CHECK(found() == kBlocks);
  bool removed = false;
  (*client)->remove({pool_key("tiny", hashes[kGap])}, true,
                    [&](const std::vector<Result<>>& ends) { removed = ends[0].has_value(); });
  REQUIRE(pair.until([&] { return removed; }));
  CHECK(found() == kGap);
}

TEST_CASE("the frames are those of the chapter, little-endian") {
  BlockHash hash;
  hash.bytes[0] = 0xab;
  const auto frames = lookup_question(0x0102, {hash});
  REQUIRE(frames.size() == 2);
  CHECK(frames[0] == std::string("\x02\x01\0\0\0\0\0\0", 8));
  CHECK(frames[1] == std::string(1, '\xab') + std::string(31, '\0'));
  CHECK(*lookup_hits(std::string("\x05\0\0\0\0\0\0\0", 8)) == 5);
  CHECK_FALSE(lookup_hits(""));
}

TEST_CASE("hostile questions are refused with an empty answer, and the next one is served") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  Bridge bridge(loop, pair);
  const auto good = lookup_question(64, chain_hashes(prompt_of(64, 1), kBlock));
  const auto refused = [&](std::vector<std::string> question) {
    const auto answer = bridge.ask(question);
    REQUIRE(answer);
    return answer->empty();
  };
  CHECK(refused({""}));
  CHECK(refused({good[0]}));
  CHECK(refused({good[0].substr(1), good[1]}));
  CHECK(refused({good[0] + "x", good[1]}));
  CHECK(refused({good[0], good[1].substr(1)}));
  CHECK(refused({good[0], good[1] + "x"}));
  CHECK(refused({good[0], good[1], ""}));
  CHECK(refused(lookup_question(63, chain_hashes(prompt_of(64, 1), kBlock))));  // of 3 full blocks
  CHECK(refused(lookup_question(UINT64_MAX, std::vector<BlockHash>(65537))));
  CHECK(bridge.hits(64, chain_hashes(prompt_of(64, 1), kBlock)) == 0);
  CHECK(bridge.metrics.counter("mc_engine_lookup_refused_total", "").value() >= 8);
}

TEST_CASE("only the owner can open the socket, and no file is overwritten") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  std::string path;
  {
    const Bridge bridge(loop, pair);
    path = bridge.path;
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
  }
  CHECK(::access(path.c_str(), F_OK) != 0);
  std::FILE* file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  std::fclose(file);
  Metrics metrics;
  const auto opened = LookupBridge::open(loop, path, kBlock, {}, metrics);
  CHECK(opened.error().code == Code::kInvalid);
  CHECK(opened.error().what.find(path) != std::string::npos);
  CHECK(::access(path.c_str(), F_OK) == 0);
  ::unlink(path.c_str());
  CHECK(LookupBridge::open(loop, std::string(200, 'x'), kBlock, {}, metrics).error().code ==
        Code::kInvalid);
}

}  // namespace
}  // namespace lookup_bridge_test
}  // namespace mc::serve
