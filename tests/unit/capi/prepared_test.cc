// Prepared transfers through the C interface.
#include <string>
#include <vector>

#include "capi/mc/transfer.h"
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

constexpr size_t kPart = 1000, kParts = 20;

struct PreparedPair {
  PreparedPair() {
    REQUIRE(mc_engine_open("prepares", nullptr, &engine) == MC_OK);
    REQUIRE(mc_engine_open("offers", nullptr, &owner) == MC_OK);
    REQUIRE(mc_memory_allocate(owner, 2 * kPart * kParts, MC_WRITABLE, &memory) == MC_OK);
    REQUIRE(mc_segment_open(engine, mc_engine_address(owner), 60'000, &segment) == MC_OK);
    for (size_t i = 0; i < kParts; ++i) {
      mc_request r{};
      r.op = MC_READ;
      r.segment = segment;
      r.local = &into[i * kPart];
      r.offset = mc_memory_offset(memory) + (kParts - i) * 2 * kPart - kPart;
      r.bytes = kPart;
      requests.push_back(r);
    }
  }
  ~PreparedPair() {
    mc_memory_free(memory);
    mc_engine_close(engine);
    mc_engine_close(owner);
  }
  PreparedPair(const PreparedPair&) = delete;
  PreparedPair& operator=(const PreparedPair&) = delete;

  void offer(char seed) {
    for (size_t i = 0; i < 2 * kPart * kParts; ++i)
      bytes()[i] = static_cast<char>(seed + static_cast<char>(i / kPart));
  }
  bool arrived() {
    for (size_t i = 0; i < kParts; ++i)
      if (std::memcmp(&into[i * kPart], bytes() + (kParts - i) * 2 * kPart - kPart, kPart) != 0)
        return false;
    return true;
  }
  char* bytes() { return static_cast<char*>(mc_memory_data(memory)); }

  mc_engine *engine = nullptr, *owner = nullptr;
  mc_memory* memory = nullptr;
  mc_segment segment = 0;
  std::vector<char> into = std::vector<char>(kPart * kParts);
  std::vector<mc_request> requests;
};

TEST_CASE("prepared requests are carried out again and again, waited for or in batches") {
  PreparedPair pair;
  CHECK((mc_features() & MC_FEATURE_PREPARED) != 0);
  mc_prepared* prepared = nullptr;
  REQUIRE(mc_prepared_new(pair.engine, pair.requests.data(), kParts, &prepared) == MC_OK);
  pair.requests.clear();  // the array was copied
  for (const char seed : {'a', 'k'}) {
    pair.offer(seed);
    REQUIRE(mc_prepared_run(prepared, 60'000) == MC_OK);
    CHECK(pair.arrived());
  }
  pair.offer('A');
  const mc_batch batch = mc_batch_allocate(pair.engine);
  REQUIRE(mc_prepared_submit(prepared, batch, 0, nullptr, 0) == MC_OK);
  REQUIRE(mc_batch_wait(pair.engine, batch, 60'000) == MC_OK);
  CHECK(pair.arrived());
  mc_status status{};
  REQUIRE(mc_batch_status(pair.engine, batch, kParts - 1, &status) == MC_OK);
  CHECK(status.bytes_done == kPart);
  CHECK(mc_batch_status(pair.engine, batch, kParts, &status) == MC_NOT_FOUND);
  mc_batch_free(pair.engine, batch);

  pair.offer('K');
  mc_queue* queue = nullptr;
  REQUIRE(mc_queue_open(pair.engine, 1, 0, &queue) == MC_OK);
  const mc_batch queued = mc_batch_allocate(pair.engine);
  REQUIRE(mc_prepared_submit(prepared, queued, 60'000, queue, 5) == MC_OK);
  REQUIRE(mc_queue_wait(queue, 60'000) == MC_OK);
  mc_done done{};
  REQUIRE(mc_queue_take(queue, &done, 1) == 1);
  CHECK(done.tag == 5);
  CHECK(done.code == MC_OK);
  CHECK(done.bytes == kPart * kParts);
  CHECK(pair.arrived());
  CHECK(mc_prepared_submit(prepared, 12345, 0, queue, 6) == MC_NOT_FOUND);
  mc_batch_free(pair.engine, queued);
  mc_queue_close(queue);
  mc_prepared_free(prepared);
  mc_prepared_free(nullptr);
}

TEST_CASE("a prepared request has no timeout of its own, and is checked when it is prepared") {
  PreparedPair pair;
  mc_prepared* prepared = nullptr;
  pair.requests[2].timeout_ms = 7;
  CHECK(mc_prepared_new(pair.engine, pair.requests.data(), kParts, &prepared) == MC_INVALID);
  CHECK(std::string(mc_last_error()).find("request 2") != std::string::npos);
  pair.requests[2].timeout_ms = 0;
  pair.requests[2].op = 9;
  CHECK(mc_prepared_new(pair.engine, pair.requests.data(), kParts, &prepared) == MC_INVALID);
  CHECK(prepared == nullptr);
  pair.requests[2].op = MC_READ;
  pair.requests[2].offset = uint64_t{1} << 40;  // its peer may offer that by the time of the run
  REQUIRE(mc_prepared_new(pair.engine, pair.requests.data(), kParts, &prepared) == MC_OK);
  CHECK(mc_prepared_run(prepared, 60'000) == MC_INVALID);
  mc_prepared_free(prepared);
}

}  // namespace
}  // namespace mc::capi
