// The leading blocks of a prompt that the pool holds, of 1,000, by mc_store_match_blocks against
// mc_store_match_prefix with the same keys: p50 and p99 on loopback, for one rank and for eight.

#include "base/hash.h"
#include "base/random.h"
#include "bench/store_pool.h"
#include "capi/mc/store.h"

namespace mc {
namespace {

constexpr size_t kBlocks = 1000, kHash = 32;

struct CloseStore {
  void operator()(mc_store* store) const { mc_store_close(store); }
};
using Store = std::unique_ptr<mc_store, CloseStore>;

Result<> done(mc_code code) {
  if (code == MC_OK) return {};
  return fail(Error{static_cast<Code>(code), mc_last_error()});
}

struct Prompt {
  explicit Prompt(size_t ranks) {
    for (size_t r = 0; r < ranks; ++r)
      names.push_back(strf("vllm:%032zx@tp%zu/%zu@pp0/1@dcp0/1@g0@", size_t{7}, r, ranks));
    for (size_t i = 0; i < kBlocks; ++i)
      for (size_t b = 0; b < kHash; ++b)
        hashes.push_back(static_cast<uint8_t>(mix64(i * kHash + b)));
    for (size_t i = 0; i < kBlocks; ++i)
      for (const std::string& name : names)
        texts.push_back(name + hex({hashes.data() + i * kHash, kHash}));
    for (const std::string& name : names) prefixes.push_back({name.data(), name.size()});
    for (const std::string& text : texts) keys.push_back({text.data(), text.size()});
  }
  std::vector<std::string> names, texts;
  std::vector<uint8_t> hashes;
  std::vector<mc_key> prefixes, keys;
};

Result<> put(mc_store* store, const Prompt& prompt) {
  char value[64] = {};
  const mc_buffer buffer{value, sizeof value};
  std::vector<mc_item> items;
  for (const mc_key& key : prompt.keys) items.push_back({key, &buffer, 1, nullptr, 0});
  std::vector<mc_put_result> results(items.size());
  MC_TRY_(done(mc_store_put_items(store, items.data(), items.size(), nullptr, results.data())));
  for (const mc_put_result& r : results) MC_TRY_(done(static_cast<mc_code>(r.code)));
  return {};
}

// Of a call's times, in microseconds.
Result<bench::Measured> percentile(size_t percent, const Clock& clock, size_t calls, size_t wanted,
                                   const std::function<mc_code(size_t*)>& call) {
  std::vector<double> us;
  for (size_t i = 0; i < calls; ++i) {
    size_t matched = 0;
    const Time start = clock.now();
    MC_TRY_(done(call(&matched)));
    us.push_back(to_seconds(clock.now() - start) * 1e6);
    if (matched != wanted)
      return fail(Code::kInternal, "%zu of %zu blocks matched", matched, wanted);
  }
  std::sort(us.begin(), us.end());
  return bench::Measured(us[us.size() * percent / 100]);
}

Result<int> run(const bench::StoreOptions& o) {
  const SteadyClock clock;
  bench::StorePool pool(o.bin, clock);
  MC_TRY(const std::string address, pool.master("master"));
  MC_TRY(const std::string node, pool.node("n", address, {"--size", "256MiB"}));
  mc_store* opened = nullptr;
  MC_TRY_(done(mc_store_setup("bench", address.c_str(), nullptr, &opened)));
  const Store store(opened);
  const size_t calls = o.quick ? 300 : 2000;
  for (const size_t ranks : {size_t{1}, size_t{8}}) {
    const Prompt prompt(ranks);
    MC_TRY_(put(store.get(), prompt));
    for (const size_t percent : {size_t{50}, size_t{99}}) {
      MC_TRY_(bench::compare(
          {"blocks",
           strf("match 1,000 blocks of %zu rank%s, p%zu", ranks, ranks > 1 ? "s" : "", percent),
           "us", "match_prefix of the same keys", 0, true},
          o.turns(),
          [&] {
            return percentile(percent, clock, calls, kBlocks, [&](size_t* matched) {
              return mc_store_match_blocks(store.get(), prompt.prefixes.data(), ranks,
                                           prompt.hashes.data(), kHash, kBlocks, matched);
            });
          },
          [&] {
            return percentile(percent, clock, calls, kBlocks * ranks, [&](size_t* matched) {
              return mc_store_match_prefix(store.get(), prompt.keys.data(), prompt.keys.size(),
                                           matched);
            });
          }));
    }
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  return mc::bench::store_main(argc, argv, "store_blocks_bench",
                               "how long the pool's blocks of a prompt take to find", mc::run);
}
